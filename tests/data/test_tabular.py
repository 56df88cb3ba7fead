"""Tables on small files of the official layouts, on users' files good and bad, and on the real ones if at hand."""

import hashlib
import inspect
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import requests
from sklearn.preprocessing import StandardScaler

from fedminimax.data import published, tabular
from fedminimax.data.encoding import Encoding, Moments, Report, client_report, combine, encode
from fedminimax.data.published import load_table
from fedminimax.data.tabular import Table, federate, read_table
from fedminimax.errors import InputError

REAL = Path(os.environ.get("FEDMINIMAX_DATA") or "nowhere")

ADULT = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K
50, ?, 83311, HS-grad, 9, Married-civ-spouse, ?, Husband, Black, Male, 0, 0, 13, ?, >50K

"""
ADULT_TEST = """\
|1x3 Cross validator
25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, Black, Female, 0, 0, 40, United-States, <=50K.
44, Private, 160323, HS-grad, 10, Married-civ-spouse, Sales, Husband, Black, Male, 7688, 0, 40, United-States, >50K.

"""
GERMAN = """\
A11 6 A34 A43 1169 A65 A75 4 A93 A101 4 A121 67 A143 A152 2 A173 1 A192 A201 1
A12 48 A32 A46 5951 A61 A73 2 A92 A101 2 A121 22 A143 A151 1 A172 1 A191 A201 2
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Put a file in the folder of data sets, and take its checksum for the published one."""

    def put(file, text):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        url, md5, _ = published._FILES[file]
        monkeypatch.setitem(published._FILES, file, (url, md5, hashlib.sha256(text.encode()).hexdigest()))
        return tmp_path

    return put


@pytest.fixture
def people():
    """Six clients of different sizes and distributions, with both kinds of columns and gaps in either."""
    generator = np.random.default_rng(0)
    town = np.repeat(["a", "b", "c", "d", "e", "f"], [20, 25, 30, 40, 60, 90])
    shift = np.repeat(np.arange(6), [20, 25, 30, 40, 60, 90])
    frame = pd.DataFrame(
        {
            "town": town,
            "height": generator.normal(170 + shift, 5),
            "year": 1e7 + generator.normal(0, 1e-2, 265),  # a sum of squares would lose this spread
            "wage": np.where(generator.random(265) < 0.2, np.nan, generator.lognormal(shift)),
            "job": generator.choice(["clerk", "smith", None], 265, p=[0.6, 0.3, 0.1]),
            "old": generator.random(265) < 0.5,
            "label": generator.choice(["no", "yes", "maybe"], 265, p=[0.5, 0.3, 0.2]),
        }
    )
    return Table("people", frame.sample(frac=1, random_state=1), "label", "town", "classification")


def changed(table, **columns):
    """The table with some columns replaced."""
    return Table(table.name, table.frame.assign(**columns), table.label, table.client, table.task, table.test)


def rows_of(federation, feature, part="train"):
    return getattr(federation, part).fields["inputs"][:, federation.features.index(feature)]


def write(tmp_path, text, name="people.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_adult_reads_both_official_parts(place):
    place("adult/adult.data", ADULT)
    table = load_table("adult", place("adult/adult.test", ADULT_TEST))
    assert (table.label, table.client, table.task) == ("income", "education", "classification")
    assert list(table.frame["income"]) == ["<=50K", ">50K"]
    assert list(table.test["income"]) == ["<=50K", ">50K"]  # without the dots
    assert list(table.test["age"]) == [25, 44]
    assert list(table.frame.iloc[1][["workclass", "occupation", "native-country"]].isna()) == [True] * 3
    assert table.frame["hours-per-week"].tolist() == [40, 13]
    assert {"fnlwgt", "education-num"}.isdisjoint(table.frame.columns)


def test_adult_by_race_keeps_the_years_of_education(place):
    place("adult/adult.data", ADULT)
    table = load_table("adult", place("adult/adult.test", ADULT_TEST), client="race")
    assert table.client == "race"
    assert list(table.frame["education-num"]) == [13, 9]
    with pytest.raises(InputError, match="cannot be by 'age': choose one of education, race, sex"):
        load_table("adult", place("adult/adult.test", ADULT_TEST), client="age")


def test_communities_crime_names_its_columns(place, monkeypatch):
    row = ["8", "?", "?", "Lakewoodcity", "1", *["0.19"] * 25, "?", *["0.5"] * 96, "0.2"]
    other = ["53", "5", "7", "Tukwilacity", "1", *["0.1"] * 122, "0.67"]
    folder = place("communities-crime/communities.data", "\n".join(",".join(r) for r in (row, other)) + "\n")
    monkeypatch.setenv("FEDMINIMAX_DATA", str(folder))
    table = load_table("communities-crime")
    assert (table.label, table.client, table.task) == ("ViolentCrimesPerPop", "state", "regression")
    assert table.frame.shape == (2, 124)
    assert list(table.frame["state"]) == [8, 53]
    assert list(table.frame["ViolentCrimesPerPop"]) == [0.2, 0.67]
    assert list(table.frame.columns[table.frame.isna().any()]) == ["OtherPerCap"]
    assert {"county", "community", "communityname", "fold"}.isdisjoint(table.frame.columns)


def test_compas_keeps_propublicas_rows_and_nothing_from_after_the_arrest(place):
    header = "id,sex,age,age_cat,race,juv_fel_count,decile_score,juv_misd_count,juv_other_count,priors_count,"
    header += "days_b_screening_arrest,c_charge_degree,is_recid,score_text,decile_score,priors_count,two_year_recid\n"
    row = "{id},Male,30,25 - 45,{race},0,3,1,2,{id},{days},{degree},{recid},{score},3,99,{label}\n"
    good = {"race": "Other", "days": -30, "degree": "F", "recid": 0, "score": "Low", "label": 0}
    rows = [good, {**good, "days": 30, "race": "Asian", "label": 1}]
    rows += [{**good, k: v} for k, v in [("days", 31), ("days", ""), ("degree", "O"), ("recid", -1), ("score", "N/A")]]
    text = header + "".join(row.format(id=i, **r) for i, r in enumerate(rows))
    table = load_table("compas", place("compas/compas-scores-two-years.csv", text))
    assert list(table.frame["priors_count"]) == [0, 1]
    assert sorted(table.frame.columns) == sorted(published._COMPAS.split())
    assert (table.client, table.label) == ("race", "two_year_recid")


def test_german_credit_has_readable_columns_and_labels(place):
    folder = place("german-credit/german.data", GERMAN)
    table = load_table("german_credit", folder)
    assert table.frame.shape == (2, 21)
    assert list(table.frame["credit"]) == ["good", "bad"]
    assert list(table.frame["purpose"]) == ["A43", "A46"]
    assert table.frame.loc[1, ["months", "amount", "age", "housing", "job"]].tolist() == [48, 5951, 22, "A151", "A172"]
    assert load_table("german-credit", folder, client="housing").client == "housing"
    with pytest.raises(InputError, match="choose one of purpose, checking_account, credit_history"):
        load_table("german_credit", folder, client="amount")


def test_without_file_and_network_one_sentence_says_what_is_missing(tmp_path, monkeypatch):
    def refuse(url, *args, **kwargs):
        raise requests.exceptions.ConnectionError("Name or service not known")

    monkeypatch.setattr(requests, "get", refuse)
    for file in published._FILES:
        sub, name = file.split("/")
        with pytest.raises(InputError) as error:
            published._contents(tmp_path, file)
        message = str(error.value)
        assert message.startswith(f"{name} is not in {tmp_path / sub}")
        assert published._FILES[file][0] in message
        assert f"FEDMINIMAX_DATA to the folder of data sets that has {file}" in message


def test_other_contents_are_refused(place):
    folder = place("german-credit/german.data", GERMAN)
    (folder / "german-credit/german.data").write_text(GERMAN.replace("A43", "A40"))
    with pytest.raises(InputError, match=r"german\.data does not have the published contents"):
        load_table("german_credit", folder)


@pytest.mark.parametrize("name", published.TABLES)
def test_first_line_of_docstring_names_the_clients(name):
    first = inspect.getdoc(published.TABLES[name]).splitlines()[0]
    assert "clients" in first
    assert first.endswith(".")


def test_unknown_table_lists_the_known_ones():
    with pytest.raises(InputError, match="choose one of communities_crime, adult, compas, german_credit"):
        load_table("titanic")


def test_read_table_reads_commas_and_tabs(tmp_path):
    text = "who, x, y\n1, 2.5, a\n2, ?, b\n, 1, a\n"
    for path in (write(tmp_path, text), write(tmp_path, text.replace(", ", "\t"), "people.TSV")):
        table = read_table(path, "y", "who")
        assert table.name == path.name
        assert table.task == "classification"
        assert list(table.frame.columns) == ["who", "x", "y"]
        assert table.frame["x"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (np.arange(21) / 2, "regression"),
        (np.arange(21), "regression"),
        ([0, 1, 1, 0], "classification"),
        ([-1.5, 2.5, np.nan], "classification"),
        (["v", "w", "u"], "classification"),
        ([f"v{i}" for i in range(20)] + ["V1"], "classification"),  # twenty classes, one spelt in two ways
        ([True, False], "classification"),
    ],
)
def test_task_is_guessed_from_the_label(tmp_path, values, task):
    path = tmp_path / "t.csv"
    pd.DataFrame({"y": values, "who": np.arange(len(values)) % 2}).to_csv(path, index=False)
    assert read_table(path, "y", "who").task == task
    assert read_table(path, "y", "who", task="classification").task == "classification"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.arange(40) % 20, r"20 different numbers \(0, 1, 2, 3, 4, 5, \.\.\., 19\).*--task classification or --task regr"),
        (np.arange(33) % 11, r"'y' of t\.csv has 11 different numbers \(0, 1, 2, 3, 4, 5, \.\.\., 10\), which may be classes"),
        ([0.5, 1, 1.5, 1], r"3 different numbers \(0\.5, 1, 1\.5\)"),
        ([f"v{i}" for i in range(21)], r"21 different texts \(v0, v1, .*choose another column, or say --task classification"),
    ],
)
def test_a_label_that_may_be_either_asks_for_the_task(tmp_path, values, message):
    path = tmp_path / "t.csv"
    pd.DataFrame({"y": values, "who": np.arange(len(values)) % 2}).to_csv(path, index=False)
    with pytest.raises(InputError, match=message):
        read_table(path, "y", "who")
    assert read_table(path, "y", "who", task="classification").task == "classification"


@pytest.mark.parametrize(
    ("text", "label", "client", "message"),
    [
        ("who,x,y\n1,2,a\n2,3,b\n", "z", "who", "has no column 'z' to be its label: choose one of who, x, y"),
        ("town,x,y\n1,2,a\n2,3,b\n", "y", "twon", r"to be its client column \(did you mean 'town'\?\)"),
        ("who,x,y\n1,2,a\n2,3,b\n", "y", "y", "both the label and the client"),
        ("who,x,y\n1,2,\n2,3,\n", "y", "who", "label 'y' of people.csv is missing in every row"),
        ("who,x,y\n1,2,a\n2,3,a\n", "y", "who", "label 'y' of people.csv has the one value a"),
        ("who,x,y\n1,2,a\n1,3,b\n", "y", "who", "client column 'who' of people.csv has the one value 1"),
        ("who,x,y\n", "y", "who", r"people.csv is empty \(0 rows, 3 columns\)"),
        ("", "y", "who", "people.csv is empty"),
        ('who,x,y\n1,2,"a\n', "y", "who", r"cannot be read as .csv \(ParserError\)"),
        ("who,x,y\n1,2,a,7\n2,3,b,8\n", "y", "who", "have more fields than its first line"),
    ],
)
def test_read_table_says_what_is_wrong(tmp_path, text, label, client, message):
    with pytest.raises(InputError, match=message):
        read_table(write(tmp_path, text), label, client)


def test_read_table_says_what_is_wrong_with_the_file(tmp_path):
    with pytest.raises(InputError, match=r"There is no file .*nowhere\.csv"):
        read_table(tmp_path / "nowhere.csv", "y", "who")
    with pytest.raises(InputError, match=r"ends in \.xlsx: give a \.csv"):
        read_table(write(tmp_path, "", "people.xlsx"), "y", "who")
    (tmp_path / "bytes.csv").write_bytes(b"who,y\n\xff\xfe,\x80\n")
    with pytest.raises(InputError, match="UnicodeDecodeError"):
        read_table(tmp_path / "bytes.csv", "y", "who")
    text = write(tmp_path, "who,y\n1,a\n2,b\n")
    with pytest.raises(InputError, match="not numeric"):
        read_table(text, "y", "who", task="regression")
    with pytest.raises(InputError, match="task is 'ranking'"):
        read_table(text, "y", "who", task="ranking")


def test_parquet_without_pyarrow_names_the_cure(tmp_path, monkeypatch):
    for module in ("pyarrow", "fastparquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match="pip install pyarrow"):
        read_table(write(tmp_path, "PAR1", "people.parquet"), "y", "who")


def test_parquet(tmp_path, people):
    pytest.importorskip("pyarrow")
    people.frame.to_parquet(tmp_path / "people.pq")
    table = read_table(tmp_path / "people.pq", "label", "town")
    assert federate(table).features == federate(people).features


def test_reports_give_what_the_pooled_rows_would(people):
    numeric = ["height", "year", "wage"]
    seen = federate(people, dtype="float64", test_share=0.3, seed=5)
    parts = [part for _, part in people.frame.groupby("town")]
    encoding = combine([client_report(part, numeric, ["job"]) for part in parts])
    scaler = StandardScaler().fit(people.frame[numeric])
    for i, column in enumerate(numeric):
        assert encoding.scales[column] == pytest.approx((scaler.mean_[i], scaler.scale_[i]), rel=1e-7)
    inputs = np.concatenate([encode(part, encoding) for part in parts])[:, :3]
    pooled = np.nan_to_num(scaler.transform(pd.concat(parts)[numeric]))
    assert np.abs(inputs - pooled).max() < 1e-6
    # And in the federation, over its training rows alone: mean 0 and deviation 1 where nothing is missing.
    for column in ("height", "year"):
        assert rows_of(seen, column).mean() == pytest.approx(0, abs=1e-6)
        assert rows_of(seen, column).std() == pytest.approx(1, abs=1e-6)
        assert abs(rows_of(seen, column, "test").mean()) > 1e-4


def test_only_reports_reach_the_server(people, monkeypatch):
    received = []
    monkeypatch.setattr(tabular, "combine", lambda reports: received.append(reports) or combine(reports))
    federation = federate(people)
    assert [len(reports) for reports in received] == [6, 6]  # of the features, and of the labels
    for report in (report for reports in received for report in reports):
        assert type(report) is Report
        assert set(vars(report)) == {"rows", "moments", "categories"}
        assert all(type(value) in (int, float) for moments in report.moments.values() for value in moments)
        assert all(type(value) is str for values in report.categories.values() for value in values)
    assert [report.rows for report in received[0]] == federation.train.sizes.tolist()  # of training rows, not of test rows


def test_combine_by_hand():
    reports = [
        Report(2, {"x": Moments(2, 1.0, 2.0), "z": Moments(2, 5.0, 0.0)}, {"c": frozenset({"10", "9"}), "d": frozenset("u")}),
        Report(3, {"x": Moments(0, 0.0, 0.0), "z": Moments(3, 5.0, 0.0)}, {"c": frozenset({"a"}), "d": frozenset("u")}),
        Report(1, {"x": Moments(1, 4.0, 0.0), "z": Moments(1, 5.0, 0.0)}, {"c": frozenset({"9"}), "d": frozenset("u")}),
    ]
    # x is 0, 2 and 4, and missing three times; z and d do not vary; numbers come in order of size.
    assert combine(reports) == Encoding({"x": (2.0, np.sqrt(8 / 3))}, ["x"], {"c": ["9", "10", "a"]})
    # A constant leaves rounding errors, in proportion to itself; what is missing in all rows is nothing to flag.
    parts = [pd.DataFrame({"tenth": [0.1] * n, "large": [1e15 / 3] * n, "none": [np.nan] * n}) for n in (3, 7, 10)]
    assert combine([client_report(part, ["tenth", "large", "none"], []) for part in parts]) == Encoding({}, [], {})


def test_missing_values_unseen_categories_and_constants():
    frame = pd.DataFrame(
        {
            "x": [1.0, 3.0, np.nan, 2.0, np.nan, 1.0],
            "full": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            "tenth": [0.1] * 6,
            "flag": [1.0, np.nan, 1.0, 1.0, 1.0, 1.0],
            "none": [None] * 6,
            "nan": [np.nan] * 6,
            "same": ["s"] * 6,
            "kind": ["a", None, "b", "a", "b", "b"],
            "town": [1, 1, 1, 2, 2, 2],
            "y": [0, 1, 1, 0, 1, 1],
        }
    )
    test = frame.assign(kind=["zebra", None, "b", "a", "b", "b"], full=[np.nan] * 6)
    federation = federate(Table("t", frame, "y", "town", "classification", test), min_rows=2)
    assert federation.features == ["x", "full", "x is missing", "flag is missing", "kind=a", "kind=b", "kind=missing"]
    deviation = np.std([1, 3, 2, 1])
    expected = [[-0.75 / deviation, 1.25 / deviation, 0], [0.25 / deviation, 0, -0.75 / deviation]]
    assert np.allclose(rows_of(federation, "x"), np.ravel(expected))
    assert rows_of(federation, "x is missing").tolist() == [0, 0, 1, 0, 1, 0]
    assert federation.train[0]["inputs"][:, -3:].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert federation.test[0]["inputs"][:, -3:].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert rows_of(federation, "full", "test").tolist() == [0] * 6  # missing in test rows alone: the mean, and no flag
    assert federation.missing == {"x": 4, "full": 6, "flag": 2, "nan": 12, "none": 12, "kind": 2}


def test_split_is_a_stratified_partition_of_each_clients_rows(people):
    federation = federate(changed(people, height=np.arange(265.0)), dtype="float64", test_share=0.3)
    assert federation.names == ["a", "b", "c", "d", "e", "f"]
    assert federation.classes == ["maybe", "no", "yes"]
    assert np.array_equal(federation.train.sizes + federation.test.sizes, [20, 25, 30, 40, 60, 90])
    heights = np.concatenate([rows_of(federation, "height", part) for part in ("train", "test")])
    assert np.unique(heights).size == 265  # every row once
    for i, name in enumerate(federation.names):
        own = people.frame[people.frame["town"] == name]["label"]
        counts = np.array([(own == c).sum() for c in federation.classes])
        tested = np.bincount(federation.test[i]["labels"], minlength=3)
        assert np.array_equal(counts - tested, np.bincount(federation.train[i]["labels"], minlength=3))
        assert np.abs(tested - 0.3 * counts).max() <= 1
        assert federation.test.sizes[i] == round(0.3 * len(own))


def test_seed_decides_the_split_and_a_client_shuffles_for_itself(people):
    first, again, other = federate(people), federate(people), federate(people, seed=1)
    assert np.array_equal(first.test.fields["inputs"], again.test.fields["inputs"])
    assert not np.array_equal(first.test.fields["inputs"], other.test.fields["inputs"])
    # Without client a the scaling differs, but not who is tested: the one-hot features of the others stay the same.
    fewer = federate(people, min_rows=21)
    assert fewer.dropped == {"a": 20}
    assert fewer.names == first.names[1:]
    assert np.array_equal(fewer.test[0]["inputs"][:, 3:], first.test[1]["inputs"][:, 3:])


def test_the_only_row_of_a_class_is_trained_on():
    for seed in range(20):
        frame = pd.DataFrame({"x": range(12), "who": [0] * 6 + [1] * 6, "y": ["a", "a", "a", "a", "a", "rare"] * 2})
        federation = federate(Table("t", frame, "y", "who", "classification"), min_rows=2, test_share=0.5, seed=seed)
        assert [np.bincount(part["labels"]).tolist() for part in federation.test] == [[2], [2]]
        assert federation.classes == ["a", "rare"]


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_every_client_trains_and_tests(people, share):
    regression = Table("t", people.frame.drop(columns="label"), "height", "town", "regression")
    for table in (people, regression):
        federation = federate(table, test_share=share)
        assert min(federation.train.smallest, federation.test.smallest) >= 1


def test_official_test_rows_are_used_where_a_client_has_them(people):
    official = people.frame[people.frame["town"].isin(["e", "f"])].head(50).copy()
    official.loc[official.index[:3], "town"] = "new"
    table = Table("people", people.frame, "label", "town", "classification", official)
    federation = federate(table)
    tested = official["town"].value_counts()
    assert federation.train.sizes.tolist() == [15, 19, 22, 30, 60, 90]
    assert federation.test.sizes.tolist() == [5, 6, 8, 10, tested["e"], tested["f"]]
    assert federation.dropped == {"new": 0}  # nothing to train on


def test_regression_standardises_the_labels_of_the_training_rows(people):
    table = Table("people", people.frame.drop(columns="label"), "height", "town", "regression")
    federation = federate(table, dtype="float64")
    labels = {part: getattr(federation, part).fields["labels"] for part in ("train", "test")}
    assert labels["train"].mean() == pytest.approx(0, abs=1e-9)
    assert labels["train"].std() == pytest.approx(1, abs=1e-9)
    mean, deviation = federation.target_scale
    restored = np.concatenate(list(labels.values())) * deviation + mean
    assert np.allclose(np.sort(restored), np.sort(people.frame["height"]))
    assert federation.classes is None
    assert "height" not in federation.features


def test_types_and_order_of_what_comes_out(people):
    towns = people.frame["town"].map({"a": 10, "b": 9, "c": 2, "d": np.nan, "e": 1, "f": 30})
    federation = federate(changed(people, town=towns, label=(people.frame["label"] == "yes") * 10.0 + 2))
    assert federation.names == ["1", "2", "9", "10", "30"]  # by size, and whole although pandas made them floats
    assert federation.classes == ["2", "12"]
    assert federation.train.fields["inputs"].dtype == np.float32
    assert federation.train.fields["labels"].dtype == np.int32
    assert federation.train.fields["inputs"].shape == (federation.train.total, len(federation.features))
    assert not any("town" in feature for feature in federation.features)
    assert {"old=False", "old=True", "job=clerk", "job=missing", "wage is missing"} <= set(federation.features)
    assert federate(people, dtype="float64").test.fields["inputs"].dtype == np.float64


def test_pandas_own_types_of_columns(people):
    generator = np.random.default_rng(2)
    table = changed(
        people,
        height=pd.array(generator.integers(0, 9, 265), "Int64"),
        year=generator.normal(size=265).astype("float32"),
        job=pd.Categorical(generator.integers(0, 12, 265)),
        old=pd.array(generator.choice([True, False, None], 265), "boolean"),
    )
    table.frame.iloc[0, table.frame.columns.get_loc("height")] = pd.NA
    federation = federate(table)
    assert federation.features[:5] == ["height", "year", "wage", "height is missing", "wage is missing"]
    assert [f for f in federation.features if f.startswith("job")] == [f"job={i}" for i in range(12)]
    assert federation.features[-3:] == ["old=False", "old=True", "old=missing"]
    assert federation.missing["height"] == 1


def test_small_clients_and_unusable_rows_are_counted(people):
    frame = people.frame.sort_values("town").reset_index(drop=True)
    frame.loc[:1, "label"] = None  # client a is left with 18
    frame.loc[20:22, "town"] = None
    frame.loc[22, "label"] = None  # lacks both: counted once
    federation = federate(Table("people", frame, "label", "town", "classification"))
    assert federation.dropped == {"(missing client)": 3, "(missing label)": 2, "a": 18}
    assert federation.names == ["b", "c", "d", "e", "f"]
    assert federation.train.total + federation.test.total == 265 - 20 - 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"test_share": 1}, "test_share is 1"),
        ({"test_share": 0}, "test_share is 0"),
        ({"test_share": "most"}, "test_share is 'most'"),
        ({"min_rows": 1}, "min_rows is 1: give an integer of at least 2"),
        ({"min_rows": 80}, "Of the 6 clients of people, 1 have 80 rows or more: lower min_rows"),
        ({"seed": -1}, "seed is -1"),
        ({"dtype": "int32"}, "dtype is 'int32'"),
        ({"dtype": "nonsense"}, "dtype is 'nonsense'"),
        ({"exclude": ["heigth"]}, "did you mean 'height'"),
        ({"exclude": ["height", "year", "wage", "job", "old"]}, "no column left to learn from"),
        (
            {"include": ["heigth"]},
            r"people has no column 'heigth' to include \(did you mean 'height'\?\): choose one of town, h",
        ),
        ({"include": ["height", "job"], "exclude": ["job", "job"]}, "'job' is both to be included and to be excluded"),
        ({"include": ["label"]}, "'label' is the label of people, which is no feature"),
        ({"include": "town"}, "'town' is the client column of people, which is no feature"),
        ({"group": "labell"}, r"no column 'labell' to group by \(did you mean 'label'\?\)"),
        ({"group": "label"}, "'label' is the label: group by another"),
        ({"group": "height"}, "'height' of people has 265 values, too many to group by: make at most 100 groups"),
    ],
)
def test_federate_says_what_is_wrong_with_its_arguments(people, arguments, message):
    with pytest.raises(InputError, match=message):
        federate(people, **arguments)


def test_federate_says_what_is_wrong_with_a_column(people):
    many = changed(people, height=[f"v{i}" for i in range(265)])
    with pytest.raises(
        InputError, match=r"'height' of people has 265 categories, more than 100: group its values, or do not inc"
    ):
        federate(many, include=["height"])
    assert federate(many).features == federate(people, exclude="height").features
    odd = changed(people, height=pd.Timedelta("1h"))
    with pytest.raises(InputError, match=r"'height' of people has the type timedelta64.* exclude=\['height'\]"):
        federate(odd)
    assert federate(odd, exclude=["height"]).features == federate(people, exclude="height").features
    with pytest.raises(InputError, match="'height' has an infinite number"):
        federate(changed(people, height=np.inf))
    with pytest.raises(InputError, match="lists or the like"):
        federate(changed(people, height=[[1]] * 265))
    test = people.frame.sort_values("town").assign(label=["no"] * 20 + ["never"] * 245)
    with pytest.raises(InputError, match="class never is in test rows of client b"):
        federate(Table("people", people.frame, "label", "town", "classification", test))
    with pytest.raises(InputError, match="label differ"):
        Table("people", people.frame, "label", "town", "classification", test.drop(columns="label"))


@pytest.mark.skipif(not (REAL / "adult/adult.data").exists(), reason="no tables in the folder FEDMINIMAX_DATA")
@pytest.mark.parametrize(
    ("name", "rows", "clients", "features", "dropped"),
    [
        ("communities_crime", 1994, 30, 144, 125),
        ("adult", 32_561, 16, 90, 0),
        ("compas", 6172, 5, 12, 11),
        ("german_credit", 1000, 7, 51, 33),
    ],
)
def test_real_tables(name, rows, clients, features, dropped):
    table = load_table(name, REAL)
    federation = federate(table)
    assert len(table.frame) == rows
    assert (len(federation.names), len(federation.features)) == (clients, features)
    assert sum(federation.dropped.values()) == dropped
    official = 0 if table.test is None else len(table.test)
    assert federation.train.total + federation.test.total == rows + official - dropped
    for data in (federation.train, federation.test):
        assert all(np.isfinite(values).all() for values in data.fields.values())


@pytest.mark.skipif(not (REAL / "adult/adult.data").exists(), reason="no tables in the folder FEDMINIMAX_DATA")
def test_real_adult_is_the_known_one():
    federation = federate(load_table("adult", REAL, client="sex"))
    assert federation.names == ["Female", "Male"]
    assert federation.train.sizes.tolist() == [10_771, 21_790]
    shares = [part["labels"].mean() for part in federation.train]
    assert shares == pytest.approx([0.1095, 0.3057], abs=1e-4)  # the disparity that everyone reports
    assert federation.test.total == 16_281
