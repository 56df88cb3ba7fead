"""The results of an experiment: one tidy table, ``results/<experiment>.csv``, with a row for each evaluation of each run.

    python benchmarks/tables.py                    # what there is
    python benchmarks/tables.py fold               # loose results/<experiment>/*.json go into the tables, and are deleted
    python benchmarks/tables.py fold --anew personalized    # and the table holds nothing else

A row has the run's name (its key columns), what was chosen for the run, "round", and what was measured after that round.
``pandas.read_csv`` reads it.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
Run = tuple[str, ...]
"""A run's name: the values of a table's key columns."""
Record = dict[str, Any]
"""A run: numbers and texts that were chosen for it, and lists of equal length, "round" among them."""


@dataclass(frozen=True)
class Table:
    """The runs of one experiment.

    Attributes:
        name: the experiment's.
        pattern: of a loose file's name, with a group for each key column.
        results: the folder of the table.
    """

    name: str
    pattern: str
    results: Path = RESULTS

    @property
    def keys(self) -> list[str]:
        """The key columns."""
        return list(re.compile(self.pattern).groupindex)

    @property
    def path(self) -> Path:
        """The table."""
        return self.results / f"{self.name}.csv"

    @property
    def folder(self) -> Path:
        """Where pictures are put, and loose files may be."""
        return self.results / self.name

    def read(self) -> dict[Run, Record]:
        """Return all runs by name, in the order of their names."""
        runs: dict[Run, Record] = {}
        if not self.path.exists():
            return runs
        with self.path.open(newline="") as file:
            rows = csv.DictReader(file)
            columns = list(rows.fieldnames or ())
            chosen, measured = columns[len(self.keys) : columns.index("round")], columns[columns.index("round") :]
            for row in rows:
                run = tuple(row[key] for key in self.keys)
                record = runs.setdefault(run, {column: _value(row[column]) for column in chosen if row[column]})
                for column in measured:
                    if row[column]:
                        record.setdefault(column, []).append(float(row[column]))
        return runs

    def add(self, runs: Mapping[Run, Record], anew: bool = False) -> None:
        """Put runs into the table, in place of those of the same names.

        Args:
            runs: by name.
            anew: whether the table holds nothing else afterwards.
        """
        with self._alone():
            self._write({} if anew else self.read(), runs)

    def _write(self, before: dict[Run, Record], new: Mapping[Run, Record]) -> None:
        runs = {run: (before | dict(new))[run] for run in sorted({*before, *new}, key=_order)}
        series = lambda record: {name for name, value in record.items() if isinstance(value, list)}
        names = list(dict.fromkeys(name for record in runs.values() for name in record))
        measured = [name for name in names if any(name in series(r) for r in runs.values())]
        mixed = [name for name in measured if any(name in r and name not in series(r) for r in runs.values())]
        if mixed:
            raise SystemExit(f"{self.name}: {', '.join(mixed)} is a list in some runs and a number in others.")
        measured.remove("round")
        chosen = [name for name in names if name not in (*measured, "round")]
        unfinished = self.path.with_suffix(f".{os.getpid()}")
        with unfinished.open("w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow([*self.keys, *chosen, "round", *measured])
            for run, record in runs.items():
                first = [*run, *(_text(record[name]) if name in record else "" for name in chosen)]
                for k, at in enumerate(record["round"]):
                    table.writerow([*first, _text(at), *(_text(record[n][k]) if n in record else "" for n in measured)])
        os.replace(unfinished, self.path)

    def fold(self, anew: bool = False) -> int:
        """Move loose files into the table, and return how many there were."""
        files = sorted(self.folder.glob("*.json"))
        self.add({self.run_of(path.stem): json.loads(path.read_text()) for path in files}, anew)
        for path in files:
            path.unlink()
        return len(files)

    def run_of(self, stem: str) -> Run:
        """Return the run that a loose file is named after."""
        found = re.fullmatch(self.pattern, stem)
        if found is None:
            raise SystemExit(f"{stem}.json is no run of {self.name}: its name should be {'-'.join(self.keys)}.json.")
        return tuple(part.replace("_", " ") if key == "method" else part for key, part in found.groupdict().items())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from writing the table: seeds may be run side by side."""
        handle = os.open(self.results, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _order(run: Run) -> tuple[Any, ...]:
    return tuple((0, float(part), "") if part.isdigit() else (1, 0.0, part) for part in run)


def _text(value: Any) -> str:
    """Return a cell; whole numbers without a point, texts as they are."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)


def _value(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell


PERSONALIZED = Table("personalized", r"(?P<setting>.+)-(?P<method>[^-]+)-(?P<period>\d+)-(?P<seed>\d+)")
TABLES = {table.name: table for table in (PERSONALIZED,)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs="?", choices=("show", "fold"), default="show")
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; by default all")
    parser.add_argument("--anew", action="store_true", help="drop the runs that have no loose file")
    options = parser.parse_args()
    for name in options.tables or TABLES:
        if name not in TABLES:
            parser.error(f"There is no table {name}: there are {', '.join(TABLES)}.")
        table = TABLES[name]
        if options.command == "fold":
            if options.anew and not list(table.folder.glob("*.json")):
                parser.error(f"There are no loose files of {name}: --anew would leave an empty table.")
            print(f"{name}: {table.fold(options.anew)} files folded in")
        print(f"{name}: {len(table.read())} runs in {table.path.name}, {table.path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
