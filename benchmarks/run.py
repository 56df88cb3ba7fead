"""Rounds of nine workloads: fedminimax against the floor, a plain PyTorch loop and pfl; and one core against all."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from processes import ALL, Child, Command, Missing, block_of, interleave, machine, ratio, save
from workloads import WORKLOADS, Workload

RESULTS = Path(__file__).parent / "results"
ONE_THREAD, ALL_CORES, CLIENTS = "one-thread.json", "all-cores.json", "clients.json"
FEDMINIMAX, FLOOR, TORCH, LAST, PFL = "fedminimax", "floor", "PyTorch", "PyTorch, channels last", "pfl"
SPLIT = "fedminimax, all cores"
SCRIPTS = {
    FEDMINIMAX: "fedminimax_rounds.py",
    FLOOR: "floor.py",
    TORCH: "torch_loop.py",
    LAST: "torch_channels_last.py",
    PFL: "pfl_loop.py",
}
ONLY = {LAST: "CFHI", PFL: "AB"}
"""The workloads of contenders that do not run all."""
DISTURBED = 0.05
"""Above this share of the wall time spent waiting for a core, somebody else was using it."""
NOTE = "* somebody else was using the core: measure again. The floor alone ends elsewhere: its batches never change."


@dataclass(frozen=True)
class Ratio:
    """Times per round of one contender over another's, and what is aimed at.

    Attributes:
        above: the contender above the line.
        below: the one below it.
        targets: by workload.
        at_most: whether small is good.
    """

    above: str
    below: str
    targets: dict[str, float]
    at_most: bool

    @property
    def title(self) -> str:
        """What it is called."""
        return f"{self.above} / {self.below}"

    def met(self, workload: str, value: float) -> bool | None:
        """Tell whether the target is met; None: there is none."""
        target = self.targets.get(workload)
        return None if target is None else (value <= target if self.at_most else value >= target)

    def shown(self, workload: str, value: float) -> str:
        """Return the value beside its target."""
        number = f"{value:.2f}" if value < 10 else f"{value:.0f}"
        target = self.targets.get(workload)
        return number if target is None else f"{number} ({'<=' if self.at_most else '>='} {target:g})"


_FLOORS = {"A": 1.3, "B": 1.15, "C": 1.05, "D": 2.0, "E": 1.2, "F": 1.25, "G": 1.25}
_TORCH = {"A": 9.0, "B": 2.8, "C": 1.0, "D": 150.0, "E": 10.0, "F": 1.2, "G": 3.0, "H": 1.1, "I": 1.1}
RATIOS = {
    ONE_THREAD: (
        Ratio(FEDMINIMAX, FLOOR, _FLOORS, at_most=True),
        Ratio(TORCH, FEDMINIMAX, _TORCH, at_most=False),
        Ratio(LAST, FEDMINIMAX, {"C": 1.0, "H": 1.1, "I": 1.1}, at_most=False),
        Ratio(PFL, FEDMINIMAX, {"A": 10.0, "B": 3.0}, at_most=False),
    ),
    ALL_CORES: (Ratio(SPLIT, FEDMINIMAX, {"B": 0.7, "C": 0.6}, at_most=True),),
}
COLUMNS = {ONE_THREAD: (FEDMINIMAX, FLOOR, TORCH, LAST, PFL), ALL_CORES: (FEDMINIMAX, SPLIT)}


def main() -> None:
    """Measure, or print the tables of what was measured."""
    options = _options()
    if options.table:
        print("\n\n".join(_markdown(options.results)))
        return
    name = ALL_CORES if options.threads == ALL else ONE_THREAD
    path = options.results / name
    content = {"machine": machine(), "clock": options.clock, "workloads": {}}
    if path.exists():  # keep other workloads that were measured in the same circumstances
        earlier = json.loads(path.read_text())
        alike = all(earlier["machine"].get(k) == content["machine"][k] for k in ("cpu", "cores", "system", "packages"))
        content["workloads"] = earlier["workloads"] if alike and earlier["clock"] == options.clock else {}
    console = Console()
    for letter in options.workloads:
        with console.status(f"workload {letter}"):
            content["workloads"][letter] = _measure(WORKLOADS[letter], name, options, console)
        save(path, content)
    console.print(_table(name, content))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=sorted(WORKLOADS), default=sorted(WORKLOADS))
    parser.add_argument("--threads", choices=("1", ALL), default="1", help="one pinned thread each, or one against all cores")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--block-seconds", type=float, default=1.0, help="how long a contender runs when it is its turn")
    parser.add_argument("--core", type=int, default=0, help="the core that one-thread contenders are pinned to")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: processor time, for a busy machine")
    parser.add_argument("--contenders", nargs="+", choices=list(SCRIPTS), default=list(SCRIPTS))
    for peer in ("torch", "pfl"):
        variable = f"BENCH_{peer.upper()}_PYTHON"
        parser.add_argument(
            f"--{peer}-python",
            default=os.environ.get(variable, sys.executable),
            help=f"the Python that has {peer} (or set {variable})",
        )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print what was measured, as Markdown, and measure nothing")
    options = parser.parse_args()
    if options.threads == ALL and options.clock == "cpu":
        parser.error("--threads all is about wall time: leave --clock alone.")
    return options


def _commands(workload: Workload, name: str, options: argparse.Namespace) -> Iterator[Command]:
    """Return whom to start for a workload."""
    common = {"arguments": (workload.name,), "core": options.core}
    if name == ALL_CORES:
        yield Command(FEDMINIMAX, sys.executable, SCRIPTS[FEDMINIMAX], **common)
        yield Command(SPLIT, sys.executable, SCRIPTS[FEDMINIMAX], **common, threads=ALL)
        return
    pythons = {TORCH: options.torch_python, LAST: options.torch_python, PFL: options.pfl_python}
    for label in options.contenders:
        if workload.name in ONLY.get(label, workload.name):
            yield Command(label, pythons.get(label, sys.executable), SCRIPTS[label], **common)


def _measure(workload: Workload, name: str, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for command in _commands(workload, name, options):
            try:
                _require(command)
                children[command.label] = Child(command)
                stack.callback(children[command.label].close)
            except Missing as reason:
                console.print(f"[yellow]workload {workload.name}, missing: {reason}")
        losses = {label: child.ask(f"check {workload.check_rounds}") for label, child in children.items()}
        blocks = {label: block_of(child, options.block_seconds) for label, child in children.items()}
        times = interleave(children, blocks, options.repetitions)
    contenders = {
        label: {
            "ms": 1000 * statistics.median(times[label][options.clock]),
            "waiting": statistics.median(times[label].pop("waiting")),
            "rounds_of_block": blocks[label],
            "warm_up_seconds": child.greeting["warm_up"],
            "versions": child.greeting["versions"],
            "loss": losses[label],
            "seconds": times[label],
        }
        for label, child in children.items()
    }
    ratios = {
        r.title: ratio(times[r.above][options.clock], times[r.below][options.clock])
        for r in RATIOS[name]
        if r.above in times and r.below in times
    }
    return {"title": workload.title, "contenders": contenders, "ratios": ratios}


def _require(command: Command) -> None:
    """Raise Missing unless the contender's environment is there."""
    package = {SCRIPTS[TORCH]: "torch", SCRIPTS[LAST]: "torch", SCRIPTS[PFL]: "pfl"}.get(command.script, "fedminimax")
    try:
        found = subprocess.run([command.python, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0
    except OSError:
        found = False
    if not found:
        raise Missing(f"{command.label} (its Python does not import {package}; see benchmarks/README.md)")


@dataclass(frozen=True)
class Line:
    """A contender on a workload, as the tables show it."""

    workload: str
    contender: str
    milliseconds: str
    ratio: str
    met: bool | None
    warm_up: str
    loss: str


def _lines(name: str, content: dict[str, Any]) -> Iterator[Line]:
    for letter, row in sorted(content["workloads"].items()):
        contenders = row["contenders"]
        for label in (label for label in COLUMNS[name] if label in contenders):
            told = contenders[label]
            ratio_, met = "", None
            for r in RATIOS[name]:
                if r.title in row["ratios"] and label in {r.above, r.below} - {FEDMINIMAX}:
                    value = row["ratios"][r.title]
                    ratio_, met = f"{r.title} = {r.shown(letter, value)}", r.met(letter, value)
            yield Line(
                letter,
                label,
                _milliseconds(told),
                ratio_,
                met,
                f"{told['warm_up_seconds']:.1f}",
                f"{told['loss']['before']:#.4g} -> {told['loss']['after']:#.4g}",
            )


def _milliseconds(contender: dict[str, Any]) -> str:
    ms = contender["ms"]
    number = f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"
    return f"{number}*" if contender["waiting"] > DISTURBED else number


def _table(name: str, content: dict[str, Any]) -> Table:
    table = Table(title=f"medians, {content['clock']} time", caption=NOTE)
    for title in ("", "contender", "ms a round", "ratio (target)", "warm-up s", "loss"):
        table.add_column(title, justify="right" if title in ("ms a round", "warm-up s") else "left")
    for line in _lines(name, content):
        colour = {True: "[green]", False: "[red]", None: ""}[line.met]
        first = line.contender == FEDMINIMAX
        if first:
            table.add_section()
        head = line.workload if first else ""
        table.add_row(head, line.contender, line.milliseconds, colour + line.ratio, line.warm_up, line.loss)
    return table


def _markdown(results: Path) -> Iterator[str]:
    """Yield the tables of what was measured; targets that were missed are bold."""
    for name in (ONE_THREAD, ALL_CORES):
        if not (results / name).exists():
            continue
        content = json.loads((results / name).read_text())
        lines = [
            _row(["", "contender", "ms a round", "ratio (target)", "compile and warm up, s"]),
            _row(["---", "---", "---:", "---", "---:"]),
        ]
        for line in _lines(name, content):
            ratio_ = f"**{line.ratio}**" if line.met is False else line.ratio
            head = line.workload if line.contender == FEDMINIMAX else ""
            lines.append(_row([head, line.contender, line.milliseconds, ratio_, line.warm_up]))
        yield f"{_machine(content)}\n\n" + "\n".join(lines)
    if (results / CLIENTS).exists():
        content = json.loads((results / CLIENTS).read_text())
        header = ["clients", "ms a round", "data, MB", "peak while building, MB", "peak while running, MB"]
        lines = [_row(header), _row(["---:"] * len(header))]
        for row in content["counts"]:
            memories = [f"{row[name] / 1e6:.0f}" for name in ("data_bytes", "building_bytes", "running_bytes")]
            lines.append(_row([f"{row['clients']:,}", f"{row['ms']:.3g}", *memories]))
        lines.append(
            f"\nA round takes {content['ratio']:.2f} times as long with the more clients (<= {content['target']:g}), and a run "
            f"{content['memory_per_data']:.2f} bytes more for each byte more of data."
        )
        yield f"{_machine(content)}\n\n" + "\n".join(lines)


def _machine(content: dict[str, Any]) -> str:
    m = content["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in m["packages"].items())
    where = f"{m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB, {m['system']}, Python {m['python']}, {packages}"
    return f"{where}; {content['clock']} time."


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
