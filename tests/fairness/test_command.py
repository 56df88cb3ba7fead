"""``fedminimax fair`` as a user meets it."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from made_up_sites import people
from typer.testing import CliRunner

import fedminimax as fm
from fedminimax.cli import app
from fedminimax.commands import fair as command

HOSPITALS = runpy.run_path(str(Path(__file__).parents[1] / "data" / "hospitals.py"))
GIVEN = ["--set", "ScaffPD.tau=1,sigma=0.2", "--set", "FedAvg.lr_x=0.1"]


def fair(*arguments):
    return CliRunner(env={"COLUMNS": "180"}).invoke(app, ["fair", *map(str, arguments)])


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    people().to_csv(path, index=False)
    return path


@pytest.fixture
def unread(monkeypatch):
    """Data that must not be read: what is wrong is found before."""
    monkeypatch.setattr(command, "load", lambda request: pytest.fail("the data was read"))


def test_fair_on_the_table_of_hospitals(tmp_path):
    HOSPITALS["hospitals"]().to_csv(tmp_path / "hospitals.csv", index=False)
    done = fair(
        "--data", tmp_path / "hospitals.csv", "--label", "readmitted", "--client", "hospital", "--group", "sex",
        "--methods", "ScaffPD,FedAvg", *GIVEN, "--rounds", 20, "--local-steps", 5, "--out", tmp_path / "out",
        "--exclude", "stays", "--exclude", "pressure,ward",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    said = done.stdout
    assert "predicting 'no' for everybody is 95.6% accurate: the AUC comes first, which that leaves at 50%" in said
    for text in ("pooled (not federated)", "local (each alone)", "Rates by group", "Largest gap between groups", "admitted"):
        assert text in said
    assert "hospice has test rows of one class only, so no AUC" in said
    assert "ScaffPD's worst-20% AUC is" in said
    assert "no test row has a say in it" in said
    first = next(line for line in said.splitlines() if line.startswith("│ majority (no model)"))
    assert first.split("│")[2].strip() == "50.0% (50.0–50.0)", "what predicting nobody gets of the first number"
    written = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"table.csv", "clients.csv", "summary.json", "report.html", "clients.png", "intervals.png"} <= written
    kept = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert kept["first"]["measure"] == "auc"
    assert kept["left_out"]["island"] == 3
    assert not any(name.startswith(("stays", "pressure", "ward")) for name in kept["features"]), "all are left out"
    assert set(kept["groups"]["FedAvg"]["groups"]) >= {"female", "male"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "predicting &#x27;no&#x27; for everybody" in page
    assert "hospitals.csv: readmitted by hospital" in page
    new = HOSPITALS["hospitals"](seed=1).head(50).drop(columns="readmitted")
    new.to_csv(tmp_path / "new.csv", index=False)
    model, scores = tmp_path / "out" / "model", tmp_path / "scores.csv"
    done = CliRunner().invoke(app, ["predict", str(model), str(tmp_path / "new.csv"), "--out", str(scores)])
    assert done.exit_code == 0, done.output
    found, kept = pd.read_csv(scores), fm.load_model(model)
    assert found["probability of yes"].nunique() > 40
    called = found["probability of yes"] >= kept.threshold
    assert 0 < called.sum() < 50, "it does not predict nobody"
    assert (found["predicted"] == called.map({True: "yes", False: "no"})).all()
    assert all(sentence.partition("'")[0] in kept.card for sentence in kept.weaknesses)
    assert any(sentence.startswith("The worst site is ") for sentence in kept.weaknesses)
    assert "The worst site is" in page
    assert f"fedminimax predict {model} new.csv" in page


def test_a_network_with_hidden_layers(table, tmp_path):
    options = "--label outcome --client site --methods FedAvg --set FedAvg.lr_x=0.1 --rounds 5 --local-steps 2 --min-rows 5"
    done = fair("--data", table, *options.split(), "--hidden", "4,3", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert fm.load_model(tmp_path / "out" / "model").network == fm.models.MLP((4, 3), 2)
    done = CliRunner().invoke(app, ["fair", "--hidden", "4,0"])
    assert "give widths of at least 1" in str(done.exception)


def test_fair_runs_on_a_table_of_ones_own(tmp_path):
    frame = people()
    frame.loc[::17, "age"] = float("nan")
    frame.to_csv(tmp_path / "hospitals.csv", index=False)
    arguments = "--label outcome --client site --exclude risk --methods ScaffPD,FedAvg --rounds 8 --local-steps 4 --min-rows 5"
    places = ["--data", tmp_path / "hospitals.csv", "--out", tmp_path / "out"]
    done = fair(*arguments.split(), "--rho", "0.1,0.02", "--set", "FedAvg.lr_x=0.1", *places)
    assert done.exit_code == 0, done.output
    assert "4 clients" in done.stdout
    assert "Missing values: age 15" in done.stdout
    assert "on the training objective (tau" in done.stdout
    assert "worst 20% of sites" in done.stdout
    assert "ScaffPD under several penalties" in done.stdout
    assert "chi2:0.02" in done.stdout
    written = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"scatter.png", "rounds_worst20.png", "weights_ScaffPD.png", "trade_off_worst20.png"} <= written
    clients = pd.read_csv(tmp_path / "out" / "clients.csv", index_col="client")
    assert set(clients.index) == {"north", "south", "east", "island"}
    assert (clients["ScaffPD_low"] <= clients["ScaffPD"]).all()
    assert clients[["ScaffPD", "FedAvg", "pooled", "local"]].to_numpy().min() >= 0
    table = pd.read_csv(tmp_path / "out" / "table.csv", index_col="method")
    assert list(table.index) == ["ScaffPD", "FedAvg", "majority", "pooled", "local"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "ScafPD"], "There is no method 'ScafPD' for weights on clients (did you mean 'ScaffPD'?)"),
        (["--loss", "entropie"], "--loss is 'entropie' (did you mean 'entropy'?)"),
        (["--penalty", "cvr:0.3"], "There is no penalty 'cvr' (did you mean 'cvar'?)"),
        (["--rho", "much"], "--rho has 'much', which is not a number"),
        (["--rho", "-1"], "not negative"),
        (["--rho", "0.1", "--penalty", "agnostic"], "give one of the two"),
        (["--weights", "sise"], "weights is 'sise' (did you mean 'size'?)"),
        (["--set", "ScaffPD.sigm=1"], "ScaffPD has no 'sigm' (did you mean 'sigma'?)"),
        (["--task", "regresion"], "--task is 'regresion' (did you mean 'regression'?)"),
        (["--task", "regression", "--loss", "entropy"], "a regression has the squared loss"),
        (["--rounds", "0"], "rounds and seeds must be at least 1"),
        (["--local-steps", "0"], "--local-steps is 0"),
        (["--ridge", "-1"], "--ridge is -1.0"),
    ],
)
def test_what_is_misspelt_is_found_before_the_data_is_read(unread, arguments, message, tmp_path):
    done = fair(*arguments, "--out", tmp_path / "out")
    assert isinstance(done.exception, fm.InputError)
    assert message in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_a_bad_folder_is_found_before_the_data_is_read(unread, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for out, message in ((tmp_path / "file", "which is a file"), (tmp_path / "file" / "sub", "is a file: give a folder")):
        with pytest.raises(fm.InputError, match=message):
            command.fair(command.Request(), out)

    def refused(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(command.tempfile, "TemporaryFile", refused)
    with pytest.raises(fm.InputError, match=r"nothing can be written \(Permission denied\)"):
        command.fair(command.Request(), tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()


def test_fair_says_what_is_wrong_with_the_data(table, tmp_path):
    request = command.Request
    for asked, message in (
        (request(data=str(table)), "--label"),
        (request(data=str(table), label="outcom", client="site"), "outcome"),
        (request(data=str(tmp_path / "none.csv"), label="a", client="b"), "none.csv"),
        (request(data="digitss"), "There is no data 'digitss'"),
        (request(data="digits", label="x"), "--label is for tables"),
        (request(data="digits", exclude=["x"]), "--exclude is for tables"),
        (request(data="digits", group="x"), "--group is for tables"),
        (request(data="adult", label="x"), "has a label of its own"),
        (request(data="adult", task="regression"), "has a task of its own"),
    ):
        with pytest.raises(fm.InputError, match=message):
            command.load(asked)


def test_an_error_is_one_sentence(tmp_path):
    arguments = [sys.executable, "-m", "fedminimax", "fair", "--methods", "ScafPD"]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "There is no method 'ScafPD'" in done.stderr
    assert "Traceback" not in done.stderr
