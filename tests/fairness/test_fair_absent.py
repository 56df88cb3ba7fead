"""A fair study whose sites die: the engine's rules in training, a named gap in the tables, and nothing is trained twice."""

import io
import shutil

import jax
import numpy as np
import pytest
from made_up_sites import patients
from rich.console import Console

import fedminimax as fm
from fedminimax import wire
from fedminimax.engines.federated import Answers, Failure, InProcess
from fedminimax.fedfair import FairSite, Question, asking, contest
from fedminimax.fedfair.study import conduct_fair

METHODS = ("ScaffPD", "FedAvg")
STEPS = ("ScaffPD.tau=0.3,sigma=0.1", "FedAvg.lr_x=0.1")
QUESTION = Question("outcome", methods=METHODS, settings=STEPS, rounds=4, local_steps=2, min_rows=5, group="sex")
GONE, TIMEOUT = Failure("gone", "nobody is there"), Failure("timeout", "no answer")


class Mortal(InProcess):
    """Sites in this process, some of which are dead: asked for the nth time a kind of question, ``fate`` says of whom."""

    def __init__(self, workers, fate=lambda kind, nth: {}):
        super().__init__(workers)
        self.fate, self.asked, self.waits = fate, [], []

    def ask(self, requests, timeout):
        kind = next(wire.decode(request)["fair"] for request in requests.values())
        self.asked.append(kind)
        dead = self.fate(kind, self.asked.count(kind))
        there = super().ask({site: request for site, request in requests.items() if site not in dead}, timeout)
        failures = {site: dead[site] for site in requests if site in dead}
        self.waits.append(timeout if TIMEOUT in failures.values() else 0.0)
        return Answers(there.replies, there.failures | failures)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(asking, "_PAUSE", 0.0)


def sites_of(folder, fate=lambda kind, nth: {}, question=QUESTION, frame=None):
    frame = patients() if frame is None else frame
    own = {name: rows.drop(columns="site").reset_index(drop=True) for name, rows in frame.groupby("site")}
    made = {name: FairSite(name, rows, question, folder=folder / "sites" / name) for name, rows in own.items()}
    return Mortal(made, fate)


def study(there, folder, question=QUESTION):
    """Return what a study finds and what it says, without page and figures."""
    said = []
    found = contest(
        there, question, folder=folder / "out" / "training", min_replies=2, draws=50, progress=False, tell=said.append
    )
    return found, "\n".join([*said, *found.notes])


def models(found):
    return [np.asarray(leaf) for runs in found.results.values() for leaf in jax.tree.leaves(runs[0].x)]


def same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The study of sites that all stay."""
    folder = tmp_path_factory.mktemp("whole")
    return study(sites_of(folder), folder)[0]


LEFT_OUT = "b did not answer when the models were judged (nobody is there): its rows are not in these numbers."


def test_a_site_that_dies_before_judging_is_left_out_named_and_taken_in_when_it_is_back(tmp_path, whole):
    there = sites_of(tmp_path, lambda kind, nth: {"b": GONE} if kind in ("histograms", "judge") else {})
    console = Console(record=True, width=200, file=io.StringIO())
    found = conduct_fair(there, QUESTION, tmp_path / "out", console, min_replies=2)
    same(models(found), models(whole))
    assert found.federation.names == ["a", "c", "d", "e"]
    assert len(found.scores["ScaffPD"].sites["auc"][0]) == 4
    own = [k for k, name in enumerate(whole.federation.names) if name != "b"]
    for name in ("ScaffPD", "local"):
        np.testing.assert_allclose(
            found.scores[name].sites["log_loss"][0], whole.scores[name].sites["log_loss"][0][own], atol=1e-12
        )
    assert there.asked.count("judge") == 1  # of it nothing more is asked
    assert LEFT_OUT in console.export_text()
    assert LEFT_OUT in (tmp_path / "out" / "report.html").read_text()
    assert LEFT_OUT in fm.load_model(tmp_path / "out" / "model").card
    back = sites_of(tmp_path)
    again, said = study(back, tmp_path)
    assert "work" not in back.asked
    assert "goes on: what was trained is not trained again" in said
    same(models(again), models(whole))
    assert again.federation.names == whole.federation.names
    assert again.number("ScaffPD", "auc", "all") == whole.number("ScaffPD", "auc", "all")
    assert "did not answer" not in said


def test_a_site_that_dies_in_training_costs_its_own_part_and_the_next_method_begins_without_it(tmp_path, whole):
    there = sites_of(tmp_path, lambda kind, nth: {"b": GONE} if there.asked.count("work") > 3 else {})
    found, said = study(there, tmp_path)
    assert LEFT_OUT in said
    assert [one.rounds for runs in found.results.values() for one in runs] == [4, 4]
    assert not any(np.array_equal(a, b) for a, b in zip(models(found), models(whole), strict=True))
    assert len(found.weighed) == len(found.results["ScaffPD"][0].w) == 5  # the figure of weights has all who trained


def test_what_is_trained_is_there_before_judging_and_needs_no_site_that_is_away(tmp_path, whole):
    everybody = dict.fromkeys("abcde", GONE)
    with pytest.raises(fm.InputError, match=r"No site judges the models, which are kept: a \(nobody is there"):
        study(sites_of(tmp_path, lambda kind, nth: everybody if kind == "histograms" else {}), tmp_path)
    there = sites_of(tmp_path, lambda kind, nth: {"b": GONE})
    found, said = study(there, tmp_path)
    assert "work" not in there.asked
    assert LEFT_OUT in said
    same(models(found), models(whole))


def test_too_few_replies_in_training_end_the_study_and_the_same_command_goes_on_from_the_checkpoint(tmp_path, whole):
    few = dict.fromkeys("abcd", GONE)
    there = sites_of(tmp_path, lambda kind, nth: few if there.asked.count("work") > 12 else {})
    with (
        pytest.raises(fm.InputError, match=r"stopped after [1-3] rounds: 1 of 5 sites replied"),
        pytest.warns(UserWarning, match="its result is kept"),
    ):
        study(there, tmp_path)
    same(models(study(sites_of(tmp_path), tmp_path)[0]), models(whole))


def test_other_rows_or_another_question_begin_anew(tmp_path, whole):
    study(sites_of(tmp_path), tmp_path)
    frame = patients()
    frame.loc[frame.index[0], "u"] += 1.0
    other = sites_of(tmp_path, frame=frame)
    study(other, tmp_path)
    assert "work" in other.asked
    shorter = Question(**{**QUESTION.__dict__, "rounds": 3})
    there = sites_of(tmp_path, question=shorter)
    assert study(there, tmp_path, shorter)[0].results["FedAvg"][0].rounds == 3


@pytest.mark.parametrize("kind", ["sketch", "summary", "prepare"])
def test_before_training_all_are_asked_again_and_then_the_missing_are_named(tmp_path, kind):
    there = sites_of(tmp_path, lambda now, nth: {"b": GONE, "d": TIMEOUT} if now == kind else {})
    with pytest.raises(fm.InputError, match=r"All sites are needed here, but b \(nobody is there\), d \(no answer\) did not"):
        contest(there, QUESTION, progress=False)
    assert there.asked.count(kind) == 4
    once = sites_of(tmp_path, lambda now, nth: {"b": GONE} if now == kind and nth == 1 else {})
    asking.Asking(once).all("sketch", lambda site, told: told)


def test_nobody_is_waited_for_longer_than_the_timeout_once(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(asking.time, "monotonic", lambda: now[0])

    class Slow(Mortal):
        def ask(self, requests, timeout):
            answers = super().ask(requests, timeout)
            now[0] += self.waits[-1]
            return answers

    there = Slow(sites_of(tmp_path)._workers, lambda kind, nth: {"b": TIMEOUT})
    with pytest.raises(fm.InputError, match=r"b \(no answer"):
        asking.Asking(there, 40.0).all("sketch", lambda site, told: told)
    assert there.waits == [40.0, 2.0, 2.0, 2.0]


def test_what_took_too_long_is_there_when_it_is_asked_for_again(tmp_path, monkeypatch):
    site = sites_of(tmp_path)._workers["a"]
    request = wire.encode({"id": "fair/sketch/1", "fair": "sketch"})
    first = site.handle(request)
    monkeypatch.setattr(type(site), "_answers", {"sketch": lambda self, ask: pytest.fail("it was computed again")})
    assert site.handle(request) == first


def test_step_sizes_that_were_found_are_kept(tmp_path):
    question = Question("outcome", methods=("FedAvg",), rounds=2, search_rounds=1, local_steps=1, min_rows=5)
    searched = study(sites_of(tmp_path, question=question), tmp_path, question)[0]
    for path in (tmp_path / "out" / "training").glob("FedAvg-0*"):  # as if it had died after the search
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    there = sites_of(tmp_path, question=question)
    again = study(there, tmp_path, question)[0]
    assert "product" not in there.asked
    assert again.tuned["FedAvg"].sentence("FedAvg") == searched.tuned["FedAvg"].sentence("FedAvg")
    ours, theirs = (one.tuned["FedAvg"].searches[-1].history["worst_case"] for one in (again, searched))
    np.testing.assert_array_equal(ours, theirs)
    same(models(again), models(searched))


def test_a_search_that_lacks_sites_is_said_and_not_taken_for_steps_that_are_too_large(tmp_path):
    question = Question("outcome", methods=("FedAvg",), rounds=2, search_rounds=1, local_steps=1, min_rows=5)
    few = dict.fromkeys("abcd", GONE)
    there = sites_of(tmp_path, lambda kind, nth: few if kind == "work" and nth > 2 else {}, question)
    with (
        pytest.raises(fm.InputError, match=r"The search for FedAvg's step sizes stopped: 1 of 5 sites replied"),
        pytest.warns(UserWarning, match="its result is kept"),
    ):
        study(there, tmp_path, question)
