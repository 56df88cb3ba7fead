"""Where more processes stop to pay: a model of a round's cost over many of them, fitted to what mesh.py measured.

    python benchmarks/mesh.py speed && python benchmarks/mesh.py reduce
    python benchmarks/mesh_model.py        # prints the table of docs/many_machines.md, and draws docs/mesh_cost.png

A round on P processes takes T_1 E[M] / S + e (c + m a + 2 (P - 1) / P b / w): T_1 on one core, M the clients of a cohort of S
that the busiest process has (equal blocks; a cohort is drawn at random, or has all), e exchanges with b bytes each, and a
reduction of m meetings with latency a and bandwidth w, after c that it takes a process to go on which has waited. 2^k processes
meet 2 k - 1 times; others, or --ring, 2 (P - 1) times. a and w are fitted to reductions one after the other between two
processes of this machine, c to the rounds of workload A beyond them. For a cluster a and w are parameters (--latency,
--bandwidth); c stays.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from workloads import WORKLOADS, Workload

HERE = Path(__file__).parent
PICTURE = HERE.parent / "docs" / "mesh_cost.png"
COUNTS = [1, 2, 4, 8, 16, 64, 256, 1024]
MANY = 10_000
"""A cohort of so many clients, in place of the workload's own: what a simulation that outgrows a machine has."""


class Link(NamedTuple):
    """Seconds a message takes to arrive, bytes a second, seconds until a process that has waited goes on; whether in a ring."""

    latency: float
    bandwidth: float
    wake: float
    ring: bool = False

    def meetings(self, processes: int) -> int:
        """Return how often each process waits for another in a reduction."""
        pairs = not self.ring and processes & (processes - 1) == 0
        return 2 * (processes.bit_length() - 1) - 1 if pairs else 2 * (processes - 1)

    def reduction(self, processes: int, size: float) -> float:
        """Return the seconds of a reduction of so many bytes."""
        if processes == 1:
            return 0.0
        share = 2 * (processes - 1) / processes
        return self.wake + self.meetings(processes) * self.latency + share * size / self.bandwidth


def fitted(found: dict) -> Link:
    """Return what fits the measured reductions of two processes, in relative terms, and the rounds of workload A."""
    measured = json.loads((HERE / "results" / "mesh_reduce.json").read_text())["2"]["pairs"]
    sizes, taken = np.array([float(size) for size in measured]), np.array([seconds for seconds, _ in measured.values()])
    terms = np.stack([np.ones_like(sizes), sizes], 1)  # a + b / w
    latency, per_byte = np.linalg.lstsq(terms / taken[:, None], np.ones_like(taken), rcond=None)[0]
    bare = Link(float(max(latency, 0.0)), float(1 / per_byte), 0.0)
    beyond = found["A"]["ms"]["2"] / 1000 - seconds(found["A"], WORKLOADS["A"], 1.0, 2, bare)
    return bare._replace(wake=max(0.0, beyond / found["A"]["2"]["exchanges"]))


def busiest(cohort: int, clients: int, processes: int, draws: int = 400) -> float:
    """Return the share of a cohort that the process with the most of it has, on average: of all clients exactly its block."""
    blocks = [len(block) for block in np.array_split(np.arange(clients), processes)]
    counts = np.random.default_rng(0).multivariate_hypergeometric(blocks, cohort, size=draws, method="marginals")
    return float(counts.max(1).mean() / cohort)


def seconds(measured: dict, workload: Workload, scale: float, processes: int, link: Link) -> float:
    """Return what a round takes: with ``scale`` times the clients that were measured, of as many times more."""
    one = measured["ms"]["1 pinned"] / 1000 * scale
    exchanges, size = measured["2"]["exchanges"], measured["2"]["packed"] / measured["2"]["exchanges"]
    share = busiest(round(workload.cohort * scale), round(workload.clients * scale), processes)
    return one * share + exchanges * link.reduction(processes, size)


def _short(gain: float) -> str:
    return f"{gain:.0f}" if gain >= 10 else f"{gain:.2g}"


def main() -> None:
    """Print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=20e-6, help="of a cluster's network, in seconds")
    parser.add_argument("--bandwidth", type=float, default=1e9, help="of a cluster's network, in bytes a second")
    parser.add_argument("--ring", action="store_true", help="reductions in a ring, as with other numbers of processes than 2^k")
    asked = parser.parse_args()
    from matplotlib.figure import Figure

    found = json.loads((HERE / "results" / "mesh_speed.json").read_text())
    here = fitted(found)
    there = Link(asked.latency, asked.bandwidth, here.wake, asked.ring)
    print(
        f"This machine: latency {1e6 * here.latency:.0f} us, {here.bandwidth / 1e9:.2f} GB/s, waking {1e6 * here.wake:.0f} us"
    )
    for name, measured in found.items():
        model = 1000 * seconds(measured, WORKLOADS[name], 1.0, 2, here)
        print(f"{name} on 2 processes of it: {model:.3g} ms by the model, {measured['ms']['2']:.3g} measured")
    axes = Figure(figsize=(9.2, 3.6), layout="constrained").subplots(1, 2, sharey=True)
    print("| cohort | workload | " + " | ".join(f"{count:,}" for count in COUNTS) + " |\n|---|---|" + "---:|" * len(COUNTS))
    for ax, own in zip(axes, (True, False), strict=True):
        for name, measured in found.items():
            cohort = WORKLOADS[name].cohort if own else MANY
            scale = cohort / WORKLOADS[name].cohort
            times = [seconds(measured, WORKLOADS[name], scale, count, there) for count in COUNTS]
            gains = [times[0] / time for time in times]
            ax.loglog(COUNTS, gains, "o-", label=name, markersize=3)
            print(f"| {cohort:,} | {name} | " + " | ".join(f"{_short(gain)}" for gain in gains) + " |")
        ax.loglog(COUNTS, COUNTS, color="0.8", zorder=0)
        ax.set(xlabel="processes", title="the workloads' own cohorts" if own else f"cohorts of {MANY:,} clients")
        ax.set_ylim(0.01, 1500)
        ax.legend(frameon=False)
    axes[0].set_ylabel("times as fast as one process")
    if not asked.ring:
        axes[0].get_figure().savefig(PICTURE, dpi=130)


if __name__ == "__main__":
    main()
