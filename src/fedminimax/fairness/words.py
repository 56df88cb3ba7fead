"""What is asked for in words (a method, a penalty, a step size), read and checked before any data is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from fedminimax.algorithms import ALGORITHMS
from fedminimax.errors import InputError, nearest
from fedminimax.penalties import Agnostic, ChiSquare, CVaR, Penalty, QFair
from fedminimax.problems.robust import RobustProblem

SIZE, EQUAL = "size", "equal"
PENALTIES = {"chi2": ChiSquare, "agnostic": Agnostic, "cvar": CVaR, "qfair": QFair}
_CHOICES = "chi2:0.1 (the price of leaving equal weights), agnostic (no price), cvar:0.3 (the worst share), qfair:1 (the power)"


def known_methods() -> list[str]:
    """Return the names of the methods for weights on clients."""
    return sorted(name for name, cls in ALGORITHMS.items() if issubclass(getattr(cls, "solves", object), RobustProblem))


def method_of(name: str) -> tuple[str, str | None]:
    """Return the method that a name such as "FedAvg" or "FedAvg:size" means, and its weights p_i; None: those of all."""
    base, given, weights = name.partition(":")
    if base not in known_methods():
        hint = nearest(base, known_methods())
        raise InputError(
            f"There is no method {base!r} for weights on clients{hint}: choose among {', '.join(known_methods())}."
        )
    if given and weights not in (SIZE, EQUAL):
        raise InputError(f"{name!r} has weights {weights!r}: write {base}:size or {base}:equal.")
    return base, weights or None


def check_choice(option: str, value: str, choices: Sequence[str]) -> str:
    """Return a value that is one of some choices, or say which is nearest."""
    if value not in choices:
        raise InputError(f"{option} is {value!r}{nearest(value, choices)}: choose {' or '.join(choices)}.")
    return value


def penalty_of(text: str) -> Penalty:
    """Return the penalty psi that a text such as "chi2:0.1", "agnostic", "cvar:0.3" or "qfair:1" means."""
    name, given, number = text.strip().partition(":")
    kind = PENALTIES.get(name.lower())
    if kind is None:
        raise InputError(f"There is no penalty {name!r}{nearest(name.lower(), PENALTIES)}: choose {_CHOICES}.")
    if kind is Agnostic:
        if given:
            raise InputError(f"The penalty {text!r} has a number, but agnostic takes none.")
        return Agnostic()
    try:
        value = float(number)
    except ValueError:
        raise InputError(f"The penalty {text!r} needs a number after its name: choose {_CHOICES}.") from None
    return kind(value)


def penalty_text(penalty: Penalty) -> str:
    """Return the text that :func:`penalty_of` reads; of a penalty of one's own its repr."""
    for name, kind in PENALTIES.items():
        if type(penalty) is kind:
            values = [f"{getattr(penalty, field.name):g}" for field in dataclasses.fields(penalty)]
            return ":".join([name, *values])
    return repr(penalty)


def settings_of(given: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return hyper-parameters by method, from texts such as "ScaffPD.tau=0.3,sigma=0.1".

    Args:
        given: the texts.
        methods: the methods that are run, as they were named.
    """
    found: dict[str, dict[str, float]] = {}
    for text in given:
        method = ""
        for part in text.split(","):
            key, equals, value = part.partition("=")
            place, dot, name = key.strip().rpartition(".")
            method = place if dot else method
            if not (equals and method and name):
                raise InputError(f"--set has {text!r}: write Method.name=value, such as ScaffPD.tau=0.3,sigma=0.1.")
            if method not in methods:
                raise InputError(
                    f"--set is for {method!r}, which is not run{nearest(method, methods)}: there are {', '.join(methods)}."
                )
            found.setdefault(method, {})[name] = _number(method, name, value)
    return found


def fields_of(method: str) -> dict[str, dataclasses.Field[Any]]:
    """Return the hyper-parameters of a method, as they were declared."""
    cls: Any = ALGORITHMS[method_of(method)[0]]  # a dataclass, each of them
    return {field.name: field for field in dataclasses.fields(cls)}


def _number(method: str, name: str, text: str) -> float:
    fields = fields_of(method)
    if name not in fields:
        raise InputError(f"{method} has no {name!r}{nearest(name, fields)}: it has {', '.join(fields)}.")
    whole = bool(fields[name].metadata.get("static"))
    try:
        return int(text) if whole else float(text)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise InputError(f"--set {method}.{name} is {text!r}, which is not {kind}.") from None
