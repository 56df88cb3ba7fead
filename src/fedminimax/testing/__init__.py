"""Does a method of yours keep the contract, and is a problem of yours one that every method can solve?

:func:`check_method` and :func:`check_problem` run the checks that the project's own methods and problems pass, and say in words
what does not hold, as scikit-learn's ``check_estimator`` does for estimators.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientData
from fedminimax.errors import InputError
from fedminimax.testing import problem as of_problems
from fedminimax.testing.contract import CHECKS, Subject

__all__ = ["CHECKS", "Report", "Subject", "Verdict", "check_method", "check_problem"]


@dataclass(frozen=True)
class Verdict:
    """What came of one check.

    Attributes:
        name: the check's.
        claim: what it looks for, in a sentence.
        passed: whether it holds.
        detail: what was found instead.
        seconds: how long it took.
    """

    name: str
    claim: str
    passed: bool
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """All verdicts on a method or a problem.

    Attributes:
        subject: its name.
        verdicts: one a check.
    """

    subject: str
    verdicts: list[Verdict]

    @property
    def passed(self) -> bool:
        """Whether everything holds."""
        return all(verdict.passed for verdict in self.verdicts)

    def __str__(self) -> str:
        rows = [f"{'holds ' if v.passed else 'FAILS '} {v.name.replace('_', ' ')}" for v in self.verdicts]
        failed = [
            f"\n{v.name.replace('_', ' ')}:\n  wanted: {v.claim}\n  found:  {v.detail}" for v in self.verdicts if not v.passed
        ]
        held = sum(v.passed for v in self.verdicts)
        return "\n".join([f"{self.subject}: {held} of {len(self.verdicts)} checks hold", *rows, *failed])


def check_method(
    method: Algorithm,
    *,
    rates: Iterable[str] | None = None,
    only: Iterable[str] | None = None,
    raises: bool = True,
    tell: Callable[[Verdict], None] = lambda verdict: None,
) -> Report:
    """Run the contract suite on a method.

    It takes some minutes: every check compiles rounds of its own. The settings should be stable on small problems, and let
    the method move: step sizes of about 0.02, a few local steps, minibatches of 4 examples, cohorts of 3.

    Args:
        method: the method with its hyper-parameters.
        rates: the names of its step sizes; by default those that are called lr_x, lr_y, lr_w, tau, sigma or gamma.
        only: names of checks to run; by default all that apply.
        raises: whether to raise an AssertionError with the report if something does not hold.
        tell: called with every verdict as it comes.
    """
    if isinstance(method, type) or not isinstance(method, Algorithm):
        shown = method.__name__ if isinstance(method, type) else repr(method)
        raise InputError(f"check_method needs a method with its hyper-parameters, such as {shown}(...), not {shown}.")
    subject = Subject.of(method)
    subject = subject if rates is None else Subject(method, rates=tuple(rates))
    wanted = list(CHECKS) if only is None else list(only)
    for name in wanted:
        if name not in CHECKS:
            raise InputError(f"There is no check {name!r}: there are {', '.join(CHECKS)}.")
    checks = {name: CHECKS[name] for name in wanted if CHECKS[name].applies(subject)}
    claims = {name: (check.claim, functools.partial(check, subject)) for name, check in checks.items()}
    return _report(type(method).__name__, claims, raises, tell)


def check_problem(
    problem: Any, clients: ClientData, *, raises: bool = True, tell: Callable[[Verdict], None] = lambda verdict: None
) -> Report:
    """Check that a problem is what methods and metrics take it for.

    Args:
        problem: a problem of any form.
        clients: the clients' data.
        raises: whether to raise an AssertionError with the report if something does not hold.
        tell: called with every verdict as it comes.
    """
    if not hasattr(problem, "bind"):
        raise InputError(f"check_problem needs a problem, such as MinimaxProblem(...), not {type(problem).__name__}.")
    bound = of_problems.bind(problem, clients)
    claims = {
        name: (" ".join((fn.__doc__ or "").split()), functools.partial(fn, bound)) for name, fn in of_problems.CHECKS.items()
    }
    return _report(bound.problem.name, claims, raises, tell)


def _report(
    subject: str, claims: Mapping[str, tuple[str, Callable[[], None]]], raises: bool, tell: Callable[[Verdict], None]
) -> Report:
    verdicts = []
    for name, (claim, run) in claims.items():
        began = time.perf_counter()
        try:
            run()
            passed, detail = True, ""
        except Exception as error:  # whatever a method of somebody else's raises is a verdict, not the end
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            passed, detail = False, kind + " ".join(str(error).split())[:600]
        verdicts.append(Verdict(name, claim, passed, detail, time.perf_counter() - began))
        tell(verdicts[-1])
    report = Report(subject, verdicts)
    if raises and not report.passed:
        raise AssertionError(str(report))
    return report
