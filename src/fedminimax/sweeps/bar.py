"""The progress of a sweep: all rounds of all runs, as one bar."""

from __future__ import annotations

from types import TracebackType

from fedminimax.progress import bar


class SweepBar:
    """Shows how far a sweep is.

    Args:
        what: the name beside the bar.
        total: how many rounds all runs have in all, as far as it is known.
        wanted: whether to show it; None: on a terminal only.
    """

    def __init__(self, what: str, total: int, wanted: bool | None):
        from rich.console import Console

        console = Console(stderr=True)
        shown = console.is_terminal if wanted is None else wanted
        self._bar = bar(console) if shown else None
        if self._bar is not None:
            self._task = self._bar.add_task(what, total=total, metric="")

    def add(self, rounds: int) -> None:
        """Show so many rounds more."""
        if self._bar is not None:
            self._bar.advance(self._task, rounds)

    def __enter__(self) -> SweepBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
