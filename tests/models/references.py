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


def clients_in_a_scan(model, params, inputs):
    """Gradients of a client's own parameters at each step, (clients, steps, ...), inside a scan under vmap."""

    def client(params, batches):
        def step(params, batch):
            grads = jax.grad(lambda p: jnp.mean(model.apply({"params": p}, batch) ** 2))(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), grads

        return lax.scan(step, params, batches)[1]

    return jax.jit(jax.vmap(client), compiler_options=QUICK)(params, inputs)


def clients_one_by_one(model, params, inputs):
    """The same gradients, for one client and step after the other."""
    grad = jax.jit(jax.grad(lambda p, batch: jnp.mean(model.apply({"params": p}, batch) ** 2)), compiler_options=QUICK)
    of_clients = []
    for i, batches in enumerate(inputs):
        own, of_steps = jax.tree.map(lambda leaf, i=i: leaf[i], params), []
        for batch in batches:
            of_steps.append(grad(own, batch))
            own = jax.tree.map(lambda p, g: p - 0.1 * g, own, of_steps[-1])
        of_clients.append(jax.tree.map(lambda *leaves: jnp.stack(leaves), *of_steps))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *of_clients)


def assert_runs_for_clients_in_a_scan(model, inputs):
    """Two clients with parameters and data of their own take two steps each; inputs are (clients, steps, batch, ...)."""
    one = random_params(model, inputs[0, 0])
    params = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), one)
    results, wanted = clients_in_a_scan(model, params, inputs), clients_one_by_one(model, params, inputs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9), results, wanted)
    assert min(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(wanted)) > 1e-6


def slow_operations(function, *args):
    """The operations that are slow inside loops on CPUs among those of a function's gradient."""
    slow = ("stablehlo.convolution", "stablehlo.select_and_scatter", "stablehlo.reduce_window")
    text = jax.jit(jax.grad(lambda *a: function(*a).sum())).lower(*args).as_text()
    return [operation for operation in slow if operation in text]


def count(model, *shape):
    """The number of parameters of a model for inputs of that shape."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(shape))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def initial(model, *shape):
    """A model's parameters at the start."""
    return jax.jit(model.init, compiler_options=QUICK)(jax.random.key(0), jnp.zeros(shape))["params"]
