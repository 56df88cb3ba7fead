"""The workloads: their sizes, their data and where the players start.

NumPy only, so that every contender can import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

CLASSES = 10
ROBUST_PENALTY = 1.0
"""lambda in the loss of B and G: cross-entropy(x, a + y) - lambda / 2 ||y||^2."""
GAN_PENALTY = 0.001
"""lambda in D's loss."""
RHO, SIGMA = 0.1, 0.1
"""E's chi-square penalty, and the step of its weights."""

Layers = list[tuple[np.ndarray, np.ndarray]]
"""Kernel ([height, width,] inputs, outputs) and bias of each layer."""


@dataclass(frozen=True)
class Workload:
    """One federation, the same for every contender.

    Attributes:
        name: its letter.
        title: what it is.
        clients: N.
        cohort: S, the clients of a round (CD-MAGE: of each of its two phases).
        steps: K, the local steps.
        batch: B, the examples of a step.
        examples: how many each client has.
        lr_x: the step size of the min player.
        lr_y: the step size of the max player.
        side_by_side: whether clients are faster vectorised than one after another (the floor's layout).
        check_rounds: after how many rounds the contenders' losses are compared.
        smoothing: FESS-GDA's (p, beta); None for other methods.
        guided: whether the method is CD-MAGE.
        shape: of one input.
        layers: shapes of the kernels of x, in the network's order.
        modules: what Flax calls each layer, where its order is another; normalisations that follow start at 1 and 0.
        unpooled: the convolutions that no pooling follows, by their place in ``layers``.
    """

    name: str
    title: str
    clients: int
    cohort: int
    steps: int
    batch: int
    examples: int
    lr_x: float
    lr_y: float
    side_by_side: bool
    check_rounds: int
    smoothing: tuple[float, float] | None = None
    guided: bool = False
    shape: tuple[int, ...] = ()
    layers: tuple[tuple[int, ...], ...] = ()
    modules: tuple[str, ...] = ()
    unpooled: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """The examples of all clients together."""
        return self.clients * self.examples

    @cached_property
    def positive(self) -> float:
        """The share of examples whose label is above zero: tau in F's loss."""
        return float(np.mean(self.data()["labels"] > 0))

    def data(self) -> dict[str, np.ndarray]:
        """Return all clients' examples, client after client: random inputs, labelled by a random linear map.

        F tells the first class, about a tenth of the examples, from all others.
        """
        rng = np.random.default_rng(0)
        if self.name == "D":
            return {"z": rng.normal(size=self.total).astype(np.float32)}
        inputs = rng.standard_normal((self.total, *self.shape), np.float32) * np.float32(0.3)
        flat = inputs.reshape(self.total, -1)
        scores = flat @ rng.standard_normal((flat.shape[1], CLASSES), np.float32)
        labels = scores.argmax(axis=1)
        return {"inputs": inputs, "labels": (labels == 0 if self.name == "F" else labels).astype(np.int32)}

    def start_layers(self) -> Layers:
        """Return where the layers of x start: normal entries of variance 1 / fan-in, and zeros."""
        rng = np.random.default_rng(1)
        kernels = [rng.standard_normal(s, np.float32) / np.float32(np.sqrt(np.prod(s[:-1]))) for s in self.layers]
        return [(kernel, np.zeros(kernel.shape[-1], np.float32)) for kernel in kernels]


def _residual() -> dict[str, tuple[int, ...]]:
    """Return the kernels of a ResNet-18 of width 64, by module, in the network's order."""
    kernels: dict[str, tuple[int, ...]] = {"Conv_0": (3, 3, 3, 64)}
    channels = 64
    for block in range(8):
        features = 64 * 2 ** (block // 2)
        kernels[f"ResidualBlock_{block}/Conv_0"] = (3, 3, channels, features)
        kernels[f"ResidualBlock_{block}/Conv_1"] = (3, 3, features, features)
        if channels != features:
            kernels[f"ResidualBlock_{block}/Conv_2"] = (1, 1, channels, features)
        channels = features
    return {**kernels, "Dense_0": (channels, CLASSES)}


_VGG = (
    ("ConvPool_0", (3, 3, 3, 64)),
    ("ConvPool_1", (3, 3, 64, 128)),
    ("Conv_0", (3, 3, 128, 256)),
    ("ConvPool_2", (3, 3, 256, 256)),
    ("Conv_1", (3, 3, 256, 512)),
    ("ConvPool_3", (3, 3, 512, 512)),
    ("Conv_2", (3, 3, 512, 512)),
    ("ConvPool_4", (3, 3, 512, 512)),
    ("Dense_0", (512, CLASSES)),
)

WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            name="A",
            title="logistic regression 784-10 against class weights, Local SGDA",
            clients=1000,
            cohort=10,
            steps=6,
            batch=10,
            examples=60,
            lr_x=0.05,
            lr_y=0.01,
            side_by_side=True,
            check_rounds=200,
            shape=(784,),
            layers=((784, 10),),
        ),
        Workload(
            name="B",
            title="MLP 784-200-200-10 against a shared perturbation, Local SGDA",
            clients=100,
            cohort=10,
            steps=12,
            batch=10,
            examples=600,
            lr_x=0.05,
            lr_y=0.05,
            side_by_side=False,
            check_rounds=20,
            shape=(784,),
            layers=((784, 200), (200, 200), (200, 10)),
        ),
        Workload(
            name="C",
            title="CNN of fess-gda Table 3 on 32x32x3 against class weights, FESS-GDA",
            clients=10,
            cohort=10,
            steps=5,
            batch=100,
            examples=500,
            lr_x=0.02,
            lr_y=0.01,
            side_by_side=False,
            check_rounds=1,
            smoothing=(1.0, 0.9),
            shape=(32, 32, 3),
            layers=((3, 3, 3, 16), (3, 3, 16, 32), (3, 3, 32, 64), (1024, 512), (512, 64), (64, 10)),
        ),
        Workload(
            name="D",
            title="1-D WGAN, FESS-GDA",
            clients=10,
            cohort=10,
            steps=10,
            batch=100,
            examples=1000,
            lr_x=0.01,
            lr_y=0.01,
            side_by_side=True,
            check_rounds=100,
            smoothing=(1.0, 0.9),
        ),
        Workload(
            name="E",
            title="linear classifier on 256 features, squared loss, against weights on the clients, SCAFF-PD",
            clients=20,
            cohort=20,
            steps=100,
            batch=10,
            examples=2500,
            lr_x=0.01,
            lr_y=SIGMA,
            side_by_side=True,
            check_rounds=5,
            shape=(256,),
            layers=((256, 10),),
        ),
        Workload(
            name="F",
            title="LeNet5 scores against the AUC's dual variable, CD-MAGE",
            clients=100,
            cohort=5,
            steps=12,
            batch=10,
            examples=120,
            lr_x=0.05,
            lr_y=0.05,
            side_by_side=False,
            check_rounds=5,
            guided=True,
            shape=(28, 28, 1),
            layers=((5, 5, 1, 6), (5, 5, 6, 16), (256, 120), (120, 84), (84, 10)),
        ),
        Workload(
            name="G",
            title="MLP 784-200-200-10 against a shared perturbation, CD-MAGE",
            clients=100,
            cohort=5,
            steps=12,
            batch=10,
            examples=120,
            lr_x=0.05,
            lr_y=0.05,
            side_by_side=False,
            check_rounds=20,
            guided=True,
            shape=(784,),
            layers=((784, 200), (200, 200), (200, 10)),
        ),
        Workload(
            name="H",
            title="VGG11 on 32x32x3 against class weights, FESS-GDA",
            clients=2,
            cohort=2,
            steps=2,
            batch=32,
            examples=64,
            lr_x=0.01,
            lr_y=0.01,
            side_by_side=False,
            check_rounds=1,
            smoothing=(1.0, 0.9),
            shape=(32, 32, 3),
            layers=tuple(shape for _, shape in _VGG),
            modules=tuple(module for module, _ in _VGG),
            unpooled=(2, 4, 6),
        ),
        Workload(
            name="I",
            title="ResNet18 with group normalisation on 32x32x3 against class weights, FESS-GDA",
            clients=2,
            cohort=2,
            steps=2,
            batch=32,
            examples=64,
            lr_x=0.01,
            lr_y=0.01,
            side_by_side=False,
            check_rounds=1,
            smoothing=(1.0, 0.9),
            shape=(32, 32, 3),
            layers=tuple(_residual().values()),
            modules=tuple(_residual()),
        ),
    )
}
