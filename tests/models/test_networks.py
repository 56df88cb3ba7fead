"""The classifiers against their formulas, written in XLA's own operations."""

import functools
import inspect
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import relu
from references import (
    QUICK,
    assert_same_outputs,
    assert_same_training,
    count,
    dense,
    initial,
    native_conv,
    native_pool,
    normal,
    random_params,
    slow_operations,
)

from fedminimax import models
from fedminimax.errors import InputError
from fedminimax.models.layers import INITIALIZERS, Shifted, shifted
from fedminimax.models.networks import ResidualBlock

# what is particular to ResNet18, which takes long to compile
BLOCK = ResidualBlock(features=4, stride=2, groups=2, initializer="pytorch")


def mlp(params, inputs):
    """Dense layers with ReLU between them, on the flattened inputs."""
    x, last = inputs.reshape(len(inputs), -1), len(params) - 1
    for i in range(last):
        x = relu(dense(x, params[f"Dense_{i}"]))
    return dense(x, params[f"Dense_{last}"])


def cnn_in_the_papers_order(params, images):
    """Convolution, bias, ReLU, pooling, three times, then three dense layers, with XLA's own operations."""
    x = images
    for i in range(3):
        x = native_pool(relu(native_conv(x, params[f"ConvPool_{i}"], [(1, 1), (1, 1)])))
    return mlp(params["MLP_0"], x)


def lenet5_in_the_papers_order(params, images):
    x = images
    for i in range(2):
        x = native_pool(relu(native_conv(x, params[f"ConvPool_{i}"], "VALID")))
    return mlp(params["MLP_0"], x)


def tutorial_cnn_in_order(params, images):
    x = images
    for i in range(2):
        x = native_pool(relu(native_conv(x, params[f"ConvPool_{i}"], "VALID")))
    return mlp(params["MLP_0"], relu(native_conv(x, params["Conv_0"], "VALID")))


def vgg11_in_the_papers_order(params, images):
    """Convolutions with padding 1 and ReLU, and poolings (M): 64 M 128 M 256 256 M 512 512 M 512 512 M."""
    x = images
    program = ["ConvPool_0", "M", "ConvPool_1", "M", "Conv_0", "ConvPool_2", "M", "Conv_1", "ConvPool_3", "M"]
    for layer in [*program, "Conv_2", "ConvPool_4", "M"]:
        x = native_pool(x) if layer == "M" else relu(native_conv(x, params[layer], [(1, 1), (1, 1)]))
    return mlp({"Dense_0": params["Dense_0"]}, x)


def norm_conv(x, params, i, stride):
    """A convolution that keeps the size but for its stride, and the normalisation of two groups of features."""
    pad = params[f"Conv_{i}"]["kernel"].shape[0] // 2
    x = native_conv(x, params[f"Conv_{i}"], [(pad, pad)] * 2, stride)
    groups, norm = x.reshape(*x.shape[:3], 2, -1), params[f"GroupNorm_{i}"]
    mean, variance = (statistic(groups, axis=(1, 2, 4), keepdims=True) for statistic in (jnp.mean, jnp.var))
    return ((groups - mean) / jnp.sqrt(variance + 1e-5)).reshape(x.shape) * norm["scale"] + norm["bias"]


def block_in_the_papers_order(params, x, stride=2):
    out = norm_conv(relu(norm_conv(x, params, 0, stride)), params, 1, 1)
    return relu(out + (x if stride == 1 else norm_conv(x, params, 2, stride)))


def resnet18_in_the_papers_order(params, images):
    x = relu(norm_conv(images, params, 0, 1))
    for i, stride in enumerate((1, 1, 2, 1, 2, 1, 2, 1)):
        x = block_in_the_papers_order(params[f"ResidualBlock_{i}"], x, stride)
    return dense(x.mean((1, 2)), params["Dense_0"])


@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1)], ids=["CIFAR-10", "MNIST"])
def test_cnn_is_the_papers(x64, shape):
    images = normal(4, *shape)
    params = random_params(models.CNN(), images)
    ours = lambda params: jnp.sum(models.CNN().apply({"params": params}, images) ** 2)
    reference = lambda params: jnp.sum(cnn_in_the_papers_order(params, images) ** 2)
    both = lambda params: [jax.value_and_grad(f)(params) for f in (ours, reference)]
    (value, grads), (wanted, wanted_grads) = jax.jit(both, compiler_options=QUICK)(params)
    np.testing.assert_allclose(value, wanted, rtol=1e-10)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10), grads, wanted_grads)
    assert min(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(wanted_grads)) > 1e-3


@pytest.mark.parametrize(
    ("model", "reference", "shape"),
    [
        (models.LeNet5(), lenet5_in_the_papers_order, (28, 28, 1)),
        (models.TutorialCNN(), tutorial_cnn_in_order, (18, 20, 3)),
        (models.VGG11(), vgg11_in_the_papers_order, (32, 32, 3)),
        (models.ResNet18(width=4, groups=2), resnet18_in_the_papers_order, (9, 16, 3)),
    ],
    ids=["LeNet5", "TutorialCNN", "VGG11", "ResNet18"],
)
def test_networks_are_the_papers(x64, model, reference, shape):
    assert_same_outputs(model, reference, normal(2, *shape))


@pytest.mark.parametrize(
    ("model", "reference", "shape"),
    [(models.LeNet5(2), lenet5_in_the_papers_order, (16, 16, 1)), (BLOCK, block_in_the_papers_order, (6, 6, 1))],
    ids=["LeNet5", "ResidualBlock"],
)
def test_networks_train_for_clients_in_a_scan(x64, model, reference, shape):
    assert_same_training(model, reference, normal(2, 2, 3, *shape))


def conv_size(window, channels, features, bias=True):
    return window * window * channels * features + bias * features


def dense_size(*widths):
    return sum((before + 1) * after for before, after in pairwise(widths))


def resnet18_size(w, channels, classes):
    def block(before, after):
        size = conv_size(3, before, after, bias=False) + conv_size(3, after, after, bias=False) + 2 * (2 * after)
        return size + (before != after) * (before * after + 2 * after)

    stem = conv_size(3, channels, w, bias=False) + 2 * w
    stages = [(w, w), (w, w), (w, 2 * w), (2 * w, 2 * w), (2 * w, 4 * w), (4 * w, 4 * w), (4 * w, 8 * w), (8 * w, 8 * w)]
    return stem + sum(block(*pair) for pair in stages) + dense_size(8 * w, classes)


@pytest.mark.parametrize(
    ("model", "shape", "size"),
    [
        (models.CNN(), (32, 32, 3), 581_866),
        (models.CNN(), (28, 28, 1), 352_202),
        # 28 -> 24 -> 12 -> 8 -> 4 pixels
        (models.LeNet5(), (28, 28, 1), conv_size(5, 1, 6) + conv_size(5, 6, 16) + dense_size(4 * 4 * 16, 120, 84, 10)),
        (models.LeNet5(), (28, 28, 1), 44_426),
        # 32 -> 30 -> 15 -> 13 -> 6 -> 4 pixels; the tutorial prints 122,570
        (models.TutorialCNN(), (32, 32, 3), 896 + 18_496 + 36_928 + 65_600 + 650),
        (models.TutorialCNN(), (32, 32, 3), 122_570),
        # the convolutions of the published VGG-11 have 9,220,480
        (models.VGG11(), (32, 32, 3), 9_220_480 + 512 * 10 + 10),
        (models.ResNet18(width=16), (32, 32, 3), resnet18_size(16, 3, 10)),
        (models.ResNet18(classes=100), (32, 32, 3), resnet18_size(64, 3, 100)),
        (models.ResNet18(), (32, 32, 3), 11_173_962),
    ],
)
def test_number_of_parameters(model, shape, size):
    assert count(model, 2, *shape) == size


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the matrix products are for CPUs")
def test_cnn_trains_without_the_slow_operations():
    images = normal(4, 32, 32, 3).astype(jnp.float32)
    params = random_params(models.CNN(), images)

    def used(function):
        return slow_operations(jax.jit(jax.grad(lambda p: function(p, images).sum())).lower(params))

    slow = ["stablehlo.convolution", "stablehlo.select_and_scatter", "stablehlo.reduce_window"]
    assert used(cnn_in_the_papers_order) == slow
    assert used(lambda params, x: models.CNN().apply({"params": params}, x)) == []


def test_last_relu_cuts_the_outputs_at_zero(x64):
    images = normal(5, 16, 16, 1)
    params = random_params(models.LeNet5(), images)
    apply = lambda params: [models.LeNet5(last_relu=last).apply({"params": params}, images) for last in (False, True)]
    logits, cut = jax.jit(apply, compiler_options=QUICK)(params)
    assert jnp.min(logits) < 0 < jnp.max(logits)
    np.testing.assert_allclose(cut, jnp.maximum(logits, 0), rtol=1e-12)


def test_logistic_is_linear(x64):
    inputs = normal(6, 4, 4, 1)
    params = random_params(models.Logistic(classes=3), inputs)
    dense = params["Dense_0"]
    assert dense["kernel"].shape == (16, 3)
    expected = inputs.reshape(6, 16) @ dense["kernel"] + dense["bias"]
    np.testing.assert_allclose(models.Logistic(classes=3).apply({"params": params}, inputs), expected, rtol=1e-12)


def test_mlp_has_relu_between_its_layers(x64):
    inputs = normal(6, 8)
    model = models.MLP(hidden=(5, 7), classes=3)
    params = random_params(model, inputs)
    assert [params[f"Dense_{i}"]["kernel"].shape for i in range(3)] == [(8, 5), (5, 7), (7, 3)]
    x = inputs
    for i in range(3):
        x = x @ params[f"Dense_{i}"]["kernel"] + params[f"Dense_{i}"]["bias"]
        x = jnp.maximum(x, 0) if i < 2 else x
    np.testing.assert_allclose(model.apply({"params": params}, inputs), x, rtol=1e-12)


SHIFTED = [models.Logistic(5), models.MLP((7, 6), 5)]


@pytest.mark.parametrize("model", SHIFTED, ids=lambda model: type(model).__name__)
def test_a_shift_kept_apart_is_the_shift_added(x64, model):
    examples, shift = normal(6, 4, 3), normal(4, 3, seed=1)
    point = (random_params(model, examples), examples, shift)
    along = jax.tree.map(lambda a: normal(*a.shape, seed=2), point)

    @functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
    def forth_and_back(inputs, point):
        apply = lambda params, examples, shift: model.apply({"params": params}, inputs(examples, shift))
        out, slope = jax.jvp(apply, point, along)
        return out, slope, jax.vjp(apply, *point)[1](slope)

    apart = forth_and_back(lambda examples, shift: shifted(model, examples, shift), point)
    added = forth_and_back(lambda examples, shift: examples + shift, point)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), apart, added)


@pytest.mark.parametrize("model", SHIFTED, ids=lambda model: type(model).__name__)
def test_the_gradient_of_a_shift_is_one_examples_work(model):
    examples, shift = jnp.ones((6, 4, 3)), jnp.zeros((4, 3))
    params = random_params(model, examples)

    def products(inputs):
        total = lambda params, shift: jnp.sum(model.apply({"params": params}, inputs(examples, shift)) ** 2)
        program = jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(params, shift)
        return [e.outvars[0].aval.shape for e in program.eqns if e.primitive.name == "dot_general"]

    assert (6, 12) in products(lambda examples, shift: examples + shift)
    assert (6, 12) not in products(Shifted)
    assert (12,) in products(Shifted)


def test_only_models_that_ask_get_a_shift_apart():
    examples, shift = jnp.ones((2, 8, 8, 1)), jnp.ones((8, 8, 1))
    assert isinstance(shifted(models.MLP(), examples, shift), Shifted)
    np.testing.assert_array_equal(shifted(models.CNN(), examples, shift), 2.0)

    class Halved(models.MLP):
        """What a subclass does with its inputs first is its own affair."""

    np.testing.assert_array_equal(shifted(Halved(), examples, shift), 2.0)


@pytest.mark.parametrize("name", models.MODELS)
def test_registry(name):
    model = models.MODELS[name](classes=7)
    logits, variables = jax.eval_shape(model.init_with_output, jax.random.key(0), jnp.ones((2, 32, 32, 3)))
    assert logits.shape == (2, 7)
    assert logits.dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))
    first = inspect.getdoc(models.MODELS[name]).splitlines()[0]
    assert first.endswith(".")
    assert not first.startswith(type(model).__name__ + "(")  # a description, not the signature that dataclasses add


def test_initializers():
    draw = lambda initializer: np.asarray(initializer(jax.random.key(0), (60, 50)))
    kernel, bias = (draw(initializer) for initializer in INITIALIZERS["lecun"](60))
    assert np.std(kernel) == pytest.approx(1 / np.sqrt(60), rel=0.05)
    assert np.all(bias == 0)
    for array in (draw(initializer) for initializer in INITIALIZERS["pytorch"](25)):
        assert 0.199 < np.max(array) <= 0.2
        assert -0.199 > np.min(array) >= -0.2
        assert np.mean(array) == pytest.approx(0, abs=0.01)
        assert np.std(array) == pytest.approx(0.2 / np.sqrt(3), rel=0.05)
    kernel, bias = (draw(initializer) for initializer in INITIALIZERS["dcgan"](60))
    assert np.std(kernel) == pytest.approx(0.02, rel=0.05)
    assert np.max(np.abs(kernel)) > 3 * 0.02  # not cut off
    assert np.all(bias == 0)
    kernel, bias = (draw(initializer) for initializer in INITIALIZERS["xavier"](60))
    assert 0.99 < np.max(np.abs(kernel)) / np.sqrt(6 / (60 + 50)) <= 1
    assert np.std(kernel) == pytest.approx(np.sqrt(2 / (60 + 50)), rel=0.05)
    assert np.all(bias == 0)


def test_initial_parameters():
    params = initial(models.ConvPool(16), 1, 8, 8, 3)
    assert jnp.std(params["kernel"]) == pytest.approx(1 / np.sqrt(27), rel=0.1)  # LeCun's: variance 1 / (3 * 3 * 3)
    assert jnp.all(params["bias"] == 0)


@pytest.mark.parametrize(
    "model",
    [models.MLP((3,)), models.LeNet5(), models.TutorialCNN(), models.VGG11(), models.ResNet18(width=8)],
    ids=lambda model: type(model).__name__,
)
def test_every_layer_starts_as_asked(model, monkeypatch):
    constant = jax.nn.initializers.constant
    monkeypatch.setitem(INITIALIZERS, "asked", lambda fan_in: (constant(fan_in), constant(-fan_in)))
    params = initial(model.clone(initializer="asked"), 1, 32, 32, 1)
    is_layer = lambda node: isinstance(node, dict) and "kernel" in node
    layers = [node for node in jax.tree.leaves(params, is_leaf=is_layer) if is_layer(node)]
    assert (
        len(layers)
        == {models.MLP: 2, models.LeNet5: 5, models.TutorialCNN: 5, models.VGG11: 9, models.ResNet18: 21}[type(model)]
    )
    for layer in layers:
        fan_in = layer["kernel"].size / layer["kernel"].shape[-1]
        assert jnp.all(layer["kernel"] == fan_in)
        assert jnp.all(layer.get("bias", -fan_in) == -fan_in)


@pytest.mark.parametrize("model", [models.MLP, models.LeNet5, models.TutorialCNN, models.VGG11, models.ResNet18])
def test_networks_start_alike_unless_asked(model):
    assert model().initializer == "lecun"


def test_what_a_deep_network_says_depends_on_the_image_from_the_start():
    """PyTorch's initialisation leaves 1e-4 of the images' differences after VGG-11's nine layers: too little to train on."""
    images, model = normal(4, 32, 32, 3).astype(jnp.float32), models.VGG11()
    start = lambda key: model.init_with_output(key, images)[0]
    logits = jax.jit(start, compiler_options=QUICK)(jax.random.key(0))
    assert jnp.mean(jnp.std(logits, axis=0)) > 2e-3


def test_cnn_takes_bytes():
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1), np.uint8)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), random_params(models.CNN(), jnp.asarray(images)))
    apply = jax.jit(lambda x: models.CNN().apply({"params": params}, x), compiler_options=QUICK)
    result = apply(images)
    np.testing.assert_allclose(result, apply(images.astype(np.float32)), rtol=1e-6)
    assert jnp.max(jnp.abs(result)) > 1


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (models.CNN(), (2, 784), "not (2, 784)"),
        (models.CNN(), (2, 7, 28, 1), "not (2, 7, 28, 1)"),
        (models.LeNet5(), (2, 784), "not (2, 784)"),
        (
            models.LeNet5(),
            (2, 28, 15, 1),
            "LeNet5 takes images of shape (batch, height, width, channels) of at least 16 x 16 pixels",
        ),
        (models.TutorialCNN(), (2, 17, 32, 3), "not (2, 17, 32, 3)"),
        (models.VGG11(), (2, 28, 28, 1), "at least 32 x 32 pixels, not (2, 28, 28, 1)"),
        (models.ResNet18(), (2, 7, 8, 3), "not (2, 7, 8, 3)"),
        (models.ResNet18(width=12), (2, 8, 8, 3), "width 12 and 8 groups"),
        (models.Logistic(), (784,), "not (784,)"),
        (models.MLP(), (), "not ()"),
        (models.MLP(initializer="torch"), (2, 4), "initializer is 'torch': choose one of 'lecun', 'pytorch', 'dcgan'"),
        (models.LeNet5(initializer=""), (2, 28, 28, 1), "initializer is ''"),
    ],
)
def test_wrong_inputs_are_named(model, shape, message):
    with pytest.raises(InputError) as error:
        model.init(jax.random.key(0), jnp.zeros(shape))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("model", "side"), [(models.CNN(), 8), (models.LeNet5(), 16), (models.TutorialCNN(), 18), (models.VGG11(), 32)]
)
def test_the_least_size_of_images_is_the_least_that_works(model, side):
    assert count(model, 1, side, side, 1) > 0
    kernels = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, side, side, 1)))["params"]
    first = kernels.get("MLP_0", kernels)["Dense_0"]["kernel"].shape[0]
    last_features = {models.CNN: 64, models.LeNet5: 16, models.TutorialCNN: 64, models.VGG11: 512}[type(model)]
    assert first == last_features  # a single pixel is left
