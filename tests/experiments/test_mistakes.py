"""What is wrong with a file is told all at once, with the line and the nearest name that is right."""

import re

import pytest

import fedminimax as fm

RIGHT = """\
rounds = 20
seeds = 2
eval_every = 5

[problem]
name = "fair_classification"
model = {name = "mlp", hidden = [8]}

[data]
name = "digits"

[partition]
name = "dirichlet"
clients = 5
alpha = 0.5

[methods.FessGDA]
lr_x = 0.1
lr_y = 0.01

[methods.slow]
method = "LocalSGDA"
lr_x = 0.01
lr_y = 0.01
cohort_size = 3

[metrics.accuracy]
metric = "ClassAccuracy"
on = "test"

[metrics.Value]
"""

EIGHT = [
    # what is changed, to what, and the message
    ("rounds = 20", "roundz = 20", "1: the experiment has no 'roundz': did you mean 'rounds'?"),
    (
        "seeds = 2",
        "seeds = 2.5",
        "2: seeds is 2.5: give how many, a whole number of at least 1, or a list of them such as [0, 1, 2].",
    ),
    ("hidden = [8]", "hiden = [8]", "7: problem.model has no 'hiden': did you mean 'hidden'?"),
    ('"digits"', '"digitz"', "10: data.name: there is no data set 'digitz': did you mean 'digits'?"),
    ("alpha = 0.5", "alpha = 'even'", "15: partition.alpha is 'even': give a number."),
    ("lr_x = 0.1", "lrx = 0.1", "18: methods.FessGDA has no 'lrx': did you mean 'lr_x'?"),
    (
        "cohort_size = 3",
        "cohort_size = 30",
        "25: methods.slow.cohort_size is 30, but there are 5 clients: ask for at most 5.",
    ),
    ('on = "test"', 'on = "tests"', "29: metrics.accuracy.on is 'tests': did you mean 'test'?"),
]

MORE = [
    (
        '"fair_classification"',
        '"fair_clasification"',
        "6: problem.name: there is no problem 'fair_clasification': did you mean 'fair_classification'?",
    ),
    ('"mlp"', '"mpl"', "7: problem.model.name: there is no model 'mpl': did you mean 'mlp'?"),
    ("[methods.FessGDA]", "[methods.FesGDA]", "17: There is no method 'FesGDA': did you mean 'FessGDA'?"),
    ('"LocalSGDA"', '"LocalSGD"', "22: methods.slow.method: there is no method 'LocalSGD': did you mean 'LocalSGDA'?"),
    (
        "lr_y = 0.01\n\n[methods.slow]",
        "\n\n[methods.slow]",
        "17: methods.FessGDA lacks lr_y: there is no default, give a value.",
    ),
    ("lr_x = 0.1", "lr_x = true", "18: methods.FessGDA.lr_x is True: give a number or a schedule such as {piecewise"),
    ("lr_x = 0.1", "lr_x = -0.1", "18: methods.FessGDA: FessGDA.lr_x must not be negative, but is -0.1."),
    (
        "lr_x = 0.1",
        "lr_x = {piecewize = [1, 2], until = [3]}",
        "18: methods.FessGDA.lr_x has 'piecewize', which names nothing: did you mean 'piecewise'?",
    ),
    ("lr_x = 0.1", "lr_x = {piecewise = [1, 2], til = [3]}", "18: methods.FessGDA.lr_x has no 'til': did you mean 'until'?"),
    ("lr_x = 0.1", "lr_x = 2026-01-01", "18: methods.FessGDA.lr_x is datetime.date(2026, 1, 1): give a number"),
    ("lr_x = 0.1", "lr_x = []", "18: methods.FessGDA.lr_x is an empty list: give the values to try."),
    ("lr_x = 0.1", "lr_x = 0.1\nlocal_steps = 'ten'", "19: methods.FessGDA.local_steps is 'ten': give a whole number."),
    (
        "lr_x = 0.1",
        "lr_x = 0.1\nbatch_size = 0",
        "19: methods.FessGDA: FessGDA.batch_size must be a whole number of at least 1, not 0.",
    ),
    ("eval_every = 5", "eval_every = 50", "3: eval_every is 50, but there are 20 rounds: give at most 20."),
    ("eval_every = 5", "eval_every = 0", "3: eval_every is 0: give a whole number of at least 1."),
    (
        "eval_every = 5",
        "checkpoint_every = 'daily'",
        "3: checkpoint_every is 'daily': give a number of rounds, or a time such as",
    ),
    (
        "eval_every = 5",
        "match_upload = 'Fess'",
        "3: match_upload is 'Fess', which is no label of a method: did you mean 'FessGDA'?",
    ),
    ("seeds = 2", "seeds = [1, 1]", "2: seeds is [1, 1]: two are the same: give different seeds."),
    ("eval_every = 5", "engine = 'isolted'", "3: engine: there is no engine 'isolted': did you mean 'isolated'?"),
    ("eval_every = 5", "engine = {name = 'simulator', device = 1}", "3: engine has no 'device': did you mean 'devices'?"),
    ("eval_every = 5", "guard = {max_nrm = 1}", "3: guard has no 'max_nrm': did you mean 'max_norm'?"),
    (
        "eval_every = 5",
        "availability = {probability = 2.0}",
        "3: availability: Availability's probability must be between 0 and 1",
    ),
    (
        'on = "test"',
        'on = "validation"',
        "29: metrics.accuracy.on is 'validation', but there is no validation data here: write validation = 0.1 in [data].",
    ),
    ("[metrics.Value]", "[metrics.Valu]", "31: There is no metric 'Valu': did you mean 'Value'?"),
    ('[partition]\nname = "dirichlet"\nclients = 5\nalpha = 0.5\n', "", "9: The examples are to be divided: give [partition]"),
    ("rounds = 20", "", "1: the experiment lacks 'rounds': say how many communication rounds there are, such as rounds = 200."),
    ('[data]\nname = "digits"\n', "", "5: fair_classification needs data: give it, such as [data]"),
    ('name = "fair_classification"\nmodel', 'name = "quadratic"\n#', "9: quadratic makes its own data: leave data out."),
    (
        'method = "LocalSGDA"\nlr_x = 0.01\nlr_y = 0.01\ncohort_size = 3',
        'method = "FedAvg"\nlr_x = 0.01',
        "21: methods.slow is for a RobustProblem, but fair_classification is a MinimaxProblem: choose another, such as",
    ),
    ("[methods.slow]", "[methods.'a/b']", "21: The label 'a/b' cannot name a folder: leave out slashes"),
    (
        "lr_x = 0.1",
        "lr_x = [0.1, 0.2]",
        '18: methods.FessGDA.lr_x has several values: say what the best is chosen by, such as select = "Value" in [search].',
    ),
    (
        "lr_x = 0.1",
        "lr_x = {log_uniform = [1, 2]}",
        "18: methods.FessGDA.lr_x is a range: say how many settings to draw, such as samples = 20 in [search].",
    ),
    ("lr_x = 0.1", "lr_x = {log_uniform = 1}", "18: methods.FessGDA.lr_x is a range: write {log_uniform = [least, greatest]}"),
    ("eval_every = 5", "search = {selekt = 'Value'}", "3: search has no 'selekt': did you mean 'select'?"),
    (
        "eval_every = 5",
        "search = {select = 'Valeu'}",
        "3: search.select is 'Valeu', but no metric has that name: did you mean 'Value'?",
    ),
]


def mistakes(text, tmp_path):
    file = tmp_path / "spec.toml"
    file.write_text(text)
    with pytest.raises(fm.InputError) as caught:
        fm.Experiment.from_toml(file)
    return [line.removeprefix(str(file) + ":") for line in str(caught.value).splitlines()]


def test_the_right_file_has_none(tmp_path):
    (tmp_path / "spec.toml").write_text(RIGHT)
    assert fm.Experiment.from_toml(tmp_path / "spec.toml").name == "spec"


@pytest.mark.parametrize(("old", "new", "says"), EIGHT + MORE, ids=[new[:30].replace("\n", " ") for _, new, _ in EIGHT + MORE])
def test_one_mistake_is_told_with_its_line_and_its_cure(tmp_path, old, new, says):
    assert RIGHT.count(old) >= 1
    found = mistakes(RIGHT.replace(old, new, 1), tmp_path)
    assert [line for line in found if line.startswith(says)], found
    if (old, new, says) in EIGHT:
        assert found == [says]


def test_eight_mistakes_are_told_at_once(tmp_path):
    text = RIGHT
    for old, new, _ in EIGHT:
        text = text.replace(old, new, 1)
    found = mistakes(text, tmp_path)
    assert found == [says for _, _, says in EIGHT]


def test_a_winner_is_never_chosen_on_test_data(tmp_path):
    text = RIGHT.replace("lr_x = 0.1", "lr_x = [0.1, 0.2]") + '\n[search]\nselect = "accuracy/worst"\n'
    (found,) = mistakes(text, tmp_path)
    assert found.startswith("34: search.select is 'accuracy/worst', which is taken on test data")
    assert 'on = "validation"' in found
    held = text.replace('"digits"', '"digits"\nvalidation = 0.2').replace('on = "test"', 'on = "validation"')
    (tmp_path / "spec.toml").write_text(held)
    fm.Experiment.from_toml(tmp_path / "spec.toml")


def test_what_a_file_cannot_sweep(tmp_path):
    swept = RIGHT.replace("lr_x = 0.1", "lr_x = [0.1, 0.2]") + '\n[search]\nselect = "Value"\nbetter = "lower"\n'
    (found,) = mistakes("engine = 'isolated'\n" + swept, tmp_path)
    assert found.startswith("19: methods.FessGDA.lr_x has several values, which the isolated engine cannot try")
    (found,) = mistakes(swept.replace("eval_every = 5", "eval_every = 6"), tmp_path)
    assert found.startswith("3: eval_every is 6, which does not divide rounds = 20")
    assert found.endswith("5 does.")


def test_what_only_the_data_tells(tmp_path):
    """These are found when the data has been read, and told with their lines too."""
    text = RIGHT.replace("alpha = 0.5", "alpha = 0.5\nmin_size = 4000").replace("hidden = [8]", "hidden = [8], classes = 3")
    (tmp_path / "spec.toml").write_text(text)
    with pytest.raises(fm.InputError, match=r"spec.toml:14: partition: 5 clients with at least 4000 examples each need"):
        fm.Experiment.from_toml(tmp_path / "spec.toml").ready  # noqa: B018
    (tmp_path / "spec.toml").write_text(text.replace("min_size = 4000", "").replace("[metrics.Value]", "[metrics.Distance]"))
    with pytest.raises(fm.InputError) as caught:
        fm.Experiment.from_toml(tmp_path / "spec.toml").ready  # noqa: B018
    assert re.search(r"spec.toml:7: problem: .*3", str(caught.value)), str(caught.value)


def test_what_is_no_toml_has_its_line_too(tmp_path):
    (found,) = mistakes("rounds = 3\nseeds = two\n", tmp_path)
    assert found.startswith("2: this is not TOML")
    with pytest.raises(fm.InputError, match=r"There is no file .*nothing.toml.*fedminimax init writes one"):
        fm.Experiment.from_toml(tmp_path / "nothing.toml")


def test_what_was_set_beside_the_file_is_named_as_such(tmp_path):
    (tmp_path / "spec.toml").write_text(RIGHT)
    with pytest.raises(fm.InputError) as caught:
        fm.Experiment.from_toml(tmp_path / "spec.toml", ["methods.FessGDA.bet=0.1", "methods.slow.lr_x=0.2"])
    assert str(caught.value) == "--set methods.FessGDA.bet: methods.FessGDA has no 'bet': did you mean 'beta'?"
    with pytest.raises(fm.InputError, match="write key=value"):
        fm.Experiment.from_toml(tmp_path / "spec.toml", ["rounds"])


def test_the_same_is_told_in_python():
    with pytest.raises(fm.InputError) as caught:
        fm.Experiment(problem="quadratic", methods={"a": {"method": "FessGDA", "lrx": 1}}, rounds=0).plan()
    assert str(caught.value).splitlines() == [
        "rounds is 0: give a whole number of at least 1.",
        "methods.a has no 'lrx': did you mean 'lr_x'?",
    ]
