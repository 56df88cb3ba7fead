"""``fedminimax predict``: what it writes, what it prints, and what it refuses, on the command line's own terms."""

import pandas as pd
import pytest
from patients import weights
from typer.testing import CliRunner

import fedminimax as fm
from fedminimax.cli import app
from fedminimax.models import Linear


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Run the command where the files are, and return what it printed; an error is raised."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        done = CliRunner().invoke(app, ["predict", *arguments])
        if done.exception is not None:
            raise done.exception
        return done.stdout.splitlines()

    return run


@pytest.fixture
def rows(frame, tmp_path):
    frame.drop(columns="back").assign(id=range(100, 220)).to_csv(tmp_path / "new.csv", index=False)


def test_two_classes_are_scored_by_the_positive_one(save, frame, rows, call, tmp_path):
    model = fm.load_model(save(threshold=0.3))
    said = call("model", "new.csv", "--out", "scores.csv")
    found = pd.read_csv(tmp_path / "scores.csv")
    assert list(found.columns) == ["row", "probability of yes", "predicted"]
    assert found["row"].tolist() == list(range(1, 121))
    pd.testing.assert_series_equal(
        found["probability of yes"], model.predict_proba(frame)["yes"], check_names=False, check_exact=True
    )
    assert found["predicted"].tolist() == model.predict(frame).tolist()
    called = int((found["predicted"] == "yes").sum())
    share = f"{100 * called / 120:.1f}%"
    assert said == [
        f"new.csv: 120 rows, {called} predicted yes ({share}), where its probability is 0.3 or more.",
        "Written: scores.csv",
    ]
    call("model", "new.csv", "--out", "kept.csv", "--keep", "id", "--keep", "site")
    kept = pd.read_csv(tmp_path / "kept.csv")
    assert list(kept.columns) == ["id", "site", "probability of yes", "predicted"]
    assert kept["id"].tolist() == list(range(100, 220))


def test_where_the_label_is_there_predictions_are_judged(save, frame, call, tmp_path):
    model = fm.load_model(save())
    frame.assign(back=frame["back"].replace("yes", "YES ")).to_csv(tmp_path / "new.csv", index=False)
    _, judged, *_ = call("model", "new.csv")
    found = model.evaluate(frame)
    assert judged.startswith("Against the column back of 120 rows: accuracy ")
    assert f"AUC {100 * found['auc']:.1f}%" in judged
    assert f"recall {100 * found['recall']:.1f}%" in judged


def test_several_classes_and_quantities(save, federation, quantity, frame, rows, call, tmp_path):
    three = type(federation.encoder)(
        **{**federation.encoder.__dict__, "classes": ["a", "b", "c"], "label": "ward2", "client": "site"}
    )
    save(network=Linear(3), x=weights([(len(federation.features), 3)]), encoder=three)
    said = call("model", "new.csv")
    found = pd.read_csv(tmp_path / "scores.csv")
    assert list(found.columns) == ["row", "probability of a", "probability of b", "probability of c", "predicted"]
    assert said[0].startswith("new.csv: 120 rows, predicted ")
    save(network=Linear(1), x=weights([(len(quantity.features), 1)]), encoder=quantity.encoder)
    frame.to_csv(tmp_path / "all.csv", index=False)
    said = call("model", "all.csv", "--out", "scores.parquet")
    found = pd.read_parquet(tmp_path / "scores.parquet")
    assert list(found.columns) == ["row", "predicted"]
    assert said[0] == f"all.csv: 120 rows, predicted {found['predicted'].mean():.4g} on average."
    assert said[1].startswith("Against the column stay of 120 rows: RMSE ")


def test_files_are_read_as_in_training(save, frame, call, tmp_path):
    save()
    plain = frame.assign(age=frame["age"].astype(object).where(frame["age"].notna(), "unknown"))
    plain.to_csv(tmp_path / "plain.csv", index=False)
    european = frame.copy()
    for column in ("height", "stay"):
        european[column] = european[column].map(lambda v: str(v).replace(".", ","))
    european.to_csv(tmp_path / "european.csv", index=False, sep=";")
    frame.to_csv(tmp_path / "usual.csv", index=False)
    for name in ("plain", "european", "usual"):
        call("model", f"{name}.csv", "--out", f"{name}-scores.csv")
    found = [(tmp_path / f"{name}-scores.csv").read_text() for name in ("plain", "european", "usual")]
    assert found[0] == found[1] == found[2]


def test_what_is_noticed_is_a_note_or_with_strict_an_error(save, frame, call, tmp_path):
    save()
    frame.assign(ward="Mars").to_csv(tmp_path / "new.csv", index=False)
    note = "120 rows have the new value 'Mars' in column ward: they count as no known value."
    assert f"Note: {note}" in call("model", "new.csv")
    (tmp_path / "scores.csv").unlink()
    with pytest.raises(fm.InputError, match=f"{note}.*--strict"):
        call("model", "new.csv", "--strict")
    assert not (tmp_path / "scores.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["modle", "new.csv"], "There is no folder modle"),
        (["model", "nwe.csv"], r"There is no file nwe\.csv: check the path"),
        (["model", "new.csv", "--keep", "Id"], r"new\.csv has no column 'Id' to --keep \(did you mean 'id'\?\)"),
        (["nowhere", "none.csv", "--out", "there/scores.csv"], "--out is there/scores.csv, but there is no folder there"),
        (["nowhere", "none.csv", "--out", "model"], r"--out is model: give a \.csv or \.parquet file"),
        (["nowhere", "none.csv", "--out", "folder.csv"], r"folder\.csv, which is a folder"),
        (["nowhere", "new.csv", "--out", "new.csv"], "the file of the rows themselves"),
    ],
)
def test_mistakes_are_sentences_and_found_first(save, rows, call, tmp_path, arguments, message):
    save()
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(fm.InputError, match=message):
        call(*arguments)
    assert not (tmp_path / "scores.csv").exists()


def test_a_kept_column_cannot_be_called_as_a_prediction(save, frame, call, tmp_path):
    save()
    frame.assign(predicted=1).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(fm.InputError, match="--keep predicted has the name of a column of predictions"):
        call("model", "new.csv", "--keep", "predicted")


def test_a_model_of_arrays_is_for_python(save, federation, rows, call):
    save(encoder=None, federation=federation)
    with pytest.raises(fm.InputError, match="takes arrays of inputs, not rows of a table"):
        call("model", "new.csv")
