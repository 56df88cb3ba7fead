"""A site of a network: its own row of a method's state, its keys, and what it answers a coordinator that sees no model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import wire
from fedminimax.data.clients import ClientData
from fedminimax.engines.evaluation import own_parts
from fedminimax.engines.exchange import host
from fedminimax.engines.federated import gossip_messages, messages
from fedminimax.engines.federated.gossip_messages import GOSSIP, KEYS, MEASURES, SETTLE, Errand, PublicKey, Turn, Unsealed
from fedminimax.engines.federated.memory import Answered, LostState, Memory, reply_of
from fedminimax.engines.federated.messages import UNSEALED, Malformed, Whose
from fedminimax.engines.federated.node_model import MODEL, NodeModel
from fedminimax.engines.federated.node_round import Here, Listened, Mixed, NodeRound, Waits
from fedminimax.engines.federated.peers import Identity, Seals
from fedminimax.folders import write_atomically
from fedminimax.metrics import parts
from fedminimax.metrics.parts import Described
from fedminimax.players import Tree

_KEY, _PEERS, _WHOSE, _LOG = "key", "peers", "whose", "log"


class Node:
    """A site of a network, in one run.

    Args:
        here: the problem, the method, the site's data and its number.
        run: the name of the run.
        whose: which node of how many it is, which stays so.
        folder: where all runs are kept; None: in memory, and lost with the process.
        held_out: the site's shares of held-out data, by name.
        identity: signs the site's keys; None: keys are taken as they come.
    """

    def __init__(
        self,
        here: Here,
        run: str,
        whose: Whose,
        folder: Path | None,
        held_out: Mapping[int | str, ClientData],
        identity: Identity | None,
    ):
        self.run, self.whose, self.here, self._folder, self._held_out = run, whose, here, folder, held_out
        first = jax.tree.map(lambda a: np.asarray(a)[here.number], here.algorithm.init(here.problem))
        self._memory = Memory(folder, run, first)
        if self._memory.kept(_WHOSE) not in (None, whose):
            raise Malformed("it was another node of this run before")
        self._neighbours = [number for number, _ in here.problem.network.neighbours(here.number)]
        self._seals = Seals(run, here.number, _private(self._memory), identity)

    def answer(self, ask: dict[str, Any], errand: Errand) -> bytes:
        """Return the reply to a request of this run."""
        try:
            if KEYS in ask:
                self._memory.keep(_WHOSE, self.whose)
                self._memory.keep(_KEY, np.frombuffer(self._seals.private, np.uint8))
                return wire.encode({"id": errand.id, KEYS: self._seals.public()})
            if GOSSIP in ask:
                return self._go_on(errand, gossip_messages.turn(ask[GOSSIP]))
            if MEASURES in ask:
                return wire.encode({"id": errand.id, MEASURES: self._measures(errand, ask[MEASURES])})
            if SETTLE in ask:
                self._settle(errand, ask[SETTLE])
                return wire.encode({"id": errand.id, SETTLE: True})
        except Unsealed:
            return messages.failed(errand.id, UNSEALED)
        raise Malformed("a node of a network is not asked that")

    # -- a round -------------------------------------------------------------------------------------------------------

    def _go_on(self, errand: Errand, ask: Turn) -> bytes:
        """Go on with a round as far as the neighbours' messages allow, and send them what they wait for."""
        memory = self._memory
        if memory.answered is not None and memory.answered.id == errand.id:
            return reply_of(memory.answered)
        state = memory.state(errand.state)
        self._meet(ask)
        log = self._log(ask)
        listening = _Once(None if ask.mix == 0 else lambda number: self._opened(ask, number))
        round_ = NodeRound(self.here, ask.round, jnp.asarray(ask.key), log, listening, ask.drop)
        name, new = None, None
        try:
            new = round_.carry_out(state)
            name = errand.id
            told: dict[str, Any] = {"done": {"traffic": host(round_.stacked_traffic()._asdict()), "draws": host(round_.draws)}}
        except Waits as waits:
            plain = wire.encode(waits.row)
            told = {"sealed": {str(to): self._seals.seal(to, ask.turn, ask.mix, plain) for to in self._neighbours}}
        if listening.unheard:
            raise Malformed("the round does not wait for what was sent")
        reply = wire.encode({"id": errand.id, "state": errand.state if name is None else name, GOSSIP: told})
        memory.remember(name, new, Answered(errand.id, ask.turn, {_LOG: log}, np.frombuffer(reply, np.uint8)))
        memory.forget_but({errand.id, errand.state, *ask.keep})
        return reply

    def _log(self, ask: Turn) -> list[Any]:
        """Return what was made in this round before, or raise :class:`LostState`."""
        if ask.mix == 0:
            return []
        notes = self._memory.notes(ask.turn)
        if _LOG not in notes or sum(isinstance(entry, Mixed) for entry in notes[_LOG]) != ask.mix - 1:
            raise LostState
        return list(notes[_LOG])

    def _meet(self, ask: Turn) -> None:
        """Take the neighbours' keys. The first that are told in a run stay: another one later is refused."""
        if sorted(ask.keys) != self._neighbours or not all(isinstance(key, PublicKey) for key in ask.keys.values()):
            raise Malformed("the keys are not those of the neighbours")
        if ask.mix and sorted(ask.heard) != self._neighbours:
            raise Malformed("a neighbour's message is missing")
        kept: dict[str, np.ndarray] = self._memory.kept(_PEERS) or {}
        self._seals.meet(ask.keys, {int(number): key.tobytes() for number, key in kept.items()})
        if not kept:
            self._memory.keep(_PEERS, {str(n): np.frombuffer(key, np.uint8) for n, key in self._seals.peers.items()})

    def _opened(self, ask: Turn, number: int) -> bytes:
        return self._seals.open(number, ask.turn, ask.mix - 1, ask.heard[number])

    # -- what is measured and kept -------------------------------------------------------------------------------------

    def _measures(self, errand: Errand, asked: Any) -> Tree:
        """Return the site's parts of metrics at its own players, of those metrics that tell nothing else."""
        if not isinstance(asked, dict) or not all(isinstance(one, dict) for one in asked.values()):
            raise Malformed("the metrics are none")
        rows = jax.tree.map(lambda a: np.asarray(a)[None], self._memory.state(errand.state))
        request = {name: {**one, "told": self._told_of(one.get("metric"), rows)} for name, one in asked.items()}
        return own_parts(self.here.problem, self.here.number, self.here.data, self._held_out, request)

    def _told_of(self, description: Any, rows: Tree) -> Tree:
        if not isinstance(description, Described):
            raise Malformed("a metric is none")
        metric = parts.rebuild(description, self._held_out)
        if not parts.of_own_row(metric):
            raise Malformed("the metric is not a node's to answer")
        return parts.told(metric, self.here.problem, None, rows, 0)

    def _settle(self, errand: Errand, rounds: Any) -> None:
        """Write the site's model into its folder."""
        if type(rounds) is not int or not 0 <= rounds < 2**31:
            raise Malformed("a number is none")
        state, here = self._memory.state(errand.state), self.here
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            names = type(here.algorithm).__name__, here.problem.name
            model = NodeModel(host(state.x), host(state.y), rounds, *names, here.number, self.run)
            write_atomically(self._folder / MODEL, wire.encode(model))


class _Once:
    """Gives what was heard to the first exchange that asks for it, and nothing to those after it."""

    def __init__(self, heard: Listened | None):
        self.unheard = heard is not None
        self._heard = heard

    def __call__(self) -> Listened | None:
        heard, self._heard, self.unheard = self._heard, None, False
        return heard


def _private(memory: Memory) -> bytes | None:
    kept = memory.kept(_KEY)
    return None if kept is None else np.asarray(kept, np.uint8).tobytes()
