"""Where more processes stop to pay: a model of a round's cost over many of them, fitted to what mesh.py measured.

    python benchmarks/mesh.py speed && python benchmarks/mesh.py reduce
    python benchmarks/mesh_model.py        # prints the table of docs/many_machines.md, and draws docs/mesh_cost.png

A round on P processes takes T_1 E[M] / S + e (2 (P - 1) a + 2 (P - 1) / P b / w): T_1 on one core, M the clients of a cohort
of S that the busiest process has (blocks alike, drawn at random), e exchanges with b bytes each, and a ring's reduction with
latency a and bandwidth w. a and w are fitted to the reductions measured between two processes of this machine; for a cluster
they are parameters (--latency, --bandwidth).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from workloads import WORKLOADS

HERE = Path(__file__).parent
PICTURE = HERE.parent / "docs" / "mesh_cost.png"
COUNTS = [1, 2, 4, 8, 16, 64, 256, 1024]
MANY = 10_000
"""A cohort of so many clients, in place of the workload's own: what a simulation that outgrows a machine has."""


class Link(NamedTuple):
    """Seconds a message takes to arrive, and bytes a second."""

    latency: float
    bandwidth: float

    def reduction(self, processes: int, size: float) -> float:
        """Return the seconds of a ring's reduction of so many bytes."""
        return 2 * (processes - 1) * self.latency + 2 * (processes - 1) / processes * size / self.bandwidth


def fitted() -> Link:
    """Return what fits the measured reductions of two processes, in relative terms."""
    measured = json.loads((HERE / "results" / "mesh_reduce.json").read_text())["2"]
    sizes, seconds = np.array([float(size) for size in measured]), np.array(list(measured.values()))
    terms = np.stack([np.full_like(sizes, 2.0), sizes], 1)  # 2 a + b / w
    latency, per_byte = np.linalg.lstsq(terms / seconds[:, None], np.ones_like(seconds), rcond=None)[0]
    return Link(float(max(latency, 0.0)), float(1 / per_byte))


def busiest(cohort: int, processes: int, draws: int = 400) -> float:
    """Return the share of a cohort that the process with the most of it has, on average."""
    if processes == 1:
        return 1.0
    counts = np.random.default_rng(0).multinomial(cohort, [1 / processes] * processes, size=draws)
    return float(counts.max(1).mean() / cohort)


def seconds(measured: dict, cohort: int, scale: float, processes: int, link: Link) -> float:
    """Return what a round takes: ``scale`` times the clients that were measured."""
    one = measured["ms"]["1 pinned"] / 1000 * scale
    exchanges, size = measured["2"]["exchanges"], measured["2"]["packed"] / measured["2"]["exchanges"]
    return one * busiest(cohort, processes) + exchanges * link.reduction(processes, size)


def main() -> None:
    """Print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=20e-6, help="of a cluster's network, in seconds")
    parser.add_argument("--bandwidth", type=float, default=1e9, help="of a cluster's network, in bytes a second")
    asked = parser.parse_args()
    from matplotlib.figure import Figure

    found = json.loads((HERE / "results" / "mesh_speed.json").read_text())
    here, there = fitted(), Link(asked.latency, asked.bandwidth)
    print(f"This machine: latency {1e6 * here.latency:.0f} us, {here.bandwidth / 1e9:.2f} GB/s")
    axes = Figure(figsize=(9.2, 3.6), layout="constrained").subplots(1, 2, sharey=True)
    print("| cohort | workload | " + " | ".join(f"{count:,}" for count in COUNTS) + " |\n|---|---|" + "---:|" * len(COUNTS))
    for ax, own in zip(axes, (True, False), strict=True):
        for name, measured in found.items():
            cohort = WORKLOADS[name].cohort if own else MANY
            scale = cohort / WORKLOADS[name].cohort
            times = [seconds(measured, cohort, scale, count, there) for count in COUNTS]
            gains = [times[0] / time for time in times]
            ax.loglog(COUNTS, gains, "o-", label=name, markersize=3)
            print(f"| {cohort:,} | {name} | " + " | ".join(f"{gain:.2g}" for gain in gains) + " |")
        ax.loglog(COUNTS, COUNTS, color="0.8", zorder=0)
        ax.set(xlabel="processes", title="the workloads' own cohorts" if own else f"cohorts of {MANY:,} clients")
        ax.set_ylim(0.01, 1500)
        ax.legend(frameon=False)
    axes[0].set_ylabel("times as fast as one process")
    axes[0].get_figure().savefig(PICTURE, dpi=130)


if __name__ == "__main__":
    main()
