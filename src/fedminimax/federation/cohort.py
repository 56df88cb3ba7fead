"""The federation as the server's program sees it: clients to sample, cohorts to map a client's program over.

A round is a program over a cohort. What differs between engines is only how a cohort's functions are carried out
(:meth:`~fedminimax.federation.round.Round.execute`); sampling, weights, availability and accounting are here, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, overload

import jax
import jax.numpy as jnp

from fedminimax import players
from fedminimax import steps as local_steps
from fedminimax.errors import InputError
from fedminimax.federation import accounting
from fedminimax.federation.accounting import Message, Traffic
from fedminimax.federation.client import R, Reply
from fedminimax.federation.guard import Guard
from fedminimax.federation.privacy import Privacy, Sent
from fedminimax.federation.round import (
    CLIENT,
    ORDER,
    SERVER,
    Attendance,
    ClientFunction,
    Executed,
    Request,
    Round,
    everybodys_steps,
)
from fedminimax.federation.trace import Draw
from fedminimax.players import Array, Count, Tree
from fedminimax.random import keys, sampling

_UNGUARDED = Guard(drop_nonfinite=False)


class Replies(NamedTuple, Generic[R]):
    """Replies of a cohort, one row a client; rows that did not arrive are zeros."""

    values: R
    accepted: jax.Array
    ids: jax.Array

    def scatter(self, count: int) -> R:
        """Return the rows at their clients' places among ``count``, zeros elsewhere."""
        where = jnp.where(self.accepted, self.ids, count)
        put = lambda v: jnp.zeros((count, *v.shape[1:]), v.dtype).at[where].set(v, mode="drop")
        return jax.tree.map(put, self.values)


class Clients:
    """The federation, as an algorithm's ``round`` sees it.

    Attributes:
        count: the number of clients N.
        weights: the objective's weights p_i, [N].
        round: the round t.
    """

    def __init__(self, current: Round):
        self.current = current
        self.count, self.weights, self.round = current.count, current.weights, current.t

    def sample(self, size: int | None, weights: Array | None = None, replace: bool = False) -> Cohort:
        """Return a cohort of ``size`` clients; None: everybody.

        Args:
            size: how many clients are needed.
            weights: draw in proportion to these, [N]; by default uniformly. Without replacement nobody's chance can be
                above one, which :attr:`Cohort.unbiased` makes up for.
            replace: whether a client may be drawn more than once.
        """
        current = self.current
        size = self.count if size is None else size
        if size > self.count and not replace:
            raise InputError(f"cohort_size is {size}, but there are {self.count} clients: ask for at most {self.count}.")
        key = current.next_key()
        server = keys.variant(key, SERVER)
        nth, trace, availability = len(current.cohorts), current.trace, current.conditions.availability
        invited: Any = size if availability is None else availability.invitations(size, None if replace else self.count)
        drawn: Any = invited  # on which the chances depend; a replayed cohort has those of the one recorded
        present: Any = None
        seconds: Any = None
        in_order = False
        current.asked.cohorts.append(size)
        current.asked.memory = current.has_client_state
        if replace and current.has_client_state:
            raise InputError("Clients that remember something cannot be drawn with replacement: sample without it.")
        if trace is not None and nth < len(trace.cohorts):
            ids = jnp.asarray(trace.cohorts[nth])[current.t]
            present, ids = ids >= 0, jnp.maximum(ids, 0)
            recorded = nth < len(trace.invited)
            drawn = jnp.asarray(trace.invited[nth])[current.t] if recorded else size
            invited = drawn if recorded else jnp.sum(present)
        else:
            in_order = weights is None and not replace and size == self.count
            ids = (
                sampling.subset(server, self.count, invited)
                if weights is None and not replace
                else sampling.weighted(
                    server, jnp.ones(self.count) if weights is None else jnp.asarray(weights), invited, replace
                )
            )
            if availability is not None:
                answers, seconds = current.replies(availability, key, ids)
                arrival = jnp.where(answers, keys.uniform(keys.words(keys.variant(key, ORDER), invited)), jnp.inf)
                if seconds is None:
                    first = jnp.argsort(arrival)[:size]
                else:  # the fastest come first, and those that take equally long in a random order
                    first = jnp.lexsort((arrival, jnp.where(answers, seconds, jnp.inf)))[:size]
                # Everybody stays in place: then a cohort of all is still in the clients' order.
                first = jnp.sort(first) if invited == size else first
                ids, present = ids[first], answers[first]
                seconds = None if seconds is None else seconds[first]
        cohort = Cohort(current, len(current.cohorts), ids.astype(jnp.int32), present, invited, in_order, seconds)
        if weights is not None and not replace:
            cohort.chance = sampling.inclusion(jnp.asarray(weights), drawn)[ids]
        current.cohorts.append(Attendance(ids if present is None else jnp.where(present, ids, -1), jnp.asarray(invited)))
        return cohort

    def all(self) -> Cohort:
        """Return the cohort of all clients."""
        return self.sample(None)

    def steps(self, spec: local_steps.Steps, batch_size: int | None) -> Count:
        """Return every client's number of local steps tau_i this round: [N], or one int where they are all the same.

        For steps that differ between clients this costs O(N) small integers a round.
        """
        current = self.current
        current.asked.steps = True
        if current.trace is not None and current.trace.steps is not None:
            return jnp.asarray(current.trace.steps)[current.t]
        if isinstance(spec, int):
            return spec
        return everybodys_steps(spec, current.key, current.t, jnp.asarray(current.sizes), batch_size)

    def equal_steps(self, count: int) -> None:
        """Say that everybody takes ``count`` local steps, on which the server counts: a trace of others is refused."""
        self.current.asked.equal_steps = count

    def draw(
        self, name: str, sampler: Callable[[jax.Array], Tree], low: float | None = None, high: float | None = None
    ) -> Tree:
        """Return a random draw of the server's own, which a trace may replay by its name.

        Args:
            name: what a trace calls it.
            sampler: makes it from a ``jax.random`` key.
            low: the least value that a trace may give; None: any.
            high: the greatest.
        """
        current = self.current
        key = keys.as_jax(current.next_key())
        if name in current.draws:
            raise InputError(f"The server draws {name!r} twice in a round: give its draws names of their own.")
        if current.trace is not None and name in current.trace.draws:
            drawn = jax.tree.map(lambda v: jnp.asarray(v)[current.t], current.trace.draws[name])
        else:
            drawn = sampler(key)
        current.draws[name] = drawn
        current.asked.draws[name] = Draw(jax.eval_shape(lambda: drawn), low, high)
        return drawn


class Cohort:
    """Some clients, and what can be asked of them.

    ``fn(problem, client, *broadcast, *rows)`` is a method of the algorithm: the client's program. What it returns is sent to
    the server. Updates and gradients are better replies than models: a reply that is lost then leaves the model as it was.

    Attributes:
        number: which cohort of the round this is: 0, 1, ...
        ids: the clients' numbers, [S].
        size: S, the places that were asked for.
        members: how many of them are filled (fewer than S when too few clients answered).
        weights: their p_i, [S]; zero at an empty place.
        chance: how likely each was to be drawn, up to a common factor, [S].
        unbiased: p_i / chance_i, [S]: with these weights a mean over the cohort stands for the mean over all clients by p.
        heard: the total weight of the replies that the last mean or sum was made of.
    """

    def __init__(
        self,
        current: Round,
        number: int,
        ids: jax.Array,
        present: jax.Array | None,
        invited: Count | None,
        in_order: bool,
        seconds: jax.Array | None = None,
    ):
        self._round, self._present, self._invited, self._asked = current, present, invited, False
        self._part = False
        self._seconds = seconds  # how long they took to answer the invitation
        self.number, self.ids, self.size, self._in_order = number, ids, ids.shape[0], in_order
        self.members: Count = self.size if present is None else jnp.sum(present)
        self._joined = present
        self.chance: jax.Array = jnp.ones(self.size)
        self.note: Tree = None
        self._heard: jax.Array | None = None

    def only(self, chosen: jax.Array) -> Cohort:
        """Return the same cohort with some of its clients left out of the next exchanges.

        Args:
            chosen: which to keep, [S].
        """
        present = chosen if self._present is None else self._present & chosen
        rest = Cohort(self._round, self.number, self.ids, present, None, self._in_order)
        # They have been asked before: nobody new is invited, and they still hold their notes.
        rest._asked, rest._part, rest.note, rest.chance = True, True, self.note, self.chance
        return rest

    @property
    def weights(self) -> jax.Array:
        """The p_i of the cohort's clients, [S]; zero at an empty place."""
        own = self._round.weights if self._in_order else self._round.weights[self.ids]
        return own if self._joined is None else jnp.where(self._joined, own, 0.0)

    @property
    def heard(self) -> jax.Array:
        """The total weight of the replies that the last mean or sum was made of."""
        if self._heard is None:
            raise InputError("Nobody has been heard yet: cohort.heard is known after a mean or a sum over this cohort.")
        return self._heard

    @property
    def unbiased(self) -> jax.Array:
        """The p_i of the cohort's clients over their chances to be in it, [S]; zero where there was no chance."""
        possible = self.chance > 0
        return jnp.where(possible, self.weights / jnp.where(possible, self.chance, 1.0), 0.0)

    @overload
    def map(self, fn: ClientFunction[Reply[R]], *broadcast: Tree, per_client: tuple[Tree, ...] = ()) -> Replies[R]: ...

    @overload
    def map(self, fn: ClientFunction[R], *broadcast: Tree, per_client: tuple[Tree, ...] = ()) -> Replies[R]: ...

    def map(self, fn: ClientFunction[Tree], *broadcast: Tree, per_client: tuple[Tree, ...] = ()) -> Replies[Tree]:
        """Return every client's reply, stacked: memory grows with the cohort.

        Args:
            fn: the client's program.
            broadcast: what is sent to every client.
            per_client: what is sent to each client its own row of, as arrays [S, ...].
        """
        done = self._exchange(fn, broadcast, per_client, None)
        return Replies(done.value, done.accepted, self.ids)

    def work(self, fn: ClientFunction[Tree], *shared: Tree, rows: tuple[Tree, ...] = ()) -> Tree:
        """Return what clients make of what they have themselves, stacked: nothing is sent, and nothing is checked.

        Args:
            fn: the client's program.
            shared: what everybody knows.
            rows: what each has its own row of, [S, ...].
        """
        return self._exchange(fn, shared, rows, None, own=True).value

    @overload
    def mean(
        self, fn: ClientFunction[Reply[R]], *broadcast: Tree, per_client: tuple[Tree, ...] = (), weights: Array | None = None
    ) -> R: ...

    @overload
    def mean(
        self, fn: ClientFunction[R], *broadcast: Tree, per_client: tuple[Tree, ...] = (), weights: Array | None = None
    ) -> R: ...

    def mean(
        self, fn: ClientFunction[Tree], *broadcast: Tree, per_client: tuple[Tree, ...] = (), weights: Array | None = None
    ) -> Tree:
        """Return the weighted mean of the replies; by default the weights are p_i over those that replied.

        Replies are added up as they come, not stacked. When nobody replies, the mean is zero.
        """
        weights = self.weights if weights is None else jnp.asarray(weights)
        done = self._exchange(fn, broadcast, per_client, weights)
        return players.scale(done.value, jnp.where(self.heard > 0, 1.0 / _nonzero(self.heard), 0.0))

    @overload
    def sum(
        self, fn: ClientFunction[Reply[R]], *broadcast: Tree, per_client: tuple[Tree, ...] = (), weights: Array | None = None
    ) -> R: ...

    @overload
    def sum(
        self, fn: ClientFunction[R], *broadcast: Tree, per_client: tuple[Tree, ...] = (), weights: Array | None = None
    ) -> R: ...

    def sum(
        self, fn: ClientFunction[Tree], *broadcast: Tree, per_client: tuple[Tree, ...] = (), weights: Array | None = None
    ) -> Tree:
        """Return the weighted sum of the replies; the server never sees a single one.

        The weights of lost replies go to the others in proportion, so that the total weight stays what it was.
        """
        weights = jnp.ones(self.size) if weights is None else jnp.asarray(weights)
        if self._joined is not None:  # an empty place has no weight to give to the others
            weights = jnp.where(self._joined, weights, 0.0)
        done = self._exchange(fn, broadcast, per_client, weights)
        share = jnp.where(self.heard > 0, jnp.sum(weights) / _nonzero(self.heard), 0.0)
        return players.scale(done.value, share)

    def _exchange(
        self,
        fn: ClientFunction[Tree],
        broadcast: tuple[Tree, ...],
        per_client: tuple[Tree, ...],
        weights: jax.Array | None,
        own: bool = False,
    ) -> Executed:
        current, availability = self._round, self._round.conditions.availability
        broadcast = tuple(jax.tree.map(jnp.asarray, b) for b in broadcast)
        key = current.next_key()
        present, invited, seconds = self._present, self._invited, self._seconds
        expected: Any = self.size
        if self._asked:  # A cohort that was gathered before is asked again: some may have gone meanwhile.
            invited = expected = self.size if present is None else jnp.sum(present)
            if availability is not None:
                answers, seconds = current.replies(availability, key, self.ids, again=True)
                present = answers if present is None else present & answers
        nth, trace = len(current.answers), current.trace  # which exchange with a cohort this is; gossip is none
        if trace is not None and nth < len(trace.answers):
            answered_then = jnp.asarray(trace.answers[nth])[current.t]
            present = answered_then if present is None else present & answered_then
        delay = None if availability is None else availability.delay
        waited: Any = 0.0
        if trace is not None and nth < len(trace.waited):
            waited = jnp.asarray(trace.waited[nth])[current.t]
        elif delay is not None and seconds is not None:
            waited = delay.waited(seconds, jnp.ones(self.size, bool) if present is None else present, expected)
        down = accounting.NOTHING if own else accounting.measure_request(fn, broadcast, per_client)
        guard = _UNGUARDED if own else current.conditions.guard
        privacy = None if own else current.conditions.privacy
        own_key = keys.variant(key, CLIENT)
        request = Request(
            fn, self.number, self.ids, present, own_key, broadcast, per_client, self.note, weights, guard, privacy
        )
        done = current.execute(request)
        row = done.value if weights is not None else jax.tree.map(lambda a: a[0], done.value)
        up = accounting.NOTHING if own else accounting.measure_reply(row)
        current.messages.append(Message(_function_name(fn), down, up, self.size, self._part))
        refused = jnp.sum(done.arrived & ~done.accepted, dtype=jnp.int32)
        current.traffic.append(Traffic(invited, jnp.sum(done.arrived), refused, done.work, waited))
        current.asked.exchanges.append(self.size)
        current.answers.append(done.arrived)
        if privacy is not None:
            current.sent.append(_sent(privacy, request, done, row))
        current.waited.append(jnp.asarray(waited, jnp.float32))
        # Those whose reply did not count are not asked again: what comes next builds on what they have not contributed to.
        self._present, self._asked, self.note = done.accepted, True, done.note
        self._heard = self._heard if weights is None else done.weight
        return done


def _sent(privacy: Privacy, request: Request, done: Executed, row: Tree) -> Sent:
    """Return who may have sent something. What a bound of the guard has changed, or a median, is no sum with known noise."""
    guard, ids = request.guard, request.ids
    plain = request.weights is not None and not guard.stacks and guard.max_norm is None and guard.max_loss is None
    weights = jnp.where(done.accepted, jnp.asarray(request.weights), 0.0) if plain else jnp.zeros(ids.shape)
    asked = ids if request.present is None else jnp.where(request.present, ids, -1)
    return Sent(asked, jnp.asarray(privacy.parts(row), jnp.int32), weights)


def _nonzero(value: jax.Array) -> jax.Array:
    return jnp.where(value == 0, 1.0, value)


def _function_name(fn: ClientFunction[Tree]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
