"""Columns as a person means them: roles, labels, groups, and the tables that say so; on the table of eight hospitals, too."""

import datetime

import hospitals
import numpy as np
import pandas as pd
import pytest

from fedminimax.data import columns, tabular
from fedminimax.data.encoding import client_report, encode, report, rows_of
from fedminimax.data.tabular import Table, federate, read_table
from fedminimax.errors import InputError
from fedminimax.experiments import material

N = 60


def table(label="y", task="classification", positive=None, **given):
    """A table of three sites with one good column, and those that are given."""
    rng = np.random.default_rng(0)
    frame = {
        "site": np.repeat(["a", "b", "c"], N // 3),
        "good": rng.normal(size=N),
        "y": ["no", "yes", "no"] * (N // 3),
        **given,
    }
    return Table("t", pd.DataFrame(frame), label, "site", task, positive=positive)


def looked_at(values, name="odd", **options):
    federation = federate(table(**{name: values}), **options)
    (column,) = [c for c in federation.columns if c.name == name]
    return column, federation


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("hospitals") / "hospitals.csv"
    hospitals.hospitals().to_csv(path, index=False)
    return path


# -- roles ---------------------------------------------------------------------------------------------------------------

rng = np.random.default_rng(1)
DAYS = pd.date_range("2024-01-20", periods=N, freq="36h")


@pytest.mark.parametrize(
    ("name", "values", "role", "used"),
    [
        ("measured", rng.normal(size=N), "number", True),  # unique, and no identifier
        ("measured", np.arange(N) / 2, "number", True),
        ("patient_id", np.arange(N) + 0.5, "number", True),
        ("pay", rng.permutation(90_000)[:N], "number", True),  # unique by chance
        ("code", np.arange(N) % 3, "number", True),
        ("number", np.arange(N) % 30, "number", True),  # called so, but not unique
        ("patientID", rng.permutation(90_000)[:N], "id", False),
        ("record no", rng.permutation(90_000)[:N], "id", False),
        ("Unnamed: 0", np.arange(N), "id", False),
        ("odd", rng.permutation(N) + 1000, "id", False),  # chance would have repeated some
        ("odd", rng.permutation(170)[:N], "id", False),  # 10.4 pairs
        ("odd", np.r_[0, 180, rng.permutation(range(1, 180))[: N - 2]], "number", True),  # 9.8 pairs
        ("odd", [np.nan, *range(1, N)], "id", False),  # whole, though pandas made them floats
        ("odd", pd.array([None, *range(1, N)], "Int64"), "id", False),
        ("odd", [f"P{i}" for i in range(N)], "id", False),
        ("odd", [f"{i}" for i in range(N)], "id", False),
        ("odd", ["P0", *(f"P{i}" for i in range(N - 3)), "P1", None], "id", False),  # 57 texts in 59 rows
        ("odd", ["P0", "P0", "P0", *(f"P{i}" for i in range(N - 3))], "id", False),  # 57 in 60: 95%
        ("odd", ["P0", "P0", "P0", "P0", *(f"P{i}" for i in range(N - 4))], "category", True),
        ("odd", ["x"] * N, "constant", False),
        ("odd", [0.1] * N, "constant", False),
        ("odd", [None] * N, "constant", False),
        ("odd", ["?"] * N, "constant", False),
        ("odd", ["x", None] * (N // 2), "category", True),  # missing or not is something
        ("odd", [1.0, None] * (N // 2), "number", True),
        ("odd", ["unknown", "x"] * (N // 2), "category", True),
        ("odd", [True, False] * (N // 2), "category", True),
        ("odd", pd.Categorical(np.arange(N) % 4), "category", True),
        ("odd", [f"{i / 4}" for i in range(N)], "number", True),
        ("odd", [datetime.date(2024, 1, 1 + i % 28) for i in range(N)], "date", False),
        ("odd", DAYS, "date", False),
        ("odd", DAYS.tz_localize("UTC"), "date", False),
        ("odd", DAYS.strftime("%d/%m/%Y"), "date", False),
        ("odd", [*DAYS.strftime("%Y-%m-%dT%H:%M")[:-2], "unknown", None], "date", False),
    ],
)
def test_roles(name, values, role, used):
    column, federation = looked_at(values, name)
    assert (column.role, column.used) == (role, used)
    assert any(feature.partition("=")[0].removesuffix(" is missing") == name for feature in federation.features) is used
    assert used or column.note


def test_what_is_counted_of_a_column():
    column, federation = looked_at(["a", "b", None, "?", " a", "NA"] * 10)
    assert (column.missing, column.distinct) == (0.5, 2)
    assert federation.missing == {"odd": 30}
    assert [f for f in federation.features if "odd" in f] == ["odd=a", "odd=b", "odd=missing"]
    assert looked_at(["a", None, "b"] * 20, exclude=["odd"])[1].missing == {}
    column, federation = looked_at(["1", "2.5", "unknown", None, "-", "3"] * 10)
    assert (column.role, column.missing, column.distinct) == ("number", 0.5, 3)
    assert federation.missing == {"odd": 30}
    dated, _ = looked_at([*DAYS.strftime("%Y-%m-%d")[:-3], "unknown", "unknown", None])
    assert dated.missing == 3 / N
    assert dated.note == "left out unless it is included; 'unknown' (2 rows) read as missing"
    nearly, _ = looked_at(["P0", *(f"P{i}" for i in range(N - 3)), "P1", None])
    assert (nearly.missing, nearly.note) == (1 / N, "57 different texts in 59 rows")
    nobody = federate(table(site=np.repeat(["a", "b", "c", None], N // 4)), min_rows=2)
    assert nobody.columns[0] == columns.Column("site", "client", False, 0.25, 3)
    assert [(c.name, c.role) for c in federation.columns] == [
        ("site", "client"), ("good", "number"), ("y", "label"), ("odd", "number"),
    ]  # fmt: skip


def test_an_unknown_among_numbers_is_missing_and_said():
    column, federation = looked_at([*map(str, 18 + np.arange(N - 3) % 50), "unknown", "unknown", "ask"], "age")
    assert column.note == "'unknown' and 'ask' (3 rows) read as missing"
    assert federation.notes == ["age: 'unknown' and 'ask' (3 rows) read as missing."]
    assert {"age", "age is missing"} <= set(federation.features)
    assert looked_at([*map(str, 18 + np.arange(N - 1) % 50), "unknown"], "age", exclude=["age"])[1].notes == []


def test_many_texts_among_numbers_make_a_category_and_are_said():
    column, federation = looked_at([*["low"] * 4, *map(str, np.arange(N - 4) % 7)])
    assert column.role == "category"
    assert federation.notes == ["odd: 7% of its values, such as 'low', are no numbers, so it is a category."]
    assert "odd=low" in federation.features
    assert looked_at(["7", *["A12", "B7", "C"] * 19, "7", "8"])[1].notes == []  # a number among texts is nothing to say


def test_more_than_a_hundred_categories_are_left_out_and_said():
    values = np.arange(360) % 101
    frame = pd.DataFrame({"site": np.arange(360) % 3, "x": np.arange(360) % 7, "town": [f"t{i}" for i in values]})
    frame["y"] = np.arange(360) % 2
    made = federate(Table("t", frame, "y", "site", "classification"))
    assert made.features == ["x"]
    assert made.columns[2] == columns.Column("town", "category", False, 0.0, 101, "101 categories, more than 100")
    hundred = federate(Table("t", frame.replace({"town": {"t100": "t99"}}), "y", "site", "classification"))
    assert len(hundred.features) == 101


def test_dates_that_are_included_count_days():
    frame = pd.DataFrame({"when": DAYS.strftime("%d.%m.%Y %H:%M"), "id": np.arange(N), "same": 1.0, "late": DAYS})
    federation = federate(table(**frame), dtype="float64", include=["when", "late", "id", "same", "when"])
    assert federation.features == ["good", "when", "id", "late"]
    assert federation.encoder.encoding.dates == {"when": "%d.%m.%Y", "late": "ISO8601"}
    notes = {c.name: (c.used, c.note) for c in federation.columns}
    assert notes["when"] == (True, "in days; dates with the day first")
    assert notes["id"] == (True, "")
    assert notes["same"] == (False, "the same in every row")
    days = federation.train.fields["inputs"][:, 1]
    np.testing.assert_allclose(days, federation.train.fields["inputs"][:, 3], rtol=1e-9)
    np.testing.assert_allclose(days, federation.train.fields["inputs"][:, 2], rtol=1e-9)  # a step of 36 hours, as the numbers
    mean, deviation = federation.encoder.encoding.scales["when"]
    assert 19742 < mean < 19742 + 1.5 * N
    # New rows, as text or as pandas' dates, come out as those of training.
    text = encode(frame.assign(good=0.0), federation.encoder.encoding)
    dates = encode(frame.assign(good=0.0, when=DAYS, late=DAYS.strftime("%Y-%m-%d %H:%M")), federation.encoder.encoding)
    np.testing.assert_array_equal(text, dates)
    np.testing.assert_allclose(text[1, 1] - text[0, 1], 1.5 / deviation, rtol=1e-6)


def test_a_column_that_varies_at_no_client_that_stays_is_not_used():
    flag = np.arange(N) < 20
    given = table(flag=np.where(flag, "up", "down"), site=np.repeat(["a", "b", "c", "d"], [19, 1, 20, 20])).frame
    given.loc[19, "flag"] = "down"
    federation = federate(Table("t", given, "y", "site", "classification"))
    assert federation.dropped == {"a": 19, "b": 1}
    assert federation.features == ["good"]
    told = columns.Column("flag", "category", False, 0.0, 2, "the same in all training rows")
    assert told in federation.columns


def test_misspelt_columns_name_few_of_many():
    wide = table(**{f"c{i}": rng.normal(size=N) for i in range(40)})
    with pytest.raises(InputError, match=r"choose one of site, good, y, c0, .*, c16 and 23 more\.$"):
        federate(wide, exclude=["zzz"])


# -- labels --------------------------------------------------------------------------------------------------------------


def test_spellings_of_a_class_are_one_and_said():
    federation = federate(table(y=["no", "NO", " No ", "Not  yet", "no", "not yet"] * 10))
    assert federation.classes == ["Not  yet", "no"]
    assert federation.class_counts.tolist() == [[6, 14], [7, 13], [7, 13]]
    assert federation.notes == ["y: 'no', 'NO' and 'No' are one class; 'Not  yet' and 'not yet' are one class."]
    assert [c.note for c in federation.columns if c.role == "label"] == [federation.notes[0][3:-1]]


def test_texts_among_numeric_labels_are_missing_labels():
    values = ["0", "1.0", "1", "0"] * 15
    values[7] = values[8] = "unknown"
    federation = federate(table(y=values), min_rows=2)
    assert federation.classes == ["0", "1"]
    assert federation.dropped == {"(missing label)": 2}
    assert federation.notes == ["y: 'unknown' (2 rows) read as missing."]
    amounts = [*map(str, np.arange(N - 1) / 2), "n/a"]
    regression = federate(table(y=amounts, task="regression"), min_rows=19)
    assert regression.target_scale is not None
    assert regression.dropped == {"(missing label)": 1}
    assert regression.class_counts is None
    assert regression.positive is None
    with pytest.raises(InputError, match="'y' of t is not numeric: make the task classification"):
        table(y=["a", "b", "1"] * 20, task="regression")
    with pytest.raises(InputError, match="has the one value no"):
        table(y=["no", "NO", " no"] * 20)


def test_the_spelling_of_an_official_test_part_is_the_tables():
    frame = table().frame
    federation = federate(Table("t", frame, "y", "site", "classification", frame.assign(y=frame["y"].str.upper())))
    assert federation.classes == ["no", "yes"]
    assert np.array_equal(federation.train.fields["labels"], federation.test.fields["labels"])


@pytest.mark.parametrize(
    ("values", "positive", "number"),
    [
        (["no", "yes", "no"], None, 1),
        (["no", "yes", "yes"], None, 0),
        ([0, 1], None, 1),
        (["yes", "no"], None, 1),
        (["no", "yes", "no"], "NO ", 0),
        ([0.0, 1.0], 1, 1),
        ([0, 1], "0", 0),
        (["a", "b", "c"], None, None),
    ],
)
def test_the_positive_class_is_the_one_named_or_the_rarer(values, positive, number):
    assert federate(table(y=values * (N // len(values)), positive=positive)).positive == number


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        (
            ["no", "NO", "yes"] * 20,
            "classification",
            r"'maybe', but the label 'y' has the classes no \(40 rows\), yes \(20 rows\)",
        ),
        (["a", "b", "c"] * 20, "classification", "for two classes, but the label 'y' has 3"),
        (np.arange(N) / 2, "regression", "'y' is a quantity: leave it out"),
    ],
)
def test_a_positive_class_that_there_is_not(values, task, message):
    with pytest.raises(InputError, match=message):
        table(y=values, task=task, positive="maybe")


# -- groups, and sites ---------------------------------------------------------------------------------------------------


def test_groups_are_the_test_rows_own():
    sex = np.where(np.arange(N) % 4 == 0, "f", "m").astype(object)
    sex[5:9] = None
    made = federate(table(sex=sex, place=np.arange(N) / 4), group="sex", exclude=["sex"], dtype="float64")
    assert made.features == ["good", "place"]
    mean, deviation = made.encoder.encoding.scales["place"]
    places = np.rint((made.test.fields["inputs"][:, 1] * deviation + mean) * 4).astype(int)
    assert made.groups.tolist() == ["missing" if value is None else value for value in sex[places]]
    assert {"missing"} < set(federate(table(sex=["f", "m", None] * 20), group="sex").groups)
    both = federate(table(sex=sex), group="sex")
    assert "sex=f" in both.features
    assert len(both.groups) == both.test.total
    assert set(federate(table(), group="site").groups) == {"a", "b", "c"}
    assert federate(table()).groups is None
    twice = pd.concat([table().frame] * 2, ignore_index=True).assign(place=[*range(100), *range(20)])
    assert len(set(federate(Table("t", twice, "y", "site", "classification"), group="place").groups)) > 20


def test_hospitals(file):
    read = read_table(file, hospitals.LABEL, hospitals.SITE)
    made = federate(read, group=hospitals.GROUP)
    assert len(read.frame) == 5203
    assert {c.name: c.role for c in made.columns if not c.used} == {
        "patient": "id", "hospital": "client", "admitted": "date", "country": "constant", "readmitted": "label",
    }  # fmt: skip
    assert [c.name for c in made.columns if c.role == "number"] == ["age", "marker", "pressure", "stays"]
    assert "ward=unknown" in made.features
    assert made.dropped == {"island": 3}
    assert made.classes == ["no", "yes"]
    assert made.positive == 1
    assert np.array_equal(made.class_counts[:, 1], [hospitals.SITES[name][1] for name in made.names])
    assert np.array_equal(made.class_counts.sum(axis=1), [hospitals.SITES[name][0] for name in made.names])
    assert 0.043 < made.class_counts[:, 1].sum() / made.class_counts.sum() < 0.045
    assert made.class_counts[made.names.index("hospice")].tolist() == [57, 0]
    assert made.notes == [
        "age: 'unknown' (52 rows) read as missing.",
        "readmitted: 'no', 'No' and 'NO' are one class; 'yes', 'Yes' and 'YES' are one class.",
    ]
    # The same, between semicolons and with decimal commas.
    other = file.with_name("other.csv")
    read.frame.to_csv(other, index=False, sep=";", decimal=",")
    again = federate(read_table(other, hospitals.LABEL, hospitals.SITE))
    assert again.notes[:2] == [
        "other.csv: semicolons separate its columns.",
        f"other.csv: decimals have commas in marker, pressure, so {shown(other)}.",
    ]
    assert np.array_equal(made.train.fields["inputs"], again.train.fields["inputs"])


def shown(path):
    first = pd.read_csv(path, sep=";")["marker"].dropna().iloc[0]
    return f"{first!r} is {first.replace(',', '.')}"


def test_another_seed_makes_other_patients_of_the_same_hospitals():
    first, other = hospitals.hospitals(0), hospitals.hospitals(1)
    pd.testing.assert_frame_equal(first, hospitals.hospitals(0))
    assert not first["marker"].equals(other["marker"])
    assert first["hospital"].value_counts().to_dict() == other["hospital"].value_counts().to_dict()


# -- what is told --------------------------------------------------------------------------------------------------------


def test_the_rows_that_tell_of_columns(file):
    made = federate(read_table(file, hospitals.LABEL, hospitals.SITE))
    told = {row[0]: row[1:] for row in columns.rows(made)}
    assert len(columns.HEADER) == 5
    assert told["patient"] == ["id", "no", "0%", "a different text in every row"]
    assert told["age"] == ["number", "yes", "2.7%", "'unknown' (52 rows) read as missing"]
    assert told["admitted"] == ["date", "no", "0%", "left out unless it is included"]
    assert columns.label_header(made) == ["site", "rows", "no", "yes"]
    rows = columns.label_rows(made)
    assert rows[0] == ["central", "2,100", "2,020 (96.2%)", "80 (3.8%)"]
    assert rows[4] == ["hospice", "57", "57 (100%)", "0 (0%)"]
    assert rows[-1] == ["all", "5,200", "4,972 (95.6%)", "228 (4.4%)"]
    assert len(rows) == 8


def many(sites, task, lacking=5):
    frame = pd.DataFrame({"site": np.repeat(np.arange(sites), 4), "x": np.tile([1.0, 2, 3, 5], sites)})
    frame["y"] = np.tile([0, 0, 0, 1], sites)
    frame.loc[: 4 * lacking - 1, "y"] = 0
    if task == "regression":
        frame["y"] = frame["site"] * 10.0 + frame["x"]
    return federate(Table("t", frame, "y", "site", task), min_rows=2)


def test_the_label_of_many_sites_is_summed_up():
    made = many(40, "classification")
    assert columns.label_rows(made) == [
        ["all 40", "160", "125 (78.1%)", "35 (21.9%)"],
        ["least", "4", "3", "0"],
        ["most", "4", "4", "1"],
        ["without any", "", "0", "5 (0, 1, 2, ...)"],
    ]
    assert len(columns.label_rows(many(12, "classification"))) == 13
    assert columns.label_rows(many(40, "classification", 3))[-1] == ["without any", "", "0", "3 (0, 1, 2)"]
    assert columns.label_header(many(5, "regression")) == ["site", "rows", "mean", "least", "most"]
    rows = columns.label_rows(many(5, "regression"))
    assert rows[1] == ["1", "4", "12.75", "11", "15"]
    assert rows[-1] == ["all", "20", "22.75", "1", "45"]
    assert [row[0] for row in columns.label_rows(many(13, "regression"))] == ["all 13", "least mean: 0", "most mean: 12"]


def test_shares_are_honest():
    shares = {row[0]: row[3] for row in columns.rows(federate(table(rare=[None, *["a", "b"] * 29, "a"])))}
    assert shares["rare"] == "1.7%"
    share = lambda missing: columns.rows(Told([columns.Column("c", "number", True, missing, 2)]))[0][3]
    assert [share(s) for s in (0, 1e-5, 0.5, 0.99999, 1)] == ["0%", "<0.1%", "50.0%", ">99.9%", "100%"]


class Told:
    def __init__(self, columns):
        self.columns = columns


# -- what clients report -------------------------------------------------------------------------------------------------


def test_a_client_reports_the_same_of_its_rows_alone_and_of_its_part_of_all():
    frame = table(kind=["u", "v", None] * 20, gap=[None, 1.0, 3.5] * 20, when=DAYS.strftime("%Y-%m-%d")).frame
    every = rows_of(frame, ["good", "gap", "when"], ["kind"], {"when": "ISO8601"})
    for start in (0, 20, 40):
        alone = client_report(frame.iloc[start : start + 20], ["good", "gap"], ["kind"])
        part = report(every.part(slice(start, start + 20)))
        assert part.moments.pop("when").n == 20
        assert part == alone
    mask = np.arange(N) < 3
    assert every.part(mask).count == 3
    assert every.part(np.array([5, 1])).numbers["good"].tolist() == frame["good"].iloc[[5, 1]].tolist()
    twice = every.part(mask).joined(every.part(~mask))
    assert twice.count == N
    assert twice.texts["kind"].tolist() == every.texts["kind"].tolist()


def test_the_encoding_is_made_of_reports_alone(monkeypatch):
    """The schema sees all rows, but a server that hears one client knows that client's mean, deviation and categories."""
    given = table(kind=["u", "v"] * 10 + ["v", "w"] * 20)
    every = federate(given, dtype="float64")
    mean, deviation = every.encoder.encoding.scales["good"]
    own = every.train[0]["inputs"][:, 0] * deviation + mean
    combine = tabular.combine
    monkeypatch.setattr(tabular, "combine", lambda reports: combine(reports[:1]))
    first = federate(given, dtype="float64").encoder.encoding
    assert first.scales["good"] == pytest.approx((own.mean(), own.std()), rel=1e-9)
    assert first.categories == {"kind": ["u", "v"]}
    assert every.encoder.encoding.categories == {"kind": ["u", "v", "w"]}


def test_thousands_of_sites_are_split_as_if_they_were_alone():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat(np.arange(2000), 6), "x": rng.normal(size=12_000), "y": rng.integers(0, 2, 12_000)})
    frame = frame.sample(frac=1, random_state=0)
    every = federate(Table("t", frame, "y", "site", "classification"), min_rows=2, dtype="float64")
    few = federate(Table("t", frame[frame["site"].isin([7, 1999])], "y", "site", "classification"), min_rows=2, dtype="float64")
    for i, site in enumerate((7, 1999)):
        for part in ("train", "test"):
            own = frame[frame["site"] == site]["x"].to_numpy()
            where = lambda made, k, part=part, own=own: np.searchsorted(
                np.sort(own), getattr(made, part)[k]["inputs"][:, 0] * made.encoder.encoding.scales["x"][1]
                + made.encoder.encoding.scales["x"][0] - 1e-9
            )  # fmt: skip
            assert where(every, site).tolist() == where(few, i).tolist()


def test_experiments_choose_columns_too(file):
    given = {"label": hospitals.LABEL, "client": hospitals.SITE}
    wide = lambda **columns: material.table(str(file), **given, **columns).clients.fields["inputs"].shape[1]
    assert wide() == 16
    assert wide(include=("admitted",), exclude=("ward", "stays")) == 16 + 1 - 4 - 1
