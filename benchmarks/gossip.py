"""What an exchange along the edges of a graph costs, against the number of nodes and against a dense product.

    python benchmarks/gossip.py

Random graphs of 100, 1,000 and 10,000 nodes with ten neighbours each and rows of 50 numbers. How many exchanges the methods
need is `fedminimax reproduce personalized/theorem-1` and `theorem-2`.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedminimax as fm

NODES = (100, 1_000, 10_000)


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
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "gossip.json")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    options.results.write_text(json.dumps({"one_exchange": one_exchange()}, indent=1))


if __name__ == "__main__":
    main()
