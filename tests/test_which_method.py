"""The page of all methods: ranks, their agreement, and who is level with the first, against SciPy and by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import friedmanchisquare

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
import which_method
from which_page import Board, interval


def board(better="higher", log=False, **values):
    return Board({name: np.asarray(v, float) for name, v in values.items()}, better, log)


def test_agreement_is_kendalls_also_with_ties():
    alike = board(a=[3, 9], b=[2, 5], c=[1, 4])
    assert (alike.agreement, alike.halves, alike.order) == (pytest.approx(1), pytest.approx(1), ["a", "b", "c"])
    assert board(a=[3, 1], b=[2, 2], c=[1, 3]).agreement == pytest.approx(0)
    rng = np.random.default_rng(0)
    values = rng.integers(0, 4, size=(5, 8)) + np.arange(5)[:, None]
    tied = board(**{f"m{k}": row for k, row in enumerate(values)})
    assert tied.agreement == pytest.approx(friedmanchisquare(*values).statistic / (8 * 4))


def test_who_is_level_with_the_first_and_who_is_not():
    noise = np.random.default_rng(1).normal(size=(3, 8))
    found = board(first=1 + 0.01 * noise[0], near=0.999 + 0.01 * noise[1], far=0.5 + 0.01 * noise[2], lost=[np.nan, *[2.0] * 7])
    assert found.best in ("first", "near")
    assert set(found.level()) == {"first", "near"}
    assert found.ranks["lost"][0] == 4
    errors = board("lower", True, small=[1e-9, 3e-9, 1e-8], large=[1e-3, 2e-3, 1e-3])
    assert (errors.best, errors.level()) == ("small", ["small"])


def test_means_of_errors_are_geometric_and_of_what_diverged_there_are_none():
    mean, low, high = interval(np.array([1e-4, 1e-2]), log=True)
    assert mean == pytest.approx(1e-3)
    assert low < mean < high
    assert all(np.isnan(interval(np.array([0.5, np.nan]), log=False)))


def test_what_a_budget_allows_is_the_last_evaluation_within_it():
    cost, value = np.array([0, 10, 20, 30]), np.array([5.0, 4.0, 3.0, 2.0])
    assert [which_method.at(cost, value, budget) for budget in (9, 20, 25, 99)] == [5.0, 3.0, 3.0, 2.0]
    assert which_method.settled(np.nan, "higher") == -np.inf
    assert which_method.settled(np.nan, "lower") == np.inf


@pytest.mark.parametrize("workload", which_method.WORKLOADS.values(), ids=lambda one: one.name)
def test_every_method_can_be_made_for_every_workload(workload):
    for name in which_method.contenders(workload):
        method, ranges = which_method.made(workload, name)
        drawn = {key: space.at(0.5) for key, space in ranges.items()}
        assert method.replace(**drawn) != method
