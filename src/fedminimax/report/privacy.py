"""What a report says of privacy: how messages were protected, what has been spent, and what is not covered."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from fedminimax.folders import PRIVACY, Record
from fedminimax.report.evidence import Evidence
from fedminimax.report.words import number

EPSILON, OF_SUMS = "epsilon", "epsilon_of_sums"
_UNITS = {
    "replace": "a client's data are protected against any other data in their place",
    "zero": "a client's data are protected against a client that sends noise alone",
}


def section(evidence: Evidence) -> str:
    """Return the section on privacy; nothing where no run has any."""
    private = {label: runs for label, runs in evidence.counted.items() if any(PRIVACY in run.notes for run in runs)}
    if not private:
        return ""
    items = [f"<li>{escape(_sentence(evidence, label, runs))}</li>" for label, runs in private.items()]
    if open_ := [label for label in evidence.labels if label not in private and evidence.counted[label]]:
        items.append(f"<li>{escape(', '.join(open_))}: messages left their clients as they are.</li>")
    return f"""<section aria-labelledby="privacy"><h2 id="privacy">Privacy</h2><ul>{"".join(items)}</ul>
<p class="caption">Epsilon over the rounds is among the metrics above. The metrics themselves, the numbers of examples and of
gradients, and who answered are told without noise: no epsilon covers them. Nor does one cover other runs on the same data, such
as those that hyper-parameters were chosen by.</p></section>"""


def shown(value: float) -> str:
    """Return an epsilon; what is not known is a dash."""
    return "–" if math.isnan(value) else "∞" if math.isinf(value) else number(value)


def _sentence(evidence: Evidence, label: str, runs: list[Record]) -> str:
    said: list[dict[str, Any]] = [run.notes[PRIVACY] for run in runs if PRIVACY in run.notes]
    if len(said) < len(runs) or any(one != said[0] for one in said):
        return f"{label}: its runs are not protected alike; see the epsilon of each."
    rule = said[0]
    losses = "" if rule["clip_loss"] is None else f", reported losses to {number(rule['clip_loss'])},"
    spent = {
        name: max(float(run.history[name][evidence.at(run)]) if name in run.history else math.nan for run in runs)
        for name in (EPSILON, OF_SUMS)
    }
    return (
        f"{label}: every message of a client was clipped to a length of {number(rule['clip'])}{losses} and got Gaussian noise "
        f"of {number(rule['noise'])} times the bound. At round {evidence.round} the client that was asked the most has spent "
        f"epsilon = {shown(spent[EPSILON])} at delta = {rule['delta']:g} against whoever sees every message, and "
        f"{shown(spent[OF_SUMS])} against whoever sees the sums over cohorts alone; {_UNITS[rule['adjacency']]}."
    )
