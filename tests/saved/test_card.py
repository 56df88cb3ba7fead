"""The model card: what it says of a summary, and that it needs no part of it."""

import copy

import pytest

import fedminimax as fm
from fedminimax.saved.numbers import with_interval
from fedminimax.saved.weaknesses import weaknesses

number = lambda value, low=None, high=None, spread=None: {"value": value, "low": low, "high": high, "spread": spread}
parts = lambda one: {part: one for part in ("average", "worst20", "worst", "all")}
rates = lambda tpr, fpr: {"positive": 30, "negative": 90, "tpr": number(tpr, tpr - 0.1, tpr + 0.1), "fpr": number(fpr)}


def scores(auc, accuracy, recall, precision):
    return {
        "auc": {**parts(number(auc, auc - 0.05, auc + 0.05)), "average": number(auc + 0.01)},
        "recall": parts(number(recall, 0.55, 0.77)),
        "precision": parts(number(precision)),
        "accuracy": parts(number(accuracy)),
    }


SUMMARY = {
    "first": {"measure": "auc", "title": "AUC", "rare": True, "sentence": "4.4% of the rows are yes: the AUC comes first."},
    "classes": ["no", "yes"],
    "class_shares": {"no": 0.956, "yes": 0.044},
    "positive": "yes",
    "sites": [
        {"site": "north", "train": 90, "test": 30, "test_positive": 4},
        {"site": "hospice", "train": 45, "test": 15, "test_positive": 0},
        {"site": "a|b", "train": 9, "test": 3, "test_positive": 1},
    ],
    "left_out": {"island": 3},
    "columns": [
        {"name": "back", "role": "label", "used": False, "note": ""},
        {"name": "patient", "role": "id", "used": False, "note": "a different text in every row"},
        {"name": "height", "role": "number", "used": True, "note": ""},
    ],
    "reading": ["back: 'no' and 'NO' are one class."],
    "asked": {"loss": "entropy", "ridge": 0.001, "penalty": "chi2:0.1", "rounds": 200, "seeds": 2},
    "methods": ["ScaffPD", "FedAvg"],
    "baselines": {"majority": "the same for everybody", "local": "each site's own"},
    "scores": {
        "ScaffPD": scores(0.7, 0.8, 0.66, 0.123),
        "FedAvg": scores(0.6, 0.81, 0.5, 0.1),
        "majority": scores(0.5, 0.956, 0.0, None),
    },
    "tuning": {"ScaffPD": {"sentence": "ScaffPD: tau = 0.1, the best of 12."}},
    "threshold": 0.0432,
    "winner": "ScaffPD",
    "winning_run": 1,
    "rule": "No test row has a say in it.",
    "verdicts": ["ScaffPD's lead over FedAvg is no more than noise."],
    "worst_sites": [
        {"site": "a|b", "test_rows": 3, "positive_rows": 1, "ScaffPD": 0.41, "local": 0.9, "low": 0.3, "high": 0.52},
    ],
    "groups": {
        "ScaffPD": {
            "groups": {"female": rates(0.6, 0.2), "male": rates(0.8, 0.1), "other": rates(0.0, 0.9)},
            "gaps": {"TPR": number(0.2, 0.05, 0.35), "FPR": number(0.1, -0.05, 0.25)},
            "few": {"TPR": ["other"], "FPR": ["other"]},
        }
    },
    "notes": ["Sites with fewer than 5 positive test rows: a|b."],
    "command": "fedminimax fair --data hospitals.csv --label back",
}  # fmt: skip
SPEC = {"method": "ScaffPD", "classes": ["no", "yes"], "positive": 1, "loss": "entropy", "settings": {"tau": 0.1}}


def test_the_card_says_it_all(save):
    card = fm.load_model(save(summary=SUMMARY, threshold=0.0432)).card
    for heading in (
        "What it is",
        "Data",
        "What was optimised",
        "How good it is",
        "Known weaknesses",
        "How to use",
        "reproduce",
    ):
        assert f"\n## {heading}" in card or f"\n## How to {heading}" in card, heading
    for line in (
        "# Model card: back\n",
        "predicts `back` (no or yes) from 4 columns of a table, trained by ScaffPD.",
        "rows of the 3 sites below (values of `site`)",
        "predicts 'yes' where the probability of it is 0.0432 or more; the threshold was found on training rows.",
        "3 sites, 144 training and 48 test rows.",
        "no 95.6%, yes 4.4%.",
        "| site | training rows | test rows | test rows with yes |",
        "| a\\|b | 9 | 3 | 1 |",
        "Left out: island (3 rows).",
        "Columns that are no inputs: patient (a different text in every row).",
        "- back: 'no' and 'NO' are one class.",
        "the mean of the cross-entropy over its training rows, plus 0.001/2 times",
        "with the penalty psi = chi2:0.1.",
        "| rounds | 200 |",
        "| tau | 0.1 |",
        "ScaffPD: tau = 0.1, the best of 12.",
        "No test row has a say in it.",
        "ScaffPD's lead over FedAvg is no more than noise.",
        "| **ScaffPD** (this model) | 71.0% | 70.0% (65.0 to 75.0) | 70.0% (65.0 to 75.0) | 70.0% (65.0 to 75.0) |",
        "| over all test rows | recall | precision | accuracy |",
        "| majority (baseline) | 0.0% (55.0 to 77.0) | – | 95.6% |",
        "- local: each site's own",
        "| height | a number; in training",
        "| ward | one of a, b, c |",
        "```sh\nfedminimax fair --data hospitals.csv --label back\n```",
        "The model is that of the run with seed 1.",
        f"fedminimax {fm.__version__}, jax ",
    ):
        assert line in card, line
    for cells in (line for line in card.splitlines() if line.startswith("|")):
        assert cells.endswith("|")


def test_weaknesses_are_named_with_their_numbers():
    assert weaknesses(SUMMARY, SPEC) == [
        "The worst site is a|b: AUC 41.0% (30.0 to 52.0) on 3 test rows, 1 of them yes; the average of sites is 71.0%. A model "
        "of that site's own rows alone has 90.0% there.",
        "Of the test rows that are yes it finds 66.0% (55.0 to 77.0); of those that it calls yes, 12.3% are.",
        "Predicting the commonest class for everybody has the accuracy 95.6% over all test rows, the model 80.0%: accuracy "
        "does not show what it is good for.",
        "Sites whose rows are all of one class, where nothing shows whether it tells classes apart: hospice.",
        "Between groups it finds of the positive rows most in male (80.0%) and least in female (60.0%), a gap of 20.0 points "
        "(5.0 to 35.0).",
        "Between groups it calls of the others most in female (20.0%) and least in male (10.0%), a gap of 10.0 points (-5.0 to "
        "25.0), which may be noise.",
        "Sites with fewer than 5 positive test rows: a|b.",
    ]


def test_weaknesses_that_are_none_are_not_named():
    summary = copy.deepcopy(SUMMARY)
    summary["scores"]["ScaffPD"]["accuracy"] = parts(number(0.97))
    summary["scores"]["ScaffPD"]["precision"] = parts(number(None))
    summary["worst_sites"][0]["local"] = 0.3
    summary["sites"] = [
        {"site": "one", "train": 3, "test": 2, "classes": {"no": 5, "yes": 0}},
        {"site": "b", "classes": {"no": 1, "yes": 1}},
    ]
    summary |= {"groups": {}, "notes": []}
    worst, positive, one = weaknesses(summary, SPEC)
    assert "own rows alone" not in worst
    assert positive.endswith("it finds 66.0% (55.0 to 77.0). It calls no row yes.")
    assert one.endswith("apart: one.")
    summary["scores"]["majority"]["accuracy"] = parts(number(0.97))
    assert len(weaknesses(summary, SPEC)) == 4, "as much is enough to say so"


def test_a_quantitys_error_is_worse_where_it_is_larger():
    summary = {
        "first": {"measure": "rmse"},
        "scores": {"ScaffPD": {"rmse": parts(number(1.5))}},
        "worst_sites": [{"site": "north", "test_rows": 9, "positive_rows": None, "ScaffPD": 2.5, "local": 2.0}],
    }
    spec = SPEC | {"classes": None}
    (worst,) = weaknesses(summary, spec)
    assert worst == (
        "The worst site is north: RMSE 2.5 on 9 test rows; the average of sites is 1.5. A model of that site's own rows alone "
        "has 2 there."
    )
    summary["worst_sites"][0]["local"] = 3.0
    assert "alone" not in weaknesses(summary, spec)[0]


@pytest.mark.parametrize("lacking", list(SUMMARY))
def test_the_card_is_made_whatever_is_lacking(save, lacking):
    card = fm.load_model(save(summary={key: value for key, value in SUMMARY.items() if key != lacking})).card
    assert card.count("\n## ") >= 6
    assert "None" not in card


def test_a_card_of_nothing_says_what_is_known(save, quantity):
    card = fm.load_model(save(loss="squared", method="FedAvg:size")).card
    assert "FedAvg:size itself minimises the average" in card
    assert "max_w" not in card
    assert "clipped at zero and normalised: they are rough" in card
    assert "It predicts the likeliest class." in card
    assert "How good it is" not in card
    assert "mean of half the squared error" in card


def test_the_federation_tells_of_its_sites(save, federation):
    said = {"sites": [{"site": "south", "train": 7, "test_positive": 3}]}
    model = fm.load_model(save(federation=federation, summary=said, threshold=0.4))
    north, south, west = model.metrics["sites"]
    assert (south["train"], south["test_positive"]) == (7, 3), "what a summary says stays"
    assert north["train"] + north["test"] == sum(north["classes"].values()) == 40
    assert [west["site"], list(west["classes"])] == ["west", ["no", "yes"]]
    assert (
        f"| north | {north['train']} | {north['test']} | {north['classes']['no']} | {north['classes']['yes']} |" in model.card
    )
    assert "probability of it is 0.4 or more." in model.card
    assert model.positive == federation.classes[federation.positive]


def test_numbers_are_shown_as_a_reader_wants_them():
    assert with_interval(number(0.66, 0.588, 0.729, 0.012), "auc") == "66.0% (58.8 to 72.9) ± 1.2"
    assert with_interval(number(12.345, 1.0, 20.0), "rmse") == "12.35 (1 to 20)"
    assert with_interval(number(0.12345), "brier") == "0.123"
    assert with_interval(None, "auc") == "–"
