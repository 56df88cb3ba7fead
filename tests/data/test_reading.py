"""Files as people write them: separators, decimal commas, marks of missing values, and dates."""

import io

import numpy as np
import pandas as pd
import pytest

from fedminimax.data.reading import read_frame
from fedminimax.data.tabular import read_table
from fedminimax.data.values import ISO, as_days, as_numbers, as_texts, read_dates, read_numbers, texts_of
from fedminimax.errors import InputError


def written(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


TABLE = "site,age,ward,y\nnorth,40,a,no\nsouth,51,b,yes\nnorth,62,a,no\n"


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
@pytest.mark.parametrize(("sign", "word"), [(",", "commas"), (";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_what_separates_the_columns_is_recognised_and_said(tmp_path, sign, word, name):
    frame, notes = read_frame(written(tmp_path, TABLE.replace(",", sign), name))
    pd.testing.assert_frame_equal(frame, pd.read_csv(io.StringIO(TABLE)))
    usual = "\t" if name == "t.tsv" else ","
    assert notes == ([] if sign == usual else [f"{name}: {word} separate its columns."])


def test_commas_in_numbers_names_and_sentences_separate_nothing(tmp_path):
    text = "weight, kg;height, m;site\n70,5;1,71;north\n81,0;1,80;south\n"  # as many commas as semicolons
    assert list(read_frame(written(tmp_path, text)).frame.columns) == ["weight, kg", "height, m", "site"]
    quoted = 'site,said,y\nnorth,"a; b; c",1\nsouth,"d; e; f",0\n'
    frame, notes = read_frame(written(tmp_path, quoted))
    assert frame["said"].tolist() == ["a; b; c", "d; e; f"]
    assert notes == []
    spaced = 'site, said, y\nnorth, "a, b", 1\nsouth, "c|d;e", 0\n'
    assert read_frame(written(tmp_path, spaced)).frame["said"].tolist() == ["a, b", "c|d;e"]
    assert read_frame(written(tmp_path, "\ufeffsite;y\n1;2\n")).frame.columns.tolist() == ["site", "y"]  # as Excel writes it
    assert read_frame(written(tmp_path, "alone\n1\n2\n")).frame["alone"].tolist() == [1, 2]


def test_decimal_commas_are_read_and_said(tmp_path):
    text = "site;weight;dose;count;code\nn;70,5;unknown;1;A,1\ns;-8,25;0,5;2;B,2\nn;;1;3;C,3\ns;61;2,5e-1;4;D,4\n"
    frame, notes = read_frame(written(tmp_path, text))
    np.testing.assert_array_equal(frame["weight"], [70.5, -8.25, np.nan, 61])
    np.testing.assert_array_equal(as_numbers(frame["dose"]), [np.nan, 0.5, 1, 0.25])
    assert frame["dose"].iloc[0] == "unknown"  # for those to say who look at columns
    assert frame["count"].tolist() == [1, 2, 3, 4]
    assert frame["code"].tolist() == ["A,1", "B,2", "C,3", "D,4"]
    assert notes == [
        "t.csv: semicolons separate its columns.",
        "t.csv: decimals have commas in weight, dose, so '70,5' is 70.5.",
    ]


def test_a_few_texts_among_decimal_commas_are_left_for_what_they_are(tmp_path):
    numbers = "".join(f"n;{i},5\n" for i in range(19))
    frame, notes = read_frame(written(tmp_path, f"site;x\n{numbers}n;high\n"))  # one in twenty
    assert frame["x"].tolist() == [*(f"{i}.5" for i in range(19)), "high"]
    assert len(notes) == 2
    frame, notes = read_frame(written(tmp_path, f"site;x\n{numbers}n;high\nn;higher\n"))
    assert frame["x"].iloc[0] == "0,5"
    assert notes == ["t.csv: semicolons separate its columns."]


def test_thousands_are_not_guessed(tmp_path):
    frame, notes = read_frame(written(tmp_path, 'site,pay\nn,"1,234"\ns,"21,500"\nn,900\n'))
    assert frame["pay"].tolist() == ["1,234", "21,500", "900"]
    assert notes == ["pay: '1,234' may have a decimal comma or thousands, so it is text: write 1234 or 1.234."]
    # What no thousands look like, in quotes between commas, or anything between semicolons, is a decimal comma.
    for text in ('site,pay\nn,"1,234"\ns,"21,5"\n', "site;pay\nn;1,234\ns;21,500\n"):
        frame, notes = read_frame(written(tmp_path, text))
        np.testing.assert_allclose(frame["pay"], [1.234, 21.5])
        assert "so '1,234' is 1.234." in notes[-1]
    for text in ('site,pay\nn,"1,5"\ns,"2,000,000"\n', "site;pay\nn;1,5\ns;2,000,000\n"):
        frame, notes = read_frame(written(tmp_path, text))
        assert frame["pay"].tolist() == ["1,5", "2,000,000"]
        assert notes[-1] == "pay: '2,000,000' has separators of thousands, so it is text: write 2000000."


def test_marks_of_missing_values(tmp_path):
    marks = ["", "?", "NA", "na", "N/A", "n/a", "NaN", "nan", "NULL", "null", "<NA>", "missing"]
    rows = "".join(f"s,{mark},{mark}\n" for mark in marks)
    frame, _ = read_frame(written(tmp_path, f"site,x,kind\nn,1.5,unknown\nn,2,None\nn,3,-\n{rows}"))
    assert frame["x"].isna().tolist() == [False] * 3 + [True] * len(marks)
    assert frame["x"].dtype == np.float64
    assert frame["kind"].tolist()[:3] == ["unknown", "None", "-"]  # among texts they are answers
    assert frame["kind"].isna().tolist() == [False] * 3 + [True] * len(marks)


def test_texts_are_stripped_and_marks_among_them_missing():
    values = pd.Series([" a", "a ", "A", 1.0, 1.5, None, "?", " n/a ", True], dtype=object)
    assert as_texts(values).tolist() == [
        "a",
        "a",
        "A",
        "1",
        "1.5",
        "missing",
        "missing",
        "missing",
        "1",
    ]  # True is 1, to pandas
    texts = texts_of(pd.Series([" a", "a ", "b", "?"]))
    assert texts.distinct == ["a", "b"]
    assert texts.counts.tolist() == [2, 1]
    assert texts.codes.tolist() == [0, 0, 1, -1]
    assert as_texts(pd.Series([True, False])).tolist() == ["True", "False"]


@pytest.mark.parametrize(
    ("others", "fits", "odd"),
    [
        ([], True, []),
        (["Unknown"] * 60, True, [("Unknown", 60)]),  # a mark of a missing number, however often
        (["12 years", "-", "-"], True, [("-", 2), ("12 years", 1)]),
        (["junk"] * 5, True, [("junk", 5)]),  # 5 of 100
        (["junk"] * 6, False, [("junk", 6)]),
    ],
)
def test_a_few_texts_among_numbers_are_missing_numbers(others, fits, odd):
    numbers = [str(n) for n in range(95)]
    values = pd.Series([*others, *numbers])
    reading = read_numbers(texts_of(values))
    assert reading.fits is fits
    assert reading.odd == odd
    np.testing.assert_array_equal(as_numbers(values), [*[np.nan] * len(others), *range(95)])


def test_texts_without_any_number_are_no_numbers():
    assert not read_numbers(texts_of(pd.Series(["unknown", "none", "-"]))).fits
    assert not read_numbers(texts_of(pd.Series([True, False, None], dtype=object))).fits
    assert not read_numbers(texts_of(pd.Series(["1_000", "0x1F"]))).fits


DAY = 19753.0  # 2024-01-31, by 54 * 365 + 13 + 30


@pytest.mark.parametrize(
    ("texts", "form"),
    [
        (["2024-01-31", "2024-02-01"], ISO),
        (["2024-01-31T12:00", "2024-02-01 12:00:00"], ISO),
        (["2024-01-31 12:00:00Z", "2024-02-01T14:00:00.0+02:00"], ISO),
        (["31/01/2024", "01/02/2024"], "%d/%m/%Y"),
        (["1/31/2024", "2/1/2024"], "%m/%d/%Y"),
        (["31.1.2024 12:00", "1.2.2024 12:00:00"], "%d.%m.%Y"),
        (["31-01-2024T12:00", "01-02-2024T12:00"], "%d-%m-%Y"),
        (["2024/01/31", "2024/02/01"], "%Y/%m/%d"),
    ],
)
def test_dates_are_days(texts, form):
    values = pd.Series([*texts, "unknown", None])
    reading = read_dates(texts_of(values))
    assert reading.fits
    assert reading.form == form
    assert reading.odd == [("unknown", 1)]
    noon = 0.5 if ":" in texts[0] else 0.0
    np.testing.assert_allclose(as_days(values, form), [DAY + noon, DAY + 1 + noon, np.nan, np.nan], rtol=1e-12)


def test_what_looks_like_a_date_and_is_none():
    assert read_dates(texts_of(pd.Series(["03/04/2024", "05/06/2024"]))).form == "%d/%m/%Y"  # either: the day comes first
    assert read_dates(texts_of(pd.Series(["12/12/2024", "05/12/2024"]))).form == "%d/%m/%Y"
    assert read_dates(texts_of(pd.Series(["12/12/2024", "05/13/2024"]))).form == "%m/%d/%Y"
    for texts in (["1-2-3", "4-5-6"], ["2024-13-45", "2024-14-01"], ["31/31/2024"], ["10.5", "11.5"], ["a", "b"], ["10:20"]):
        assert not read_dates(texts_of(pd.Series(texts))).fits
    assert np.isnan(as_days(pd.Series(["2024-01-31"]), "%d/%m/%Y")).all()


def test_dates_that_pandas_knows():
    stamps = pd.Series(pd.to_datetime(["2024-01-31 00:00", None, "2024-02-01 06:00"]))
    np.testing.assert_allclose(as_days(stamps, ISO), [DAY, np.nan, DAY + 1.25])
    zoned = stamps.dt.tz_localize("Europe/Zurich")
    np.testing.assert_allclose(as_days(zoned, ISO), [DAY - 1 / 24, np.nan, DAY + 1.25 - 1 / 24])
    np.testing.assert_allclose(as_days(stamps.dt.date, ISO), [DAY, np.nan, DAY + 1])
    np.testing.assert_allclose(as_days(pd.Series([DAY, np.nan]), ISO), [DAY, np.nan])  # days already


def test_a_table_keeps_what_was_noticed(tmp_path):
    table = read_table(written(tmp_path, TABLE.replace(",", ";")), "y", "site")
    assert table.notes == ("t.csv: semicolons separate its columns.",)


def test_a_file_in_another_alphabet_says_what_to_do(tmp_path):
    path = tmp_path / "latin.csv"
    path.write_bytes("site;y\nZürich;1\nGenève;2\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"UnicodeDecodeError\): save it as UTF-8"):
        read_frame(path)
