"""How far an experiment is: one bar over all runs, with the time that is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from fedminimax.observers import Observer, Watched

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar:
    """Shows how many rounds of all runs are done; nothing where nobody looks.

    Args:
        work: the rounds of each method's runs, all together.
        wanted: whether to show it; None: on a terminal only.
    """

    def __init__(self, work: Mapping[str, int], wanted: bool | None = None):
        from rich.console import Console

        console = Console(stderr=True)
        self._total, self._rounds = sum(work.values()), 0
        self._bar: Progress | None = None
        if console.is_terminal if wanted is None else wanted:
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[metric]}"),
                console=console,
            )
            self._task = self._bar.add_task("", total=self._total, metric="")

    def __enter__(self) -> Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def done(self, what: str, rounds: int, metric: str = "") -> None:
        """Say that so many more rounds are done."""
        self._rounds += rounds
        if self._bar is not None:
            self._bar.update(self._task, completed=self._rounds, description=what, metric=metric)

    @property
    def shown(self) -> bool:
        """Whether there is a bar."""
        return self._bar is not None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to another bar for a while."""
        if self._bar is None:
            yield
            return
        self._bar.live.transient = True  # it comes back below the other one, and is not wanted twice
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.live.transient = False
            self._bar.start()

    def watcher(self, label: str, seed: int) -> Observer:
        """Return what watches one run."""
        return _Watcher(self, f"{label}, seed {seed}")


class _Watcher(Observer):
    def __init__(self, bar: Bar, what: str):
        self._bar, self._what, self._seen = bar, what, 0

    def on_start(self, run: Watched) -> None:
        """Count what was done before."""
        self.on_rounds(run)

    def on_rounds(self, run: Watched) -> None:
        """Show how far the run is, and its first metric."""
        name = next(iter(run.numbers), None)
        self._bar.done(self._what, run.round - self._seen, "" if name is None else f"{name} {run.numbers[name]:.4g}")
        self._seen = run.round
