"""What every method must do, on every small problem, strategy and engine. A new method adds a row to roster.py."""

import sys
from pathlib import Path

import numpy as np
import pytest

import fedminimax as fm
from fedminimax.algorithms import ALGORITHMS
from fedminimax.testing import CHECKS, tasks
from fedminimax.testing.contract import close

sys.path.insert(0, str(Path(__file__).parent))
from roster import CLASSES, KINDS, NODES, ROSTER

ONCE_A_CLASS = {
    "hyper_parameters_can_be_vmapped",
    "schedules_act_round_by_round",
    "local_and_server_steps_stay_in_the_sets_of_both_players",
}
"""Checks that one row of a class is enough for: its variants resolve hyper-parameters and project in the same place."""


def cases():
    """Every check on every row that it is about; variants go without the long ones."""
    for row in [*ROSTER, *NODES]:
        for name, check in CHECKS.items():
            if not check.applies(row) or (row.variant and check.long and name not in ONCE_A_CLASS):
                continue
            if name not in ONCE_A_CLASS or CLASSES[type(row.algorithm)] is row:
                yield pytest.param(row, check, id=f"{row.name}-{name}")


def test_every_method_has_a_row():
    rows = {type(row.algorithm).__name__ for row in [*ROSTER, *NODES]}
    constructors = {name for name, cls in ALGORITHMS.items() if not isinstance(cls, type)}
    assert rows == set(ALGORITHMS) - constructors


@pytest.mark.parametrize(("row", "check"), list(cases()))
def test_the_contract(row, check):
    check(row)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in KINDS])
def test_unequal_clients_side_by_side_in_turn_or_as_workers_agree(row):
    reference = row.go(row.other)
    for engine in (fm.Simulator("map", 1), "isolated"):
        close(reference.state, row.go(row.other, engine=engine).state, 1e-5)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in KINDS])
def test_workers_read_schedules_as_the_simulator_does(row, x64):
    method = row.with_rates(fm.Piecewise((0.03, 0.01), until=(2,)))
    close(row.go(algorithm=method).state, row.go(algorithm=method, engine="isolated").state)


def test_poison_would_reach_a_model_without_the_guard(x64):
    """The check of poisoned clients must be able to fail."""
    row = ROSTER[0]
    data, method = tasks.poisoned(row.main.clients), row.algorithm.replace(cohort_size=None)
    through = fm.run(row.main.problem, data, method, rounds=3, guard=fm.Guard(drop_nonfinite=False))
    assert not np.isfinite(through.x).all()
