"""The contract: what every method must do, on every small problem, strategy and engine.

A check is a function of a :class:`Subject` that raises an AssertionError; its docstring is the claim. The project's own suite
runs them on every row of its roster, and :func:`fedminimax.testing.check_method` on a method of yours.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedminimax import metrics, players, wire
from fedminimax.algorithms.base import Algorithm
from fedminimax.engines.execution import Snapshot
from fedminimax.engines.simulator import Simulator
from fedminimax.federation.availability import Availability
from fedminimax.problems import MinimaxProblem, PersonalizedProblem, Task
from fedminimax.result import Result
from fedminimax.run import run
from fedminimax.schedules import Piecewise
from fedminimax.sweep import sweep
from fedminimax.testing import tasks

ROUNDS = 4
CHANCE = Availability(probability=(0.9, 0.7, 0.5, 0.8, 0.6), over_invite=1.4)
RATES = ("lr_x", "lr_y", "lr_w", "tau", "sigma", "gamma")
"""What step sizes are called."""


@dataclass(frozen=True)
class Subject:
    """A method as the contract tries it: settings that are stable on every small problem.

    Attributes:
        algorithm: the method.
        variant: whether its clients' program is that of another subject, but for a rule: the longest checks are then left out.
        rates: the step sizes that schedules and sweeps try.
        boxed: other settings with which steps lead out of small sets.
    """

    algorithm: Any
    variant: bool = False
    rates: tuple[str, ...] = ("lr_x", "lr_y")
    boxed: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, method: Algorithm) -> Subject:
        """Return a method as a subject, its step sizes known by their names."""
        fields = {f.name for f in dataclasses.fields(method)}  # type: ignore[arg-type]
        rates = tuple(name for name in RATES if name in fields and getattr(method, name) is not None)
        return cls(method, rates=rates)

    @property
    def kind(self) -> type:
        """The form of the problems that the method solves."""
        return self.algorithm.solves

    @property
    def main(self) -> Task:
        """The small problem on which most is tried."""
        return tasks.small(tasks.names_for(self.kind)[0])

    @property
    def other(self) -> Task:
        """A problem with sets, float32 data, and clients of unequal size."""
        return tasks.small(tasks.names_for(self.kind)[1])

    @property
    def has_cohorts(self) -> bool:
        """Whether a server asks clients, rather than nodes their neighbours."""
        return self.kind is not PersonalizedProblem

    @property
    def has_y(self) -> bool:
        """Whether the method moves a max player."""
        return self.start.y is not None

    @property
    def start(self) -> Any:
        """The state before round 0, on the main problem."""
        return self.algorithm.init(self.main.problem.bind(self.main.clients)[0])

    def with_rates(self, rate: Any) -> Any:
        """Return the method with all its step sizes set to one value or schedule."""
        return self.algorithm.replace(**dict.fromkeys(self.rates, rate))

    def go(self, task: Task | None = None, algorithm: Any = None, **options: Any) -> Result:
        """Run a method, by default the subject's on its main problem, for a few rounds."""
        task = self.main if task is None else task
        # One layout and one kind of record wherever they are not what is tried: the checks then share their programs.
        alone = isinstance(task.problem, PersonalizedProblem)
        value: Any = {"value": metrics.Residual()} if alone else metrics.Value()
        defaults = {"rounds": ROUNDS, "seed": 3, "eval_every": ROUNDS, "metrics": value, "record": True, "progress": False}
        options = {**defaults, "engine": Simulator("vmap", 1), **options}
        return run(task.problem, task.clients, self.algorithm if algorithm is None else algorithm, **options)


@dataclass(frozen=True)
class Check:
    """A claim of the contract, and what it takes to see whether it holds.

    Attributes:
        claim: one sentence.
        fn: raises an AssertionError unless it holds.
        applies: whom the claim is about.
        x64: whether to try it in float64.
        long: whether variants may go without it.
    """

    claim: str
    fn: Callable[[Subject], None]
    applies: Callable[[Subject], bool]
    x64: bool
    long: bool

    def __call__(self, subject: Subject) -> None:
        """Raise an AssertionError unless the claim holds."""
        with jax.enable_x64(self.x64):
            self.fn(subject)


CHECKS: dict[str, Check] = {}
"""The contract, by name."""


def check(
    applies: Callable[[Subject], bool] = lambda subject: True, *, x64: bool = True, long: bool = True
) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Make a function a part of the contract."""

    def register(fn: Callable[[Subject], None]) -> Callable[[Subject], None]:
        claim = " ".join((fn.__doc__ or "").split())
        CHECKS[fn.__name__] = Check(claim, fn, applies, x64, long)
        return fn

    return register


def close(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    """Raise an AssertionError unless two trees are alike."""
    for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(p), np.asarray(q), rtol=tolerance, atol=tolerance)


def same_costs(a: Result, b: Result) -> None:
    """Raise an AssertionError unless two runs cost the same in every round."""
    counts = [{name: values.tolist() for name, values in result.costs.items()} for result in (a, b)]
    assert counts[0] == counts[1], f"costs differ: {counts[0]} and {counts[1]}"


@check(long=False)
def strategies_devices_and_engines_give_one_trajectory(subject: Subject) -> None:
    """The same run side by side, in turns, on several devices, and among workers that share nothing, to 1e-10."""
    reference = subject.go()
    leaves = lambda state: [np.asarray(a) for a in jax.tree.leaves(state) if jnp.issubdtype(a.dtype, jnp.floating)]
    moved = [np.abs(a - b).max() for a, b in zip(leaves(reference.state), leaves(subject.start), strict=True)]
    assert max(moved) > 1e-4, "the method does not move: choose settings with which it does"
    split = Simulator(2, min(2, len(jax.devices())))
    for engine in ("isolated",) if subject.variant else (split, "isolated"):
        other = subject.go(engine=engine)
        close(reference.state, other.state)
        close(reference.history["value"], other.history["value"])
        same_costs(reference, other)


@check(x64=False)
def float32_stays_float32(subject: Subject) -> None:
    """A state of single precision stays so."""
    state = subject.go(subject.other).state
    real = {leaf.dtype for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)}
    assert real == {jnp.dtype("float32")}, f"the state has become {real}"


@check()
def seeds_reproduce_bit_for_bit_and_matter(subject: Subject) -> None:
    """One seed gives one run, bit for bit, and another seed another."""
    first, again, other = (subject.go(seed=s) for s in (1, 1, 2))
    for a, b in zip(jax.tree.leaves(first.state), jax.tree.leaves(again.state), strict=True):
        assert np.array_equal(a, b), "two runs with the same seed differ: is something drawn outside of client.key()?"
    differ = (not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first.x), jax.tree.leaves(other.x), strict=True))
    assert any(differ), "the seed does not matter"


@check(long=False)
def runs_continue_exactly(subject: Subject) -> None:
    """Two rounds and two more, from a result or from its snapshot, are four, bit for bit, in states and costs."""
    whole = subject.go()
    half = subject.go(rounds=2)
    rest = subject.go(rounds=2, seed=99, start=half)
    close(whole.state, rest.state, 0)
    assert rest.rounds == ROUNDS
    same_costs(whole, rest)
    again = subject.go(rounds=2, start=Snapshot(half.state, half.client_states, 2))
    close(whole.state, again.state, 0)


@check(long=False)
def state_is_a_pytree_with_the_players_that_can_be_sent(subject: Subject) -> None:
    """The state has the problem's players, and becomes bytes and back."""
    state, problem = subject.start, subject.main.problem
    y0 = problem.bind(subject.main.clients)[0].y0 if state.y is not None else None
    for name, mine, its in (("x", state.x, problem.x0), ("y", state.y, y0)):
        structure: Any = jax.tree.structure(mine)
        assert structure == jax.tree.structure(its), f"state.{name} is not like the problem's {name}0"
    back = wire.decode(wire.encode(jax.tree.map(np.asarray, state)))
    assert type(back) is type(state), "the state comes back as another class: decorate it with @state"
    close(state, back, 0)


@check(lambda subject: bool(subject.rates))
def hyper_parameters_can_be_vmapped(subject: Subject) -> None:
    """A sweep over step sizes and seeds, one program, equals its runs one by one."""
    many = sweep(
        subject.main.problem,
        subject.main.clients,
        subject.algorithm,
        rounds=ROUNDS,
        eval_every=2,
        grid={name: [0.01, 0.02][:: 1 if name == "lr_x" else -1] for name in subject.rates},
        seeds=[3, 4],
        metrics={"x": lambda p, c, s: players.norm(s.x), "y": _y_norm},
    )
    for k, setting in enumerate(many.settings):
        for j, seed in enumerate(many.seeds):
            one = subject.go(algorithm=subject.algorithm.replace(**setting), seed=seed)
            np.testing.assert_allclose(many.values("x")[k, j, -1], players.norm(one.x), rtol=1e-10)
            np.testing.assert_allclose(many.values("y")[k, j, -1], _y_norm(None, None, one), rtol=1e-10, atol=1e-12)
            assert many.values("floats_up")[k, j, -1] == one.costs["floats_up"].sum(), "a sweep counts other floats than a run"


def _y_norm(problem: Any, clients: Any, state: Any) -> Any:
    return players.norm(state.y if state.y is not None else 0.0)


@check(lambda subject: bool(subject.rates))
def schedules_act_round_by_round(subject: Subject) -> None:
    """A step size that changes after two rounds is two runs of two rounds."""
    scheduled = subject.go(algorithm=subject.with_rates(Piecewise((0.03, 0.01), until=(2,))))
    first = subject.go(algorithm=subject.with_rates(0.03), rounds=2)
    second = subject.go(algorithm=subject.with_rates(0.01), rounds=2, start=Snapshot(first.state, first.client_states, 2))
    close(scheduled.state, second.state)


@check(lambda subject: subject.has_cohorts and subject.has_y and len(subject.rates) > 1, x64=False)
def points_stay_in_their_sets(subject: Subject) -> None:
    """With steps that lead out of it, the max player stays in its set."""
    task = subject.other
    result = subject.go(task, subject.algorithm.replace(**{subject.rates[1]: 1.0}))
    problem = task.problem.bind(task.clients)[0]
    assert not np.allclose(result.y, problem.y0, atol=1e-3), "y does not move"
    assert bool(problem.y_set.contains(result.y, tol=1e-6)), "y has left its set: is it projected on the server?"


@check(lambda subject: subject.has_cohorts, x64=False)
def local_and_server_steps_stay_in_the_sets_of_both_players(subject: Subject) -> None:
    """Steps lead out of the sets, on clients and on the server: no gradient is taken outside, and the corner is reached."""
    settings = dict.fromkeys(subject.rates, 0.15)  # beyond the fence in one step, and the server's steps are longer still
    settings |= {name: 3.0 for name in ("server_lr_x", "server_lr_y") if hasattr(subject.algorithm, name)}
    method = subject.algorithm.replace(**{**settings, **subject.boxed})
    result = subject.go(tasks.fenced(subject.kind), method, rounds=6, metrics=())
    assert result.costs["dropped"].sum() == 0, "a gradient was taken outside of the sets: project after every local step"
    np.testing.assert_allclose(result.x, -tasks.FENCE, rtol=1e-6)
    if subject.kind is MinimaxProblem:
        np.testing.assert_allclose(result.y, tasks.FENCE, rtol=1e-6)


@check(lambda subject: subject.has_cohorts)
def a_poisoned_client_never_reaches_the_model(subject: Subject) -> None:
    """The replies of a client whose data is NaN are dropped and counted, and everything else stays finite."""
    broken = Task(subject.main.problem, tasks.poisoned(subject.main.clients))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The guard refused")
        result = subject.go(broken, rounds=5 * ROUNDS)
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.state))
    assert finite, "a NaN has reached the state: reply with updates, and add up by cohort.mean or cohort.sum"
    assert result.trace is not None
    asked = np.any([np.any(np.asarray(cohort) == 0, axis=1) for cohort in result.trace.cohorts], axis=0)
    assert asked.any(), "the broken client was never asked"
    dropped = result.costs["dropped"] > 0
    assert np.array_equal(dropped, asked), f"replies are dropped in rounds {dropped}, the broken client is asked in {asked}"


@check(lambda subject: subject.has_cohorts)
def when_nobody_answers_nothing_breaks(subject: Subject) -> None:
    """Rounds in which nobody answers leave the players where they are, and cost nothing up."""
    trace = subject.go(availability=CHANCE).trace
    assert trace is not None
    empty = dataclasses.replace(trace, cohorts=tuple(np.full_like(c, -1) for c in trace.cohorts))
    result = subject.go(trace=empty)
    close(result.x, subject.start.x, 0)
    close(result.y, subject.start.y, 0)
    assert result.costs["floats_up"].sum() == 0


@check(lambda subject: subject.has_cohorts)
def availability_agrees_on_both_engines_and_replays(subject: Subject) -> None:
    """Who answers is the same on both engines, and a recorded run replays."""
    recorded = subject.go(availability=CHANCE)
    isolated = subject.go(availability=CHANCE, engine="isolated")
    for other in (isolated, subject.go(trace=recorded.trace)):
        close(recorded.state, other.state)
        same_costs(recorded, other)


@check(lambda subject: subject.has_cohorts)
def cohorts_are_sets_and_matter(subject: Subject) -> None:
    """The order of a cohort does not matter, and who is in it does."""
    recorded = subject.go()
    assert recorded.trace is not None
    trace, everybody = recorded.trace, tuple(np.ones_like(a) for a in recorded.trace.answers)
    replay = lambda cohorts: subject.go(trace=dataclasses.replace(trace, cohorts=cohorts, answers=everybody))
    close(recorded.state, replay(tuple(np.asarray(c)[:, ::-1] for c in trace.cohorts)).state)
    if not hasattr(subject.algorithm, "cohort_size"):  # everybody, in any order
        return
    others = replay(tuple((np.asarray(c) + 1) % 5 for c in trace.cohorts))
    assert not np.allclose(jax.tree.leaves(recorded.x)[0], jax.tree.leaves(others.x)[0], 1e-9), "who takes part does not matter"
