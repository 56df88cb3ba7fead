"""What users hand to a run, checked before anything is compiled: problems, clients, methods, and where to start."""

from __future__ import annotations

import dataclasses
import re
import warnings
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedminimax import checks
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientData, ClientSource
from fedminimax.data.generated import GeneratedClients
from fedminimax.data.remote import RemoteClients
from fedminimax.data.shards import ClientShard
from fedminimax.engines.execution import AtSites, Snapshot
from fedminimax.engines.rows import OwnStates, SavedStates
from fedminimax.engines.store import ClientStore
from fedminimax.errors import InputError
from fedminimax.players import Tree
from fedminimax.problems.forms import AnyProblem
from fedminimax.problems.robust import Problem, RobustProblem
from fedminimax.result import Result

MADE_ON = "made on"
"""Where a result's ``info`` has the fingerprint of what it was made on."""
_ROWS = 512
"""How many rows of the data tell them apart."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""What differs in the text of a function between two processes."""


def check_input(
    problem: AnyProblem, clients: ClientSource, algorithm: Algorithm, rounds: int, eval_every: int | None = None
) -> tuple[Problem, ClientSource]:
    """Return the problem as it is on these clients, with their data as its loss takes them.

    Raise an :class:`InputError` for what cannot be run, before anything is compiled.
    """
    if isinstance(rounds, bool) or not isinstance(rounds, (int, np.integer)) or rounds < 0:
        raise InputError(f"rounds must be a whole number of at least 0, not {rounds!r}.")
    if eval_every is not None and eval_every < 1:
        raise InputError(f"eval_every must be at least 1, not {eval_every}.")
    if not isinstance(clients, (ClientData, ClientShard, GeneratedClients, RemoteClients)):
        raise InputError(f"clients must be ClientData (see ClientData.from_list), not {type(clients).__name__}.")
    if not isinstance(algorithm, Algorithm):
        raise InputError(f"algorithm must be an instance such as FessGDA(lr_x=0.1, lr_y=0.1), not {algorithm!r}.")
    _check_complete(algorithm)
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


def _check_complete(algorithm: Algorithm) -> None:
    """Raise an :class:`InputError` for a hyper-parameter that is None and has no meaning then."""
    for item in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        if getattr(algorithm, item.name) is None and item.default is not None:
            raise InputError(f"{type(algorithm).__name__}.{item.name} is None: give it a number.")


def fingerprint(problem: Problem, clients: ClientSource) -> dict[str, Any]:
    """Return what a run was made on, by which another one's clients and problem can be told from it.

    Of the data a checksum of some rows: enough to notice a mistake, and cheap for any amount.
    """
    known: dict[str, Any] = {"problem": problem.name, "clients": clients.count}
    if isinstance(clients, ClientData):
        rows = np.linspace(0, clients.total - 1, min(clients.total, _ROWS)).astype(int)
        some = [np.asarray(clients.sizes), *(np.asarray(leaf)[rows] for leaf in jax.tree.leaves(clients.fields))]
        known |= {"examples": clients.total, "contents": zlib.crc32(b"".join(part.tobytes() for part in some))}
    return known


def check_continued(result: Result, problem: Problem, clients: ClientSource, algorithm: Algorithm) -> None:
    """Raise an :class:`InputError` where a result cannot be continued on these clients, and warn of what has changed.

    A step that is made smaller, or data that have grown, are good reasons to go on with something else, and mistakes as often.
    """
    there, here = result.info.get(MADE_ON, {}), fingerprint(problem, clients)
    if there and there["clients"] != here["clients"]:
        raise InputError(
            f"The result to continue has {there['clients']} clients, but here are {here['clients']}: give the same clients, or "
            "begin a new run from its state, start=Snapshot(result.state)."
        )
    changed = []
    if there and any(there[name] != here[name] for name in there.keys() & here.keys()):  # a share of the data tells less
        same_data = there.get("contents") == here.get("contents")
        changed.append(
            f"the problem was {there['problem']}, and is {here['problem']}" if same_data else "the clients' data are others"
        )
    before, now = (_ADDRESS.sub("", text) for text in (result.settings, repr(algorithm)))
    if before != now:
        changed.append(f"the method was {before}, and is {now}")
    if changed:
        warnings.warn(f"The run goes on, but not as it was: {'; '.join(changed)}.", stacklevel=4)


def beginning(algorithm: Algorithm, problem: Problem, count: int, start: Any) -> Snapshot | None:
    """Return what a run goes on from, in the numbers of a fresh state; None: the algorithm's own start.

    Args:
        algorithm: the method.
        problem: what it solves, bound to its clients.
        count: the number of clients.
        start: a result, a snapshot, a state, or some fields of one by name.
    """
    if start is None:
        return None
    if isinstance(start, Result):
        if start.method != type(algorithm).__name__:
            raise InputError(f"The result to continue is {start.method}'s, but the algorithm is {type(algorithm).__name__}.")
        start = Snapshot(start.state, start.client_states, start.rounds)
    elif not isinstance(start, Snapshot):
        start = Snapshot(start)
    return Snapshot(
        _checked_state(algorithm, problem, start.state),
        _checked_client_states(algorithm, problem, count, start.client_states),
        checks.integer("Snapshot's round", start.round, least=0),
    )


def _checked_state(algorithm: Algorithm, problem: Problem, state: Tree | Mapping[str, Tree]) -> Tree:
    """Return the state to start from, in the numbers of a fresh one."""
    method = type(algorithm).__name__
    if isinstance(state, AtSites):
        return state
    if isinstance(state, Mapping):
        fresh: Any = algorithm.init(problem)
        names = [name for name in fresh._fields if name not in ("x", "y")]
        for name in state:
            if name in ("x", "y"):
                raise InputError(
                    f"start has {name!r}, but other fields may begin where the players do: give them to the problem "
                    f"(problem.replace({name}0=...)), or give a whole state."
                )
            if name not in names:
                raise InputError(
                    f"start has {name!r}, but {method}'s state has {', '.join(names) or 'nothing'} besides the players."
                )
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
    if states is None or isinstance(states, AtSites):
        return states
    method = type(algorithm).__name__
    own = jax.eval_shape(lambda: algorithm.init_client(problem))
    if own is None:
        raise InputError(f"Clients of {method} keep nothing from round to round: leave client_states out.")
    if isinstance(states, SavedStates):
        return states
    here = states.last - states.first if isinstance(states, OwnStates) else count
    rows = jax.tree.map(lambda s: jax.ShapeDtypeStruct((here, *s.shape), s.dtype), own)
    if isinstance(states, ClientStore):
        same = [(s.shape, s.dtype) for s in states.shapes] == [(s.shape, s.dtype) for s in jax.tree.leaves(own)]
        if states.count == count and same:
            return states
        states = states.dense()
    wrong = (
        f"client_states must have the structure of {method}.init_client(problem), with a row for each of the {here} clients."
    )
    if isinstance(states, OwnStates):
        return states._replace(rows=_like(states.rows, rows, wrong))
    return _like(states, rows, wrong)


def _like(given: Tree, wanted: Tree, wrong: str) -> Tree:
    """Return a tree in the numbers of another, whose structure and shapes it must have."""
    alike: Any = jax.tree.structure(wanted)
    same = alike == jax.tree.structure(given) and all(
        np.shape(a) == b.shape for a, b in zip(jax.tree.leaves(given), jax.tree.leaves(wanted), strict=True)
    )
    if not same:
        raise InputError(wrong)
    return jax.tree.map(lambda a, b: np.asarray(a).astype(b.dtype, copy=False), given, wanted)
