"""Local solvers: one for all or one for each client, one's own, their normalisers, and what they refuse."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedminimax as fm
from fedminimax import players
from fedminimax.algorithms import PerClient
from fedminimax.data import ClientData

TAU = (2, 4, 3, 4)
RATES = (0.5, 0.9, 0.2, 0.7)
ROUNDS = 3


def slope(x, y, batch):
    """A loss with one gradient everywhere: a client that takes tau steps with weights a moves by lr ||a||_1."""
    return jnp.mean(batch["g"]) * x - jnp.mean(batch["g"]) * y


def slopes(examples=(1, 1, 1, 1), weights=(1, 2, 3, 4)):
    clients = ClientData.from_list([{"g": np.ones(n)} for n in examples])
    return fm.Task(fm.MinimaxProblem(slope, jnp.zeros(()), jnp.zeros(()), weights=weights), clients)


def run(task, method, rounds=ROUNDS, **options):
    return fm.run(task.problem, task.clients, method, rounds=rounds, seed=2, **options)


def same(a, b):
    np.testing.assert_allclose(a.x, b.x, rtol=1e-12)
    np.testing.assert_allclose(a.y, b.y, rtol=1e-12)


def method(solver, **options):
    return fm.FedNormSGDA(0.05, 0.03, **{"solver": solver, "local_steps": fm.ClientSteps(TAU), **options})


@fm.local_solver
class Fading(fm.Solver):
    """Step k counts r_i^k: a solver of one's own, with a number for each client."""

    rates: tuple

    def direction(self, memory, g, z, start, k, client):
        return players.scale(g, jnp.stack(self.rates)[client] ** k), memory

    def norm(self, steps, lr, client):
        rate = jnp.stack(self.rates)[client]
        return (1 - rate**steps) / (1 - rate)


@fm.local_solver
class Averaging(fm.Solver):
    """The step follows the mean of the gradients, which needs a memory: a_j = sum_{k >= j} 1 / (k + 1), ||a||_1 = tau."""

    def init(self, z, client):
        return players.zeros_like(z)

    def direction(self, memory, g, z, start, k, client):
        total = players.add(memory, g)
        return players.scale(total, 1.0 / (k + 1)), total

    def norm(self, steps, lr, client):
        return steps


class Undecorated(fm.Solver):
    pass


def test_a_solver_of_ones_own_that_is_told_the_client_equals_a_tuple_of_weights(x64):
    task = fm.problems.quadratic(4, weights=[1, 2, 3, 4], examples=2, noise=0.3, seed=3)
    own = method(Fading(RATES), cohort_size=3)
    tuple_of = method(
        tuple(fm.Weighted(tuple(r**k for k in range(tau))) for r, tau in zip(RATES, TAU, strict=True)), cohort_size=3
    )
    result = run(task, own)
    same(result, run(task, tuple_of))
    same(result, run(task, own, engine="isolated"))
    assert np.abs(result.x - run(task, method(Fading(RATES[::-1]), cohort_size=3)).x).max() > 1e-3


def test_solvers_of_ones_own_mix_with_others_on_both_engines(x64):
    """Where the gradient is one and the same, x moves by lr tau_eff, tau_eff = sum_i p_i ||a_i||_1, whatever the solvers."""
    task, p = slopes(), np.arange(1, 5) / 10
    mixed = method((fm.Proximal(2.0), fm.Momentum(0.5), Averaging(), fm.Weighted((1.0, 0.5, 0.25, 0.125))))
    momentum = sum(sum(0.5 ** (j - k) for j in range(k, 4)) for k in range(4))
    expected = lambda lr: lr * p @ [1 + (1 - 2 * lr), momentum, 3, 1.875]
    for engine in ("simulator", "isolated"):
        result = run(task, mixed, rounds=2, engine=engine)
        np.testing.assert_allclose(result.x, -2 * expected(0.05), rtol=1e-12)
        np.testing.assert_allclose(result.y, -2 * expected(0.03), rtol=1e-12)


def test_an_array_of_numbers_is_one_for_each_client(x64):
    task = fm.problems.quadratic(4, weights=[1, 2, 3, 4], seed=3)
    array = run(task, method(fm.Momentum(list(RATES))))
    same(array, run(task, method([fm.Momentum(r) for r in RATES])))
    local = fm.LocalSGDA(0.05, 0.03, momentum=np.array([0.5] * 4), local_steps=4)
    same(run(task, local), run(task, local.replace(momentum=0.5)))


def test_numbers_of_each_solver_can_be_scheduled_and_swept(x64):
    """Where the gradient is one and the same, x moves by lr sum_i p_i ||a_i||_1; tau = (2, 4, 3, 4), p = (1, 2, 3, 4) / 10."""
    task = slopes()
    falling = fm.Piecewise((0.5, 0.0), until=(1,))
    scheduled = method((fm.Momentum(falling), fm.Plain(), fm.Momentum(0.5), fm.Plain()))
    assert len(scheduled.solver.kinds) == 2, "solvers that differ in numbers only are one kind"
    third = 1 + 1.5 + 1.75
    expected = -0.05 * ((2.5 + 8 + 3 * third + 16) + 2 * (2 + 8 + 3 * third + 16)) / 10
    np.testing.assert_allclose(run(task, scheduled).x, expected, rtol=1e-12)
    swept = fm.sweep(
        task.problem,
        task.clients,
        scheduled,
        rounds=3,
        eval_every=3,
        grid={"lr_x": [0.05, 0.1]},
        metrics={"x": lambda p, c, s: s.x},
    )
    np.testing.assert_allclose(swept.values("x")[:, 0, -1], np.array([1, 2]) * expected, rtol=1e-12)


@pytest.mark.parametrize("unit", ["steps", "epochs"])
def test_the_server_normalises_by_the_steps_that_clients_take(x64, unit):
    """The costs say how many steps client c_t took; with a cohort of one, x moves by lr (p_c n) tau_eff, over all n clients."""
    task, p, rounds = slopes((2, 3, 5), (1, 2, 3)), np.arange(1, 4) / 6, 6
    drawn = fm.FedNormSGDA(0.1, 0.1, local_steps=fm.UniformSteps(1, 9, unit=unit), batch_size=2, cohort_size=1)
    path = {"x": lambda problem, clients, state: state.x}
    only = lambda i: run(task, drawn, rounds, trace=fm.Trace((np.full((rounds, 1), i),)), metrics=path, eval_every=1)
    runs = [only(i) for i in range(3)]
    tau = np.array([r.costs["local_steps"] for r in runs])
    assert (np.ptp(tau, axis=0) > 0).any()
    assert (np.ptp(tau, axis=1) > 0).all()
    for i, one in enumerate(runs):
        np.testing.assert_allclose(-np.diff(one.history["x"]) / (0.1 * p[i] * 3), p @ tau, rtol=1e-12)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.999, 0.99999])
def test_the_momentum_normaliser_is_exact_in_float32(rho):
    rho = float(np.float32(rho))
    exact = np.cumsum(np.cumsum(rho ** np.arange(1000)))
    taus = np.array([1, 2, 3, 7, 10, 100, 1000])
    np.testing.assert_allclose(fm.Momentum(rho).norms(7, jnp.asarray(taus), 0.1), exact[taus - 1], rtol=3e-6)


@pytest.mark.parametrize("rate", [0.3, 1.0, 1.5, 2.0, 2.5])
def test_the_proximal_normaliser_is_the_l1_norm_whatever_the_step(x64, rate):
    for tau in (1, 2, 5):
        np.testing.assert_allclose(fm.Proximal(rate).norm(tau, 1.0, 0), sum(abs(1 - rate) ** k for k in range(tau)), rtol=1e-12)


def test_steps_that_overshoot_leave_numbers_in_the_model(x64):
    """A schedule may take lr mu above 1, where 1 - lr mu has no logarithm: the server's tau_eff stays a number."""
    schedule = fm.Piecewise((0.5, 0.1), until=(1,))
    result = run(slopes(), fm.FedNormSGDA(schedule, 0.01, solver=fm.Proximal(3.0), local_steps=3))
    expected = 0.5 * (1 - 0.5 + 0.25) + 2 * 0.1 * (1 + 0.7 + 0.49)  # a = (1 - lr mu)^(2 - k), in the first round and after
    np.testing.assert_allclose(result.x, -expected, rtol=1e-12)


@fm.local_solver
class Undefined(fm.Solver):
    """A normaliser that fails on client 0."""

    def direction(self, memory, g, z, start, k, client):
        return g, memory

    def norm(self, steps, lr, client):
        return jnp.where(client == 0, jnp.nan, jnp.asarray(steps, float))


def test_a_normaliser_that_is_no_number_counts_for_nothing(x64):
    """The guard refuses client 0's reply; its place in tau_eff must not bring the NaN back."""
    with pytest.warns(UserWarning, match="refused 3 of 12"):
        result = run(slopes(), method(Undefined()))
    np.testing.assert_allclose(result.x, -ROUNDS * 0.05 * np.array([2, 3, 4]) @ TAU[1:] / 10, rtol=1e-12)


EPOCHS = fm.ClientSteps((2, 1, 1, 1), unit="epochs")
WRONG = [
    (lambda: run(slopes(), method((fm.Plain(),) * 3, local_steps=2)), "There are 3 solvers, but 4 clients"),
    (lambda: method((fm.Plain(),) * 3), "There are 3 solvers, but 4 clients"),
    (lambda: method(()), "solver is empty"),
    (lambda: method((fm.Plain(), 0.9)), "must be a Solver such as Momentum"),
    (lambda: method("momentum"), "must be a Solver such as Momentum"),
    (lambda: method(fm.Momentum), "not the class Momentum"),
    (lambda: method(Undecorated()), "decorate the class with @fm.local_solver"),
    (lambda: method((fm.Plain(), fm.Momentum(1.0))), "0 <= rho < 1"),
    (lambda: fm.Momentum([0.5, 1.0]), "0 <= rho < 1"),
    (lambda: fm.Momentum(np.ones((2, 2)) / 2), "one number, or one for each client"),
    (lambda: fm.Momentum("fast"), "a number for each client, not 'fast'"),
    (lambda: method(fm.Momentum([0.5, 0.6])), "Momentum.rho has 2 numbers, but there are 4 clients"),
    (
        lambda: run(slopes(), fm.LocalSGDA(0.1, 0.1, momentum=np.array([0.5, 0.6]))),
        "Momentum.rho has 2 numbers, but there are 4 clients",
    ),
    (lambda: fm.Weighted((1.0, -0.5)), "Weighted.a must not be negative"),
    (lambda: fm.Weighted(()), "at least one weight"),
    (lambda: method(fm.Weighted((0.0,) * 4)), "no weight above zero"),
    (lambda: run(slopes((4, 1, 1, 1)), method(fm.Weighted((1.0, 0.5)), local_steps=EPOCHS, batch_size=1)), "up to 8 steps"),
    (
        lambda: run(slopes(), method(fm.Weighted((1.0,) * 4)), trace=fm.Trace(steps=np.full((ROUNDS, 4), 5))),
        "4 weights, but clients take up to 5 steps",
    ),
    (
        lambda: fm.sweep(
            *(slopes().problem, slopes().clients, method(fm.Weighted((1.0, 0.5)), local_steps=2, batch_size=1)),
            **{"rounds": 1, "grid": {"local_steps": [fm.UniformSteps(1, 3, unit="epochs")]}},
        ),
        "2 weights, but clients take up to 3 steps",
    ),
    (
        lambda: method((fm.Plain(), fm.Weighted((1.0,) * 3), fm.Plain(), fm.Plain())),
        "3 weights, but clients take up to 4 steps",
    ),
    (lambda: method(fm.Proximal(30.0)), "their product must be at most 1"),
    (lambda: method((fm.Plain(),) * 3 + (fm.Proximal(30.0),)), "their product must be at most 1"),
]


@pytest.mark.parametrize(("attempt", "message"), WRONG, ids=[m for _, m in WRONG])
def test_what_solvers_cannot_do_is_named_before_anything_runs(attempt, message):
    with pytest.raises(fm.InputError, match=message):
        attempt()


def test_each_client_needs_weights_for_its_own_steps_only(x64):
    task = slopes()
    short = PerClient.of([fm.Weighted((1.0, 0.5)), *[fm.Weighted((1.0,) * 4)] * 3])
    np.testing.assert_allclose(run(task, method(short), rounds=1).x, -0.05 * np.arange(1, 5) @ [1.5, 4, 3, 4] / 10, rtol=1e-12)
