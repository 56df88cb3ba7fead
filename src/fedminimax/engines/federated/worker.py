"""A site of a federation: its data, its client's state, and the one function that answers the server."""

from __future__ import annotations

import inspect
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import wire
from fedminimax._version import __version__
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientData
from fedminimax.data.remote import RemoteClients, alike
from fedminimax.engines.evaluation import own_parts
from fedminimax.engines.exchange import Heard, carry_out, host
from fedminimax.engines.federated import messages
from fedminimax.engines.federated.memory import Answered, LostState, Memory, reply_of
from fedminimax.engines.federated.messages import LOST, Ask, Malformed, Whose
from fedminimax.engines.federated.transport import ERROR, MALFORMED
from fedminimax.errors import InputError
from fedminimax.federation.guard import finite
from fedminimax.players import Tree
from fedminimax.problems.forms import AnyProblem
from fedminimax.problems.robust import Problem


class Worker:
    """One site: ``handle`` takes the bytes of a request and returns the bytes of a reply. It never raises.

    What it is asked twice it answers from what it computed. What its client remembers is on disk before the reply leaves, under
    a name; the next request says which name counts. An exception becomes a category with the exception's type.

    Args:
        problem: what is solved, not yet bound to clients: the server's own.
        algorithm: the method, with the server's hyper-parameters.
        data: the site's examples: :class:`ClientData` of one client, or a pytree of arrays over its examples.
        folder: where its client's states are kept; None: in memory, and lost with the process.
        held_out: the site's shares of held-out data by name, such as {"test": data}.
    """

    def __init__(
        self,
        problem: AnyProblem,
        algorithm: Algorithm,
        data: ClientData | Tree,
        folder: str | Path | None = None,
        held_out: Mapping[str, ClientData | Tree] | None = None,
    ):
        self._problem, self._algorithm, self._data = problem, algorithm, _own(data)
        self._folder = None if folder is None else Path(folder)
        self._held_out: dict[int | str, ClientData] = {name: _own(share) for name, share in (held_out or {}).items()}
        self._memory: Memory | None = None
        self._bindings: dict[Whose, tuple[Problem, ClientData]] = {}

    def handle(self, request: bytes) -> bytes:
        """Do what a request asks, and return the reply."""
        id = None
        try:
            ask: Any = wire.decode(request)
            if not isinstance(ask, dict):
                raise Malformed("it is no message")
            id = messages.name(ask.get("id"))
            if "hello" in ask:
                return wire.encode({"id": id, "hello": self._hello()})
            if "parts" in ask:
                return wire.encode({"id": id, "parts": self._parts(ask)})
            return self._exchange(messages.asked(ask))
        except (Malformed, InputError) as error:
            return messages.failed(id, MALFORMED, type(error).__name__)
        except LostState:
            return messages.failed(id, LOST)
        except Exception as error:  # whatever it is, the server learns its type, and the site stays
            return messages.failed(id, ERROR, type(error).__name__)

    def _hello(self) -> dict[str, Any]:
        return {
            **_described(self._data),
            "held_out": {str(name): _described(share) for name, share in self._held_out.items()},
            "agrees": agreement(self._problem, self._algorithm),
            "versions": versions(),
        }

    def _parts(self, ask: dict[str, Any]) -> Tree:
        whose, request = messages.whose(ask.get("whose")), ask["parts"]
        if not isinstance(request, dict):
            raise Malformed("the metrics are none")
        problem, data = self._bound(whose)
        return own_parts(problem, whose.number, data, self._held_out, request)

    def _exchange(self, ask: Ask) -> bytes:
        problem, data = self._bound(ask.whose)
        memory = self._of_run(ask.run, problem)  # which replaces that of another run when something has come of it
        if memory.answered is not None and memory.answered.id == ask.id:
            return reply_of(memory.answered)
        state, notes = memory.state(ask.state), memory.notes(ask.turn)
        replies, learnt, kept = [], None, dict(notes)
        for letter in ask.letters:
            note = notes.get(letter["place"])
            if ask.noted and note is None:
                raise LostState
            _check_program(self._algorithm, letter["function"])
            out, work = carry_out(problem, self._algorithm, data, ask.whose.number, letter, state, note)
            if out.state is not None and finite(out.value):
                learnt = host(out.state)
            if out.note is not None:
                kept[letter["place"]] = host(out.note)
            replies.append(host(Heard(out.value, work)._asdict()))
        name = None if learnt is None else ask.id
        reply = wire.encode({"id": ask.id, "state": ask.state if name is None else name, "replies": replies})
        memory.remember(name, learnt, Answered(ask.id, ask.turn, kept, np.frombuffer(reply, np.uint8)))
        memory.forget_but({ask.id, ask.state, *ask.keep})
        self._memory = memory
        return reply

    def _of_run(self, run: str, problem: Problem) -> Memory:
        if self._memory is not None and self._memory.run == run:
            return self._memory
        return Memory(self._folder, run, host(self._algorithm.init_client(problem)))

    def _bound(self, whose: Whose) -> tuple[Problem, ClientData]:
        """Return the problem as it is among so many clients, and the data as its loss wants them."""
        if whose not in self._bindings:
            roll = RemoteClients.of(self._data.example, [self._data.total] * whose.clients, self._data.batching)
            problem, bound = self._problem.bind(roll)
            self._bindings = {whose: (problem, alike(self._data, bound, whose.number, whose.first))}
        return self._bindings[whose]


def _own(data: ClientData | Tree) -> ClientData:
    own = data if isinstance(data, ClientData) else ClientData.from_list([data])
    if own.count != 1:
        raise InputError(f"A site has the data of one client, not of {own.count}: give clients.only(number).")
    return own


def _described(data: ClientData) -> dict[str, Any]:
    """Return the size and the shapes of some data: arrays without any example."""
    empty = jax.tree.map(lambda a: np.zeros((0, *a.shape[1:]), a.dtype), data.example)
    return {"size": data.total, "example": empty, "batching": data.batching}


def agreement(problem: AnyProblem, algorithm: Algorithm) -> dict[str, str]:
    """Return what a server and its sites must have in common, as texts by name."""
    solved: Any = getattr(problem, "robust", problem)
    return {
        "the problem": str(solved.name),
        "the method": re.sub(r" at 0x[0-9a-f]+", "", repr(algorithm)),
        "numbers (jax_enable_x64)": jnp.zeros(()).dtype.name,
        "fedminimax": __version__,
    }


def versions() -> dict[str, str]:
    """Return the versions of what else the numbers depend on."""
    return {"jax": jax.__version__, "numpy": np.__version__, "python": platform.python_version()}


def _check_program(algorithm: Algorithm, function: str) -> None:
    """Raise :class:`Malformed` unless a name is that of a client's program: what else a method can do is not for the server."""
    program = getattr(type(algorithm), function, None) if function.isidentifier() and function[0] != "_" else None
    if not inspect.isfunction(program) or list(inspect.signature(program).parameters)[1:3] != ["problem", "client"]:
        raise Malformed("the method has no such program")
