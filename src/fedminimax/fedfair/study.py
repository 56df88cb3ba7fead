"""A fair study from its first question to its page, over any carrier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from fedminimax.engines.federated.group import Event
from fedminimax.engines.federated.transport import Transport
from fedminimax.fairness.comparison import Comparison
from fedminimax.fairness.printing import print_federation, print_found
from fedminimax.fedfair.contest import contest
from fedminimax.fedfair.keeping import TRAINING
from fedminimax.fedfair.question import Question
from fedminimax.fedfair.writing import write


def conduct_fair(
    transport: Transport,
    question: Question,
    folder: Path,
    console: Console,
    *,
    name: str = "federation",
    command: str = "",
    timeout: float = 60.0,
    min_replies: int = 1,
    watch: Callable[[Event], None] | None = None,
    shown: Path | None = None,
) -> Comparison:
    """Ask, train, judge, print the tables, and write tables, figures, model and page into a folder.

    What is trained is written there too, before it is judged: the same call goes on from it.

    Args:
        transport: to the sites.
        question: what is agreed on.
        folder: where to write.
        console: where to print.
        name: what to call the sites together.
        command: what was typed.
        timeout: seconds that a site is waited for.
        min_replies: how many sites must answer for a round to count.
        watch: is told what becomes of sites.
        shown: the folder that the reader will find it all in, where that is another.
    """
    say = lambda line: console.print(f"  {line}", highlight=False, markup=False)
    found = contest(
        transport,
        question,
        folder=folder / TRAINING,
        timeout=timeout,
        min_replies=min_replies,
        tell=say,
        busy=console.status,
        describe=lambda federation: print_federation(federation, name, question.min_rows, console),
        watch=watch,
    )
    print_found(found, console)
    console.print(found.asked["federation"], highlight=False, markup=False)
    write(found, folder, name, command, console, shown=shown)
    return found
