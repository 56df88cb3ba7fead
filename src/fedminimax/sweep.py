"""Many runs as one program: hyper-parameters and seeds side by side."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedminimax import devices as host
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientSource
from fedminimax.engines.layout import AUTO, Layout, Strategy
from fedminimax.engines.program import Carry, Program, Script
from fedminimax.engines.simulated_round import Given, Placed
from fedminimax.errors import InputError
from fedminimax.federation import accounting
from fedminimax.federation.guard import Guard
from fedminimax.federation.round import Conditions
from fedminimax.inputs import check_input
from fedminimax.metrics import HIGHER, LOWER, Context, Metric, direction, evaluate, named
from fedminimax.problems.forms import AnyProblem
from fedminimax.random import keys

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Sweep:
    """The outcome of :func:`sweep`.

    Attributes:
        method: the algorithm's name.
        settings: the hyper-parameters that were varied, one dict a setting.
        seeds: the seeds.
        history: "round" [E], and every metric and cumulative cost as an array [settings, seeds, E]; of a metric that returns an
            array, such as one number for each client, [settings, seeds, E, N].
        better: which way each of them is better: "lower" or "higher"; what is not in it is neither.
    """

    method: str
    settings: list[dict[str, Any]]
    seeds: list[int]
    history: dict[str, np.ndarray]
    better: dict[str, str] = field(default_factory=dict)

    def best(self, metric: str, better: str | None = None, last: int = 1) -> int:
        """Return the number of the setting whose mean of ``metric`` over seeds, over the last evaluations, is best.

        A setting that ever became non-finite is never best; where all did, that is an error.

        Args:
            metric: what to compare settings by.
            better: "lower" or "higher"; by default what the metric says of itself.
            last: how many of the last evaluations to average.
        """
        values = self._numbers(metric)
        sound = np.isfinite(values).all(axis=(1, 2))
        if not sound.any():
            raise InputError(
                f"None of the {len(self.settings)} settings of {self.method} kept {metric!r} finite from the first to the last "
                "evaluation: try smaller steps, or look at the values with frame()."
            )
        sign = 1.0 if self._direction(metric, better) == LOWER else -1.0
        score = np.full(len(values), np.inf)
        score[sound] = sign * values[sound, :, -last:].mean(axis=(1, 2))
        return int(np.argmin(score))

    def _direction(self, metric: str, better: str | None) -> str:
        known = self.better.get(metric) if better is None else better
        if known not in (LOWER, HIGHER):
            cause = f"Nothing says which way {metric!r} is better" if better is None else f"better is {better!r}"
            raise InputError(
                f"{cause}: give better='lower' or better='higher' (a function of your own can have an attribute `better`)."
            )
        return known

    def _numbers(self, metric: str) -> np.ndarray:
        values = self.values(metric)
        if values.ndim > 3:
            raise InputError(f"{metric!r} is an array at every evaluation, not a number: values({metric!r}) has it.")
        return values

    def values(self, metric: str) -> np.ndarray:
        """Return a metric, [settings, seeds, evaluations], or [settings, seeds, evaluations, N] where it is an array."""
        if metric not in self.history:
            raise InputError(f"There is no {metric!r} in this sweep: it has {', '.join(self.history)}.")
        return self.history[metric]

    def frame(self) -> pd.DataFrame:
        """Return every number as a long table: one row a setting, seed and evaluation. Arrays are in ``history``."""
        import pandas as pd

        rounds = self.history["round"]
        rows: dict[str, Any] = {
            name: np.repeat([setting[name] for setting in self.settings], len(self.seeds) * len(rounds))
            for name in (self.settings[0] if self.settings else {})
        }
        rows["seed"] = np.tile(np.repeat(self.seeds, len(rounds)), len(self.settings))
        rows["round"] = np.tile(rounds, len(self.settings) * len(self.seeds))
        return pd.DataFrame(rows | {k: v.ravel() for k, v in self.history.items() if v.ndim == 3})

    def plot(
        self,
        metric: str,
        setting: int | None = None,
        against: str = "round",
        ax: Axes | None = None,
        better: str | None = None,
        **style: Any,
    ) -> Axes:
        """Draw one setting's metric, by default the :meth:`best`'s: the mean over seeds, and a band from least to greatest."""
        import matplotlib.pyplot as plt

        k = self.best(metric, better) if setting is None else setting
        values = self._numbers(metric)[k]
        ax = plt.subplots(figsize=(6, 4), layout="constrained")[1] if ax is None else ax
        across = self.history[against] if against == "round" else self.values(against)[k].mean(axis=0)
        (line,) = ax.plot(across, values.mean(axis=0), **{"label": self.method, **style})
        ax.fill_between(across, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.2, linewidth=0)
        ax.set_xlabel(against.replace("_", " "))
        ax.set_ylabel(metric.replace("_", " "))
        ax.legend()
        return ax


def sweep(
    problem: AnyProblem,
    clients: ClientSource,
    algorithm: Algorithm,
    *,
    rounds: int,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Iterable[int] = 1,
    eval_every: int | None = None,
    metrics: Iterable[Metric] | Mapping[str, Metric] | Metric = (),
    strategy: Strategy = AUTO,
    guard: Guard | None = None,
    devices: int | None = None,
    side_by_side: int | None = None,
) -> Sweep:
    """Run every combination of some hyper-parameters, for several seeds, as one compiled program.

    Real hyper-parameters are vmapped. Those that shape the program (``local_steps``, ``snapshot_every`` ...) make one program
    for each of their values. The work is split over the devices.

    Args:
        problem: what to solve.
        clients: the clients' data.
        algorithm: the method; its other hyper-parameters stay as they are.
        rounds: how many rounds.
        grid: values for some of its hyper-parameters; all combinations are run.
        seeds: how many (0, 1, ...) or which.
        eval_every: evaluate every so many rounds (it must divide ``rounds``); by default about fifty times.
        metrics: as for :func:`fedminimax.run`; of the ``context`` they see the round, and not the costs.
        strategy: how clients are run.
        guard: what replies must pass.
        devices: how many cores or accelerators to split the runs over; None: all.
        side_by_side: run at most so many at once (memory); None: all.
    """
    problem, clients = check_input(problem, clients, algorithm, rounds, eval_every)
    grid = {name: list(values) for name, values in (grid or {}).items()}
    kinds = {f.name: bool(f.metadata.get("static")) for f in fields(algorithm)}  # type: ignore[arg-type]
    for name, values in grid.items():
        if name not in kinds:
            raise InputError(f"{type(algorithm).__name__} has no hyper-parameter {name!r}: it has {', '.join(kinds)}.")
        if not values:
            raise InputError(f"The grid has no values for {name!r}.")
        if not kinds[name] and not all(isinstance(v, (int, float, np.generic)) and not isinstance(v, bool) for v in values):
            raise InputError(
                f"The grid's values for {name!r} must be numbers, not {values}: run a sweep for each of the others."
            )
    chosen = list(range(seeds)) if isinstance(seeds, int) else [int(s) for s in seeds]
    if any(not 0 <= s < 2**32 for s in chosen):
        raise InputError("A sweep's seeds must be whole numbers from 0 to 2^32 - 1.")
    if not chosen:
        raise InputError("A sweep needs at least one seed.")
    every = eval_every or max(d for d in range(1, max(1, rounds // 50) + 1) if rounds % d == 0)
    if rounds < 1 or rounds % every:
        raise InputError(f"A sweep evaluates at equal intervals: eval_every = {every} must divide rounds = {rounds}.")
    judged = named(metrics)
    conditions = Conditions(guard or Guard(), None, False)
    fixed = [name for name in grid if kinds[name]]
    real = [name for name in grid if not kinds[name]]
    settings: list[dict[str, Any]] = []
    parts: list[dict[str, np.ndarray]] = []
    for shape in itertools.product(*(grid[name] for name in fixed)):
        shaped = algorithm.replace(**dict(zip(fixed, shape, strict=True)))
        shaped.check(clients)
        points = list(itertools.product(*(grid[name] for name in real)))
        settings += [dict(zip(fixed, shape, strict=True)) | dict(zip(real, point, strict=True)) for point in points]
        for point in points:  # each is checked as a user's own would be
            shaped.replace(**dict(zip(real, point, strict=True)))
        columns = {name: np.array([p[k] for p in points], float) for k, name in enumerate(real)}
        program = Program.of(problem, shaped, conditions, Layout(strategy, 1))
        parts.append(
            _run_all(program, shaped, columns, len(points), chosen, clients, rounds, every, judged, devices, side_by_side)
        )
    history = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "round"}
    ordered = {name: [setting[name] for setting in settings] for name in grid}
    return Sweep(
        type(algorithm).__name__,
        [{name: ordered[name][k] for name in grid} for k in range(len(settings))],
        chosen,
        {"round": parts[0]["round"], **history},
        {name: known for name in history if (known := direction(judged, name)) is not None},
    )


def _run_all(
    rounds_of: Program,
    algorithm: Algorithm,
    columns: dict[str, np.ndarray],
    points: int,
    seeds: list[int],
    clients: ClientSource,
    rounds: int,
    every: int,
    metrics: dict[str, Metric],
    devices: int | None,
    side_by_side: int | None,
) -> dict[str, np.ndarray]:
    problem, script = rounds_of.problem, Script()
    data = jax.tree.map(jnp.asarray, clients)
    weights = jnp.asarray(problem.client_weights(clients), float)
    # Settings inside, seeds outside: runs with the same seed draw the same cohorts and batches, so these are drawn once.
    by_settings = points >= len(seeds)
    used = min(host.usable(devices, worthwhile=True), points if by_settings else len(seeds))
    room = lambda a, wanted: np.concatenate([a, np.repeat(a[:1], -len(a) % used if wanted else 0, axis=0)])
    columns = {name: room(values, by_settings) for name, values in columns.items()}
    seeds_in = room(np.asarray(seeds, np.uint32), not by_settings)
    # Where runs start is an argument of the program, never a constant in it: XLA on CPUs multiplies by constants wrongly.
    first = lambda values: rounds_of.first(algorithm.replace(**values))
    firsts = jax.vmap(first)(columns) if columns else jax.tree.map(lambda a: jnp.asarray(a)[None], first({}))

    judge = lambda state, data, round: evaluate(metrics, problem, data, state, Context(round))

    def one(setting: Any, seed: Any, data: Any, weights: Any) -> Any:
        values, first = setting
        method = algorithm.replace(**values)
        given = Given(method, Placed(data, weights), keys.root(seed))
        start = rounds_of.spread(first, data.count)

        def stretch(carry: Carry, block: Any) -> Any:
            step = lambda carry, k: rounds_of.one_round(given, carry, block * every + k, script)
            carry, done = jax.lax.scan(step, carry, jnp.arange(every))
            return carry, (judge(carry.state, data, (block + 1) * every), done.traffic)

        _, (values_after, traffic) = jax.lax.scan(stretch, start, jnp.arange(rounds // every))
        before = judge(start.state, data, jnp.zeros((), int))
        joined = jax.tree.map(lambda b, a: jnp.concatenate([b[None], a]), before, values_after)
        return joined, jax.tree.map(lambda a: a.reshape(rounds, *a.shape[2:]), traffic)

    def many(all_settings: Any, seeds: Any, data: Any, weights: Any) -> Any:
        def settings(seed: Any) -> Any:
            run_one = lambda setting: one(setting, seed, data, weights)
            if side_by_side is None:
                return jax.vmap(run_one)(all_settings)
            return jax.lax.map(run_one, all_settings, batch_size=side_by_side)

        return jax.vmap(settings)(seeds) if side_by_side is None else jax.lax.map(settings, seeds)

    program = many
    if used > 1:
        mesh = Mesh(np.asarray(jax.devices()[:used]), ("runs",))
        settings_axis, seeds_axis = ("runs", None) if by_settings else (None, "runs")
        program = functools.partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(PartitionSpec(settings_axis), PartitionSpec(seeds_axis), PartitionSpec(), PartitionSpec()),
            out_specs=PartitionSpec(seeds_axis, settings_axis),
            check_vma=False,
        )(many)
    values, traffic = jax.jit(program)((columns, firsts), seeds_in, data, weights)
    shape = lambda a: np.swapaxes(np.asarray(a)[: len(seeds), :points], 0, 1)
    history = {name: shape(v) for name, v in values.items()}
    costs = accounting.history(script.messages, jax.tree.map(shape, traffic))
    for name, cost in costs.items():
        so_far = np.concatenate([np.zeros((*cost.shape[:-1], 1), np.int64), np.cumsum(cost, axis=-1)], axis=-1)
        history[name] = so_far[..., ::every]
    history["round"] = np.arange(0, rounds + 1, every)
    return history
