"""``run``: one algorithm on one problem, to one Result."""

from __future__ import annotations

import functools
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import checks, players
from fedminimax import devices as host
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientData
from fedminimax.data.generated import GeneratedClients
from fedminimax.engines import accounting, keys
from fedminimax.engines.accounting import Traffic
from fedminimax.engines.availability import Availability
from fedminimax.engines.cohort import Conditions, everybodys_steps
from fedminimax.engines.guard import Guard
from fedminimax.engines.isolated import Isolated
from fedminimax.engines.simulator import AUTO, Layout, Progress, Simulator, Strategy, rehearse
from fedminimax.engines.store import DEVICE, HOST, ClientStore
from fedminimax.engines.trace import Trace
from fedminimax.errors import InputError
from fedminimax.metrics import Metric, Problem, evaluate, named
from fedminimax.players import Tree
from fedminimax.problems.robust import RobustProblem, SharedForm
from fedminimax.progress import Reporter
from fedminimax.result import Result
from fedminimax.steps import UniformSteps

SIMULATOR, ISOLATED = "simulator", "isolated"
_WORTH_SPLITTING = 20_000
"""Parameters of a whole cohort above which cores are worth their meeting points (measured: benchmarks/README.md)."""
_ON_DEVICE = 2**28
"""Bytes of clients' states that are kept on the device unless told otherwise."""
_CALL_SECONDS = 0.5
_WORTH_KEEPING = 2**26
"""Numbers of local steps, of all clients and rounds, above which they are not recorded: the seed draws them again."""
_UNKNOWN = -2
"""Stands in a recorded cohort for a client of a round before the run's first."""
_ROOM = 256
"""Rounds a call at the most: one number, so that runs of any length share a program."""


def run(
    problem: Problem | SharedForm,
    clients: ClientData,
    algorithm: Algorithm,
    *,
    rounds: int,
    seed: int = 0,
    eval_every: int | None = None,
    metrics: Iterable[Metric] | Mapping[str, Metric] | Metric = (),
    engine: str = SIMULATOR,
    strategy: Strategy = AUTO,
    devices: int | None = None,
    guard: Guard | None = None,
    availability: Availability | None = None,
    trace: Trace | None = None,
    record: bool = False,
    state: Tree | Mapping[str, Tree] | None = None,
    client_states: Tree | ClientStore | None = None,
    first_round: int | None = None,
    start: Result | None = None,
    client_store: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    watch: str | None = None,
) -> Result:
    """Run an algorithm for some rounds, and return what came of it.

    The same seed gives the same run whatever the engine, the strategy and the devices, to rounding.

    Args:
        problem: what to solve.
        clients: the clients' data.
        algorithm: the method with its hyper-parameters.
        rounds: how many communication rounds; with ``start`` this many more.
        seed: of all randomness.
        eval_every: evaluate the metrics every so many rounds (and before the first and after the last); by default about
            fifty times.
        metrics: functions of (problem, clients, state), by name or with a ``name`` of their own.
        engine: "simulator" (compiled) or "isolated" (every client a worker, every exchange bytes).
        strategy: how the simulator runs clients: "vmap" (side by side), "map" (one after another), a number (that many
            side by side), or "auto" (by the size of the model).
        devices: how many cores or accelerators to split cohorts over; None: all where it pays.
        guard: what replies must pass; by default non-finite ones are dropped.
        availability: who answers; by default everybody.
        trace: a record of cohorts and local steps to replay.
        record: keep a trace of this run in the result.
        state: an algorithm's state to start from; or some of its fields but the players by name, such as ``{"z": z0}`` of
            FessGDA, the others being as in ``algorithm.init``. Its numbers become those of the run (float32 or float64).
        client_states: the clients' own states to start from, [N, ...] (see ``Result.client_states``); by default those of
            ``algorithm.init_client``.
        first_round: the number of the first round, which schedules, the traces' rows and randomness go by; by default 0.
            With the same seed, ``state=r.state, client_states=r.client_states, first_round=r.rounds`` goes on as ``start=r``.
        start: a result to continue exactly, from its last round and with its seed.
        client_store: where clients' own states (control variates) live: "device", "host" (its memory), or a folder for
            memory-mapped files; by default on the device while they are small. On the host, cohorts run on one device.
        progress: show a progress bar; by default on a terminal only.
        watch: the metric that the bar shows; by default the first.
    """
    problem, clients = check_input(problem, clients, algorithm, rounds, eval_every)
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise InputError(f"seed must be a whole number, not {seed!r}.")
    if availability is not None:
        if not isinstance(availability, Availability):
            raise InputError(f"availability must be an Availability, such as Availability(0.5), not {availability!r}.")
        availability.check(clients.count)
    if start is not None and start.method != type(algorithm).__name__:
        raise InputError(f"The result to continue is {start.method}'s, but the algorithm is {type(algorithm).__name__}.")
    if record and start is not None and start.trace is None:
        raise InputError("The result to continue has no trace to add to: record from the first round on.")
    if start is not None and not (state is None and client_states is None and first_round is None):
        raise InputError(
            "Give either a state to start from or a result to continue, not both: the result has its states and its round."
        )
    first = checks.integer("first_round", first_round or 0, least=0) if start is None else start.rounds
    seed = seed if start is None else start.seed
    if trace is not None:
        if not isinstance(trace, Trace):
            raise InputError(f"trace must be a Trace, such as Trace(cohorts=(array,)), not {type(trace).__name__}.")
        trace = trace.check(first + rounds, clients.count, first)
        algorithm.check(clients, trace.steps)
    judged = named(metrics)
    _check_place(client_store, engine)
    conditions = Conditions(guard or Guard(), availability, record)
    if trace is not None:
        asked = rehearse(problem, algorithm, clients, conditions)
        trace = trace.fit(asked, type(algorithm).__name__, first + rounds, first)
    begin = _checked_state(algorithm, problem, state if start is None else start.state)
    kept = _checked_client_states(algorithm, problem, clients.count, client_states if start is None else start.client_states)
    carrier: Simulator | Isolated
    store = None
    if engine == ISOLATED:
        carrier = Isolated(problem, conditions)
    elif engine == SIMULATOR:
        store = _store(problem, clients, algorithm, client_store, kept, first)
        layout = _layout(problem, clients, algorithm, strategy, devices, store is not None)
        carrier = Simulator.build(problem, algorithm, conditions, layout)
    else:
        raise InputError(f"engine must be 'simulator' or 'isolated', not {engine!r}.")
    data = carrier.place(clients)
    carry = carrier.start(algorithm, clients, begin, store)
    if kept is not None:
        carry = carrier.remember(carry, kept)

    every = eval_every or max(1, rounds // 50)
    most = min(_ROOM, carrier.most_rounds(getattr(algorithm, "cohort_size", None) or clients.count) or _ROOM)
    key = keys.root(seed)
    judge = _Judge(problem, judged, data.clients)
    evaluations: list[tuple[int, dict[str, float]]] = [(first, judge(carry.state))]
    done: list[Progress] = []
    now, last, interrupted = first, first + rounds, False
    clock = _Clock()
    pace = 1
    with Reporter(type(algorithm).__name__, rounds, progress, watch) as reporter:
        reporter.show(0, evaluations[-1][1])
        try:
            while now < last:
                stop = min(last, first + ((now - first) // every + 1) * every)
                count = min(stop - now, pace, most)
                before = time.perf_counter()
                carry, part = carrier.advance(algorithm, data, key, carry, now, count, trace, length=_ROOM)
                pace = clock.took(time.perf_counter() - before, count)
                done.append(part)
                now += count
                if now == stop:
                    evaluations.append((now, judge(carry.state)))
                reporter.show(now - first, evaluations[-1][1])
        except KeyboardInterrupt:
            interrupted = True
            if now != evaluations[-1][0]:
                evaluations.append((now, judge(carry.state)))

    if store is not None:
        store.rounds = now
    costs = _costs(carrier, done, start, first)
    if done and (refused := int(costs["dropped"][first:].sum())):
        warnings.warn(
            f"The guard refused {refused} of {int(costs['replies'][first:].sum())} replies (costs['dropped'] says when): "
            "a client is broken, or the step sizes are too large.",
            stacklevel=2,
        )
    return Result(
        state=jax.tree.map(np.asarray, carry.state),
        history=_history(evaluations, costs, start),
        costs=costs,
        messages=carrier.messages if done or start is None else start.messages,
        method=type(algorithm).__name__,
        settings=repr(algorithm),
        seed=seed,
        rounds=now,
        client_states=carrier.client_states(carry),
        trace=_recorded(done, start, first, _steps_taken(algorithm, clients, key, trace, start, first, now))
        if record
        else None,
        seconds=clock.running + (0.0 if start is None else start.seconds),
        compile_seconds=clock.compiling,
        interrupted=interrupted,
    )


class _Clock:
    """Wall time, the first call (which compiles) apart; and how many rounds the next call should run."""

    def __init__(self) -> None:
        self.compiling, self.running, self._calls, self._pace = 0.0, 0.0, 0, 1

    def took(self, seconds: float, rounds: int) -> int:
        self._calls += 1
        if self._calls == 1:
            self.compiling = seconds
        else:
            self.running += seconds
            ideal = rounds * _CALL_SECONDS / max(seconds, 1e-6)
            self._pace = int(max(1, min(ideal, 8 * self._pace)))
        return self._pace


def _check_place(where: Any, engine: str) -> None:
    if where is None:
        return
    if engine == ISOLATED:
        raise InputError("The isolated engine keeps clients' states with their workers: leave client_store out.")
    if not isinstance(where, (str, os.PathLike)) or not str(where):
        raise InputError(f"client_store must be 'device', 'host' or a folder, not {where!r}.")
    if isinstance(where, str) and where not in (DEVICE, HOST) and where.lower() in (DEVICE, HOST):
        raise InputError(f"client_store is {where!r}: did you mean {where.lower()!r}?")


def _store(
    problem: Problem,
    clients: ClientData,
    algorithm: Algorithm,
    where: str | os.PathLike[str] | None,
    kept: Tree | ClientStore,
    first: int,
) -> ClientStore | None:
    """Return where the clients' states are to live on the host; None: on the device, or there are none.

    Args:
        problem: the problem.
        clients: the clients' data.
        algorithm: the method.
        where: what the user wants.
        kept: the states to start from, which may live there already.
        first: the first round.
    """
    own = jax.eval_shape(lambda: algorithm.init_client(problem))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(own)) * clients.count
    if own is None or where == DEVICE or (where is None and size <= _ON_DEVICE):
        return None
    initial = algorithm.init_client(problem)
    if where is None or where == HOST:
        return ClientStore(clients.count, initial)
    folder = Path(where)
    if isinstance(kept, ClientStore) and kept.folder is not None and kept.folder.resolve() == folder.resolve():
        if kept.rounds != first:
            raise InputError(
                f"The states in {folder} are those after {kept.rounds} rounds, but the run goes on from round {first}: "
                "continue the later result, or give another folder from the start."
            )
        return kept
    return ClientStore(clients.count, initial, folder)


def _layout(
    problem: Problem,
    clients: ClientData,
    algorithm: Algorithm,
    strategy: Strategy,
    devices: int | None,
    host_state: bool = False,
) -> Layout:
    cohort = getattr(algorithm, "cohort_size", None) or clients.count
    parameters = players.size(problem.x0) + players.size(problem.y0)
    worthwhile = cohort > 1 and cohort * parameters >= _WORTH_SPLITTING
    # One device reads and writes the host: several would wait for each other where replies are added up, and for the host,
    # and may hold each other up for ever.
    return Layout(strategy, 1 if host_state else host.usable(devices, worthwhile), host_state)


class _Judge:
    """Evaluates the metrics, compiled, with all their data put on the device once."""

    def __init__(self, problem: Problem, metrics: dict[str, Metric], clients: ClientData):
        leaves, structure = jax.tree.flatten(tuple(metrics.values()))
        # Plain functions cannot be arguments of a compiled program; they become part of it.
        functions = tuple(leaf if callable(leaf) else None for leaf in leaves)
        self._arrays = jax.device_put([None if callable(leaf) else leaf for leaf in leaves], jax.devices()[0])
        self._clients = _on_first_device(clients)
        self._compute = _evaluator(problem, tuple(metrics), structure, functions)
        self._empty = not metrics

    def __call__(self, state: Any) -> dict[str, float]:
        if self._empty:
            return {}
        names, compute = self._compute
        values = compute(self._arrays, self._clients, _on_first_device(state))
        return {name: float(value) for name, value in zip(names, values, strict=True)}


@functools.lru_cache(maxsize=64)
def _evaluator(
    problem: Problem, names: tuple[str, ...], structure: Any, functions: Any
) -> tuple[list[str], Callable[..., Any]]:
    """Return the compiled metrics, and the list that will hold the names of their numbers, in order, once it has run."""
    order: list[str] = []

    @jax.jit
    def compute(arrays: list[Any], clients: ClientData, state: Any) -> list[Any]:
        leaves = [a if f is None else f for a, f in zip(arrays, functions, strict=True)]
        metrics = dict(zip(names, jax.tree.unflatten(structure, leaves), strict=True))
        values = evaluate(metrics, problem, clients, state)
        order[:] = values
        return list(values.values())

    return order, compute


def _on_first_device(tree: Tree) -> Tree:
    """Return a view on one device of what is the same on all."""
    return jax.tree.map(lambda a: a.addressable_data(0) if isinstance(a, jax.Array) else a, tree)


def _costs(carrier: Simulator | Isolated, done: list[Progress], start: Result | None, first: int) -> dict[str, np.ndarray]:
    if not done:
        return {} if start is None else start.costs
    traffic = Traffic(*(np.concatenate(parts) for parts in zip(*(p.traffic for p in done), strict=True)))
    costs = accounting.history(carrier.messages, traffic)
    # What was not counted then, or in rounds before the first, is none.
    so_far = {} if start is None else start.costs
    before = lambda name, values: so_far.get(name, np.zeros(first, values.dtype))
    return {name: np.concatenate([before(name, values), values]) for name, values in costs.items()} if first else costs


def _history(
    evaluations: list[tuple[int, dict[str, float]]], costs: dict[str, np.ndarray], start: Result | None
) -> dict[str, np.ndarray]:
    if start is not None and list(start.history["round"][-1:]) == [evaluations[0][0]]:
        evaluations = evaluations[1:]
    rounds = np.array([t for t, _ in evaluations], np.int64)
    names = evaluations[0][1] if evaluations else {}
    history = {name: np.array([values[name] for _, values in evaluations]) for name in names}
    history = {"round": rounds, **history}
    if start is not None:
        before, after = len(start.history["round"]), len(rounds)
        missing = lambda n: np.full(n, np.nan)
        history = {
            n: np.concatenate([start.history.get(n, missing(before)), history.get(n, missing(after))])
            for n in dict.fromkeys([*start.history, *history])
            if n not in costs
        }
    for name, values in costs.items():
        history[name] = np.concatenate([[0], np.cumsum(values)])[history["round"]]
    return history


def _steps_taken(
    algorithm: Algorithm,
    clients: ClientData,
    key: keys.Key,
    trace: Trace | None,
    start: Result | None,
    first: int,
    last: int,
) -> np.ndarray | None:
    """Return how many local steps clients took, or would have, in each round, [rounds, N]; None: what the method says."""
    if trace is not None and trace.steps is not None:
        return trace.steps[first:last]
    spec: Any = getattr(algorithm, "local_steps", None)
    told = start is not None and start.trace is not None and start.trace.steps is not None  # then these must go on
    random = isinstance(spec, UniformSteps) and clients.count * (last - first) <= _WORTH_KEEPING
    if last == first or not (told or random):
        return None
    sizes, batch_size = jnp.asarray(clients.sizes), getattr(algorithm, "batch_size", None)
    drawn = jax.vmap(lambda t: everybodys_steps(spec, key, t, sizes, batch_size))(jnp.arange(first, last))
    return np.asarray(drawn)


def _recorded(done: list[Progress], start: Result | None, first: int, steps: np.ndarray | None) -> Trace:
    before = Trace() if start is None or start.trace is None else start.trace
    if not done:
        return before
    parts = [p.attendance for p in done]
    if jax.tree.leaves(before):
        parts.insert(0, (before.cohorts, before.invited, before.answers, before.draws, before.waited))
    elif first > 0:  # rounds that were run elsewhere: no number of a client, so that nobody replays them
        cohorts, *others = jax.tree.map(lambda a: np.zeros((first, *a.shape[1:]), a.dtype), parts[0])
        parts.insert(0, (tuple(np.full_like(ids, _UNKNOWN) for ids in cohorts), *others))
    cohorts, invited, answers, draws, waited = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
    if steps is not None and first > 0:
        known = before.steps is not None or not jax.tree.leaves(before)  # of rounds recorded without them nothing is known
        steps = np.concatenate([_rows_before(first, before.steps, steps), steps]) if known else None
    return Trace(tuple(cohorts), steps, draws, tuple(invited), tuple(answers), tuple(waited))


def _rows_before(first: int, recorded: np.ndarray | None, like: np.ndarray) -> np.ndarray:
    return np.zeros((first, *like.shape[1:]), like.dtype) if recorded is None else recorded[:first]


def check_input(
    problem: Any, clients: ClientData, algorithm: Algorithm, rounds: Any, eval_every: Any = None
) -> tuple[Problem, ClientData]:
    """Return the problem as it is on these clients, with their data as its loss takes them.

    Raise an :class:`InputError` for what cannot be run, before anything is compiled.
    """
    if isinstance(rounds, bool) or not isinstance(rounds, (int, np.integer)) or rounds < 0:
        raise InputError(f"rounds must be a whole number of at least 0, not {rounds!r}.")
    if eval_every is not None and eval_every < 1:
        raise InputError(f"eval_every must be at least 1, not {eval_every}.")
    if not isinstance(clients, (ClientData, GeneratedClients)):
        raise InputError(f"clients must be ClientData (see ClientData.from_list), not {type(clients).__name__}.")
    if not isinstance(algorithm, Algorithm):
        raise InputError(f"algorithm must be an instance such as FessGDA(lr_x=0.1, lr_y=0.1), not {algorithm!r}.")
    if not hasattr(problem, "bind"):
        raise InputError(f"problem must be a MinimaxProblem or a RobustProblem, not {type(problem).__name__}.")
    bound: Problem
    bound, clients = problem.bind(clients)
    kind = type(bound).__name__
    if not isinstance(bound, algorithm.solves):
        advice = " (give problem.as_minimax(): its weights as a shared y)" if isinstance(bound, RobustProblem) else ""
        raise InputError(
            f"{type(algorithm).__name__} is for a {algorithm.solves.__name__}, but {bound.name} is a {kind}{advice}."
        )
    bound.check(clients)
    algorithm.check(clients)
    return bound, clients


def _checked_state(algorithm: Algorithm, problem: Problem, state: Tree | Mapping[str, Tree] | None) -> Tree | None:
    """Return the state to start from, in the numbers of a fresh one; None: a fresh one."""
    if state is None:
        return None
    method = type(algorithm).__name__
    if isinstance(state, Mapping):
        fresh: Any = algorithm.init(problem)
        names = [name for name in fresh._fields if name not in ("x", "y")]
        for name in state:
            if name in ("x", "y"):
                raise InputError(
                    f"state has {name!r}, but other fields may begin where the players do: give them to the problem "
                    f"(problem.replace({name}0=...)), or give a whole state."
                )
            if name not in names:
                raise InputError(f"state has {name!r}, but {method}'s has {', '.join(names) or 'nothing'} besides the players.")
        state = fresh._replace(**state)
    return _like(
        state,
        jax.eval_shape(lambda: algorithm.init(problem)),
        f"The given state does not fit {method} on {problem.name}: it must have the structure and shapes of "
        f"{method}.init(problem).",
    )


def _checked_client_states(
    algorithm: Algorithm, problem: Problem, count: int, states: Tree | ClientStore
) -> Tree | ClientStore | None:
    """Return the clients' states to start from, in the numbers of fresh ones; None: fresh ones."""
    if states is None:
        return None
    method = type(algorithm).__name__
    own = jax.eval_shape(lambda: algorithm.init_client(problem))
    if own is None:
        raise InputError(f"Clients of {method} keep nothing from round to round: leave client_states out.")
    rows = jax.tree.map(lambda s: jax.ShapeDtypeStruct((count, *s.shape), s.dtype), own)
    if isinstance(states, ClientStore):
        same = [(s.shape, s.dtype) for s in states.shapes] == [(s.shape, s.dtype) for s in jax.tree.leaves(own)]
        if states.count == count and same:
            return states
        states = states.dense()
    return _like(
        states,
        rows,
        f"client_states must have the structure of {method}.init_client(problem), with a row for each of the {count} clients.",
    )


def _like(given: Tree, wanted: Tree, wrong: str) -> Tree:
    """Return a tree in the numbers of another, whose structure and shapes it must have."""
    alike: Any = jax.tree.structure(wanted)
    same = alike == jax.tree.structure(given) and all(
        np.shape(a) == b.shape for a, b in zip(jax.tree.leaves(given), jax.tree.leaves(wanted), strict=True)
    )
    if not same:
        raise InputError(wrong)
    return jax.tree.map(lambda a, b: np.asarray(a).astype(b.dtype, copy=False), given, wanted)
