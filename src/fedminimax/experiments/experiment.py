"""An experiment: several methods on one problem, over seeds, described once and carried out into one folder."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedminimax.errors import InputError

if TYPE_CHECKING:
    from fedminimax.experiments.mistakes import Mistakes
    from fedminimax.experiments.outcome import Outcome
    from fedminimax.experiments.outline import Outline
    from fedminimax.experiments.prepare import Ready

# pydantic and the writer of TOML are imported when an experiment is read: whoever calls `run` does not wait for them.


class Experiment:
    """Several methods on one problem, over seeds.

    Whatever a file describes can be given as tables (dicts) or as objects: methods, metrics, a guard, an engine. A problem may
    be the name of one, a function that makes one (with its arguments by ``functools.partial``), or a problem.

    >>> import fedminimax as fm
    >>> experiment = fm.Experiment(
    ...     problem={"name": "quadratic", "clients": 4},
    ...     methods={"slow": fm.LocalSGDA(0.01, 0.01), "fast": fm.LocalSGDA(0.1, 0.1)},
    ...     rounds=100,
    ...     seeds=3,
    ...     metrics={"Distance": {}},
    ... )
    >>> print(experiment.to_toml().splitlines()[0])
    rounds = 100

    Args:
        problem: what to solve.
        methods: what solves it, by label: algorithms, or tables with lists and ranges to try.
        rounds: how many communication rounds each run has.
        clients: the clients' data; None: ``data`` and ``partition`` say where it comes from, or the problem brings its own.
        data: where the examples come from, as in a file.
        partition: how they are divided among clients, as in a file.
        seeds: how many runs each method has (seeds 0, 1, ...), or their seeds.
        metrics: what to measure, as for :func:`fedminimax.run`, or tables that say on what data.
        options: whatever else a file may have: ``name``, ``eval_every``, ``availability``, ``guard``, ``engine``,
            ``checkpoint_every``, ``match_upload``, ``search``.
    """

    def __init__(
        self,
        *,
        problem: Any,
        methods: Mapping[str, Any] | Sequence[Any],
        rounds: int,
        clients: Any = None,
        data: Any = None,
        partition: Any = None,
        seeds: int | Iterable[int] = 1,
        metrics: Any = (),
        **options: Any,
    ):
        named = methods if isinstance(methods, Mapping) else {type(method).__name__: method for method in methods}
        if not isinstance(methods, Mapping) and len(named) < len(list(methods)):
            raise InputError("Two methods have the same name: give them as a dict with labels of your own.")
        tree = {
            "problem": _table(problem),
            "methods": dict(named),
            "rounds": rounds,
            "clients": clients,
            "data": data,
            "partition": partition,
            "seeds": seeds if isinstance(seeds, int) else [int(seed) for seed in seeds],
            "metrics": _by_label(metrics),
            **options,
        }
        self._begin({name: value for name, value in tree.items() if value is not None}, None)

    def _begin(self, tree: dict[str, Any], text: str | None, folders: Sequence[Path] = (), stem: str = "experiment") -> None:
        self._tree, self._text, self._folders, self._stem = tree, text, tuple(folders) or (Path.cwd(),), stem
        self._mistakes: Callable[[], Mistakes] = _without_file

    @classmethod
    def from_toml(
        cls, path: str | os.PathLike[str], changes: Iterable[str] = (), folders: Sequence[str | os.PathLike[str]] = ()
    ) -> Experiment:
        """Read an experiment from a file.

        Args:
            path: the file.
            changes: keys to set otherwise, such as "methods.FessGDA.beta=0.1".
            folders: where files that it names are looked for, beside its own folder.
        """
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise InputError(f"There is no file {file}: give the path of a spec; fedminimax init writes one.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read ({type(error).__name__}): give the path of a TOML file.") from None
        return cls.from_text(text, str(file), changes, (file.resolve().parent, *map(Path, folders)), file.stem)

    @classmethod
    def from_text(
        cls,
        text: str,
        file: str = "experiment",
        changes: Iterable[str] = (),
        folders: Sequence[Path] = (),
        stem: str = "experiment",
    ) -> Experiment:
        """Read an experiment from the text of a file.

        Args:
            text: the text.
            file: what messages call it.
            changes: keys to set otherwise.
            folders: where files that it names are looked for.
            stem: the experiment's name, where the text has none.
        """
        from fedminimax.experiments.spec import parse
        from fedminimax.experiments.writing import changed, setting

        settings = [setting(change) for change in changes]
        parse(text, file)
        final = changed(text, settings) if settings else text
        made = cls.__new__(cls)
        made._begin(parse(final, file)[0], final, folders, stem)
        made._mistakes = functools.partial(_in_file, text, file, tuple(path for path, _ in settings))
        made.plan()  # so that whoever reads a file hears what is wrong with it
        return made

    @property
    def name(self) -> str:
        """What the experiment is called."""
        return str(self._tree.get("name", self._stem))

    @property
    def tables(self) -> dict[str, Any]:
        """All that a file would say, as tables of numbers, texts and lists; what a file cannot describe is an error."""
        from fedminimax.experiments.describe import described

        return described(self._tree)

    def to_toml(self) -> str:
        """Return the text of a file from which the same experiment is read."""
        from fedminimax.experiments.writing import write

        return write(self.tables)

    def plan(self) -> Any:
        """Read the tables, without the data; raise an :class:`InputError` with all that is wrong with them."""
        from fedminimax.experiments.checks import check
        from fedminimax.experiments.plan import read

        plan = read(self._tree, self._mistakes(), self._folders)
        check(plan)
        plan.mistakes.raise_if_any()
        return plan

    @functools.cached_property
    def ready(self) -> Ready:
        """The objects that are run: the data is read and the problem is made; what is wrong with it is an error."""
        from fedminimax.experiments.plan import read
        from fedminimax.experiments.prepare import prepare

        return prepare(read(self._tree, self._mistakes(), self._folders))

    def outline(self) -> Outline:
        """Return what would be run, and what it costs, without running it."""
        from fedminimax.experiments.outline import outline

        return outline(self)

    def run(self, out: str | os.PathLike[str] | None = None, *, progress: bool | None = None, report: bool = True) -> Outcome:
        """Carry the experiment out, or go on with it where the folder has its beginning.

        Args:
            out: the folder; by default ``runs/`` and the experiment's name.
            progress: show a progress bar; by default on a terminal only.
            report: write the report at the end.
        """
        from fedminimax.distributed import leads
        from fedminimax.experiments.execute import execute

        outcome = execute(self, Path("runs") / self.name if out is None else Path(out), progress=progress, report=report)
        for what, why in outcome.failed.items() if leads() else ():
            warnings.warn(f"{what} failed: {why}", stacklevel=2)
        return outcome

    @property
    def text(self) -> str | None:
        """The text of its file, with the comments that it has; None where it has objects that a file cannot describe."""
        if self._text is None:
            with suppress(InputError):
                return self.to_toml()
        return self._text

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where files that it names are looked for."""
        return self._folders

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Experiment) and self.tables == other.tables

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        seeds = self._tree.get("seeds", 1)
        count = seeds if isinstance(seeds, int) else len(seeds)
        return f"Experiment({self.name!r}: {', '.join(self._tree['methods'])}; {self._tree['rounds']} rounds, {count} seeds)"


def _without_file() -> Mistakes:
    from fedminimax.experiments.mistakes import Mistakes

    return Mistakes()


def _in_file(text: str, file: str, changes: tuple[Any, ...]) -> Mistakes:
    from fedminimax.experiments.mistakes import Mistakes
    from fedminimax.experiments.positions import lines_of

    return Mistakes(file, lines_of(text), changes)


def _table(problem: Any) -> Any:
    """Return a function that makes a problem, with its arguments, as a table."""
    if isinstance(problem, functools.partial):
        bound = inspect.signature(problem.func).bind_partial(*problem.args, **problem.keywords).arguments
        return {"name": problem.func, **bound}
    return {"name": problem} if inspect.isroutine(problem) else problem


def _by_label(metrics: Any) -> dict[str, Any]:
    """Return metrics by label: as given, or as each is called."""
    from fedminimax.metrics import named

    if isinstance(metrics, str):
        metrics = [metrics]
    if isinstance(metrics, Mapping):  # of settings too, which become metrics when the experiment runs
        return dict(metrics)
    if callable(metrics):
        return dict(named(metrics))
    listed = list(metrics)
    return {m: {} for m in listed if isinstance(m, str)} | dict(named([m for m in listed if not isinstance(m, str)]))
