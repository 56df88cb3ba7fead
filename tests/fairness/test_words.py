"""What is asked for in words, and what is said of misspelt ones."""

import pytest

import fedminimax as fm
from fedminimax.fairness import words


@pytest.mark.parametrize(
    ("text", "penalty"),
    [
        ("chi2:0.1", fm.ChiSquare(0.1)), ("agnostic", fm.Agnostic()), ("cvar:0.3", fm.CVaR(0.3)), ("qfair:1", fm.QFair(1.0)),
        ("CVaR:1", fm.CVaR(1.0)),
    ],
)  # fmt: skip
def test_penalties_are_read_and_written(text, penalty):
    assert words.penalty_of(text) == penalty
    assert words.penalty_of(words.penalty_text(penalty)) == penalty


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cvra:0.3", r"There is no penalty 'cvra' \(did you mean 'cvar'\?\): choose chi2:0.1"),
        ("chi2", "needs a number after its name"),
        ("chi2:much", "needs a number after its name"),
        ("agnostic:1", "agnostic takes none"),
        ("cvar:2", "above 0 and at most 1"),
        ("", "There is no penalty ''"),
    ],
)
def test_wrong_penalties_are_named(text, message):
    with pytest.raises(fm.InputError, match=message):
        words.penalty_of(text)


def test_step_sizes_are_read():
    found = words.settings_of(["ScaffPD.tau=0.3,sigma=0.1", "FedAvg:size.lr_x=0.5", "AFL.local_steps=3"],
                              ["ScaffPD", "FedAvg:size", "AFL"])  # fmt: skip
    assert found == {"ScaffPD": {"tau": 0.3, "sigma": 0.1}, "FedAvg:size": {"lr_x": 0.5}, "AFL": {"local_steps": 3}}
    assert isinstance(found["AFL"]["local_steps"], int)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ScaffPD.taw=0.3", r"ScaffPD has no 'taw' \(did you mean 'tau'\?\)"),
        ("ScafPD.tau=0.3", r"not run \(did you mean 'ScaffPD'\?\)"),
        ("tau=0.3", "write Method.name=value"),
        ("ScaffPD.tau", "write Method.name=value"),
        ("ScaffPD.tau=fast", "not a number"),
        ("ScaffPD.local_steps=1.5", "not a whole number"),
    ],
)
def test_wrong_step_sizes_are_named(text, message):
    with pytest.raises(fm.InputError, match=message):
        words.settings_of([text], ["ScaffPD", "FedAvg"])


def test_methods_may_weigh_by_size():
    assert words.method_of("FedAvg:size") == ("FedAvg", "size")
    assert words.method_of("ScaffPD") == ("ScaffPD", None)
    with pytest.raises(fm.InputError, match=r"There is no method 'ScafPD' for weights on clients \(did you mean 'ScaffPD'\?\)"):
        words.method_of("ScafPD")
    with pytest.raises(fm.InputError, match="FedAvg:size or FedAvg:equal"):
        words.method_of("FedAvg:sise")
