"""A progress bar with the metric that matters; nothing where nobody looks."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Rate(ProgressColumn):
    """Rounds a second."""

    def render(self, task: Task) -> Text:
        """Return the rate as text."""
        speed = task.finished_speed or task.speed
        return Text("" if not speed else f"{speed:,.0f} rounds/s" if speed >= 10 else f"{speed:.2g} rounds/s")


class Reporter:
    """Shows how far a run is; does nothing unless asked to or on a terminal."""

    def __init__(self, title: str, rounds: int, wanted: bool | None, watch: str | None, console: Console | None = None):
        self._console = console or Console(stderr=True)
        self._shown = (self._console.is_terminal if wanted is None else wanted) and rounds > 0
        self._watch = watch
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metric]}"),
            console=self._console,
        )
        self._task = self._bar.add_task(title, total=rounds, metric="")

    def __enter__(self) -> Reporter:
        if self._shown:
            self._bar.start()
        return self

    def show(self, rounds: int, metrics: dict[str, Any]) -> None:
        """Show how many rounds are done, and the latest metrics."""
        name = self._watch or next(iter(metrics), None)
        metric = f"{name} {metrics[name]:.4g}" if name in metrics else ""
        self._bar.update(self._task, completed=rounds, metric=metric)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shown:
            self._bar.stop()
