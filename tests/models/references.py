"""What the tests of the models share: arrays, comparisons with a reference, and references in XLA's own operations."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax

NHWC = ("NHWC", "HWIO", "NHWC")

# Each program here runs once, on small arrays: what takes the time is to optimise it.
QUICK = {"xla_backend_optimization_level": 0}


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def random_params(model, inputs):
    """Parameters of the model's shapes, biases not zero; drawn here, since compiling Flax's initialisers takes longer."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), inputs)["params"]
    return jax.tree.map(lambda leaf: normal(*leaf.shape, seed=leaf.size) / np.sqrt(leaf.size / leaf.shape[-1]), shapes)


def value_and_grads(function, *args):
    """The value, and the gradients of a weighted sum of its entries with respect to each argument."""
    out, pull = jax.vjp(function, *args)
    return out, *pull(normal(*out.shape, seed=9).astype(out.dtype))


def assert_same(function, reference, *args, tolerance=1e-10):
    both = lambda *a: [value_and_grads(f, *a) for f in (function, reference)]
    results, expected = jax.jit(both, compiler_options=QUICK)(*args)
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape
        assert result.dtype == wanted.dtype
        assert jnp.max(jnp.abs(wanted)) > 0.1
        np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance)


def native_pool(images, window=2):
    return nn.max_pool(images, (window, window), (window, window))


def native_conv(images, layer, padding, stride=1):
    out = lax.conv_general_dilated(images, layer["kernel"], (stride, stride), padding, dimension_numbers=NHWC)
    return out + layer.get("bias", 0)


def dense(inputs, layer):
    return inputs @ layer["kernel"] + layer.get("bias", 0)


def assert_same_outputs(model, reference, inputs):
    """Compare a model with a reference, a function of parameters and inputs."""
    params = random_params(model, inputs)
    both = lambda params: (model.apply({"params": params}, inputs), reference(params, inputs))
    result, wanted = jax.jit(both, compiler_options=QUICK)(params)
    assert result.shape == wanted.shape
    assert jnp.max(jnp.abs(wanted)) > 1e-3
    np.testing.assert_allclose(result, wanted, rtol=1e-9, atol=1e-10)


def assert_same_training(model, reference, inputs):
    """Compare the gradients along two SGD steps of two clients, in a scan under vmap, with the reference's, one by one.

    Each client has parameters and data of its own; inputs are (clients, steps, batch, ...). On CPUs, none of the operations
    that are slow in loops is used.
    """

    def loss(function):
        return lambda params, batch: jnp.mean(jnp.sin(function(params, batch)))

    def descend(params, grads):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    def client(params, batches):
        def step(params, batch):
            grads = jax.grad(loss(lambda p, x: model.apply({"params": p}, x)))(params, batch)
            return descend(params, grads), grads

        return lax.scan(step, params, batches)[1]

    one = random_params(model, inputs[0, 0])
    starts = [one, jax.tree.map(lambda leaf: 0.5 * leaf, one)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
    program = jax.jit(jax.vmap(client)).lower(stacked, inputs)
    assert jax.default_backend() != "cpu" or slow_operations(program) == []
    results = program.compile(QUICK)(stacked, inputs)

    gradient = jax.jit(jax.grad(loss(reference)), compiler_options=QUICK)
    for i, params in enumerate(starts):
        for step, batch in enumerate(inputs[i]):
            wanted = gradient(params, batch)
            result = jax.tree.map(lambda leaf, at=(i, step): leaf[at], results)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-10), result, wanted)
            assert min(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(wanted)) > 1e-6
            params = descend(params, wanted)


def slow_operations(program):
    """Those operations of a lowered program that are slow inside loops on CPUs."""
    slow = ("stablehlo.convolution", "stablehlo.select_and_scatter", "stablehlo.reduce_window")
    text = program.as_text()
    return [operation for operation in slow if operation in text]


def count(model, *shape):
    """The number of parameters of a model for inputs of that shape."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(shape))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def initial(model, *shape):
    """A model's parameters at the start."""
    return jax.jit(model.init, compiler_options=QUICK)(jax.random.key(0), jnp.zeros(shape))["params"]
