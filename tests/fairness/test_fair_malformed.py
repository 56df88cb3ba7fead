"""Malformed replies to every question of a fair study: a sentence or the site's exclusion comes of them, and nothing else.

``FEDMINIMAX_FUZZ=10000`` tries so many of each kind; by default some.
"""

import copy
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_sites import patients

from fedminimax import wire
from fedminimax.engines.federated import Answers, InProcess
from fedminimax.engines.federated.messages import Refused
from fedminimax.errors import InputError
from fedminimax.fairness.contests import Training
from fedminimax.fairness.measures import first_measure
from fedminimax.fedfair import FairSite, Question, asking, contest
from fedminimax.fedfair.agreeing import settle
from fedminimax.fedfair.judges import Judges
from fedminimax.fedfair.keeping import Kept
from fedminimax.fedfair.question import problem_of
from fedminimax.fedfair.sketch import read_sketch
from fedminimax.fedfair.training import Trainer

MANY = int(os.environ.get("FEDMINIMAX_FUZZ", "80"))
often = settings(max_examples=MANY, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
STEPS = ("ScaffPD.tau=0.3,sigma=0.1",)
QUESTION = Question("outcome", methods=("ScaffPD",), settings=STEPS, rounds=2, local_steps=1, min_rows=5, group="sex")
QUANTITY = Question("t", task="regression", methods=("FedAvg",), settings=("FedAvg.lr_x=0.1",), rounds=2, local_steps=1)
LIAR, DRAWS = "b", 20

ARRAYS = st.builds(
    lambda value, shape, dtype: np.full(shape, value).astype(dtype),
    st.sampled_from([0, 1, -1, 3, 2**31]),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from(["float64", "float32", "int64", "int32", "bool", "uint8"]),
)
NUMBERS = st.one_of(st.integers(-2, 500), st.floats(), st.sampled_from([2**31, 2**62, 10**30, -(10**30), 1e139, 5e-324]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=6), st.sampled_from(["number", "date", "no"]), ARRAYS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=5,
)

WHOLE, STRANGE = (-1, 0, 2, 10**6), (np.nan, np.inf, -np.inf, -0.1, 1.5, 1e139, 1e300)


@st.composite
def lies(draw, told):
    """What a site told, with something in it replaced, left out or added, or numbers of an array changed."""
    told = copy.deepcopy(told)
    place, key, node = None, None, told
    while isinstance(node, (dict, list)) and node and draw(st.integers(0, 5)):
        place, key = node, draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        node = place[key]
    how = draw(st.sampled_from(["replace", "replace", "remove", "add", "numbers"]))
    if how == "remove" and isinstance(place, dict):
        del place[key]
    elif how == "add" and isinstance(node, dict):
        node[draw(st.text(max_size=6))] = draw(VALUES)
    elif how == "numbers" and isinstance(node, np.ndarray):
        changed, strange = node.copy(), WHOLE if node.dtype.kind == "i" else STRANGE
        with np.errstate(over="ignore"):
            changed.flat[draw(st.integers(0, node.size - 1))] = np.array(draw(st.sampled_from(strange))).astype(node.dtype)
        if place is None:
            return changed
        place[key] = changed
    elif place is None:
        return draw(VALUES)
    else:
        place[key] = draw(VALUES)
    return told


class Heard(InProcess):
    """Sites that are honest, and what each of them told, by question."""

    def __init__(self, workers):
        super().__init__(workers)
        self.told = {}

    def ask(self, requests, timeout):
        answers = super().ask(requests, timeout)
        for site, reply in answers.replies.items():
            kind, said = wire.decode(requests[site])["fair"], wire.decode(reply)
            if "told" in said:
                self.told.setdefault(kind, {})[site] = said["told"]
        return answers


class Retold:
    """What was told before, told again; but what one site tells when it is asked ``kind`` is a lie."""

    def __init__(self, told, kind, lie):
        self.told, self.kind, self.lie, self.sites = told, kind, lie, tuple(told["sketch"])

    def ask(self, requests, timeout):
        replies = {}
        for site, request in requests.items():
            ask = wire.decode(request)
            said = self.lie if (site, ask["fair"]) == (LIAR, self.kind) else self.told[ask["fair"]][site]
            replies[site] = wire.encode({"id": ask["id"], "told": said})
        return Answers(replies, {})


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(asking, "_PAUSE", 0.0)
    monkeypatch.setattr(asking, "_RETRIES", 1)


def heard(question):
    frame = patients()
    own = {name: rows.drop(columns="site").reset_index(drop=True) for name, rows in frame.groupby("site")}
    there = Heard({name: FairSite(name, rows, question) for name, rows in own.items()})
    found = contest(there, question, draws=DRAWS, progress=False)
    return there.told, found.results


@pytest.fixture(scope="module")
def honest():
    """Of two studies, of classes and of a quantity, what the sites told and what was trained."""
    return {question.label: (question, *heard(question)) for question in (QUESTION, QUANTITY)}


@pytest.mark.parametrize("kind", ["sketch", "summary", "prepare"])
@pytest.mark.parametrize("label", ["outcome", "t"])
def test_before_training_a_lie_is_a_sentence_or_goes_unnoticed(honest, label, kind):
    question, told, _ = honest[label]

    @often
    @given(st.data())
    def tell(data):
        there = Retold(told, kind, data.draw(lies(told[kind][LIAR])))
        try:
            known = settle(there, question)
        except InputError:
            return
        assert np.isfinite(known.losses).all()

    tell()


@pytest.mark.parametrize(("label", "kind"), [("outcome", "histograms"), ("outcome", "judge"), ("t", "judge")])
def test_in_judging_a_lie_is_the_sites_exclusion_or_goes_unnoticed(honest, label, kind):
    question, told, results = honest[label]
    known = settle(Retold(told, "", None), question)
    seen = set()

    @often
    @given(st.data())
    def tell(data):
        there = Retold(told, kind, data.draw(lies(told[kind][LIAR])))
        asked = type(known)(there, known.federation, known.losses, {})
        judged = Judges(asked, question, first_measure(known.federation), DRAWS, 60.0).judged(results)
        judged.rates(DRAWS)
        seen.add(LIAR in judged.sites)
        assert (LIAR in judged.sites) != bool(judged.left_out)
        assert set(judged.sites) >= set(told["sketch"]) - {LIAR}

    tell()
    assert seen == {True, False}


def test_an_error_that_no_table_can_hold_is_the_sites_exclusion(honest):
    """Found by 10,000 lies: one quantile of 1e139 overflowed where the draws are kept."""
    question, told, results = honest["t"]
    known = settle(Retold(told, "", None), question)
    lie = copy.deepcopy(told["judge"][LIAR])
    lie["spreads"]["mse"]["quantiles"][0, 1] = 1e139
    asked = type(known)(Retold(told, "judge", lie), known.federation, known.losses, {})
    judged = Judges(asked, question, first_measure(known.federation), DRAWS, 60.0).judged(results)
    assert [text.split()[0] for text in judged.left_out] == [LIAR]
    assert set(judged.sites) == set(told["sketch"]) - {LIAR}


def test_a_product_that_is_none_is_a_sentence(honest, tmp_path):
    question, told, results = honest["outcome"]
    known = settle(Retold(told, "", None), question)
    x, problem = results["ScaffPD"][0].x, problem_of(question, len(known.federation.features), 2)
    told = {**told, "product": dict.fromkeys(known.federation.names, wire.decode(wire.encode(x)))}

    @often
    @given(st.data())
    def tell(data):
        there = Retold(told, "product", data.draw(lies(told["product"][LIAR])))
        how = Training(2, 2, 1, None, 1, 1, False)
        asked = type(known)(there, known.federation, known.losses, {})
        trainer = Trainer(asked, Kept(tmp_path, question, there.sites), how, 60.0, 1)
        try:
            found = trainer.smoothness(problem, known.federation.train)
        except InputError:
            return
        assert np.isfinite(found)

    tell()


def test_replies_of_engines_requests_are_the_engines_matter():
    """A site that answers every request of training with nonsense is as one that does not answer."""
    frame = patients()
    own = {name: rows.drop(columns="site").reset_index(drop=True) for name, rows in frame.groupby("site")}

    class Nonsense(InProcess):
        def ask(self, requests, timeout):
            answers = super().ask(requests, timeout)
            for site, request in requests.items():
                if site == LIAR and wire.decode(request)["fair"] == "work":
                    answers.replies[site] = wire.encode({"id": "hello/1", "hello": np.zeros(3), "replies": 1, "parts": []})
            return answers

    there = Nonsense({name: FairSite(name, rows, QUESTION) for name, rows in own.items()})
    found = contest(there, QUESTION, draws=DRAWS, progress=False)
    assert found.results["ScaffPD"][0].rounds == 2


@pytest.mark.parametrize("where", ["role", "kind", "form", "numeric", "classes"])
def test_an_array_in_a_sketch_is_refused(honest, where):
    _, told, _ = honest["outcome"]
    said = copy.deepcopy(told["sketch"][LIAR])
    place = said["label"] if where in ("numeric", "classes") else said["columns"]["u"]
    place[where] = np.zeros(2)
    with pytest.raises(Refused):
        read_sketch(LIAR, said)
