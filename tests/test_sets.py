"""Constraint sets: projections against independent solvers, and the contract that every set keeps."""

from __future__ import annotations

import doctest
import functools
import itertools
import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.flatten_util import ravel_pytree

from fedminimax import sets
from fedminimax.errors import InputError
from fedminimax.sets import SETS, Box, CappedSimplex, Everything, L2Ball, NonNegative, Product, Set, Simplex, as_set


@pytest.fixture(autouse=True)
def _precision(request):
    """Allow float64, except in a test of float32, which runs as most users do: without."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    with jax.enable_x64(params.get("dtype") is not np.float32):
        yield


class Pair(NamedTuple):
    first: Any
    second: Any


# --- Inputs and references ---------------------------------------------------------------------------------------


def hard_vectors(rng: np.random.Generator, rows: int, n: int) -> np.ndarray:
    """Inputs of every kind that is hard for a projection, about as many of each."""
    noise = rng.normal(size=(rows, n))
    inside = rng.dirichlet(np.ones(n), size=rows)
    lead = 0.1 * inside
    lead[:, 0] += 0.9
    return np.concatenate(
        [
            noise,
            0.3 * noise,
            rng.integers(-1, 2, size=(rows, n)) * 0.5,  # ties
            np.zeros((1, n)),
            np.repeat(rng.normal(size=(rows, 1)), n, axis=1),  # all equal
            1e8 * rng.integers(-1, 2, size=(rows, n)) + noise,  # huge values, mixed
            1e8 + np.round(noise, 1),  # a huge offset
            1e-8 * noise,
            inside,
            lead,
            0.5 * inside,
            3.0 - inside,
        ]
    )


def bisection(v: np.ndarray, cap: float, total: float) -> np.ndarray:
    """Rows of clip(v - tau, 0, cap) by bisection for tau, in extended precision; twice, to hold tau in two parts."""
    shifted = v.astype(np.longdouble)
    for _ in range(2):
        low, high = shifted.min(1, keepdims=True) - cap, shifted.max(1, keepdims=True)
        for _ in range(100):
            middle = (low + high) / 2
            short = np.clip(shifted - middle, 0, cap).sum(1, keepdims=True) < total
            low, high = np.where(short, low, middle), np.where(short, middle, high)
        answer = np.clip(shifted - high, 0, cap).astype(np.float64)
        shifted = shifted - high.astype(np.float64)
    return answer


def rational(v: list[float], cap: float, total: float) -> list[float]:
    """The projection in rational arithmetic, by trying every pair of neighbouring breakpoints."""
    exact, top, aim = [Fraction(x) for x in v], Fraction(cap), Fraction(total)
    at = lambda tau: sum(min(max(x - tau, 0), top) for x in exact)
    points = sorted({*exact, *(x - top for x in exact)})
    left, right = next((a, b) for a, b in itertools.pairwise(points) if at(a) >= aim >= at(b))
    slope = (at(left) - at(right)) / (right - left)
    tau = right - (aim - at(right)) / slope if slope else right
    return [float(min(max(x - tau, 0), top)) for x in exact]


def relative_error(found: Any, expected: Any, scale: float = 1.0) -> float:
    return float(np.max(np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64)))) / scale


# --- Simplex and CappedSimplex against other solvers ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "total", "cap", "dtype", "tol"),
    [
        (1, 1.0, 1.0, np.float64, 1e-12),
        (2, 1.0, 0.6, np.float64, 1e-12),
        (7, 0.01, 0.004, np.float64, 1e-12),
        (7, 0.01, 0.004, np.float32, 1e-5),
        (40, 1.0, 1.0, np.float64, 1e-12),
        (40, 1.0, 0.0375, np.float64, 1e-12),
        (40, 1.0, 0.0375, np.float32, 1e-5),
    ],
)
def test_fixed_sum_projections_agree_with_bisection_and_rational_arithmetic(n, total, cap, dtype, tol):
    v = (total * hard_vectors(np.random.default_rng(n), 30, n)).astype(dtype)
    chosen = Simplex(n, total) if cap == total else CappedSimplex(cap, n, total)
    found = jax.jit(jax.vmap(chosen.project))(v)
    assert found.dtype == dtype
    assert found.min() >= 0
    assert found.max() <= dtype(cap)
    assert relative_error(found, bisection(v, cap, total), total) < tol
    np.testing.assert_allclose(np.asarray(found, np.float64).sum(1), total, rtol=tol)
    few = slice(None, None, 23)
    expected = [rational(row, cap, total) for row in v[few].tolist()]
    assert relative_error(found[few], expected, total) < 8 * np.finfo(dtype).eps


@pytest.mark.parametrize("cap", [1.0, 2.5e-5])
def test_float32_weights_over_many_clients_still_sum_to_one(cap):
    # One rounding error in the threshold counts once per client: simpler formulas are off by 1e-3 here, or by 0.2 at
    # a million clients, some on `lead` and some on the vectors far from zero.
    n, rng = 100_000, np.random.default_rng(2)
    chosen = Simplex(n) if cap == 1.0 else CappedSimplex(cap, n)
    spread = rng.dirichlet(np.ones(n))
    lead = 0.1 * spread
    lead[0] += 0.9
    project = jax.jit(chosen.project)
    for v in (spread, lead, 5 + rng.normal(size=n) / n, 5 + rng.normal(size=n)):
        rounded = v.astype(np.float32)
        found = np.asarray(project(rounded), np.float64)
        exact = rounded.astype(np.float64)
        tau = scipy.optimize.brentq(
            lambda t, exact=exact: np.clip(exact - t, 0, cap).sum() - 1, exact.min() - cap, exact.max(), xtol=1e-15
        )
        assert np.abs(found - np.clip(exact - tau, 0, cap)).sum() < 1e-6
        assert abs(found.sum() - 1) < 1e-6


def test_a_cap_of_one_share_each_leaves_one_point():
    # 49 * (1 / 49) < 1 in floating point: neither an error nor anything but the uniform weights.
    w = CappedSimplex(1 / 49, size=49).project(np.random.default_rng(4).normal(size=49))
    np.testing.assert_allclose(w, np.full(49, 1 / 49), atol=1e-15)
    low = (1 - 5e-8) / 4
    np.testing.assert_array_equal(CappedSimplex(low).project(np.array([1.0, -2.0, 1.0, 5.0])), np.full(4, low))


def test_a_cap_above_the_total_is_no_cap():
    v = np.array([0.3, -1.0, 2.0, 1.5])
    np.testing.assert_array_equal(CappedSimplex(7.0).project(v), Simplex().project(v))
    np.testing.assert_array_equal(CappedSimplex(7.0).linear_max(v), [0, 0, 1, 0])


@pytest.mark.parametrize("dtype", [np.float32])
def test_differences_that_overflow_do_no_harm(dtype):
    np.testing.assert_array_equal(Simplex().project(dtype([3e38, -3e38, 3e38, 1.0])), dtype([0.5, 0, 0.5, 0]))
    v = dtype([3e38, 3e38, 3e38, -3e38])
    np.testing.assert_allclose(CappedSimplex(0.3).project(v), [0.3, 0.3, 0.3, 0.1], rtol=1e-6)


def test_minus_infinity_masks_an_entry_and_nan_stays_visible():
    v = np.array([-np.inf, 0.2, 0.4, -np.inf])
    np.testing.assert_allclose(Simplex().project(v), [0, 0.4, 0.6, 0], atol=1e-15)
    np.testing.assert_allclose(CappedSimplex(0.5).project(v), [0, 0.5, 0.5, 0], atol=1e-15)
    assert np.isnan(Simplex().project(np.array([0.1, np.nan, 0.2, 0.0]))).any()


def test_half_precision_is_computed_in_float32():
    v = jnp.asarray(np.random.default_rng(5).normal(size=1000) * 1e-3, jnp.bfloat16)
    for chosen in (CappedSimplex(0.002), L2Ball(0.01)):
        found, expected = jax.jit(lambda v, c=chosen: (c.project(v), c.project(v.astype(jnp.float32))))(v)
        assert found.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(found, np.float32), expected, rtol=2**-8, atol=1e-30)


# --- The contract: every set, on trees and arrays ------------------------------------------------------------------


class Case(NamedTuple):
    """A set, the shapes that live in it, and an independent way to draw points of it (as one vector)."""

    set: Set
    like: Any
    draw: Callable[[np.random.Generator], np.ndarray]
    bounded: bool = True


def draw_capped(n: int, cap: float, total: float = 1.0) -> Callable[[np.random.Generator], np.ndarray]:
    def draw(rng: np.random.Generator) -> np.ndarray:
        count = rng.integers(1, 4)
        vertices = np.zeros((count, n))
        for vertex in vertices:
            left = total
            for i in rng.permutation(n):
                vertex[i] = min(cap, left)
                left -= vertex[i]
        return rng.dirichlet(np.ones(count)) @ vertices

    return draw


def draw_ball(n: int, radius: float, center: float = 0.0) -> Callable[[np.random.Generator], np.ndarray]:
    def draw(rng: np.random.Generator) -> np.ndarray:
        direction = rng.normal(size=n)
        return center + radius * rng.choice([rng.uniform(), 1.0]) * direction / np.linalg.norm(direction)

    return draw


def draw_box(low: np.ndarray, high: np.ndarray) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: low + (high - low) * np.clip(rng.uniform(-0.5, 1.5, size=len(low)), 0, 1)


LOW, HIGH = np.array([-1.0, 0.0, 2.0, -3.0]), np.array([1.0, 0.5, 2.0, 30.0])
TREE = {"a": np.zeros(3), "b": np.zeros((2, 2))}

CASES = {
    "simplex, tree": Case(Simplex(7, total=2.0), TREE, draw_capped(7, 2.0, 2.0)),
    "capped": Case(CappedSimplex(0.3, 6), np.zeros(6), draw_capped(6, 0.3)),
    "capped, tree": Case(CappedSimplex(0.5, total=3.0), TREE, draw_capped(7, 0.5, 3.0)),
    "ball": Case(L2Ball(2.0), np.zeros(4), draw_ball(4, 2.0)),
    "ball, tree, centre": Case(L2Ball(0.5, center=3.0), TREE, draw_ball(7, 0.5, 3.0)),
    "point": Case(L2Ball(0.0, center=1.5), np.zeros(3), lambda rng: np.full(3, 1.5)),
    "box": Case(Box(-0.2, 0.7), TREE, draw_box(np.full(7, -0.2), np.full(7, 0.7))),
    "box, arrays": Case(Box(LOW.reshape(2, 2), HIGH.reshape(2, 2)), np.zeros((2, 2)), draw_box(LOW, HIGH)),
    "box, half": Case(Box(-1.0, math.inf), np.zeros(3), lambda rng: rng.exponential(size=3) - 1, bounded=False),
    "non-negative": Case(NonNegative(), TREE, lambda rng: rng.exponential(size=7) * rng.integers(0, 2, 7), bounded=False),
    "everything": Case(Everything(), TREE, lambda rng: rng.normal(size=7), bounded=False),
    "product, dict": Case(
        Product({"b": L2Ball(0.5), "a": Simplex(3)}),
        TREE,
        lambda rng: np.concatenate([draw_capped(3, 1.0)(rng), draw_ball(4, 0.5)(rng)]),
    ),
    "product, tuple": Case(
        Product(Simplex(), Box(0, 1), None),
        (np.zeros(2), {"p": np.zeros(1), "q": np.zeros(2)}, np.zeros(1)),
        lambda rng: np.concatenate([draw_capped(2, 1.0)(rng), rng.uniform(size=3), rng.normal(size=1)]),
        bounded=False,
    ),
    "product of products": Case(
        Product({"second": Product(CappedSimplex(0.6), L2Ball()), "first": Simplex()}),
        Pair(np.zeros(2), (np.zeros(2), np.zeros(3))),
        lambda rng: np.concatenate([draw_capped(2, 1.0)(rng), draw_capped(2, 0.6)(rng), draw_ball(3, 1.0)(rng)]),
    ),
}
every_set = pytest.mark.parametrize("name", CASES)
every_bounded_set = pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.bounded])
in_each_precision = pytest.mark.parametrize(
    ("name", "dtype", "tol"),
    [(name, np.float64, 1e-12) for name in CASES]
    + [(name, np.float32, 1e-5) for name in ("capped, tree", "ball, tree, centre")],
)
ROWS = len(hard_vectors(np.random.default_rng(0), 8, 1))


class Answers(NamedTuple):
    """What a set says of each row, a row being a tree's entries."""

    projected: np.ndarray
    inside: np.ndarray
    linear_max: np.ndarray | None


@functools.cache
def compiled(name: str, dtype: Any, tol: float) -> Callable[[np.ndarray], Answers]:
    """All of a set's methods in one compiled program, as compiling is what takes the time here."""
    case = CASES[name]
    unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), case.like))[1]

    def answer(row: jax.Array) -> Answers:
        tree = unravel(row)
        return Answers(
            ravel_pytree(case.set.project(tree))[0],
            case.set.contains(tree, tol),
            ravel_pytree(case.set.linear_max(tree))[0] if case.bounded else None,
        )

    return jax.jit(jax.vmap(answer))


def ask(name: str, rows: np.ndarray, dtype: Any = np.float64, tol: float = 1e-12) -> Answers:
    """Answer any number of rows up to ROWS, filled up so that one program serves all."""
    rows = np.asarray(rows, dtype)
    answers = compiled(name, dtype, tol)(np.resize(rows, (ROWS, rows.shape[1])))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[: len(rows)], answers)


def dimension(name: str) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(CASES[name].like))


def draws(name: str, count: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.array([CASES[name].draw(rng) for _ in range(count)])


def norms(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(np.asarray(rows, np.float64), axis=-1)


@in_each_precision
def test_projection_is_the_nearest_point(name, dtype, tol):
    """Pv is in the set and <v - Pv, u - Pv> <= 0 for all u in it: together they define the projection."""
    v = hard_vectors(np.random.default_rng(0), 8, dimension(name)).astype(dtype)
    answers = ask(name, v, dtype, tol)
    assert answers.projected.dtype == dtype
    assert ask(name, answers.projected, dtype, tol).inside.all()
    p = answers.projected.astype(np.float64)
    gap = v.astype(np.float64) - p
    for u in draws(name, 100):
        size = 1 + norms(p) + norms(u)
        assert np.all(np.sum(gap * (u - p), axis=1) <= tol * size * np.maximum(norms(gap), size))


@in_each_precision
def test_projection_is_idempotent_nonexpansive_and_leaves_the_inside_alone(name, dtype, tol):
    v = hard_vectors(np.random.default_rng(0), 8, dimension(name)).astype(dtype)
    p = ask(name, v, dtype, tol).projected.astype(np.float64)
    again = ask(name, p, dtype, tol).projected
    assert np.all(norms(again - p) <= tol * (1 + norms(p)))
    order = np.random.default_rng(2).permutation(ROWS)
    apart = norms(v.astype(np.float64) - v[order])
    assert np.all(norms(p - p[order]) <= apart + tol * (1 + norms(p) + norms(p[order])))
    u = draws(name, ROWS).astype(dtype)
    assert np.all(norms(ask(name, u, dtype, tol).projected - u) <= tol * (1 + norms(u)))


@in_each_precision
def test_contains_tells_inside_from_outside(name, dtype, tol):
    u = draws(name, 20)
    assert ask(name, u, dtype, tol).inside.all()
    outside = np.concatenate(
        [
            u - 3.1 * (1 + np.abs(u)),
            np.full((1, dimension(name)), -3e38),
            np.full((1, dimension(name)), np.nan),
        ]
    )
    assert ask(name, outside, dtype, tol).inside.any() == isinstance(CASES[name].set, Everything)


@pytest.mark.parametrize("dtype", [np.float32])
def test_contains_allows_for_rounding_in_large_sets(dtype):
    v = np.random.default_rng(8).normal(size=(50, 1000)).astype(dtype) * 1e6
    assert jax.jit(jax.vmap(lambda row: L2Ball(1e4).contains(L2Ball(1e4).project(row))))(v).all()
    assert not jax.jit(NonNegative().contains)(dtype([-3e38] * 5))  # whose norm is inf, in any set's units


def test_contains_is_as_strict_as_its_tolerance():
    barely = np.array([0.5, 0.5 + 1e-4, 0.0, 0.0])  # at a distance of 5e-5
    assert Simplex().contains(barely, tol=1e-4)
    assert not Simplex().contains(barely, tol=1e-5)


@every_bounded_set
def test_linear_max_beats_every_other_point(name):
    rng, n = np.random.default_rng(5), dimension(name)
    g = np.concatenate([rng.normal(size=(10, n)), rng.integers(-1, 2, (10, n)) * 1e8, np.zeros((1, n))])
    best = ask(name, g).linear_max
    assert ask(name, best).inside.all()
    value = np.sum(g * best, axis=1)
    assert np.all(draws(name, 100) @ g.T <= value + 1e-12 * (1 + norms(g) * norms(best)))


@every_bounded_set
def test_diameter_bounds_every_distance(name):
    a, b = draws(name, 300, seed=6), draws(name, 300, seed=7)
    assert norms(a - b).max() <= CASES[name].set.diameter(CASES[name].like) * (1 + 1e-12)


@every_set
def test_trees_keep_their_structure_shapes_and_dtypes(name):
    case, dtypes = CASES[name], itertools.cycle([jnp.float32, jnp.float64, jnp.bfloat16])
    tree = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, next(dtypes)), case.like)
    for method in (case.set.project, case.set.linear_max) if case.bounded else (case.set.project,):
        answer = jax.eval_shape(method, tree)
        assert jax.tree.structure(answer) == jax.tree.structure(tree)
        for found, given in zip(jax.tree.leaves(answer), jax.tree.leaves(tree), strict=True):
            assert (found.shape, found.dtype) == (given.shape, given.dtype)


@pytest.mark.parametrize("name", ["simplex, tree", "capped, tree", "ball, tree, centre", "box"])
def test_derivative_matches_finite_differences(name):
    n, step = dimension(name), 1e-7
    unravel = ravel_pytree(CASES[name].like)[1]
    project = lambda row: ravel_pytree(CASES[name].set.project(unravel(row)))[0]
    jacobians = jax.jit(lambda row: (jax.jacfwd(project)(row), jax.jacrev(project)(row)))
    rng = np.random.default_rng(4)
    for v in (0.3 * rng.normal(size=n), 3.0 * rng.normal(size=n), 3.0 + 0.1 * rng.normal(size=n)):
        ahead, behind = (ask(name, v + sign * step * np.eye(n)).projected.T for sign in (1, -1))
        forward, reverse = jacobians(v)
        np.testing.assert_allclose(forward, (ahead - behind) / (2 * step), atol=1e-6)
        np.testing.assert_allclose(reverse, forward, atol=1e-14)
    assert np.all(np.isfinite(jacobians(np.zeros(n))[1]))  # at ties and kinks, a choice rather than nan
    assert np.all(np.isfinite(jacobians(np.full(n, 3.0))[1]))


@every_set
def test_sets_are_values(name):
    chosen = CASES[name].set
    copy = pickle.loads(pickle.dumps(chosen))
    assert copy == chosen
    assert hash(copy) == hash(chosen)
    assert [other for other in CASES if CASES[other].set == chosen] == [name]


def test_registry_names_every_set():
    assert set(SETS.values()) == {type(case.set) for case in CASES.values()}
    assert SETS["capped_simplex"](0.5) == CappedSimplex(0.5)


# --- Other solvers, linear maximisers and diameters ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["simplex, tree", "capped", "capped, tree"])
def test_fixed_sum_projections_agree_with_a_general_solver(name):
    chosen, n = CASES[name].set, dimension(name)
    v = 0.5 * np.random.default_rng(1).normal(size=(8, n))
    for row, found in zip(v, ask(name, v).projected, strict=True):
        answer = scipy.optimize.minimize(
            lambda w, row=row: 0.5 * np.sum((w - row) ** 2),
            np.full(n, chosen.total / n),
            jac=lambda w, row=row: w - row,
            bounds=[(0, getattr(chosen, "cap", None))] * n,
            constraints={"type": "eq", "fun": lambda w: w.sum() - chosen.total},
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        np.testing.assert_allclose(found, answer.x, atol=1e-6)


@pytest.mark.parametrize("name", ["simplex, tree", "capped", "capped, tree"])
def test_linear_max_agrees_with_linprog(name):
    chosen, n = CASES[name].set, dimension(name)
    rng = np.random.default_rng(n)
    g = np.concatenate([rng.normal(size=(10, n)), rng.integers(-1, 2, size=(10, n))])  # the second ten have ties
    found = ask(name, g).linear_max
    assert ask(name, found).inside.all()
    for row, best in zip(g, found, strict=True):
        bounds = (0, getattr(chosen, "cap", None))
        answer = scipy.optimize.linprog(-row, A_eq=np.ones((1, n)), b_eq=[chosen.total], bounds=bounds)
        assert row @ best == pytest.approx(-answer.fun, abs=1e-9)


def test_linear_max_of_ball_and_box():
    g = {"a": np.array([3.0, 0.0]), "b": np.array([[-4.0]])}
    jax.tree.map(np.testing.assert_allclose, jax.jit(L2Ball(2.0, 1.0).linear_max)(g), {"a": [2.2, 1.0], "b": [[-0.6]]})
    jax.tree.map(np.testing.assert_array_equal, Box(-1.0, 2.0).linear_max(g), {"a": [2.0, 2.0], "b": [[-1.0]]})
    point = jax.jit(L2Ball().linear_max)
    for scale in (1e30, 1e-30):
        np.testing.assert_allclose(point(np.array([3 * scale, 4 * scale], np.float32)), [0.6, 0.8], rtol=1e-6)


def vertices(n: int, cap: float, total: float) -> np.ndarray:
    """All vertices of a capped simplex: every entry but one at a bound, that one making up the total."""
    found = []
    for free in range(n):
        for others in itertools.product([0.0, cap], repeat=n - 1):
            rest = total - sum(others)
            if -1e-12 <= rest <= cap + 1e-12:
                found.append(np.insert(np.array(others), free, rest))
    return np.array(found)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("share", [1.0, 1.3, 2.0, 2.4, 100.0])
def test_diameter_of_capped_simplex_is_the_largest_distance_of_vertices(n, share):
    cap, total = share * 2.0 / n, 2.0
    corners = vertices(n, min(cap, total), total)
    largest = np.linalg.norm(corners[:, None] - corners[None], axis=-1).max()
    assert CappedSimplex(cap, n, total).diameter() == pytest.approx(largest, abs=1e-12)
    assert CappedSimplex(cap, total=total).diameter(np.zeros(n)) == pytest.approx(largest, abs=1e-12)
    if cap >= total:
        assert Simplex(n, total).diameter() == pytest.approx(largest, abs=1e-12)


def test_diameters():
    assert Simplex().diameter() == pytest.approx(math.sqrt(2))
    assert Simplex().diameter(np.zeros(1)) == 0
    assert L2Ball(1.5, center=4.0).diameter() == 3.0
    corners = np.array(list(itertools.product(*zip(LOW, HIGH, strict=True))))
    largest = np.linalg.norm(corners[:, None] - corners[None], axis=-1).max()
    assert Box(LOW, HIGH).diameter() == pytest.approx(largest)
    assert Box(LOW, HIGH).diameter({"a": LOW, "b": LOW}) == pytest.approx(math.sqrt(2) * largest)
    assert Box(-1.0, 1.0).diameter(TREE) == pytest.approx(2 * math.sqrt(7))
    assert Box(-1.0, 1.0).diameter(jax.ShapeDtypeStruct((4,), jnp.float32)) == 4.0
    assert Box(2.0, 2.0).diameter() == 0
    assert Box(0.0, [1.0, math.inf]).diameter() == math.inf
    assert Box(-1e308, 1e308).diameter() == math.inf
    assert NonNegative().diameter() == Everything().diameter() == math.inf
    assert Product(L2Ball(1.5), L2Ball(2.0)).diameter() == 5.0
    assert Product({"a": Box(0, 1), "b": Box(0, 3)}).diameter(TREE) == pytest.approx(math.sqrt(3 + 4 * 9))
    assert Product(L2Ball(), None).diameter() == math.inf


# --- Particular sets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tol"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_ball_projection_neither_overflows_nor_moves_the_inside(dtype, tol):
    project = jax.jit(jax.vmap(L2Ball(0.5).project))
    v = np.array([[3e30, 4e30], [-3e38, 0], [1e-30, 0], [0, 0], [0.3, 0.4], [0.1, 0.2]]).astype(dtype)
    expected = [[0.3, 0.4], [-0.5, 0], [1e-30, 0], [0, 0], [0.3, 0.4], [0.1, 0.2]]
    assert relative_error(project(v), expected) <= tol
    np.testing.assert_array_equal(np.asarray(project(v))[[2, 3, 5]], v[[2, 3, 5]])
    np.testing.assert_allclose(jax.jit(L2Ball(1e-25).project)(dtype([3e-20, 4e-20])), [6e-26, 8e-26], rtol=tol)
    assert not jax.jit(jax.grad(lambda v: L2Ball(0.0, 0.5).project(v)[0]))(dtype([0.5, 0.5])).any()
    off_centre = dtype([0.1, 0.7])
    np.testing.assert_array_equal(jax.jit(L2Ball(1.0, center=0.3).project)(off_centre), off_centre)


def test_box_bounds_are_values_not_references():
    low = np.array([0.0, 0.1])
    box = Box(low, 1.0)
    low[0] = 0.5
    assert box == Box([0.0, 0.1], 1.0)
    assert box == Box((-0.0, 0.1), jnp.asarray(1.0))
    assert box != Box([[0.0, 0.1]], 1.0)
    assert len({box, Box([0.0, 0.1], 1.0), Box([0.5, 0.1], 1.0)}) == 2
    with pytest.raises(ValueError, match="read-only"):
        box.low[0] = 0.5


def test_equal_sets_share_one_compiled_program():
    traces = []

    def project(chosen, v):
        traces.append(chosen)
        return chosen.project(v)

    compiled = jax.jit(project, static_argnums=0)
    for chosen in (Box([0.0, 0.0], 1.0), Box(np.zeros(2), np.float64(1)), Box([0.0, 0.0], 2.0)):
        compiled(chosen, np.array([3.0, -1.0]))
    for chosen in (Product({"a": None, "b": Simplex(2)}), Product({"b": Simplex(np.int64(2)), "a": Everything()})):
        compiled(chosen, {"a": np.ones(1), "b": np.ones(2)})
    assert len(traces) == 3


def test_product_matches_entries_by_name_or_position():
    v = Pair(first=np.array([2.0, 0.0]), second=np.array([-1.0]))
    by_name = Product({"second": NonNegative(), "first": Simplex()}).project(v)
    by_position = Product(Simplex(), NonNegative()).project(v)
    as_list = Product(Simplex(), NonNegative()).project(list(v))
    for found in (by_name, by_position, Pair(*as_list)):
        assert isinstance(found, Pair)
        np.testing.assert_array_equal(found.first, [1.0, 0.0])
        np.testing.assert_array_equal(found.second, [0.0])
    assert isinstance(as_list, list)
    numbered = Product({1: Simplex(), 2: NonNegative()}).project({2: v.second, 1: v.first})
    np.testing.assert_array_equal(numbered[2], [0.0])


def test_none_is_everything():
    assert as_set(None) == Everything()
    assert as_set(Simplex()) is not None
    untouched = {"labels": np.arange(3), "w": np.array([2.0, 0.0])}
    Product({"labels": None, "w": Simplex()}).check(untouched)
    np.testing.assert_array_equal(Product({"labels": None, "w": Simplex()}).project(untouched)["labels"], np.arange(3))


def test_check_accepts_what_fits_wherever_it_lies():
    for case in CASES.values():
        case.set.check(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), case.like), "x")
        case.set.check(jax.tree.map(lambda leaf: leaf - 1e6, case.like))


def test_examples_in_the_docstrings():
    with jax.enable_x64(False):
        results = doctest.testmod(sets)
    assert results.attempted > 0
    assert results.failed == 0


# --- Errors --------------------------------------------------------------------------------------------------------

ERRORS = {
    "y_set is a Simplex of 10 but y0 has 12 entries; give y0 10 entries or y_set size=12": lambda: Simplex(10).check(
        np.zeros(12)
    ),
    "x_set is a Simplex of 10 but x0 has 7 entries; give x0 10 entries or x_set size=7": lambda: Simplex(10).check(TREE, "x"),
    "the set is a Simplex of 10 but the tree has 12 entries; give the tree 10 entries or the set size=12": lambda: Simplex(
        10
    ).project(np.zeros(12)),
    "y_set is a Simplex but y0 has no entries; give it at least one": lambda: Simplex().check({}),
    "y_set is a Simplex but y0 has entries of type int64; convert them to floats": lambda: Simplex().check(np.arange(3)),
    "y_set is an L2Ball but y0 has an entry of type str; make it a tree of float arrays": lambda: L2Ball().check({"a": "text"}),
    "y_set is a CappedSimplex with cap 0.1 but y0 has 5 entries, which cannot sum to 1; "
    "raise the cap to at least 0.2": lambda: CappedSimplex(0.1).check(np.zeros(5)),
    "a CappedSimplex of 5 with cap 0.1 is empty, as its entries cannot sum to 1; raise the cap to at least 0.2": lambda: (
        CappedSimplex(0.1, 5)
    ),
    "the cap of a CappedSimplex is 0.0 but must be positive; give a larger cap": lambda: CappedSimplex(0.0),
    "the diameter of a CappedSimplex with cap 0.1 depends on how many entries it has; "
    "give the set a size or pass a tree of the player's shapes as diameter(like=y0)": lambda: CappedSimplex(0.1).diameter(),
    "the total of a Simplex is -1.0 but must be positive; the usual total is 1.0": lambda: Simplex(total=-1.0),
    "the total of a Simplex is inf but must be finite; give a finite number or use another set": lambda: Simplex(
        total=math.inf
    ),
    "the size of a Simplex is 0 but must be at least 1; give the number of entries, or None for any number": lambda: Simplex(0),
    "the size of a Simplex is a float but must be an integer; give the number of entries, or None for any number": lambda: (
        Simplex(3.0)
    ),
    "the radius of an L2Ball is -1.0 but must not be negative; give a larger radius": lambda: L2Ball(-1),
    "the radius of an L2Ball is a str but must be one number known before tracing; pass a Python float": lambda: L2Ball("wide"),
    "the radius of an L2Ball is a DynamicJaxprTracer but must be one number known before tracing; "
    "pass a Python float": lambda: jax.jit(lambda r: L2Ball(r).project(jnp.ones(2)))(1.0),
    "the low of a Box is a DynamicJaxprTracer but must be numbers known before tracing; "
    "pass a Python float or a NumPy array": lambda: jax.jit(lambda low: Box(low, 1.0).project(jnp.ones(2)))(0.0),
    "the high of a Box contains nan; use -inf or inf for an entry without a bound": lambda: Box(0, [1, math.nan]),
    "the low of a Box has shape (2,) but its high has shape (3,); give both the shape of the player's array": lambda: Box(
        [0, 0], [1, 1, 1]
    ),
    "a Box is empty when a low exceeds its high, or a low is inf or a high is -inf, as in 1 of 2 entries here; "
    "swap or widen these bounds": lambda: Box([0, 2], 1),
    "a Box is empty when a low exceeds its high, or a low is inf or a high is -inf, as in 1 of 1 entries here; "
    "swap or widen these bounds": lambda: Box(math.inf, math.inf),
    "y_set is a Box with bounds of shape (2,) but y0 has an array of shape (3,); "
    "give the bounds this shape, or use numbers, or a Product of one Box per array": lambda: Box([0, 0], 1).check(
        {"a": np.zeros(2), "b": np.zeros(3)}
    ),
    "the diameter of a Box with one bound for all entries depends on how many there are; "
    "pass a tree of the player's shapes as diameter(like=y0)": lambda: Box(0, 1).diameter(),
    **{
        f"a linear function has no maximiser over {name}, which is unbounded; "
        "use a bounded set such as Simplex, L2Ball or a Box with finite bounds": lambda s=s: s.linear_max(np.ones(2))
        for name, s in {"a NonNegative": NonNegative(), "a Box": Box(0, math.inf), "Everything": Everything()}.items()
    },
    "a Product needs at least one set; use Everything() for no constraint": lambda: Product(),
    "a constraint is a fedminimax Set or None but 3 was given; use for instance Simplex() or L2Ball(1.0)": lambda: Product(
        Simplex(), 3
    ),
    "y_set is a Product of 2 sets but y0 has 3 entries; give each entry a set, or None for no constraint": lambda: Product(
        None, None
    ).check((1.0, 2.0, 3.0)),
    "y_set is a Product of 1 set but y0 is a single array; "
    "use one of these sets alone, or make the player a tuple or dict": lambda: Product(Simplex()).check(np.ones(2)),
    "y_set is a Product by position but y0 is a dict; name its entries, as in Product({'w': Simplex()})": lambda: Product(
        None, None
    ).check(TREE),
    "y0 has an entry 'b' but y_set has none; name the same entries in both, with None for no constraint": lambda: Product(
        {"a": Simplex()}
    ).check(TREE),
    "x_set has an entry 'c' but x0 has none; name the same entries in both, with None for no constraint": lambda: Product(
        {"a": None, "b": None, "c": None}
    ).check(TREE, "x"),
    "y_set['a'] is a Simplex of 4 but y0['a'] has 3 entries; give y0['a'] 4 entries or y_set['a'] size=3": lambda: Product(
        {"a": Simplex(4), "b": None}
    ).check(TREE),
    "y_set.second[0] is a Simplex of 4 but y0.second[0] has 3 entries; "
    "give y0.second[0] 4 entries or y_set.second[0] size=3": lambda: Product(None, Product(Simplex(4))).check(
        Pair(np.ones(1), (np.ones(3),))
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors_name_the_cause_and_the_cure(message):
    with pytest.raises(InputError) as caught:
        ERRORS[message]()
    assert str(caught.value) == message
