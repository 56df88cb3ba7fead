"""Train, convexify, train: the data of the second stage, tangent features of a network that the clients trained together.

Yu, Wei, Karimireddy, Ma and Jordan, TCT: Convexifying federated learning using bootstrapped neural tangent kernels, NeurIPS
2022; as the SCAFF-PD paper uses it. A linear model of these features is a convex problem.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedminimax.algorithms import FedAvg
from fedminimax.experiments.material import Arrays, Material, Pooled, examples
from fedminimax.problems import robust_model
from fedminimax.problems.linearize import tangent_features
from fedminimax.run import run


@dataclass(frozen=True)
class Stages:
    """Images whose tangent features are taken when they have been divided among clients.

    Attributes:
        images: the images, to be divided.
        model: the network.
        features: number of features.
        rounds: of the first stage.
        method: of the first stage.
        seed: of the network, of its training and of the features.
    """

    images: Pooled
    model: Any
    features: int
    rounds: int
    method: Any
    seed: int

    def divide(self, owner: np.ndarray, count: int, kept: np.ndarray | None = None) -> Material:
        """Return the clients' features, of the network that they trained; the arguments are those of :class:`Pooled`."""
        clients = self.images.divide(owner, count, kept).clients
        problem = robust_model(self.model, clients, self.images.classes, loss="entropy", seed=self.seed)  # type: ignore[arg-type]
        weights = run(problem, clients, self.method, rounds=self.rounds, seed=self.seed).x  # type: ignore[arg-type]
        tangent = lambda part: tangent_features(self.model, weights, part["inputs"], features=self.features, seed=self.seed)
        train, held = tangent(self.images.train), {name: tangent(part) for name, part in self.images.held.items()}
        own = train[(owner if kept is None else kept) >= 0]
        centre, width = own.mean(axis=0), np.linalg.norm(own - own.mean(axis=0), 2) / np.sqrt(len(own))

        def scaled(part: Arrays, features: npt.NDArray[Any]) -> Arrays:
            # The largest eigenvalue of their covariance is 1, and with it the constant that step sizes depend on.
            return {**part, "inputs": ((features - centre) / width).astype(np.float32)}

        second = dataclasses.replace(
            self.images,
            train=scaled(self.images.train, train),
            held={name: scaled(self.images.held[name], held[name]) for name in held},
        )
        return second.divide(owner, count, kept)

    @property
    def kinds(self) -> Any:
        """By what the training examples are divided among clients."""
        return self.images.kinds


def tangent(
    images: str,
    model: Any,
    *,
    features: int,
    rounds: int,
    lr_x: float = 0.1,
    local_steps: int = 20,
    batch_size: int = 32,
    train: int | None = None,
    test: int | None = None,
    seed: int = 0,
) -> Stages:
    """Tangent features of a data set's images, for ``[data]``: ``name = "fedminimax.experiments.convexify:tangent"``.

    When the images have been divided, the clients train the network by federated averaging; their features are those of
    :func:`~fedminimax.problems.linearize.tangent_features` at its weights, centred and scaled alike for all clients.

    Args:
        images: the data set.
        model: the network.
        features: how many features.
        rounds: of federated averaging.
        lr_x: its step size.
        local_steps: its local steps.
        batch_size: its batches.
        train: take only so many training examples, chosen at random; None: all.
        test: take only so many test examples.
        seed: of what is taken, of the network, and of the features.
    """
    method = FedAvg(lr_x, local_steps=local_steps, batch_size=batch_size)
    return Stages(examples(images, train=train, test=test, seed=seed), model, features, rounds, method, seed)
