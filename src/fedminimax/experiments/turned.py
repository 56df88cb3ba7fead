"""Images that every client sees at an angle of its own: neighbours on a ring alike, and one linear model hardly fits all."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.experiments.material import Arrays, Material, Pooled, examples


@dataclass(frozen=True)
class Turned:
    """Images that are turned when they have been divided among clients.

    Attributes:
        images: the images, to be divided.
        degrees: how far the most and the least turned clients are apart.
    """

    images: Pooled
    degrees: float

    def divide(self, owner: np.ndarray, count: int, kept: np.ndarray | None = None) -> Material:
        """Return the clients' images, turned; the arguments are those of :class:`Pooled`."""
        upright = self.images.divide(owner, count, kept)
        assert isinstance(upright.clients, ClientData)
        angles = [self.degrees * (1 - math.cos(2 * math.pi * client / count)) / 2 for client in range(count)]

        def turned(parts: ClientData) -> ClientData:
            return ClientData.from_list([turn(part, angle) for part, angle in zip(parts, angles, strict=True)])

        apart = {
            part: functools.cache(functools.partial(lambda get: turned(get()), get)) for part, get in upright.apart.items()
        }
        held = {part: get().fields for part, get in apart.items()}
        clients = turned(upright.clients).with_batching(self.images.batching)
        return dataclasses.replace(upright, clients=clients, held=held, apart=apart)

    @property
    def kinds(self) -> Any:
        """By what the training examples are divided among clients."""
        return self.images.kinds


def turned(
    images: str,
    degrees: float,
    *,
    train: int | None = None,
    test: int | None = None,
    validation: int | float = 0,
    seed: int = 0,
) -> Turned:
    r"""Images that each client sees at its own angle, for ``[data]``: ``name = "fedminimax.experiments.turned:turned"``.

    Client m of N turns all its images, those that it trains on and those that it is tested on, by

    .. math:: \tfrac{1}{2} D \left(1 - \cos \frac{2 \pi m}{N}\right)

    degrees: neighbours on a ring differ little, and those across it by D.

    Args:
        images: the data set.
        degrees: D, how far the most and the least turned clients are apart.
        train: take only so many training examples, chosen at random; None: all.
        test: take only so many test examples.
        validation: hold out so many of the training examples, or this share of them, for choosing hyper-parameters.
        seed: of what is taken.
    """
    if not 0 <= degrees <= 180:
        raise InputError(f"degrees is {degrees!r}: give an angle from 0 to 180.")
    return Turned(examples(images, train=train, test=test, validation=validation, seed=seed), degrees)


def turn(part: Arrays, degrees: float) -> dict[str, npt.NDArray[Any]]:
    """Return examples with their square images turned about the middle; what comes in from outside is 0."""
    from scipy.ndimage import rotate

    inputs = np.asarray(part["inputs"])
    side = math.isqrt(math.prod(inputs.shape[1:3])) if inputs.ndim > 2 else math.isqrt(inputs.shape[1])
    square = inputs.reshape(len(inputs), side, side, -1)
    if not degrees:
        return {name: np.asarray(values) for name, values in part.items()}
    made = rotate(square, degrees, axes=(1, 2), reshape=False, order=1)
    return {name: np.asarray(values) for name, values in part.items()} | {"inputs": made.reshape(inputs.shape)}
