"""A site of a federation: its data, its client's state, and the one function that answers the server."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import logging
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import checks, wire
from fedminimax._version import __version__
from fedminimax.algorithms.base import Algorithm
from fedminimax.data.clients import ClientData
from fedminimax.data.remote import RemoteClients, alike
from fedminimax.engines.evaluation import own_parts
from fedminimax.engines.exchange import Heard, carry_out, host
from fedminimax.engines.federated import gossip_messages, messages
from fedminimax.engines.federated.gossip_messages import MEASURES
from fedminimax.engines.federated.ledger import Allowance, Ledger
from fedminimax.engines.federated.memory import Answered, LostState, Memory, reply_of
from fedminimax.engines.federated.messages import LOST, UNTOLD, Ask, Malformed, Untold, Whose, Withheld
from fedminimax.engines.federated.secure import contribution, fixed_point, measures
from fedminimax.engines.federated.secure.contribution import Contribution
from fedminimax.engines.federated.secure.opened import given
from fedminimax.engines.federated.secure.settings import Secure
from fedminimax.engines.federated.secure.wanted import desk_of
from fedminimax.engines.federated.transport import ERROR, MALFORMED
from fedminimax.errors import InputError
from fedminimax.federation.guard import finite
from fedminimax.federation.privacy import Privacy
from fedminimax.metrics import parts
from fedminimax.metrics.parts import Described, Part
from fedminimax.players import Tree
from fedminimax.problems.forms import AnyProblem
from fedminimax.problems.personalized import PersonalizedProblem
from fedminimax.problems.robust import Problem

if TYPE_CHECKING:  # which need `cryptography`, as only a network's sites do
    from fedminimax.engines.federated.node import Node
    from fedminimax.engines.federated.peers import Identity

COUNT = "the number of clients"
"""What a site agrees on where it knows it."""
_MOST_CLIENTS = 2**16
"""The most clients that a federation may have."""
logger = logging.getLogger("fedminimax.site")
"""What goes wrong at a site, with its text and traceback, for the site's administrator alone: it may hold data."""
logger.addHandler(logging.NullHandler())  # where nobody has said where it goes, it goes nowhere


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
        privacy: what protects its replies, the server's own too. The site holds to it whatever the server asks.
        budget: the epsilon beyond which the site does not reply any more, counted by itself over all runs; None: there is none.
        measures: how often the site tells its part of a metric, by the name of the metric's class, such as {"ClientLoss": 100};
            counted by itself over all runs. No noise is added to it. None: any metric at all times; with ``privacy`` none.
        clients: how many clients the federation has, where the site knows it: a request that says otherwise is refused. None:
            at most 65,536.
        replayable: for tests: let the noise come from the run's seed, which the server knows, and not from the system's
            randomness. The simulator then replays the run, and the server can take the noise off again.
        secure: the site gives vectors to secure sums only, as the server's ``Federation(..., secure=...)`` asks for; None: to
            the server.
        identity: signs the keys with which neighbours of a network seal what they send each other; None: keys are taken as
            they come.
    """

    def __init__(
        self,
        problem: AnyProblem,
        algorithm: Algorithm,
        data: ClientData | Tree,
        folder: str | Path | None = None,
        held_out: Mapping[str, ClientData | Tree] | None = None,
        privacy: Privacy | None = None,
        budget: float | None = None,
        measures: Mapping[str, int] | None = None,
        clients: int | None = None,
        replayable: bool = False,
        secure: Secure | None = None,
        identity: Identity | None = None,
    ):
        if isinstance(problem, PersonalizedProblem) and importlib.util.find_spec("cryptography") is None:
            raise InputError("Neighbours seal what they send each other: install fedminimax[federation], for cryptography.")
        if isinstance(problem, PersonalizedProblem) and privacy is not None:
            raise InputError("Neighbours seal what they send, and add no noise to it: leave privacy= out.")
        self._problem, self._algorithm, self._data = problem, algorithm, _own(data)
        self._clients = None if clients is None else checks.integer("clients", clients)
        self._folder = None if folder is None else Path(folder)
        self._held_out: dict[int | str, ClientData] = {name: _own(share) for name, share in (held_out or {}).items()}
        self._privacy = privacy
        self._replayable = replayable
        if privacy is None and budget is not None:
            raise InputError("A budget of epsilon needs noise to spend it on: give privacy=Privacy(...) too.")
        self._ledger = None if privacy is None else Ledger(privacy, self._folder, budget)
        told = {} if measures is None and privacy is not None else measures
        self._allowance = None if told is None else Allowance(told, self._folder)
        self._secure, self._desk = secure, None if secure is None else desk_of(secure, self._folder)
        self._memory: Memory | None = None
        self._identity = identity
        self._node: Node | None = None
        self._bindings: dict[Whose, tuple[Problem, ClientData]] = {}

    def handle(self, request: wire.Bytes) -> bytes:
        """Do what a request asks, and return the reply."""
        id = None
        try:
            ask: Any = wire.decode(request)
            if not isinstance(ask, dict):
                raise Malformed("it is no message")
            id = messages.name(ask.get("id"))
            if "hello" in ask:
                return wire.encode({"id": id, "hello": self._hello()})
            if "secure" in ask:
                return self._in_secret(ask, request)
            if isinstance(self._problem, PersonalizedProblem):
                return self._as_node(ask)
            if "parts" in ask:
                return wire.encode({"id": id, "parts": self._parts(ask)})
            return self._exchange(messages.asked(ask))
        except (Malformed, InputError) as error:
            logger.exception("a request was refused")
            return messages.failed(id, MALFORMED, type(error).__name__)
        except Withheld as withheld:
            return messages.failed(id, withheld.kind, whom=withheld.whom)
        except Untold as untold:
            return messages.failed(id, UNTOLD, untold.metric)
        except LostState:
            return messages.failed(id, LOST)
        except Exception as error:  # whatever it is, the server learns its type, and the site stays
            logger.exception("a request failed")
            return messages.failed(id, ERROR, type(error).__name__)

    def _hello(self) -> dict[str, Any]:
        return {
            **_described(self._data),
            "held_out": {str(name): _described(share) for name, share in self._held_out.items()},
            "agrees": agreement(self._problem, self._algorithm, self._privacy, self._secure) | counted(self._clients),
            "versions": versions(),
            "measures": None if self._allowance is None else sorted(self._allowance.measures),
        }

    def _allow(self, request: Any) -> None:
        """Raise :class:`Untold` unless the site tells its parts of the metrics of a request, and count them."""
        if not isinstance(request, dict) or not all(isinstance(one, dict) for one in request.values()):
            raise Malformed("the metrics are none")
        described = [one.get("metric") for one in request.values()]
        if not all(isinstance(one, Described) and isinstance(one.settings, dict) for one in described):
            raise Malformed("a metric is none")
        kinds = [parts.kinds(one) for one in described]
        if not all(kinds):
            raise Malformed("a metric is none")
        if self._allowance is not None:
            self._allowance.spend([name for names in kinds for name in names])

    def _parts(self, ask: dict[str, Any], hidden: bool = False) -> dict[str, Part]:
        """Return the site's parts of metrics, of which what is summed is hidden in a secure sum or goes to the server."""
        whose, request = messages.whose(ask.get("whose")), ask["parts"]
        self._allow(request)
        problem, data = self._bound(whose)
        found = own_parts(problem, whose.number, data, self._held_out, request)
        for part in found.values():
            contribution.check_open(part.each if hidden else part, self._secure)
        return found

    def _in_secret(self, ask: dict[str, Any], request: wire.Bytes) -> bytes:
        if self._desk is None:
            raise Malformed("this site was started without secure sums")
        return self._desk.answer(ask, request, self._contribution)

    def _contribution(self, message: dict[str, Any], exchange: str) -> Contribution:
        """Return what a site says of an exchange beside its vector, and the vector for a secure sum.

        What is remembered has a name that no request can have: it is told to nobody in the open.
        """
        assert self._secure is not None
        if "parts" in message:
            summed, apart = measures.own(self._parts(message, hidden=True))
            return Contribution({"each": apart}, fixed_point.pack(summed, self._secure), None)
        ask = messages.asked({**message, "id": exchange})
        done: Any = wire.decode(self._exchange(ask, hidden=True))
        total = contribution.weighted(done["replies"], message["secure"])
        what = given(ask, done["replies"], message["secure"])
        return Contribution({"state": done["state"]}, fixed_point.pack(total, self._secure), what)

    def _exchange(self, ask: Ask, hidden: bool = False) -> bytes:
        """Do what is asked for an exchange and return the reply, which is hidden in a secure sum or goes to the server."""
        key = f"{ask.id}#" if hidden else ask.id
        problem, data = self._bound(ask.whose)
        memory = self._of_run(ask.run, problem)  # which replaces that of another run when something has come of it
        if memory.answered is not None and memory.answered.id == key:
            return reply_of(memory.answered)
        state, notes = memory.state(ask.state), memory.notes(ask.turn)
        replies, learnt, kept = [], None, dict(notes)
        for letter in ask.letters:
            note = notes.get(letter["place"])
            if ask.noted and note is None:
                raise LostState
            _check_program(self._algorithm, letter["function"])
            noise = None if self._privacy is None or self._replayable else _fresh_key()
            client = problem, self._algorithm, data, ask.whose.number
            out, work = carry_out(*client, letter, state, note, self._privacy, noise)
            if self._privacy is not None and self._ledger is not None:
                self._ledger.spend(self._privacy.parts(out.value))
            if not hidden:
                contribution.check_open(out.value, self._secure)
            if out.state is not None and finite(out.value):
                learnt = host(out.state)
            if out.note is not None:
                kept[letter["place"]] = host(out.note)
            replies.append(host(Heard(out.value, work)._asdict()))
        name = None if learnt is None else ask.id
        reply = wire.encode({"id": ask.id, "state": ask.state if name is None else name, "replies": replies})
        memory.remember(name, learnt, Answered(key, ask.turn, kept, np.frombuffer(reply, np.uint8)))
        memory.forget_but({ask.id, ask.state, *ask.keep})
        self._memory = memory
        return reply

    def _as_node(self, ask: dict[str, Any]) -> bytes:
        """Answer as a node of a network: nobody is told the site's players, and nobody else's programs are run on them."""
        from fedminimax.engines.federated.node import Node
        from fedminimax.engines.federated.node_round import Here

        errand, node = gossip_messages.errand(ask), self._node
        if MEASURES in ask:
            self._allow(ask[MEASURES])
        if node is None or (node.run, node.whose) != (errand.run, errand.whose):
            problem, data = self._bound(errand.whose)
            here = Here(problem, self._algorithm, data, errand.whose.number)  # type: ignore[arg-type]
            node = Node(here, errand.run, errand.whose, self._folder, self._held_out, self._identity)
        reply = node.answer(ask, errand)
        self._node = node  # which replaces that of another run when something has come of it
        return reply

    def _of_run(self, run: str, problem: Problem) -> Memory:
        if self._memory is not None and self._memory.run == run:
            return self._memory
        return Memory(self._folder, run, host(self._algorithm.init_client(problem)))

    def _bound(self, whose: Whose) -> tuple[Problem, ClientData]:
        """Return the problem as it is among so many clients, and the data as its loss wants them."""
        if whose.clients > _MOST_CLIENTS or self._clients not in (None, whose.clients):  # for each of which there are numbers
            raise Malformed("it is of a federation with another number of clients")
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


def _fresh_key() -> jax.Array:
    """Return a key for the noise of one reply, from the system's randomness.

    It is kept nowhere: whoever reads the site's disk later cannot take off the noise of what was sent. Nor is it made of what
    is asked: a question that comes again may be answered from other notes, and the difference would then have no noise.
    """
    return jnp.asarray(np.frombuffer(os.urandom(8), np.uint32))


def _described(data: ClientData) -> dict[str, Any]:
    """Return the size and the shapes of some data: arrays without any example."""
    empty = jax.tree.map(lambda a: np.zeros((0, *a.shape[1:]), a.dtype), data.example)
    return {"size": data.total, "example": empty, "batching": data.batching}


def agreement(
    problem: AnyProblem, algorithm: Algorithm, privacy: Privacy | None = None, secure: Secure | None = None
) -> dict[str, str]:
    """Return what a server and its sites must have in common, as texts by name."""
    solved: Any = getattr(problem, "robust", problem)
    return {
        "the problem": str(solved.name),
        "the method": re.sub(r" at 0x[0-9a-f]+", "", repr(algorithm)),
        "numbers (jax_enable_x64)": jnp.zeros(()).dtype.name,
        "the privacy": str(privacy),
        "fedminimax": __version__,
        "the secure sum": "none" if secure is None else repr(secure),
        **_network(solved),
    }


def counted(clients: int | None) -> dict[str, str]:
    """Return what a site that knows the number of clients agrees on beside the rest."""
    return {} if clients is None else {COUNT: str(clients)}


def _network(problem: Any) -> dict[str, str]:
    """Return who talks to whom, where that is part of the problem: a digest of the gossip matrix, and the coupling."""
    if not isinstance(problem, PersonalizedProblem):
        return {}
    graph = problem.network
    edges = np.asarray(graph.edges, np.int64).tobytes() + np.asarray(graph.weights, np.float64).tobytes()
    digest = hashlib.sha256(edges).hexdigest()[:16]
    return {"the network": f"{graph!r}, {digest}", "the coupling": repr(problem.coupling)}


def versions() -> dict[str, str]:
    """Return the versions of what else the numbers depend on."""
    return {"jax": jax.__version__, "numpy": np.__version__, "python": platform.python_version()}


def _check_program(algorithm: Algorithm, function: str) -> None:
    """Raise :class:`Malformed` unless a name is that of a client's program: what else a method can do is not for the server."""
    program = getattr(type(algorithm), function, None) if function.isidentifier() and function[0] != "_" else None
    if not inspect.isfunction(program) or list(inspect.signature(program).parameters)[1:3] != ["problem", "client"]:
        raise Malformed("the method has no such program")
