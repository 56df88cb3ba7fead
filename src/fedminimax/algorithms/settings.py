"""The hyper-parameters that many methods share, declared once: a method inherits those that it has, by keyword only."""

from __future__ import annotations

import dataclasses
from typing import TypeVar, dataclass_transform

from fedminimax.algorithms.base import static
from fedminimax.steps import Steps

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(static, dataclasses.field))
def settings(cls: type[_T]) -> type[_T]:
    """Make a class hyper-parameters that methods inherit: given by keyword, so that they are in nobody's order."""
    return dataclasses.dataclass(frozen=True, kw_only=True, repr=False)(cls)


@settings
class WithBatches:
    """Of a method whose clients may take minibatches.

    Args:
        batch_size: examples a step; None: the full local batch.
    """

    batch_size: int | None = static(default=None)


@settings
class WithSteps(WithBatches):
    """Of a method whose clients take local steps, on minibatches or not.

    Args:
        local_steps: K, or :class:`UniformSteps` / :class:`ClientSteps`.
    """

    local_steps: Steps = static(default=10)


@settings
class WithCohorts:
    """Of a method that needs some of the clients in a round.

    Args:
        cohort_size: clients a round; None: everybody.
    """

    cohort_size: int | None = static(default=None)
