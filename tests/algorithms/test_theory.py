"""``from_theory``: the papers' conditions written out by hand; each binds somewhere, so that a changed constant is seen."""

import math

import numpy as np
import pytest

import fedminimax as fm


def steps_of(method):
    """eta_x, eta_y on clients, gamma_x, gamma_y on the server."""
    return {
        "lr_x": method.lr_x,
        "lr_y": method.lr_y,
        "gamma_x": method.server_lr_x * method.lr_x,
        "gamma_y": method.server_lr_y * method.lr_y,
    }


def lemmas(L, mu, p, few, many, P, bL, bG, pl):
    """The bounds of Lemmas B.3, B.4, B.5 (and section B.5) with a_i = (1, ..., 1), by name; tau is between few and many."""
    n, kappa, inf = len(p), L / mu, math.inf
    eff, away, alike = p @ many, (n - P) / max(n - 1, 1), (P - 1) / (n - 1) if n > 1 else 1.0
    ratio = max(p / few)  # max_i w_i ||a_i||_2^2 / ||a_i||_1^2, and max_{i,k} w_i a_i^(k) / ||a_i||_1
    M = max((many - 1) ** 2 + bL**2 * (many - 1))
    under = lambda value: 1 / value if value else inf
    y = {
        "B.5 first, noise": under(64 * eff * kappa * L * bG**2 * n / P * bL**2 * ratio),
        "B.5 first, absent": under(64 * eff * kappa * L * bG**2 * n / P * away * max(p)),
        "B.5 third, absent": under(8 * eff * L * n / P * away * max(p)),
        "B.5 third, noise": under(8 * eff * L * n / P * bL**2 * ratio),
        "theorem 3": under(2 * 8 * eff * L * n / P * alike),
    }
    local_y = {"B.4": 1 / (2 * L * max(many) * math.sqrt(2 * (1 + bL**2))), "B.5": under(16 * math.sqrt(kappa * M) * L * bG)}
    if pl:
        local_y["PL"] = under(16 * kappa * math.sqrt(M) * L * bG)
        y["PL, noise"] = under(64 * eff * kappa * L * bG**2 * n / P * kappa * bL**2 * ratio)
        y["PL, one"] = under(64 * eff * kappa * L * bG**2 * n / P * max(p))
    L_phi = L + kappa * L
    x = {
        "B.3 first": under(64 * eff * L_phi * bL**2 * bG**2 * n / P * ratio),
        "B.3 second, 8 beta^2": under(8 * eff * L_phi * max(p) * n / P * away * 8 * bG**2),
        "B.3 second, 1": under(8 * eff * L_phi * max(p) * n / P * away),
        "B.3 third": under(8 * eff * L_phi * bL**2 * n / P * ratio),
        "B.5 second": min(y.values()) / (81 * kappa**2),
    }
    return {
        "gamma_y": y,
        "gamma_x": x,
        "lr_y": local_y,
        "lr_x": {"B.4": local_y["B.4"], "B.5": under(64 * kappa * math.sqrt(M) * L * bG)},
    }


UNEQUAL = np.array([1.0, 2, 3, 2, 2]) / 10
CASES = [  # p, tau, P, beta_L, beta_G, mu, pl
    (UNEQUAL, (2, 4, 3, 5, 2), 3, 0.5, 1.5, 0.5, False),
    (UNEQUAL, (2, 4, 3, 5, 2), 5, 2.0, 1.0, 0.5, False),
    (UNEQUAL, (2, 4, 3, 5, 2), 5, 0.0, 1.0, 0.5, False),
    (UNEQUAL, (2, 4, 3, 5, 2), 2, 0.5, 0.1, 0.5, False),
    (UNEQUAL, (2, 4, 3, 5, 2), 4, 3.0, 0.1, 0.5, False),
    (UNEQUAL, (2, 4, 3, 5, 2), 3, 0.5, 1.5, 0.5, True),
    (UNEQUAL, (2, 4, 3, 5, 2), 5, 2.0, 1.0, 0.5, True),
    (UNEQUAL, (1, 1, 1, 1, 1), 5, 1.0, 0.02, 2000.0, False),
    (UNEQUAL, (3, 1, 2, 1, 1), 5, 1.0, 0.02, 2000.0, False),
    (UNEQUAL, (3, 1, 2, 1, 1), 1, 0.0, 0.02, 2000.0, False),
    (UNEQUAL, (3, 1, 2, 1, 1), 1, 0.0, 10.0, 2000.0, False),
    (UNEQUAL, (3, 1, 2, 1, 1), 5, 1.0, 10.0, 2000.0, False),
    (UNEQUAL, (2, 4, 3, 5, 2), 1, 3.0, 0.02, 0.5, False),
    (np.full(4, 0.25), 3, 2, 1.0, 1.0, 0.5, False),
    (np.ones(1), 3, 1, 0.0, 1.0, 0.5, False),
    (np.full(2, 0.5), 3, 1, 0.0, 1.0, 0.5, False),
    (np.full(4, 0.25), fm.UniformSteps(2, 6), 2, 1.0, 1.0, 0.5, False),
]


def theory(case, **more):
    p, tau, P, bL, bG, mu, pl = case
    spec = fm.ClientSteps(tau) if isinstance(tau, tuple) else tau
    few, many = (tau.low, tau.high) if isinstance(tau, fm.UniformSteps) else (tau, tau)
    few, many = (np.broadcast_to(np.array(t, float), p.shape) for t in (few, many))
    weights = {} if np.ptp(p) == 0 else {"weights": 7 * p}
    method = fm.FedNormSGDA.from_theory(
        2.0, mu, clients=len(p), local_steps=spec, cohort_size=P, beta_local=bL, beta_global=bG, pl=pl, **weights, **more
    )
    assert method.local_steps == spec
    return method, lemmas(2.0, mu, p, few, many, P, bL, bG, pl), (few + many) / 2


def test_fed_norm_sgda_takes_the_largest_steps_that_the_lemmas_allow():
    binding = set()
    for case in CASES:
        method, allowed, _ = theory(case)
        for name, step in steps_of(method).items():
            assert step == pytest.approx(min(allowed[name].values()), rel=1e-12), (case, name)
            binding.add((name, min(allowed[name], key=allowed[name].get)))
    every = theory(CASES[5])[1]  # PL, which has them all
    assert binding == {(name, bound) for name, bounds in every.items() for bound in bounds}


def test_fed_norm_sgda_for_some_rounds_takes_the_steps_of_theorem_one():
    """gamma_y = sqrt(P / (tau_eff L T [...])), eta_y = 1 / (L tau-bar sqrt T), cut to the lemmas."""
    L, gap, sL, sG = 2.0, 3.0, 0.7, 0.4
    for case, T in [(CASES[0], 10**9), (CASES[0], 1), (CASES[-1], 10**9), (CASES[5], 10**12)]:
        p, _, P, bL, _, mu, _ = case
        method, allowed, tau = theory(case, rounds=T, gap=gap, sigma_local=sL, sigma_global=sG)
        n, eff = len(p), p @ tau
        A, B, E = n * eff * sum(p**2 / tau), n * eff * max(p / tau), n * max(p)
        spread = gap + A * sL**2 + (B * bL**2 + (n - P) / (n - 1) * E * eff) * sG**2
        least = {name: min(bounds.values()) for name, bounds in allowed.items()}
        gamma_y = min(math.sqrt(P / (eff * L * T * spread)), least["gamma_y"])
        lr_y = min(1 / (L * np.mean(tau) * math.sqrt(T)), least["lr_y"])
        expected = {
            "gamma_y": gamma_y,
            "gamma_x": min(least["gamma_x"], gamma_y / (81 * (L / mu) ** 2)),
            "lr_y": lr_y,
            "lr_x": min(least["lr_x"], lr_y),
        }
        assert steps_of(method) == pytest.approx(expected, rel=1e-12), (case, T)
        assert (gamma_y < least["gamma_y"]) == (T > 1)
        assert (lr_y < least["lr_y"]) == (T > 1)


def test_fed_norm_sgda_plus_takes_the_steps_of_theorem_three():
    for p, tau, P, T in [
        (UNEQUAL, fm.ClientSteps((2, 4, 3, 5, 2)), 3, 10**14),
        (UNEQUAL, fm.ClientSteps((2, 4, 3, 5, 2)), 3, 2),
        (UNEQUAL, fm.ClientSteps((2, 4, 3, 5, 2)), 1, 2),
        (np.full(6, 1 / 6), fm.UniformSteps(2, 5), 6, 10**14),
        (np.full(6, 1 / 6), 1, 6, 40),
    ]:
        L, n = 2.0, len(p)
        many = np.broadcast_to(getattr(tau, "counts", getattr(tau, "high", tau)), p.shape)
        mean = np.broadcast_to(3.5, p.shape) if isinstance(tau, fm.UniformSteps) else many
        eff, alike, away = p @ mean, (P - 1) / (n - 1), (n - P) / (n - 1)
        method = fm.FedNormSGDAPlus.from_theory(L, rounds=T, clients=n, local_steps=tau, weights=p, cohort_size=P, batch_size=4)
        drift = 1 / math.sqrt(64 * L**2 * n / P * max(many - 1) ** 2) if max(many) > 1 else math.inf
        cut = 1 / (2 * 8 * (p @ many) * L * n / P * max(alike, away * max(p)))
        lr = min(1 / (L * np.mean(mean) * T ** (3 / 8)), drift)
        expected = {
            "lr_x": lr,
            "lr_y": lr,
            "gamma_x": P ** (1 / 4) / (eff * T) ** (3 / 4),
            "gamma_y": min(P ** (3 / 4) / (eff * T) ** (1 / 4), cut),
        }
        assert steps_of(method) == pytest.approx(expected, rel=1e-12), (tau, P, T)
        assert method.snapshot_every == max(1, round(math.sqrt(T / (eff * P))))
        assert (method.local_steps, method.cohort_size, method.batch_size) == (tau, P, 4)
        if T == 10**14:
            assert lr < drift
            assert expected["gamma_y"] < cut
        elif max(many) > 1:
            assert lr == drift
            assert expected["gamma_y"] == cut


def test_parallel_sgda_and_scaff_pd_take_the_printed_steps():
    parallel = fm.ParallelSGDA.from_theory(L=3.0, mu=0.5, cohort_size=4)
    assert (parallel.lr_x, parallel.lr_y) == pytest.approx((1 / (16 * 7**2 * 3), 1 / 3))
    assert parallel.cohort_size == 4
    # Condition 5.1 by (B.35), with mu_x / 4 (Remark B.4)
    convex = fm.ScaffPD.from_theory(3.0, 2.0, 0.5, local_steps=7)
    assert (convex.tau, convex.sigma, convex.theta, convex.mu_x) == pytest.approx((1 / 144, 9 / 4, 1.0, 1 / 8))
    assert convex.local_steps == 7
    # Condition 5.2 by (B.54) with C = 1: omega = h + sqrt(h^2 + 16 L_wx^2 / (mu_x mu_w)), h = 1/2 + 24 L_xx / mu_x
    strong = fm.ScaffPD.from_theory(3.0, 2.0, 0.5, 0.8)
    omega = 144.5 + math.sqrt(144.5**2 + 16 * 4 / 0.4)
    assert (strong.theta, strong.mu_x) == pytest.approx((1 - 1 / omega, 0.0))
    assert (strong.tau, strong.sigma) == pytest.approx((4 / (0.5 * (omega - 1)), 1 / (0.8 * (omega - 1))))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: fm.FedNormSGDA.from_theory(1.0, 0.5, clients=3, local_steps=fm.ClientSteps((1, 2))),
            "2 numbers, but there are 3",
        ),
        (lambda: fm.FedNormSGDA.from_theory(1.0, 0.5, clients=3, local_steps=fm.UniformSteps(1, 2, "epochs")), "not of epochs"),
        (lambda: fm.FedNormSGDA.from_theory(1.0, 0.5, clients=3, local_steps=2, weights=[1, 2]), "weights must be 3 numbers"),
        (lambda: fm.FedNormSGDA.from_theory(1.0, 0.5, clients=3, local_steps=2, rounds=0), "rounds is 0"),
        (lambda: fm.FedNormSGDA.from_theory(1.0, 0.5, clients=3, local_steps=2, rounds=9, gap=0.0), "give gap"),
        (lambda: fm.FedNormSGDA.from_theory(1.0, 0.5, clients=0, local_steps=2), "clients is 0"),
        (lambda: fm.FedNormSGDAPlus.from_theory(1.0, rounds=9, clients=3, local_steps=0), "local_steps must be at least 1"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_wrong_federations_are_named(make, message):
    with pytest.raises(fm.InputError, match=message):
        make()
