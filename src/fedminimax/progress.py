"""A progress bar with the metric that matters; nothing where nobody looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedminimax.observers import Observer, Watched

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task


class ProgressBar(Observer):
    """Shows how far a run is.

    Args:
        metric: the metric beside the bar; by default the first.
        wanted: whether to show it; None: on a terminal only.
        console: where; by default standard error.
    """

    def __init__(self, metric: str | None = None, wanted: bool | None = True, console: Console | None = None):
        from rich.console import Console

        self._console = console or Console(stderr=True)
        self._shown = self._console.is_terminal if wanted is None else wanted
        self._metric = metric
        self._bar: Progress | None = None

    def on_start(self, run: Watched) -> None:
        """Draw the bar."""
        if not self._shown or run.last == run.first:
            return
        self._bar = bar(self._console)
        self._task = self._bar.add_task(run.method, total=run.last - run.first, metric="")
        self._bar.start()
        self.on_rounds(run)

    def on_rounds(self, run: Watched) -> None:
        """Show how many rounds are done, and the newest metric."""
        if self._bar is None:
            return
        numbers = run.numbers
        name = self._metric or next(iter(numbers), None)
        text = f"{name} {numbers[name]:.4g}" if name in numbers else ""
        self._bar.update(self._task, completed=run.round - run.first, metric=text)

    def on_evaluation(self, run: Watched) -> None:
        """Show the new metric."""
        self.on_rounds(run)

    def on_end(self, run: Watched) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def bar(console: Console) -> Progress:
    """Return a bar with the rounds a second and a field for the metric."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Rounds a second."""

        def render(self, task: Task) -> Text:
            """Return the rate as text."""
            speed = task.finished_speed or task.speed
            return Text("" if not speed else f"{speed:,.0f} rounds/s" if speed >= 10 else f"{speed:.2g} rounds/s")

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[metric]}"),
        console=console,
    )
