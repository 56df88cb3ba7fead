"""Step sizes: where to look, what was tried, and where to look again when the best lies on the edge of what was tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import metrics, players
from fedminimax.algorithms import ALGORITHMS, Algorithm
from fedminimax.data.clients import ClientData, ClientSource
from fedminimax.fairness.words import fields_of, method_of
from fedminimax.players import Tree
from fedminimax.problems.base import over_all
from fedminimax.problems.robust import RobustProblem
from fedminimax.sweep import Sweep, sweep

PRIMAL_DUAL = ("ScaffPD", "ScaffPDStale")
"""The methods with a step tau of x on the server and a step sigma of w."""
BUDGET = 12
"""How many settings of each method are tried at a time: the same for all."""
MOST_SEARCHES = 3
"""How often at most: once, and again while the best of some method lies on an edge."""
_POWER_STEPS = 20
_CAPS = {"alpha": 1.0}  # hyper-parameters that have a greatest value

Grid = Mapping[str, Sequence[float]]


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What the searches for one method's step sizes came to.

    Attributes:
        grids: what was tried, one grid a search.
        searches: how it went.
        settings: the best of all.
        edges: the hyper-parameters whose best value is the least or greatest tried, and which of the two.
    """

    grids: tuple[dict[str, list[float]], ...]
    searches: tuple[Sweep, ...]
    settings: dict[str, float]
    edges: dict[str, str]

    @property
    def tried(self) -> int:
        """How many settings were tried in all."""
        return sum(len(search.settings) for search in self.searches)

    def sentence(self, name: str) -> str:
        """Return what was tried, and what was best."""
        best = ", ".join(f"{k} = {v:.3g}" for k, v in self.settings.items())
        spans = ", ".join(f"{k} {min(v):.2g} to {max(v):.2g}" for k, v in self._values().items())
        text = f"{name}: {best}, the best of {self.tried} on the training objective ({spans})"
        if not self.edges:
            return text
        at = " and ".join(f"{k} the {side}" for k, side in self.edges.items())
        return f"{text}; on the edge of what was tried: {at}"

    def _values(self) -> dict[str, list[float]]:
        return {key: [value for grid in self.grids for value in grid[key]] for key in self.grids[0]}


class Trials(NamedTuple):
    """How step sizes are found out about: in the simulator, or among sites that keep their data.

    Attributes:
        search: runs every combination of a grid, as :func:`search` does.
        losses: returns every client's loss at the start, given problem and clients.
        smoothness: returns the curvature L there, given problem and clients.
        most: how often at most a method is searched.
    """

    search: Callable[..., Sweep]
    losses: Callable[[RobustProblem, Any], jax.Array]
    smoothness: Callable[[RobustProblem, Any], float]
    most: int


def tune(
    problem: RobustProblem,
    clients: ClientSource,
    name: str,
    grid: Grid,
    before: Tuned | None = None,
    by: Callable[..., Sweep] | None = None,
    **how: Any,
) -> Tuned:
    """Search a grid, and return the best of it and of the searches before.

    Args:
        problem: what to solve.
        clients: the training data.
        name: the method.
        grid: values of each hyper-parameter.
        before: the searches before.
        by: how to search; by default :func:`search`.
        how: ``rounds``, ``local_steps`` and ``batch_size``, as for :func:`search`; ``fixed``, other hyper-parameters.
    """
    searched: Callable[..., Sweep] = by or search
    found = searched(problem, clients, name, grid, **how)
    if found.interrupted:
        raise KeyboardInterrupt  # half a search chooses nothing
    searches = (*(before.searches if before else ()), found)
    grids = (*(before.grids if before else ()), {key: list(values) for key, values in grid.items()})
    scores = [(_score(one), k) for k, one in enumerate(searches)]
    best = searches[min(scores)[1]]
    settings = dict(best.settings[best.best(metrics.WorstCase.name, last=2)])
    return Tuned(grids, searches, settings, edges_of(settings, grids))


def edges_of(settings: Mapping[str, float], grids: Sequence[Grid]) -> dict[str, str]:
    """Return which settings are the "least" or the "greatest" that was tried, unless more cannot be."""
    edges = {}
    for key, value in settings.items():
        values = [v for one in grids for v in one[key]]
        if len(set(values)) > 1 and value in (min(values), max(values)) and value < _CAPS.get(key, np.inf):
            edges[key] = "least" if value == min(values) else "greatest"
    return edges


def _score(found: Sweep) -> float:
    """Return the least training objective of a search; infinite where all diverged."""
    values = found.values(metrics.WorstCase.name)
    sound = np.isfinite(values).all(axis=(1, 2))
    return float(values[sound][:, :, -2:].mean(axis=(1, 2)).min()) if sound.any() else np.inf


def further(tuned: Tuned) -> dict[str, list[float]]:
    """Return the next grid, as large as the last: beyond the edges that the best lies on, and closer around it elsewhere."""
    grid = {}
    for key, values in tuned.grids[0].items():
        count, best, ordered = len(values), tuned.settings[key], sorted({v for one in tuned.grids for v in one[key]})
        place = ordered.index(best)
        if len(ordered) == 1:
            grid[key] = list(values)
            continue
        side = tuned.edges.get(key)
        down = (best / ordered[place - 1]) if place else ordered[1] / best
        up = (ordered[place + 1] / best) if place + 1 < len(ordered) else down
        if side == "least":
            made = [best / up**k for k in range(count)]
        elif side == "greatest":
            made = [best * down**k for k in range(count)]
        else:
            below, above = best / down ** (1 - 1 / (count + 1)), best * up ** (1 - 1 / (count + 1))
            made = np.geomspace(below, above, count).tolist() if count > 1 else [best]
        grid[key] = sorted({min(v, _CAPS.get(key, np.inf)) for v in made})
    return grid


def search(
    problem: RobustProblem,
    clients: ClientData,
    name: str,
    grid: Grid,
    *,
    rounds: int,
    local_steps: int,
    batch_size: int | None,
    fixed: Mapping[str, float] | None = None,
) -> Sweep:
    """Run every combination of a grid side by side, and measure the training objective max_w sum_i w_i f_i(x) - psi(w)."""
    first = {key: values[0] for key, values in grid.items()}
    method = make(name, {"local_steps": local_steps, "batch_size": batch_size, **(fixed or {}), **first})
    every = max(d for d in range(1, max(1, rounds // 4) + 1) if rounds % d == 0)
    return sweep(problem, clients, method, rounds=rounds, grid=grid, eval_every=every, metrics=metrics.WorstCase())


def make(name: str, settings: Mapping[str, Any]) -> Algorithm:
    """Return a method by name. ScaffPD's tau, where only ``lr_x`` is given, is K lr_x: plain averaging."""
    settings, base = dict(settings), method_of(name)[0]
    if base in PRIMAL_DUAL and "tau" not in settings:
        settings["tau"] = settings.pop("lr_x") * settings["local_steps"]
    return ALGORITHMS[base](**settings)


def to_search(name: str, grid: Grid, given: Mapping[str, float]) -> dict[str, list[float]]:
    """Return what of a grid is still to be searched, when some hyper-parameters are given: those that have no default."""
    if not given:
        return {key: list(values) for key, values in grid.items()}
    fields = fields_of(name)
    known = set(given) | ({"tau"} if "lr_x" in given and method_of(name)[0] in PRIMAL_DUAL else set())
    needed = lambda key: key not in known and fields[key].default is dataclasses.MISSING
    return {key: list(values) for key, values in grid.items() if needed(key)}


def search_space(
    name: str, curvature: float, loss: float, count: int, steps: int, total: float = 1.0
) -> dict[str, list[float]]:
    """Return a grid of :data:`BUDGET` settings in the problem's own units.

    Step sizes of the model are in units of 1 / L, those of the weights in units of 1 / (N f): with one such step a client whose
    loss is the mean f above the others' doubles its weight. Where weights do not sum to one, as QFair's, both are in units of
    their sum.

    Args:
        name: the method.
        curvature: L, the smoothness of the average loss.
        loss: f, the mean loss at the start.
        count: N.
        steps: K.
        total: the sum of the weights that are best at the start.
    """
    base = method_of(name)[0]
    rates = [v / curvature for v in (0.01, 0.03, 0.1, 0.4)]
    weigh = [v * total / (count * max(loss, 1e-12)) for v in (0.1, 1.0, 10.0)]
    if base in PRIMAL_DUAL:
        return {"tau": [steps * r / total for r in rates], "sigma": weigh}
    if base == "AFL":
        return {"lr_x": [r / total for r in rates], "lr_w": weigh}
    if base == "DRFA":
        return {"lr_x": rates, "lr_w": [v / steps for v in weigh]}
    if base == "QFedAvg":
        return {"lr_x": rates, "q": [0.2, 1.0, 5.0]}
    if base == "DeltaFL":
        return {"lr_x": rates, "alpha": [0.2, 0.5, 0.8]}
    if base == "FedProx":
        return {"lr_x": rates, "mu": [v * curvature for v in (0.001, 0.01, 0.1)]}
    return {"lr_x": (np.geomspace(0.003, 1.0, BUDGET) / curvature).tolist()}


def smoothness(problem: RobustProblem, clients: ClientData) -> float:
    """Return the largest eigenvalue of the average loss's Hessian at the start, by power iteration over all clients."""
    weights = jnp.asarray(problem.client_weights(clients), float)
    slope = lambda x, data: over_all(problem.loss, (x,), data, weights, jax.grad)
    # The point is an argument: XLA on CPUs multiplies by constants wrongly.
    product = jax.jit(lambda x, v, data: jax.jvp(lambda x: slope(x, data), (x,), (v,))[1])
    return largest_eigenvalue(problem.x0, lambda v: product(problem.x0, v, clients))


def largest_eigenvalue(like: Tree, product: Callable[[Tree], Tree]) -> float:
    """Return the largest eigenvalue of a symmetric matrix H by power iteration, given v -> Hv and a tree like v."""
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    v = jax.tree.unflatten(structure, [jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, leaves, strict=True)])
    largest = 0.0
    for _ in range(_POWER_STEPS):
        length = float(players.norm(v))
        if length == 0:
            break
        v = product(players.scale(v, 1.0 / length))
        largest = float(players.norm(v))
    return max(largest, 1e-12)


SIMULATED = Trials(search, lambda problem, clients: problem.losses(problem.x0, clients), smoothness, MOST_SEARCHES)
"""In the simulator."""
