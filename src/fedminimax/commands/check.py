"""``fedminimax check``: the contract suite on a method of your own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedminimax.cache import keep_programs
from fedminimax.errors import InputError
from fedminimax.testing import Verdict, check_method


def check(name: str, settings: Sequence[str], only: Sequence[str]) -> bool:
    """Run the checks, print a verdict on each, and return whether all hold.

    Args:
        name: the method, package.module:Name; a class, or an instance of one.
        settings: hyper-parameters of a class, such as "lr_x=0.02".
        only: the names of the checks to run; none: all.
    """
    console = Console()

    def tell(verdict: Verdict) -> None:
        mark = "[green]holds[/green]" if verdict.passed else "[bold red]FAILS[/bold red]"
        console.print(f"{mark} {verdict.name.replace('_', ' ')} [dim]({verdict.seconds:.0f} s)[/dim]", highlight=False)

    keep_programs()
    report = check_method(_method(name, settings), only=only or None, raises=False, tell=tell)
    for verdict in (v for v in report.verdicts if not v.passed):
        console.print(f"\n[bold]{verdict.name.replace('_', ' ')}[/bold]", highlight=False)
        console.print(f"  wanted: {verdict.claim}\n  found:  {verdict.detail}", highlight=False, markup=False)
    held = sum(v.passed for v in report.verdicts)
    console.print(f"\n{report.subject}: {held} of {len(report.verdicts)} checks hold.", highlight=False)
    return report.passed


def _method(name: str, settings: Sequence[str]) -> Any:
    """Return the method that is named as package.module:Name, with its hyper-parameters."""
    module, _, attribute = name.partition(":")
    if not attribute:
        raise InputError(f"{name!r} names no method: write package.module:Name, such as fedminimax:FedAvg.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise InputError(f"There is no module {error.name!r}: run this where it can be imported.") from None
    except AttributeError:
        raise InputError(f"{module} has no {attribute!r}.") from None
    values: dict[str, Any] = {}
    for setting in settings:
        key, given, text = setting.partition("=")
        if not given:
            raise InputError(f"--set has {setting!r}: write name=value, such as lr_x=0.02.")
        values[key] = _number(key, text)
    if not isinstance(found, type):
        return found.replace(**values) if values else found
    try:
        return found(**values)
    except TypeError as error:
        raise InputError(f"{attribute} cannot be made: {error}. Give its hyper-parameters by --set name=value.") from None


def _number(key: str, text: str) -> int | float:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        raise InputError(f"--set {key} has {text!r}, which is not a number.") from None
