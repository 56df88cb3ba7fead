"""The encoder before rows that it has not seen: what it refuses, and what it says."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedminimax as fm
from fedminimax.data.encoder import Encoder
from fedminimax.data.encoding import Encoding, encode
from fedminimax.data.new_rows import units
from fedminimax.data.tabular import Table, federate


@pytest.fixture
def encoder(federation):
    return federation.encoder


def test_an_encoder_survives_json_to_the_last_bit(encoder, quantity, frame):
    for one in (encoder, quantity.encoder):
        again = Encoder.from_dict(json.loads(json.dumps(one.to_dict())))
        assert again == one
        np.testing.assert_array_equal(again.inputs(frame, np.float64), encode(frame, one.encoding))


@pytest.mark.parametrize(
    "kept", [{}, {"encoding": 3}, {"encoding": {"scales": {"a": [1]}}}, {"encoding": {"scales": [], "x": 1}}]
)
def test_a_description_that_is_none_is_refused(kept):
    with pytest.raises(fm.InputError, match="no description of an encoder"):
        Encoder.from_dict(kept)


def test_rows_like_those_of_training_are_taken_without_a_word(encoder, frame):
    inputs, notes = encoder.read(frame.sample(frac=1, random_state=0)[[*reversed(frame.columns)]].assign(more=1))
    assert notes == []
    assert inputs.shape == (len(frame), len(encoder.features))
    assert inputs.dtype == np.float32


def test_a_missing_column_is_named_with_the_nearest_that_is_there(encoder, frame):
    with pytest.raises(fm.InputError, match=r"no column 'height' \(did you mean 'Heigth'\?\): the model needs height, age"):
        encoder.inputs(frame.rename(columns={"height": "Heigth"}))
    with pytest.raises(fm.InputError, match=r"no column 'ward': the model needs"):
        encoder.inputs(frame[["height", "age", "stay"]])
    with pytest.raises(fm.InputError, match="two columns 'age': rename one"):
        encoder.inputs(pd.concat([frame, frame[["age"]]], axis=1))
    with pytest.raises(fm.InputError, match="The rows are a dict: give a pandas DataFrame"):
        encoder.inputs(dict(frame))


def test_the_label_and_the_client_are_not_needed(encoder, frame):
    np.testing.assert_array_equal(encoder.inputs(frame.drop(columns=["back", "site"])), encoder.inputs(frame))


def test_new_categories_are_counted_and_count_as_none(encoder, frame):
    rows = frame.head(6).assign(ward=["a", "Mars", "Mars", "Mars", "b", "c"])
    inputs, notes = encoder.read(rows)
    assert notes == ["3 rows have the new value 'Mars' in column ward: they count as no known value."]
    names = [name.startswith("ward=") for name in encoder.features]
    np.testing.assert_array_equal(inputs[:, names].sum(axis=1), [1, 0, 0, 0, 1, 1])
    (note,) = encoder.read(frame.head(6).assign(ward=["a", "Io", "Mars", "Mars", "b", None]))[1][:1]
    assert note == "3 rows have new values ('Mars', 'Io') in column ward: they count as no known value."
    (note,) = encoder.read(frame.head(2).assign(ward=["a", None]))[1]
    assert note == "1 row has no value in column ward, which no training row lacked: it counts as no known value."


def test_a_value_that_no_training_row_lacked_becomes_the_mean(encoder, frame):
    rows = frame.head(4).assign(height=[np.nan, 180.0, np.nan, 170.0])
    inputs, notes = encoder.read(rows)
    mean = encoder.encoding.scales["height"][0]
    assert notes == [
        f"2 rows have no value in column height, which no training row lacked: they count as the mean, {mean:.4g}."
    ]
    assert inputs[0, encoder.features.index("height")] == 0
    assert encoder.read(frame.head(4).assign(age=np.nan))[1] == [], "ages were missing in training"


def test_texts_among_numbers_are_missing_and_only_texts_an_error(encoder, frame):
    ages = ["40", " 41 ", "unknown", "old", 44.0]
    inputs, notes = encoder.read(frame.head(5).assign(age=pd.Series(ages, dtype=object)))
    assert notes == ["1 row has a text in column age that is no number ('old'): it counts as missing."], (
        "unknown is in training too"
    )
    wanted = encoder.inputs(frame.head(5).assign(age=[40.0, 41.0, np.nan, np.nan, 44.0]))
    np.testing.assert_array_equal(inputs, wanted)
    np.testing.assert_array_equal(inputs[:, encoder.features.index("age is missing")], [0, 0, 1, 1, 0])
    with pytest.raises(fm.InputError, match=r"'age' has no number in it \('old'\), where the model was trained on numbers"):
        encoder.inputs(frame.head(4).assign(age="old"))
    with pytest.raises(fm.InputError, match="'age' has dates or times in it, where the model was trained on numbers"):
        encoder.inputs(frame.head(4).assign(age=pd.to_datetime(["2024-01-01"] * 4)))
    with pytest.raises(fm.InputError, match="'height' has an infinite number"):
        encoder.inputs(frame.head(1).assign(height=np.inf))
    np.testing.assert_array_equal(
        encoder.inputs(frame.head(2).assign(stay=[True, False])), encoder.inputs(frame.head(2).assign(stay=[1, 0]))
    )


def test_dates_are_days_as_in_training(frame):
    days = (pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(len(frame)), "D")).strftime("%d/%m/%Y")
    table = Table("patients", frame.assign(admitted=days), "back", "site", "classification")
    encoder = federate(table, min_rows=5, include=["admitted"]).encoder
    again = Encoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    place = again.features.index("admitted")
    rows = frame.head(4).assign(admitted=["05/02/2024", "06/02/2024", "soon", None])
    inputs, notes = again.read(rows)
    mean, deviation = encoder.encoding.scales["admitted"]
    assert inputs[1, place] - inputs[0, place] == pytest.approx(1 / deviation, rel=1e-5)
    assert notes[0] == "1 row has a text in column admitted that is no date ('soon'): it counts as missing."
    mean = pd.Timestamp("1970-01-01") + pd.Timedelta(days=round(mean))
    assert notes[1].startswith(
        "2 rows have no value in column admitted, which no training row lacked: they count as the mean, "
    )
    assert notes[1].endswith(f"{mean:%Y-%m-%d}.")
    (note,) = again.read(frame.head(1).assign(admitted="01/01/2044"))[1]
    assert note.startswith(f"admitted: the median is 2044-01-01, in training the mean was {mean:%Y-%m-%d} (deviation ")
    assert note.endswith(" days): the model has seen no such dates.")
    with pytest.raises(fm.InputError, match="'admitted' has no date in it"):
        again.inputs(frame.head(1).assign(admitted="soon"))


def test_other_units_are_asked_about(encoder, frame):
    mean, deviation = encoder.encoding.scales["height"]
    (note,) = encoder.read(frame.assign(height=frame["height"] / 100))[1]
    median = (frame["height"] / 100).median()
    wanted = f"height: the median is {median:.4g}, in training the mean was {mean:.4g} (deviation {deviation:.4g})"
    assert note == wanted + ": are these the same units?"
    assert encoder.read(frame.head(1).assign(height=1.78))[1], "one row is enough for a median"


def test_spreads_and_flags_are_told_from_units():
    rng = np.random.default_rng(0)
    incomes = rng.exponential(50_000, 200)
    mean, deviation = incomes.mean(), incomes.std()
    assert units("income", incomes[:150], mean, deviation) == []
    (note,) = units("income", incomes[:150] / 1000, mean, deviation)
    assert note.startswith("income: the deviation is ")
    assert "are these the same units?" in note
    assert units("income", incomes[:20] / 1000, mean, deviation) == [], "too few to say"
    assert units("income", np.full(150, mean), mean, deviation) == [], "rows may be alike"
    assert units("flag", np.ones(1), 0.001, 0.03) == [], "one rare yes"
    assert units("ratio", np.ones(1), 30.0, 1.0) != []
    assert units("empty", np.zeros(0), 30.0, 1.0) == []


def test_a_column_that_only_lacks_values_is_needed_too(encoder, frame):
    lone = replace(encoder, encoding=Encoding({}, ["age"], {}))
    assert lone.columns == ["age"]
    np.testing.assert_array_equal(lone.inputs(frame.head(3)), [[1], [0], [0]])
