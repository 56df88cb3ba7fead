"""What a client's program sees: its own data, its own randomness, its own memory. Nothing of anybody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, TypeVarTuple, overload

import jax
import jax.numpy as jnp

from fedminimax import steps as local_steps
from fedminimax.data.clients import EPOCHS, ClientSource
from fedminimax.federation.accounting import NO_WORK, Work
from fedminimax.players import Count, Tree
from fedminimax.problems.base import Form, Span, reseeded
from fedminimax.random import keys, sampling
from fedminimax.random.keys import Key

R = TypeVar("R")
"""What a client's program sends."""
_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class Reply(NamedTuple, Generic[R]):
    """What a client's program returns when it also remembers something.

    Attributes:
        value: what is sent to the server.
        state: the client's new persistent state; None: unchanged.
        note: what the client keeps until the end of this round, for the next phases with the same cohort; None: what it
            kept before.
    """

    value: R
    state: Tree = None
    note: Tree = None


class Client:
    """One client, as its own program sees it.

    Attributes:
        id: its number in the federation.
        round: the round t.
        size: how many examples it has (n_i).
        state: its persistent state, as declared by the algorithm's ``init_client``.
        note: what it kept from an earlier phase of this round.
    """

    def __init__(
        self,
        *,
        id: Count,
        row: Count,
        data: ClientSource,
        round: Count,
        key: Key,
        steps_word: jax.Array,
        state: Tree = None,
        note: Tree = None,
        fixed_steps: Count | None = None,
    ):
        self.id, self.round, self.state, self.note = id, round, state, note
        own, row = data.at(row)
        self.size: Count = own.smallest if own.smallest == own.largest else jnp.asarray(own.sizes)[row]
        self._start = jnp.asarray(own.starts)[row]
        self._data, self._key, self._steps_word, self._fixed_steps = own, key, steps_word, fixed_steps
        self._draws = 0
        self._loops: list[Count] = []
        self._counts = NO_WORK
        self.asked_steps = False  # whether its program wanted to know how many steps to take
        self._took_gradients = False  # outside of the loops within the program, or the turn, that is being traced
        self._looks_ahead = False

    @property
    def work(self) -> Work:
        """What its program has computed, once it has ended."""
        return self._counts._replace(steps=self._counts.steps + (self._took_gradients and not self._looks_ahead))

    def looks_ahead(self) -> None:
        """Say that this program is the first half of a step whose second half is another: its gradients are not a step."""
        self._looks_ahead = True

    def took_gradients(self, examples: Count) -> None:
        """Count a gradient on so many examples."""
        self._took_gradients = True
        self._counts = self._counts._replace(examples=self._counts.examples + examples)

    @property
    def full(self) -> Span:
        """All its examples."""
        return Span(self._data, self._start, self.size, self._stream()[0] if self._data.is_seeded else None)

    def batch(self, size: int | None) -> Tree:
        """Return a fresh minibatch of ``size`` examples; None: all of the client's examples."""
        if size is None:
            return self.full
        key, step = self._stream()
        if self._data.batching == EPOCHS:
            # The pass over the data goes on from step to step: one stream, read at ever later positions.
            index = sampling.shuffled(key, step * size + jnp.arange(size), self.size)
        else:
            index = sampling.below(keys.words(key, size, step), self.size)
        rows = jax.tree.map(lambda a: a.at[self._start + index].get(mode="promise_in_bounds"), self._arrays)
        return reseeded(rows, keys.words(self._stream()[0], size, step)) if self._data.is_seeded else rows

    @property
    def _arrays(self) -> Tree:
        return jax.tree.map(jnp.asarray, self._data.fields)

    def key(self) -> jax.Array:
        """Return a fresh ``jax.random`` key: a function of (seed, round, phase, client, which draw, which step) alone."""
        key, step = self._stream()
        return keys.as_jax(keys.derive(key, step, 1))

    def _stream(self) -> tuple[Key, Count]:
        """Return the key of the next draw in the program's text, and the step at which it is read."""
        key = keys.variant(self._key, self._draws)
        self._draws += 1
        for step in self._loops[:-1]:
            key = keys.derive(key, step, 2)
        return key, (self._loops[-1] if self._loops else 0)

    def steps(self, spec: local_steps.Steps, batch_size: int | None) -> Count:
        """Return how many local steps tau_i to take this round."""
        self.asked_steps = True
        if self._fixed_steps is not None:
            return self._fixed_steps
        return local_steps.draw(spec, self._steps_word, self.id, self.size, batch_size)

    @overload
    def repeat(self, count: Count, body: Callable[[_T], _T], carry: _T, /) -> _T: ...

    @overload
    def repeat(self, count: Count, body: Callable[[*_Ts], tuple[*_Ts]], *carry: *_Ts) -> tuple[*_Ts]: ...

    def repeat(self, count: Count, body: Callable[..., Tree], *carry: Tree) -> Tree:  # type: ignore[misc]
        """Return ``carry`` after ``count`` times ``carry = body(*carry)``.

        The loop of a client's program. Each turn has fresh randomness, and its gradients are counted. With a count that
        differs between clients nobody waits for the longest where clients run one after another.
        """
        turn, start, count_work = self._turns(body, carry)
        unroll = turns_a_pass() if isinstance(count, int) and count > 1 else None
        values, varied = jax.lax.fori_loop(0, count, turn, start, unroll=unroll)
        count_work(count, varied)
        return values[0] if len(carry) == 1 else values

    @overload
    def repeat_while(self, going: Callable[[_T], jax.Array], most: int, body: Callable[[_T], _T], carry: _T, /) -> _T: ...

    @overload
    def repeat_while(
        self, going: Callable[[*_Ts], jax.Array], most: int, body: Callable[[*_Ts], tuple[*_Ts]], *carry: *_Ts
    ) -> tuple[*_Ts]: ...

    def repeat_while(  # type: ignore[misc]
        self, going: Callable[..., jax.Array], most: int, body: Callable[..., Tree], *carry: Tree
    ) -> Tree:
        """Return ``carry`` after ``carry = body(*carry)`` as long as ``going(*carry)``, but at most ``most`` times."""
        turn, start, count_work = self._turns(body, carry)
        turns, (values, varied) = jax.lax.while_loop(
            lambda loop: (loop[0] < most) & going(*loop[1][0]), lambda loop: (loop[0] + 1, turn(*loop)), (0, start)
        )
        count_work(turns, varied)
        return values[0] if len(carry) == 1 else values

    def _turns(
        self, body: Callable[..., Tree], carry: tuple[Tree, ...]
    ) -> tuple[Callable[[Count, _Loop], _Loop], _Loop, Callable[[Count, Work], None]]:
        """Return one turn of a loop, what the loop starts from, and what counts the work of all turns at its end.

        What is the same in every turn is multiplied at the end. Only what varies is carried through the loop.
        """
        first_draw, outside, around = self._draws, self._counts, self._took_gradients
        same = NO_WORK

        def turn(k: Count, loop: _Loop) -> _Loop:
            nonlocal same
            values, before = loop
            # Reset, not continued: the compiler may trace this body more than once.
            self._draws, self._counts, self._took_gradients = first_draw, NO_WORK, False
            self._loops.append(k)
            values = body(*values)
            self._loops.pop()
            here, self._took_gradients = self.work, around
            same = Work(*(n if isinstance(n, int) else 0 for n in here))
            varied = Work(*(b if isinstance(n, int) else b + n for b, n in zip(before, here, strict=True)))
            return ((values,) if len(carry) == 1 else tuple(values)), varied

        def count_work(turns: Count, varied: Work) -> None:
            self._counts = Work(*(o + v + n * turns for o, v, n in zip(outside, varied, same, strict=True)))

        nothing = Work(*(jnp.asarray(count, jnp.int32) for count in NO_WORK))
        return turn, (tuple(jax.tree.map(jnp.asarray, c) for c in carry), nothing), count_work


def turns_a_pass() -> int:
    """Return how many turns of a client's loop are compiled one after another.

    With one, XLA copies every weight matrix at each step (10% of a round of a 200-200 network). With two, programs take a third
    longer to compile: not where JAX is told to optimise little (``jax_disable_most_optimizations``), as tests do.
    """
    return 1 if jax.config.read("jax_disable_most_optimizations") else 2


_Loop = tuple[tuple[Tree, ...], Work]
"""What a loop of a client's program carries: its values, and the work that varies from turn to turn."""


class LocalProblem:
    """A problem as one client evaluates it: the same functions, with the client's gradient evaluations counted.

    What a client's program may ask of it is in :mod:`fedminimax.problems.forms`.
    """

    def __init__(self, problem: Form, client: Client):
        self._problem: Any = problem  # of whichever form
        self._client = client

    if not TYPE_CHECKING:  # a name that the problem has not must not pass for one

        def __getattr__(self, name: str) -> Any:
            return getattr(self._problem, name)

    def grad(self, *args: Tree) -> Tree:
        """Return (grad_x f_i, grad_y f_i) at (x, y, batch); on a problem with weights on clients, grad f_i at (x, batch)."""
        return self._counted(self._problem.grad, *args)

    def value_and_grad(self, *args: Tree) -> Tree:
        """Return f_i and its gradient."""
        return self._counted(self._problem.value_and_grad, *args)

    def grad_x(self, *args: Tree) -> Tree:
        """Return grad_x f_i."""
        return self._counted(self._problem.grad_x, *args)

    def grad_y(self, *args: Tree) -> Tree:
        """Return grad_y f_i."""
        return self._counted(self._problem.grad_y, *args)

    def _counted(self, fn: Callable[..., Tree], *args: Tree) -> Tree:
        batch = args[-1]
        examples = batch.size if isinstance(batch, Span) else jax.tree.leaves(batch)[0].shape[0]
        self._client.took_gradients(examples)
        return fn(*args)
