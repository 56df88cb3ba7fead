"""Whether a method can run with secure sums: a round of it is traced, before any site is asked."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedminimax.engines.exchange import Heard, MessageExecution, MessageRound, sendable
from fedminimax.engines.federated.secure.contribution import numbers
from fedminimax.engines.federated.secure.settings import Secure
from fedminimax.errors import InputError
from fedminimax.federation import accounting
from fedminimax.federation.accounting import NO_WORK
from fedminimax.federation.client import Reply
from fedminimax.federation.cohort import Clients
from fedminimax.federation.round import Executed, Request
from fedminimax.network import Network
from fedminimax.players import Count, Tree
from fedminimax.schedules import at_round


def check_method(run: MessageExecution, secure: Secure, one_client: tuple[Tree, Tree]) -> None:
    """Raise an :class:`InputError` unless a run's method asks for nothing that secure sums cannot give.

    Args:
        run: the run, before its first round.
        secure: what was agreed on.
        one_client: the shapes of one client's data, and of what it remembers.
    """
    if run.conditions.guard.stacks:
        raise InputError(
            f"Guard(aggregate={run.conditions.guard.aggregate!r}) needs each site's reply, which secure sums hide: use "
            "aggregate='mean', with max_norm, or leave out secure."
        )
    rehearsal = Rehearsal(run, secure, one_client)
    round_ = lambda state: at_round(run.algorithm, run.round).round(run.problem, state, Clients(rehearsal))
    jax.eval_shape(round_, run.state)


class Rehearsal(MessageRound):
    """A round in which nobody is asked anything: replies are zeros of the right shapes."""

    def __init__(self, run: MessageExecution, secure: Secure, one_client: tuple[Tree, Tree]):
        super().__init__(run)
        self._method, self._secure, self._one_client = type(run.algorithm).__name__, secure, one_client

    @property
    def one_client(self) -> tuple[Tree, Tree]:
        """The shapes of one client's data, and of what it remembers."""
        return self._one_client

    @property
    def has_client_state(self) -> bool:
        """Whether clients remember something from round to round."""
        return self._one_client[1] is not None

    def execute(self, request: Request) -> Executed:
        """Check what is asked, and return zeros."""
        name, algorithm = sendable(request.fn)
        expected = self.expected(name, algorithm, request)
        size, stacked = request.ids.shape[0], request.weights is None
        if stacked and numbers(expected.value) > self._secure.open_numbers:
            raise InputError(
                f"{self._method}.{name} sends {numbers(expected.value)} numbers of each site apart, and with secure sums a "
                f"site tells {self._secure.open_numbers} in the open: use a method that asks for sums and means, or leave out "
                "secure."
            )
        if not stacked and size < self._secure.least:
            raise InputError(
                f"{self._method}.{name} is summed over {size} sites, and secure sums are over at least {self._secure.least}: "
                "use larger cohorts, or agree on Secure(least=...)."
            )
        if not stacked and not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(expected.value)):
            raise InputError(f"{self._method}.{name} sends what is no floats, and secure sums are of floats: leave out secure.")
        shape = (size,) if stacked else ()
        value = jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), expected.value)
        weight, there = None if stacked else jnp.sum(jnp.asarray(request.weights)), jnp.ones(size, bool)
        return Executed(value, weight, there, there, expected.note, accounting.split(NO_WORK))

    def exchange(self, function: str, request: Request, places: Sequence[int], expected: Reply[Tree]) -> dict[int, Heard]:
        """Nobody is asked."""
        raise NotImplementedError

    def mix(self, network: Network, rows: Tree) -> tuple[Tree, Count]:
        """There is a server."""
        raise NotImplementedError
