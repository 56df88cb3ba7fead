"""The first-order model of a network, against the Jacobian itself."""

import doctest
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedminimax as fm
from fedminimax import models
from fedminimax.data import ClientData
from fedminimax.errors import InputError
from fedminimax.problems.linearize import Linearized, linearize, tangent_features

module = importlib.import_module("fedminimax.problems.linearize")  # its name is also that of the function

CLASSES = 3


@pytest.fixture(scope="module")
def network():
    """A network in float64, its weights, inputs, and the Jacobian for the flat weights, (inputs, classes, weights)."""
    with jax.enable_x64(True):
        mlp = models.MLP((5, 4), CLASSES)
        inputs = jax.random.normal(jax.random.key(1), (6, 7), jnp.float64)
        params = jax.tree.map(lambda a: a.astype(jnp.float64), jax.jit(mlp.init)(jax.random.key(0), inputs)["params"])
        # biases that are not 0, so that each hidden unit is on for some inputs and off for others
        params = jax.tree.map(lambda a: a + 0.1, params)
        flat, unravel = ravel_pytree(params)
        jacobian = jax.jit(jax.jacobian(lambda w: mlp.apply({"params": unravel(w)}, inputs)))(flat)
        return mlp, params, inputs, np.asarray(jacobian)


def random_like(tree, seed):
    flat, unravel = ravel_pytree(tree)
    return unravel(jnp.asarray(np.random.default_rng(seed).normal(size=flat.shape), flat.dtype))


def value(model, x, inputs):
    return np.asarray(model.apply({"params": x}, inputs))


def start(model, inputs):
    return model.init(jax.random.key(0), inputs)["params"]


@pytest.mark.parametrize("features", [None, 12])
def test_starts_as_the_network(x64, network, features):
    mlp, params, inputs, _ = network
    model = linearize(mlp, params, features=features)
    x = start(model, inputs)
    assert not ravel_pytree(x)[0].any()
    np.testing.assert_allclose(value(model, x, inputs), value(mlp, params, inputs), rtol=1e-14)


@pytest.mark.parametrize("features", [None, 12])
def test_is_affine(x64, network, features):
    mlp, params, inputs, _ = network
    model = linearize(mlp, params, features=features)
    zero = start(model, inputs)
    x, z = random_like(zero, 0), random_like(zero, 1)
    mixed = jax.tree.map(lambda a, b: 50 * a - 3 * b, x, z)
    offset = value(model, zero, inputs)
    expected = 50 * (value(model, x, inputs) - offset) - 3 * (value(model, z, inputs) - offset)
    np.testing.assert_allclose(value(model, mixed, inputs) - offset, expected, rtol=1e-10)
    # which the network is not
    moved = lambda step: value(mlp, jax.tree.map(lambda w, d: w + step * d, params, random_like(params, 0)), inputs)
    assert np.abs(moved(50) - moved(0) - 50 * (moved(1) - moved(0))).max() > 1


def test_slope_is_the_jacobian(x64, network):
    mlp, params, inputs, jacobian = network
    model = linearize(mlp, params)
    x = random_like(params, 2)
    expected = value(mlp, params, inputs) + jacobian @ np.asarray(ravel_pytree(x)[0])
    np.testing.assert_allclose(value(model, x, inputs), expected, rtol=1e-10)


def test_gradient_of_a_squared_loss_is_the_jacobians_transpose_times_the_residual(x64, network):
    mlp, params, inputs, jacobian = network
    model = linearize(mlp, params)
    x = random_like(params, 3)
    target = np.random.default_rng(4).normal(size=(len(inputs), CLASSES))
    gradient = jax.grad(lambda x: 0.5 * jnp.sum((model.apply({"params": x}, inputs) - target) ** 2))(x)
    expected = np.einsum("ncw,nc->w", jacobian, value(model, x, inputs) - target)
    np.testing.assert_allclose(ravel_pytree(gradient)[0], expected, rtol=1e-10, atol=1e-12)


def test_some_features_are_the_full_model_with_the_rest_at_zero(x64, network):
    mlp, params, inputs, jacobian = network
    part, full = linearize(mlp, params, features=15, seed=7), linearize(mlp, params)
    x = random_like(start(part, inputs), 5)
    assert x.shape == (15,)
    assert len(np.unique(part.coordinates)) == 15
    flat, unravel = ravel_pytree(params)
    embedded = unravel(jnp.zeros_like(flat).at[part.coordinates].set(x))
    np.testing.assert_allclose(value(part, x, inputs), value(full, embedded, inputs), rtol=1e-12)
    expected = value(mlp, params, inputs) + jacobian[..., part.coordinates] @ np.asarray(x)
    np.testing.assert_allclose(value(part, x, inputs), expected, rtol=1e-10)


def test_choice_of_features_is_that_of_the_seed(network):
    mlp, params, _, jacobian = network
    weights = jacobian.shape[-1]
    chosen = [linearize(mlp, params, features=20, seed=seed).coordinates for seed in (0, 0, 1)]
    assert np.array_equal(chosen[0], chosen[1])
    assert not np.array_equal(chosen[0], chosen[2])
    assert np.array_equal(linearize(mlp, params, features=weights).coordinates, np.arange(weights))


@pytest.mark.parametrize("features", [1, 2, 5, 9])
def test_choice_may_pass_over_whole_arrays(features):
    tree = {"a": np.float32([[1, 2], [3, 4]]), "b": np.float32(5), "c": np.float32([6, 7, 8, 9])}
    coordinates = module._coordinates(module._weights(tree), features, 0)
    gathered = module._gather(module._weights(tree), coordinates)
    assert np.array_equal(gathered, coordinates + 1)  # entry k of the flat weights is k + 1
    scattered = module._scatter(gathered, module._weights(tree), coordinates)
    expected = np.where(np.isin(np.arange(9), coordinates), np.arange(1, 10), 0)
    assert np.array_equal(ravel_pytree(scattered)[0], expected)
    assert jax.tree.map(np.shape, scattered) == jax.tree.map(np.shape, tree)


def test_any_function_of_weights_and_inputs_will_do():
    w = {"a": np.float32([[1.0, 2.0]]), "b": np.float32(3.0)}
    model = linearize(lambda w, inputs: w["b"] * inputs @ w["a"], w)
    inputs = np.float32([[2.0], [-1.0]])
    x = {"a": jnp.asarray([[10.0, 0.0]]), "b": jnp.asarray(0.5)}
    # b input a, and then b input da + db input a
    np.testing.assert_allclose(value(model, x, inputs), [[6 + 60 + 1, 12 + 2], [-3 - 30 - 0.5, -6 - 1]], rtol=1e-6)


def test_convolutional_network_inside_jit():
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 1))
    cnn = models.CNN(2)
    params = jax.jit(cnn.init)(jax.random.key(1), images)["params"]
    x = jax.tree.map(lambda a: 0.01 * a, random_like(params, 0))
    model = linearize(cnn, params)
    apply = jax.jit(lambda x: model.apply({"params": x}, images))
    score = jax.jit(lambda w: cnn.apply({"params": w}, images))
    np.testing.assert_allclose(apply(start(model, images)), score(params), atol=1e-6)
    # forward differentiation agrees with reverse differentiation, which is another path through the convolutions
    gradients = jax.jit(jax.jacrev(lambda w: cnn.apply({"params": w}, images).sum(axis=0)))(params)
    products = jax.tree.map(lambda g, d: jnp.tensordot(g, d, d.ndim), gradients, x)
    expected = sum(jax.tree.leaves(products))
    assert np.abs(expected).min() > 1e-3
    np.testing.assert_allclose((apply(x) - score(params)).sum(axis=0), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("features", [None, 12])
def test_inside_jit_and_vmap_over_clients(x64, network, features):
    mlp, params, inputs, _ = network
    model = linearize(mlp, params, features=features)
    hash(model)  # what jit asks of a static argument
    xs = [random_like(start(model, inputs), seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *xs)
    batches = jnp.stack([inputs, inputs[::-1], -inputs])
    clients = jax.jit(jax.vmap(lambda x, batch: model.apply({"params": x}, batch)))
    for got, x, batch in zip(clients(stacked, batches), xs, batches, strict=True):
        np.testing.assert_allclose(got, value(model, x, batch), rtol=1e-10)


@pytest.mark.parametrize("features", [None, 25])
def test_stands_where_a_network_does(features):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, 60).astype(np.int32)
    fields = {"inputs": (rng.normal(size=(60, 4)) + 2 * labels[:, None]).astype(np.float32), "labels": labels}
    clients = ClientData.from_owner(fields, np.repeat([0, 1, 2], 20))
    mlp = models.MLP((8,), CLASSES)
    params = mlp.init(jax.random.key(0), fields["inputs"])["params"]
    model = linearize(mlp, params, features=features)
    assert isinstance(model, Linearized)
    problem = fm.problems.fair_classification(model, clients, CLASSES)
    method = fm.LocalSGDA(lr_x=0.02, lr_y=0.01, local_steps=3, batch_size=10)
    result = fm.run(problem, clients, method, rounds=20, metrics=fm.metrics.Value(), eval_every=20, progress=False)
    values = result.history["value"]
    assert values[-1] < 0.8 * values[0]


def test_tangent_features_are_rows_of_the_jacobian(x64, network):
    mlp, params, inputs, jacobian = network
    found = tangent_features(mlp, params, inputs, features=15, seed=7, batch_size=4)  # 6 inputs: a short last batch
    direction = module._direction(CLASSES, 7)
    assert np.linalg.norm(direction) == pytest.approx(1)
    coordinates = linearize(mlp, params, features=15, seed=7).coordinates
    assert found.shape == (6, 15)
    np.testing.assert_allclose(found, np.einsum("c,ncw->nw", direction, jacobian)[:, coordinates], rtol=1e-10, atol=1e-14)
    again = tangent_features(mlp, params, inputs, features=15, seed=7)
    np.testing.assert_allclose(again, found, rtol=1e-12, atol=1e-15)
    assert not np.allclose(tangent_features(mlp, params, inputs, features=15, seed=8), found)


def test_tangent_features_of_a_single_output_are_its_gradient():
    w = np.float32([[2.0], [5.0]])
    inputs = np.float32([[1.0, 2.0], [3.0, 4.0]])
    for seed in (0, 4):  # a direction drawn with these would have either sign
        found = tangent_features(lambda w, inputs: (inputs @ w) ** 2, w, inputs, features=2, seed=seed)
        np.testing.assert_allclose(found, 2 * (inputs @ w) * inputs, rtol=1e-6)
        assert found.dtype == np.float32


def test_example_in_the_docstring():
    (example,) = doctest.DocTestFinder(recurse=False).find(linearize, "linearize", globs={"linearize": linearize})
    outcome = doctest.DocTestRunner().run(example)
    assert outcome.attempted > 3
    assert outcome.failed == 0


MLP = models.MLP((2,), 2)
WEIGHTS = {"w": np.ones((3, 2), np.float32)}
LINEAR = lambda w, inputs: inputs @ w["w"]
INPUTS = np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linearize(LINEAR, WEIGHTS, features=0), "features is 0"),
        (lambda: linearize(LINEAR, WEIGHTS, features=7), "features is 7 and the network has 6 weights"),
        (lambda: linearize(LINEAR, WEIGHTS, features=2.5), "features is 2.5"),
        (lambda: linearize(LINEAR, WEIGHTS, features=2, seed=-1), "seed is -1"),
        (lambda: linearize("mlp", WEIGHTS), "model is a str"),
        (lambda: linearize(MLP, MLP.init(jax.random.key(0), INPUTS)), 'params has an entry "params"'),
        (lambda: linearize(LINEAR, {"w": np.ones((3, 2), int)}), "params must be arrays of floats"),
        (lambda: linearize(LINEAR, {}), "params must be arrays of floats"),
        (lambda: tangent_features(LINEAR, WEIGHTS, INPUTS, features=7), "features is 7"),
        (lambda: tangent_features(LINEAR, WEIGHTS, INPUTS, features=2, batch_size=0), "batch_size is 0"),
        (lambda: tangent_features(LINEAR, WEIGHTS, INPUTS[:0], features=2), "inputs must be arrays"),
        (lambda: tangent_features(lambda w, i: (i @ w["w"])[:, 0], WEIGHTS, INPUTS, features=2), "returns shape (1,)"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
    assert str(error.value).endswith(".")
