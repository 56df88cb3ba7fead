"""What gossip costs: exchanges against the coupling (Theorems 1 and 2), and the time of one against the number of nodes.

    python benchmarks/gossip.py --out gossip.png

Ill-conditioned quadratics on a ring, to a distance of 1e-8, with the step sizes of the theory: mu = 1, and L = 2,000 for
Sliding, whose theory is for a coupling far below L; L = 200 for LocalExtraStep, whose rounds grow like L^1.5. Then
random graphs of 100, 1,000 and 10,000 nodes with ten neighbours each and rows of 50 numbers: one exchange against a dense
product.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import fedminimax as fm
from fedminimax.problems.personalized_quadratic import ill_conditioned

COUPLINGS = (4.0, 8.0, 16.0, 32.0, 64.0)
SMOOTHNESS = {"Sliding": 2000.0, "LocalExtraStep": 200.0}
NODES = (100, 1_000, 10_000)


def exchanges() -> dict[str, list[dict[str, float]]]:
    """Return, for each method and coupling, the exchanges and the local steps that a node needs."""
    network = fm.Network.ring(6, normalized=True)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SMOOTHNESS}
    for c in COUPLINGS:
        for name, L in SMOOTHNESS.items():
            task = ill_conditioned(network, c, L)
            if name == "Sliding":
                method = fm.Sliding.from_theory(task.problem, L, task.info["mu"], inner_tol=1e-11, inner_steps=10_000)
                rounds = int(100 * c) + 200
            else:
                method, rounds = fm.LocalExtraStep.from_theory(task.problem, L), int(250 * (L + c) ** 1.5 / c**0.5)
            seen = fm.run(
                task.problem, task.clients, method, rounds=rounds, eval_every=max(1, rounds // 200),
                engine=fm.Simulator(devices=1), metrics=fm.metrics.Distance(task.solution), progress=False,
            ).history  # fmt: skip
            first = int(np.argmax(seen["distance/total"] < 1e-8))
            if first == 0:
                raise SystemExit(f"{name} did not get there in {rounds} rounds.")
            row = {"coupling": c, "exchanges": int(seen["gossip_rounds"][first]), "steps": seen["local_steps"][first] / 6}
            found[name].append(row)
            print(name, row, flush=True)
    return found


def one_exchange() -> list[dict[str, float]]:
    """Return the milliseconds of one exchange and of the dense product, for each number of nodes."""
    rows = []
    for count in NODES:
        network = fm.Network.random(count, 10 if count < 10_000 else 14)
        x = jnp.asarray(np.random.default_rng(0).normal(size=(count, 50)), jnp.float32)
        sparse = jax.jit(lambda x, network=network: network.product(x))
        programs = {"sparse": lambda x=x, sparse=sparse: sparse(x)}
        if count <= 1_000:
            W = jnp.asarray(network.matrix.toarray(), jnp.float32)
            dense = jax.jit(lambda W, x: W @ x)
            programs["dense"] = lambda W=W, x=x, dense=dense: dense(W, x)
        times: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(30):
            for name, program in programs.items():
                begin = time.perf_counter()
                jax.block_until_ready(program())
                times[name].append(1e3 * (time.perf_counter() - begin))
        row = {"nodes": count, "edges": len(network.edges)} | {f"{n}_ms": float(np.median(t)) for n, t in times.items()}
        rows.append(row | {"ns_per_edge_and_number": 1e6 * row["sparse_ms"] / (2 * row["edges"] * 50)})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gossip.png"))
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "gossip.json")
    parser.add_argument("--only", choices=("one_exchange", "exchanges"), help="measure one part, and keep the other's results")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    found = json.loads(options.results.read_text()) if options.only else {}
    for part in (one_exchange, exchanges):
        if options.only in (None, part.__name__):
            found[part.__name__] = part()
    options.results.write_text(json.dumps(found, indent=1))
    draw(found, options.out)


def draw(found: dict, out: Path) -> None:
    """Draw exchanges and local steps against the coupling, with the slopes of the theory."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    slope = lambda x, y: np.polyfit(np.log(x), np.log(y), 1)[0]
    for name, rows in found["exchanges"].items():
        c = [r["coupling"] for r in rows]
        for ax, what in ((left, "exchanges"), (right, "steps")):
            values = [r[what] for r in rows]
            ax.loglog(c, values, "o-", label=f"{name}, L = {SMOOTHNESS[name]:g} (slope {slope(c, values):.2f})")
            print(name, what, f"slope {slope(c, values):.2f}")
    c = np.array(COUPLINGS)
    formulas = {
        "Sliding": ("c lambda_max", c),
        "LocalExtraStep": ("sqrt(c lambda_max (L + c lambda_max))", np.sqrt(c * (SMOOTHNESS["LocalExtraStep"] + c))),
    }
    for name, (label, rate) in formulas.items():
        line = rate * found["exchanges"][name][0]["exchanges"] / rate[0]
        left.loglog(c, line, "k:", linewidth=0.8)
        left.annotate(label, (c[-1], line[-1]), fontsize=7, ha="right", va="bottom")
        print(name, "formula", f"slope {slope(c, rate):.2f}")
    left.set(xlabel="coupling x lambda_max", ylabel="exchanges to 1e-8")
    right.set(xlabel="coupling x lambda_max", ylabel="local steps of a node")
    for ax in (left, right):
        ax.set_xticks(COUPLINGS, [f"{c:g}" for c in COUPLINGS])
        ax.minorticks_off()
        ax.legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main()
