"""`fedminimax fair` among sites that keep their rows: the pooled file's models, and nothing leaves that few rows have."""

import types

import jax
import numpy as np
import pandas as pd
import pytest
from made_up_sites import as_federation, patients

import fedminimax as fm
from fedminimax import fairness, wire
from fedminimax.engines.federated import InProcess
from fedminimax.fairness.words import settings_of
from fedminimax.fedfair import FairSite, Question, contest
from fedminimax.fedfair.agreeing import settle
from fedminimax.fedfair.telling import by_group

STEPS = ("ScaffPD.tau=0.3,sigma=0.1",)
QUESTION = Question("outcome", methods=("ScaffPD",), settings=STEPS, rounds=4, local_steps=2, min_rows=5, group="sex")


class Heard(InProcess):
    """A transport that keeps what sites reply."""

    def __init__(self, workers):
        super().__init__(workers)
        self.replies = []

    def ask(self, requests, timeout):
        answers = super().ask(requests, timeout)
        self.replies += answers.replies.values()
        return answers


def sites_of(frame, question=QUESTION, least=5, change=None):
    own = {name: rows.drop(columns="site").reset_index(drop=True) for name, rows in frame.groupby("site")}
    if change is not None:
        own["b"] = change(own["b"])
    return Heard({name: FairSite(name, rows, question, least=least) for name, rows in own.items()})


@pytest.fixture(scope="module")
def both():
    there = sites_of(patients(), least=1)
    found = contest(there, QUESTION, draws=1000, progress=False)
    pooled = fairness.contest(
        as_federation(patients(), group="sex"), QUESTION.methods, rounds=4, local_steps=2, draws=1000, progress=False,
        settings=settings_of(STEPS, QUESTION.methods),
    )  # fmt: skip
    return there, found, pooled


def test_the_encoder_and_the_models_are_those_of_the_pooled_file(both):
    _, found, pooled = both
    assert found.federation.names == pooled.federation.names
    own, wanted = found.federation.encoder.encoding, pooled.federation.encoder.encoding
    assert own.features == wanted.features
    np.testing.assert_allclose(list(own.scales.values()), list(wanted.scales.values()), rtol=1e-12)
    assert (found.federation.class_counts == pooled.federation.class_counts).all()
    assert found.federation.positive == pooled.federation.positive
    ours, theirs = (jax.tree.leaves(one.results["ScaffPD"][0].x) for one in (found, pooled))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_tables_are_those_of_the_pooled_file(both):
    _, found, pooled = both
    for name in ("ScaffPD", "local", "majority"):
        for measure in ("auc", "log_loss", "brier"):
            np.testing.assert_allclose(found.scores[name].sites[measure], pooled.scores[name].sites[measure], atol=2e-3)
    for measure, part in (("log_loss", "all"), ("brier", "average"), ("auc", "worst"), ("auc", "all")):
        own, wanted = (one.number("ScaffPD", measure, part) for one in (found, pooled))
        assert own.value == pytest.approx(wanted.value, abs=0.01)
        assert own.low < own.value < own.high
        assert own.high - own.low == pytest.approx(wanted.high - wanted.low, rel=0.4)
    assert "pooled" not in found.scores
    assert "rows stayed there" in found.asked["federation"]
    assert {"f", "m"} <= set(found.rates["ScaffPD"].names)


def test_what_few_rows_have_does_not_leave_a_site():
    frame = patients()
    frame.loc[frame.index[frame["site"] == "a"][:3], "sex"] = "only-three-have-this"
    there = sites_of(frame)
    known = settle(there, QUESTION)
    assert not any(b"only-three-have-this" in reply for reply in there.replies)
    assert known.federation.encoder.encoding.categories["sex"] == ["f", "m"]
    named = settle(sites_of(frame, least=1), QUESTION).federation.encoder.encoding.categories["sex"]
    assert "only-three-have-this" in named


def test_few_values_few_of_a_class_and_small_groups_tell_nothing():
    frame = patients()
    there = frame["site"] == "a"
    frame["lab"] = np.nan
    frame.loc[frame.index[there][4:16], "lab"] = 123.456789
    frame.loc[frame.index[there][:3], "outcome"] = "only-three-are-so"
    frame.loc[frame.index[there][3:12], "sex"] = "only-nine-have-this"
    seen = []
    for least in (20, 1):
        site = FairSite("a", frame[there].drop(columns="site").reset_index(drop=True), QUESTION, least=least)
        told = wire.decode(site.handle(wire.encode({"id": "x", "fair": "sketch"})))["told"]
        agreed = {
            "task": "classification",
            "classes": ["no", "yes"],
            "numeric": ["lab", "u"],
            "categorical": ["sex"],
            "dates": {},
        }
        summed = wire.decode(site.handle(wire.encode({"id": "x", "fair": "summary", "agreed": agreed})))["told"]
        seen.append(("only-three-are-so" in told["label"]["classes"], summed["moments"]["lab"][0] > 0))
        assert summed["moments"]["u"][0] > 20
        assert summed["unlabelled"] == 3
    assert seen == [(False, False), (True, True)]
    of = lambda **known: types.SimpleNamespace(**known)
    rows = of(order=np.arange(30), is_positive=np.tile([1.0, 0.0], 15))
    judges, groups = [of(rows=rows, called=np.ones(30))], np.array(["f"] * 27 + ["x"] * 3)
    assert set(by_group(judges, groups, 5)) == {"f", "(rare)"}
    assert set(by_group(judges, groups, 3)) == {"f", "x"}


def test_no_reply_before_training_is_as_long_as_the_rows():
    there = sites_of(patients())
    settle(there, QUESTION)
    assert max(map(len, there.replies)) < 4000
    arrays = [leaf for reply in there.replies for leaf in jax.tree.leaves(wire.decode(reply)) if isinstance(leaf, np.ndarray)]
    assert {leaf.shape for leaf in arrays} == {(2, 2)}  # rows of each class, in training and test


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.drop(columns="u"), "b has no column 'u'.*which a has: add it there, or leave it out with --exclude u"),
        (lambda f: f.rename(columns={"outcome": "result"}), "b has no column 'outcome', which is to be predicted"),
        (lambda f: f.assign(outcome=None), "b has no value in the column 'outcome'"),
        (lambda f: f.assign(v="secret"), "The column 'v' has numbers at .* and texts at b"),
        (lambda f: f.assign(u=np.inf), "b has an infinite number in the column 'u': clean that row"),
        (lambda f: f.iloc[:0], "b has no rows"),
    ],
)
def test_what_is_wrong_at_a_site_is_a_sentence_with_its_name_and_a_cure(change, said):
    with pytest.raises(fm.InputError, match=said) as caught:
        settle(sites_of(patients(), change=change), QUESTION)
    assert "secret" not in str(caught.value)


def test_units_spellings_small_sites_and_sites_of_one_class():
    noted = lambda change: settle(sites_of(patients(), change=change), QUESTION).federation
    assert any(n.startswith("u: at b the mean is") for n in noted(lambda f: f.assign(u=1000 * f["u"] + 5e4)).notes)
    assert any("sex: b has no category that another" in n for n in noted(lambda f: f.assign(sex="woman")).notes)
    assert noted(lambda f: f.iloc[:3]).dropped == {"b": 3}
    one = noted(lambda f: f.assign(outcome="no"))
    assert one.class_counts[one.names.index("b"), 1] == 0


def test_a_site_answers_nonsense_with_a_category():
    site = FairSite("a", pd.DataFrame({"outcome": ["x", "y"] * 9, "u": range(18)}), QUESTION)
    for request in (b"", b"FMX1", wire.encode({"id": "x", "fair": "rows"}), wire.encode({"id": "x", "fair": "work"})):
        reply = wire.decode(site.handle(request))
        assert "failed" in reply or reply["told"] == {"trouble": "unprepared", "column": ""}
