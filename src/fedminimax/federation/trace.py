"""A record of what happened in a run, to be replayed; and what a round asks for, which a record must fit.

Everything in a trace is used, or named in an error before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from fedminimax.errors import InputError
from fedminimax.players import Tree


class Draw(NamedTuple):
    """One of the server's own draws: its shape, and the least and the greatest value that make sense (None: any)."""

    like: Tree
    low: float | None = None
    high: float | None = None


@dataclass
class Asked:
    """What a round asks for, in order: all that a trace can tell it.

    Attributes:
        cohorts: the places of each cohort.
        exchanges: the places of each exchange with a cohort.
        draws: the server's own draws, by name.
        steps: whether anybody asks how many local steps to take.
        equal_steps: the number that all clients must take; None: they may differ.
        memory: whether clients remember something from round to round.
        in_place: whether everybody must be there, in order: the nodes of a network.
    """

    cohorts: list[int] = field(default_factory=list)
    exchanges: list[int] = field(default_factory=list)
    draws: dict[str, Draw] = field(default_factory=dict)
    steps: bool = False
    equal_steps: int | None = None
    memory: bool = False
    in_place: bool = False


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Trace:
    """A record of who took part and how much they did, replayed exactly.

    Row t of every record is round t; rows of rounds that are not run are not looked at. What is not given is drawn as in any
    run, so a trace recorded by ``run(..., record=True)`` replays with the same seed. What cannot be used is an error.

    Args:
        cohorts: one entry for each cohort that the algorithm asks for in a round, in order: an integer array [rounds, S]
            of client numbers, -1 where a place stayed empty. Where clients remember something nobody is in a cohort twice.
        steps: optional tau, [rounds, N].
        draws: optional values of the server's own draws, by name, each [rounds, ...].
        invited: optional, one entry for each cohort: how many clients were invited to it, [rounds].
        answers: optional, one entry for each exchange: which places of the cohort answered it, [rounds, S].
        waited: optional, one entry for each exchange: how many seconds the server waited for it, [rounds].
    """

    cohorts: tuple[Any, ...] = ()
    steps: Any = None
    draws: dict[str, Any] = field(default_factory=dict)
    invited: tuple[Any, ...] = ()
    answers: tuple[Any, ...] = ()
    waited: tuple[Any, ...] = ()

    def check(self, rounds: int, count: int, first: int = 0) -> Trace:
        """Return the trace as arrays; raise an :class:`InputError` unless it covers ``rounds`` rounds of ``count`` clients.

        Args:
            rounds: up to which round, not included.
            count: N.
            first: from which round on.
        """
        run = slice(first, rounds)
        cohorts = tuple(_record(f"cohort {k}", c, rounds) for k, c in _entries("cohorts", self.cohorts))
        for k, ids in enumerate(cohorts):
            whole = ids.ndim == 2 and np.issubdtype(ids.dtype, np.integer)
            if not whole or ids[run].min(initial=0) < -1 or ids[run].max(initial=-1) >= count:
                raise InputError(
                    f"The trace's cohort {k} must be an integer array [rounds, S] of client numbers below {count} (or -1)."
                )
        steps = None if self.steps is None else _record("steps", self.steps, rounds)
        if steps is not None:
            whole = steps.ndim == 2 and np.issubdtype(steps.dtype, np.integer)
            if not whole or steps.shape[1] != count or steps[run].min(initial=1) < 1:
                raise InputError(f"The trace's steps must be an array [rounds, {count}] of whole numbers of at least 1.")
        answers = tuple(_record(f"answers {k}", a, rounds) for k, a in _entries("answers", self.answers))
        for k, there in enumerate(answers):
            if there.ndim != 2 or not np.isin(there[run], (0, 1)).all():
                raise InputError(f"The trace's answers {k} must be an array [rounds, S] of True and False.")
        invited = tuple(_record(f"invited {k}", i, rounds) for k, i in _entries("invited", self.invited))
        for k, number in enumerate(invited):
            if number.ndim != 1 or not np.issubdtype(number.dtype, np.integer) or number[run].min(initial=0) < 0:
                raise InputError(f"The trace's invited {k} must be an array [rounds] of whole numbers, how many were invited.")
            if k >= len(cohorts):
                raise InputError(f"The trace says how many were invited to cohort {k}, but not who was in it: give both.")
        waited = tuple(_record(f"waited {k}", w, rounds) for k, w in _entries("waited", self.waited))
        for k, seconds in enumerate(waited):
            known = seconds.ndim == 1 and seconds.dtype.kind in "iuf"
            if not known or not (np.isfinite(seconds[run]) & (seconds[run] >= 0)).all():
                raise InputError(f"The trace's waited {k} must be an array [rounds] of seconds that are not negative.")
        if not isinstance(self.draws, dict):
            raise InputError(f"The trace's draws must be a dict of arrays by name, not {type(self.draws).__name__}.")
        # Numbers of one kind, whoever recorded them: all records of a method then replay by one program.
        kind: Callable[[tuple[np.ndarray, ...], Any], tuple[np.ndarray, ...]]
        kind = lambda records, dtype: tuple(record.astype(dtype, copy=False) for record in records)
        taken = None if steps is None else steps.astype(np.int32, copy=False)
        return Trace(
            cohorts=kind(cohorts, np.int32),
            steps=taken,
            draws=self.draws,
            invited=kind(invited, np.int32),
            answers=kind(answers, bool),
            waited=kind(waited, np.float32),
        )

    def fit(self, asked: Asked, method: str, rounds: int, first: int = 0) -> Trace:
        """Return the trace, or raise an :class:`InputError` for what a round of the method would not use.

        Args:
            asked: what a round of it asks for.
            method: its name.
            rounds: up to which round, not included.
            first: from which round on.
        """
        kinds: list[tuple[str, tuple[Any, ...], list[int], str]] = [
            ("cohorts", self.cohorts, asked.cohorts, "cohort"),
            ("invited", self.invited, asked.cohorts, "cohort"),
            ("answers", self.answers, asked.exchanges, "exchange"),
            ("waited", self.waited, asked.exchanges, "exchange"),
        ]
        for name, given, places, what in kinds:
            if len(given) > len(places):
                raise InputError(
                    f"The trace's {name} has {_counted(len(given), 'entry', 'entries')}, but a round of {method} has "
                    f"{_counted(len(places), what, f'{what}s')}: give one entry for each."
                )
        for name, given, places in (("cohort", self.cohorts, asked.cohorts), ("answers", self.answers, asked.exchanges)):
            for k, record in enumerate(given):
                if record.shape[1] != places[k]:
                    of_whom = "names" if name == "cohort" else "tells of"
                    raise InputError(
                        f"The trace's {name} {k} {of_whom} {record.shape[1]} clients a round, but the algorithm asks for "
                        f"{places[k]}."
                    )
        run = slice(first, rounds)
        self._check_members(asked, method, run)
        self._check_steps(asked, method, run)
        for name in self.draws:
            if name not in asked.draws:
                known = ", ".join(repr(n) for n in asked.draws) or "nothing"
                raise InputError(f"The trace has draws of {name!r}, but the server of {method} draws {known}.")
        return replace(self, draws={name: _drawn(name, v, asked.draws[name], run) for name, v in self.draws.items()})

    def _check_members(self, asked: Asked, method: str, run: slice) -> None:
        for k, ids in enumerate(cohort[run] for cohort in self.cohorts):
            if asked.in_place and (ids != np.arange(asked.cohorts[k])).any():
                raise InputError(f"The trace's cohort {k} must be all nodes in order, [0, 1, ...]: {method} has no other.")
            ordered = np.sort(ids, axis=1)
            twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
            if asked.memory and twice.any():
                t, place = (int(i) for i in np.argwhere(twice)[0])
                raise InputError(
                    f"The trace's cohort {k} has client {ordered[t, place]} twice in round {run.start + t}, but clients of "
                    f"{method} remember something, and only one of two memories can be kept: name each at most once."
                )
        if asked.in_place and not all(there[run].all() for there in self.answers):
            raise InputError(f"The trace's answers must all be True: nodes of {method} are always there.")

    def _check_steps(self, asked: Asked, method: str, run: slice) -> None:
        if self.steps is None:
            return
        if asked.equal_steps is not None:
            others = self.steps[run][self.steps[run] != asked.equal_steps]
            if others.size:
                raise InputError(
                    f"The trace's steps have a {others[0]}, but all clients of {method} take "
                    f"local_steps = {asked.equal_steps}: it cannot replay others."
                )
        elif not asked.steps:
            raise InputError(f"The trace has steps, but {method} does not let clients take different numbers: leave them out.")


def _entries(name: str, given: Any) -> Iterable[tuple[int, Any]]:
    if not isinstance(given, (tuple, list)):
        raise InputError(f"The trace's {name} must be a tuple with an array for each of them, not {type(given).__name__}.")
    return enumerate(given)


def _record(name: str, given: Any, rounds: int) -> np.ndarray:
    """Return a record as an array that covers the rounds."""
    try:
        record = np.asarray(given)
    except ValueError:
        raise InputError(
            f"The trace's {name} has rows of different lengths: fill empty places with -1 (False in answers)."
        ) from None
    covered = len(record) if record.ndim else 0
    if covered < rounds:
        raise InputError(f"The trace's {name} covers {covered} rounds, but {rounds} are to be run.")
    return record


def _drawn(name: str, given: Any, draw: Draw, run: slice) -> Tree:
    """Return recorded draws as arrays of the kind that is drawn."""
    structure: Any = jax.tree.structure(draw.like)
    like = jax.tree.leaves(draw.like)
    # A list is a record, and a tree only where a tree is drawn.
    alone = structure == jax.tree.structure(0)
    if not alone and jax.tree.structure(given) != structure:
        raise InputError(f"The trace's draws of {name!r} must be a tree of arrays like {structure}.")
    records = [_record(f"draws of {name!r}", leaf, run.stop) for leaf in ([given] if alone else jax.tree.leaves(given))]
    for record, one in zip(records, like, strict=True):
        if record.shape[1:] != one.shape or record.dtype.kind not in "biuf":
            wanted = ", ".join(("rounds", *map(str, one.shape)))
            raise InputError(f"The trace's draws of {name!r} must be an array [{wanted}] of numbers.")
        values = record[run]
        low, high = (0, 1) if one.dtype == bool else (draw.low, draw.high)
        wrong = ~np.isfinite(values)
        if not np.issubdtype(one.dtype, np.floating):
            wrong = wrong | (values != np.round(values))
        wrong = wrong | (False if low is None else values < low) | (False if high is None else values > high)
        if wrong.any():
            kind = "numbers" if np.issubdtype(one.dtype, np.floating) else "whole numbers"
            least = "" if low is None else f" from {low}"
            most = "" if high is None else f" to {high}"
            raise InputError(f"The trace's draws of {name!r} must be {kind}{least}{most}, not {values[wrong][0]}.")
    cast = [record.astype(one.dtype) for record, one in zip(records, like, strict=True)]
    return jax.tree.unflatten(structure, cast)


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
