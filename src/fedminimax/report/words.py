"""Numbers as people write them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def number(value: float, digits: int = 3) -> str:
    """Return a number with so many digits that matter."""
    if not math.isfinite(value):
        return "not finite"
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return f"{value:.{max(0, digits - 1 - _exponent(value))}f}"


def quantity(mean: float, spread: float) -> str:
    """Return a mean with its spread, to the digits that the spread leaves; NaN: there is none."""
    if not math.isfinite(mean):
        return "not finite"
    if not math.isfinite(spread) or spread == 0:
        return number(mean, 4) + (" ± 0" if spread == 0 else "")
    power = _exponent(max(abs(mean), spread))
    places = power - _exponent(spread) + 1  # digits after the first
    if places > 7:
        return f"{number(mean, 7)} ± {number(spread, 2)}"
    if not -4 <= power < 6:
        return f"({mean / 10**power:.{places}f} ± {spread / 10**power:.{places}f})e{power}"
    return f"{mean:.{max(0, places - power)}f} ± {spread:.{max(0, places - power)}f}"


def p_value(p: float | None) -> str:
    """Return a p-value as a reader needs it."""
    return "not tested" if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence has them."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def counted(names: Sequence[str], kind: str) -> str:
    """Return names with what they are: "seed 0", "seeds 0 and 1"; nothing of none."""
    return f"{kind}{'' if len(names) == 1 else 's'} {listed(names)}" if names else ""
