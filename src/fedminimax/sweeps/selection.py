"""What the winner of a sweep is chosen by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from fedminimax.errors import InputError
from fedminimax.metrics import HIGHER, LOWER, Context, Metric, direction, evaluate
from fedminimax.plan import Plan
from fedminimax.sweeps.halving import Halving


class Selection(NamedTuple):
    """A metric's name in the history, and which way it is better; None: nobody said."""

    metric: str | None
    better: str | None

    @classmethod
    def of(cls, select: str | None, better: str | None, halving: Halving | None, metrics: Mapping[str, Metric]) -> Selection:
        """Return what is asked for: a sweep's own choice, or that of its halving."""
        if better not in (None, LOWER, HIGHER):
            raise InputError(f"better is {better!r}: give 'lower' or 'higher', of the metric that select names.")
        if halving is not None and not isinstance(halving, Halving):
            raise InputError(f"halving must be a Halving, such as Halving('worst_case'), not {halving!r}.")
        if halving is not None and select not in (None, halving.metric):
            raise InputError(f"select is {select!r}, but halving compares by {halving.metric!r}: they must agree.")
        if select is None and halving is None:
            if better is not None:
                raise InputError(f"better is {better!r}, but nothing is selected: name the metric with select=...")
            return cls(None, None)
        metric = select if halving is None else halving.metric
        said = better or (None if halving is None else halving.better)
        return cls(metric, said or direction(metrics, str(metric)))

    @property
    def sign(self) -> float:
        """1 where lower is better, -1 where higher is."""
        return -1.0 if self.better == HIGHER else 1.0

    @property
    def known(self) -> dict[str, str]:
        """Which way the metric is better, by its name."""
        return {} if self.metric is None or self.better is None else {self.metric: self.better}

    def check(self, plan: Plan) -> None:
        """Raise an :class:`InputError` before anything runs if there will be no such number, or nobody knows what is better."""
        if self.metric is None:
            return
        state: Any = jax.eval_shape(lambda: plan.algorithm.init(plan.problem))
        judge: Any = lambda state: evaluate(plan.metrics, plan.problem, plan.clients, state, Context(0))  # type: ignore[arg-type]
        found = jax.eval_shape(judge, state)
        numbers = [name for name, value in found.items() if value.ndim == 0]
        if self.metric not in numbers:
            raise InputError(
                f"Settings are to be compared by {self.metric!r}, but the metrics give {', '.join(numbers) or 'no numbers'}."
            )
        if self.better is None:
            raise InputError(f"Nothing says which way {self.metric!r} is better: give better='lower' or better='higher'.")
