"""What a run that was begun in Python was, as far as a spec can say it."""

from __future__ import annotations

import json
from typing import Any

from fedminimax.identity import hyper_parameters
from fedminimax.plan import Plan


def outline(plan: Plan) -> str:
    """Return a spec of the run: its method and numbers, and in comments what only Python knows."""
    clients = plan.clients
    lines = [
        "# What this run was, as far as a spec can say it. It was begun in Python, which has its problem, data and metrics:",
        f"#   problem   {type(plan.problem).__name__}: {_line(plan.problem.name)}",
        f"#   data      {_line(repr(clients))}",
        f"#   metrics   {_line(', '.join(plan.metrics) or 'none')}",
        f"#   engine    {_line(repr(plan.engine))}",
        "# The file identity.json tells it from every other run. To go on with it, run the same script again.",
        "",
        f"rounds = {plan.last - plan.first}",
        f"seeds = [{plan.seed}]",
        f"eval_every = {plan.every}",
        "",
        f"[methods.{plan.method}]",
    ]
    for name, value in hyper_parameters(plan.algorithm).items():
        if value is not None:
            plain = isinstance(value, (bool, int, float)) and value == value and abs(value) != float("inf")
            lines.append(f"{name} = {json.dumps(value)}" if plain else f"# {name} is {_line(str(value))}")
    return "\n".join(lines) + "\n"


def _line(text: Any) -> str:
    return " ".join(str(text).split())[:200]
