"""SCAFF-PD when silos are away: what keeping their last losses and variates is worth, and at which step sizes.

Robust regression with its exact solution, in float64 and with full gradients. Every method runs its whole grid of step sizes,
for three seeds, as one compiled program. A setting has converged when the squared distance to x* is 1e-16 for every seed.

    python examples/absent_silos.py        # a minute and a half on two cores
"""

import argparse

import jax
import numpy as np

import fedminimax as fm

jax.config.update("jax_enable_x64", True)

TASKS = {
    "alike (rho = 0.1, sigma = 0.1)": {"rho": 0.1, "sigma": 0.1},
    "different (rho = 0.01, sigma = 1)": {"rho": 0.01, "sigma": 1.0},
    "different (20 silos of 8 rows)": {"clients": 20, "examples": 8, "rho": 0.1, "sigma": 0.5},
}
SILOS = {
    "all answer": None,
    "90% answer, each request": fm.Availability(0.9),
    "50% answer, and stay": fm.Availability(0.5, vanish=0.0),
    "50% answer, each request": fm.Availability(0.5),
}
TAU, SIGMA = [0.02, 0.05, 0.1, 0.2, 0.4], [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
TARGET = 1e-16


def grid(task, method, availability, rounds, seeds):
    """Return the squared distance to x* of every setting at its worst seed, [settings, evaluations], and the sweep."""
    found = fm.sweep(
        task.problem,
        task.clients,
        method,
        rounds=rounds,
        grid={"tau": TAU, "sigma": SIGMA},
        seeds=seeds,
        eval_every=5,
        availability=availability,
        metrics=fm.metrics.Distance(task.solution),
    )
    return found, np.nan_to_num(np.max(found.values("distance/x") ** 2, axis=1), nan=np.inf)


def row(found, error):
    """Return the best setting's rounds and end, and with which sigma some tau converges, as columns of a table."""
    reached = (error <= TARGET).any(axis=1)
    when = np.where(reached, np.argmax(error <= TARGET, axis=1), error.shape[1])
    best = int(np.lexsort((error[:, -10:].mean(axis=1), when))[0])
    at = ", ".join(f"{name} = {float(value):g}" for name, value in found.settings[best].items())
    largest = max((float(found.settings[k]["sigma"]) for k in np.flatnonzero(reached)), default=None)
    rounds = int(found.history["round"][when[best]]) if reached[best] else None
    return f"{rounds!s:>6}  {error[best, -1]:8.1e}  {at:<24}  {int(reached.sum()):>2} of {len(reached)}, sigma <= {largest}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="one problem, and one kind of absence: to try it")
    options = parser.parse_args()
    for name, settings in list(TASKS.items())[: 1 if options.small else None]:
        task = fm.problems.robust_regression(**settings)
        print(f"\n{name}\n{'':40}rounds  at the end  its setting             settings that converge")
        for silos, availability in list(SILOS.items())[-1 if options.small else None :]:
            for kind in (fm.ScaffPD, fm.ScaffPDStale):
                found, error = grid(task, kind(0.1, 0.1, local_steps=10), availability, options.rounds, options.seeds)
                print(f"{silos:<25} {kind.__name__:<13} {row(found, error)}", flush=True)


if __name__ == "__main__":
    main()
