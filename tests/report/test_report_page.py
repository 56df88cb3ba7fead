"""The page, its data, and the files beside it."""

import base64
import dataclasses
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedminimax as fm
from fedminimax.cli import app
from fedminimax.report import Evidence, gather, summary
from fedminimax.report.curves import axes, lines, thin
from fedminimax.report.payload import clients, packed, sweeps, weights


def unpack(text):
    return np.frombuffer(base64.b64decode(text), "<f4")


class Reader(HTMLParser):
    """Collect what a page refers to, its headings, and whether its tags are closed in order."""

    VOID = ("meta", "br", "wbr", "img", "input", "link", "hr")

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.loads, self.words, self.kinds = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.kinds.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)


def test_the_page_is_complete_and_says_what_it_should(experiment, tmp_path):
    page = fm.report(experiment, tmp_path / "out")
    assert page == tmp_path / "out" / "report.html"
    read = Reader(page.read_text(encoding="utf-8"))
    assert not read.wrong
    assert read.open == []
    assert read.loads
    assert all(url.startswith("data:image/png;base64,") for url in read.loads), "nothing is loaded from anywhere"
    text = " ".join(read.words)
    assert "A is best on score (higher is better): 0.821 ± 0.020 at round 20 (3 seeds)." in text
    assert "B & <b>co</b>" in text, "a name is not markup"
    assert "b" not in read.kinds
    assert "fedminimax run silos.toml --seeds 3" in text
    assert "<script>alert(1)</script>" in text, "the spec as it stands"
    assert "were chosen by loss on validation data" in text
    assert "Python" in text
    assert read.kinds.count("h1") == 1
    assert {"table.csv", "table.tex", "figures"} <= {p.name for p in page.parent.iterdir()}
    read_back = pd.read_csv(page.parent / "table.csv", keep_default_na=False, na_values={"p": "", "behind": ""})
    pd.testing.assert_frame_equal(read_back, summary(gather(experiment).records), check_exact=True)
    made = {p.suffix: p.read_bytes() for p in (page.parent / "figures").glob("report_curves_score.*")}
    assert made[".png"].startswith(b"\x89PNG")
    assert made[".pdf"].startswith(b"%PDF")
    assert (page.parent / "figures" / "report_clients_score_each.pdf").is_file()


def test_what_the_script_draws_is_what_was_run(experiment, tmp_path, data_of):
    data = data_of(fm.report(experiment, tmp_path / "own.html", only_page=True))
    assert [p.name for p in tmp_path.iterdir()] == ["own.html"]
    assert data["axes"] == {"round": "rounds", "floats_up": "floats up", "grad_evals": "gradient evaluations"}, "no zeros"
    ends = {r.seed: r.history["score"] for r in gather(experiment).records if r.label == "A"}
    values = np.array(list(ends.values()))
    line = data["lines"][0]
    band = line["bands"]["score"]
    assert (line["label"], line["seeds"]) == ("A", 3)
    np.testing.assert_allclose(unpack(band["mean"]), values.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(unpack(band["low"]), values.min(axis=0), rtol=1e-6)
    np.testing.assert_allclose(unpack(band["high"]), values.max(axis=0), rtol=1e-6)
    half = 4.302652729911275 * values.std(axis=0, ddof=1) / np.sqrt(3)  # the 97.5% point of t with 2 degrees of freedom
    np.testing.assert_allclose(unpack(band["half"]), half, rtol=1e-6)
    np.testing.assert_array_equal(
        unpack(line["across"]["floats_up"])[unpack(band["places"]).astype(int)], np.arange(0, 201, 20)
    )
    (entry,) = data["clients"]
    np.testing.assert_allclose(unpack(entry["values"]["A"]), values[:, -1].mean() + np.linspace(-0.2, 0.2, 6), rtol=1e-6)
    assert [w["label"] for w in data["weights"]] == ["A", "B & <b>co</b>"]
    assert unpack(data["weights"][0]["values"]).reshape(6, -1)[:, -1].sum() == pytest.approx(1)


def test_thinning_keeps_ends_and_extremes():
    rng = np.random.default_rng(0)
    values = rng.normal(size=5000)
    values[1234], values[4321] = 50.0, -50.0
    kept = thin(values, 200)
    assert len(kept) <= 200
    assert {0, 1234, 4321, 4999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    assert thin(values[:150], 200).tolist() == list(range(150))


def test_curves_of_runs_that_are_not_alike(run, runs):
    lost = run("D", 0, status="diverged", history={"score": np.array([0.0, 1, 2, np.inf, *[np.nan] * 7])})
    going = run("U", 0, status="running", rounds=8)
    evidence = Evidence.of([*runs("A", [1.0, 2.0]), run("A", 2, 3.0, rounds=10), lost, going])
    by_label = {one.label: one for one in lines(evidence)}
    assert by_label["A"].across["round"].tolist() == [0, 2, 4, 6, 8, 10], "to the end of the shortest"
    assert by_label["A"].seeds == 3
    assert (by_label["D"].note, by_label["U"].note) == ("diverged", "unfinished")
    assert by_label["D"].bands["score"].mean.tolist() == [0, 1, 2], "as far as it is finite"
    assert by_label["U"].across["round"][-1] == 8
    assert not by_label["U"].bands["score"].half.any(), "one seed has no interval"
    assert list(axes(list(by_label.values()))) == ["round", "floats_up", "grad_evals"]


def test_many_clients_become_quantiles_and_the_heaviest(run):
    evidence = Evidence.of([run("A", 0, clients=1000), run("A", 1, clients=1000)])
    (entry,) = clients(evidence)
    assert entry["quantiles"]
    assert entry["count"] == 1000
    shown = unpack(entry["values"]["A"])
    assert (len(shown), shown[0], shown[-1]) == (400, pytest.approx(0.8), pytest.approx(1.2))
    (w,) = weights(evidence)
    assert w["clients"] == list(range(60)), "the weights of the first are the largest"
    assert w["count"] == 1000


def test_weights_are_known_under_any_label(run):
    """A spec may call them what it likes: the numbers beside them tell."""
    w = np.full((11, 3), 1 / 3)
    beside = {"mine/entropy": np.ones(11), "mine/largest": np.full(11, 1 / 3)}
    renamed = run("A", 0, history={"mine/each": w, **beside, "other/each": w})
    evidence = Evidence.of([renamed])
    assert [entry["metric"] for entry in weights(evidence)] == ["mine/each"]
    assert [entry["metric"] for entry in clients(evidence)] == ["other/each"]


def test_sweeps_mark_what_diverged(run):
    t = np.array([0, 10])
    loss = np.array([[[2.0, 1.0], [2.0, 3.0]], [[2.0, np.inf], [2.0, 1.0]]])
    sweep = fm.Sweep("A", [{"lr_x": 0.1}, {"lr_x": np.float32(9.0)}], [0, 1], {"round": t, "loss": loss}, {"loss": "lower"})
    (entry,) = sweeps(gather(sweep))
    assert entry["values"] == {"loss": [2.0, None]}
    assert (entry["best"], entry["chosen"], entry["early"]) == ({"loss": 0}, None, [False, False])
    assert entry["settings"] == [[0.1], [9.0]]
    # One that halving ended early keeps its value then, and is no winner.
    loss = np.array([[[2.0, 1.0]], [[0.5, np.nan]]])
    halved = fm.Sweep("A", sweep.settings, [0], {"round": t, "loss": loss}, {"loss": "lower"}, rounds_run=np.array([[10], [0]]))
    (entry,) = sweeps(gather(dataclasses.replace(halved, selected_by="loss")))
    assert (entry["values"], entry["early"], entry["chosen"]) == ({"loss": [1.0, 0.5]}, [False, True], 0)
    assert packed(np.array([1.0, 2.0])) == base64.b64encode(np.array([1.0, 2.0], "<f4").tobytes()).decode()


def test_ten_methods_of_five_seeds_and_a_thousand_evaluations_stay_below_6_mb(run, tmp_path):
    rng = np.random.default_rng(0)
    noisy = lambda: {f"metric {k}": rng.normal(size=1000) for k in range(5)}
    records = [run(f"M{k}", s, rounds=999, every=1, history=noisy(), clients=20) for k in range(10) for s in range(5)]
    assert fm.report(records, tmp_path, only_page=True).stat().st_size < 6e6


def test_the_commands(experiment, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = lambda *words: CliRunner().invoke(app, [str(word) for word in words])
    done = call("report", experiment, "--out", "page.html", "--metric", "loss", "--title", "Mine")
    assert done.exit_code == 0, done.output
    assert "Written: page.html" in done.output
    assert {p.name for p in tmp_path.iterdir()} == {"page.html", "page.csv", "page.tex", "page_figures"}
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>Mine</h1>" in text
    assert '<option value="loss" selected>' in text
    run("A", 0).write(tmp_path / "other")
    done = call("compare", experiment, "other", "--only-page")
    assert done.exit_code == 0, done.output
    assert "A (other)" in (tmp_path / "compare.html").read_text(encoding="utf-8")
    for words, message in (
        (("compare", experiment), "compare needs two folders"),
        (("report", experiment, "--better", "lower"), "give --metric too"),
        (("report", experiment, "--metric", "nope"), "no metric 'nope'"),
        (("report", experiment, "--out", "page.csv"), "a file that is no page"),
        (("report", experiment, "--out", "page.csv/page.html"), "The folder page.csv cannot be made"),
    ):
        with pytest.raises(fm.InputError, match=message):
            raise call(*words).exception


def test_a_page_is_written_where_the_folder_is_and_without_what_is_heavy(run, tmp_path):
    run("A", 0).write(tmp_path / "seed-0")
    heavy = "{'jax', 'pandas', 'matplotlib', 'scipy.stats'} & set(sys.modules)"
    script = f"import sys\nfrom fedminimax.cli import main\ntry: main()\nfinally: assert not {heavy}"
    arguments = [sys.executable, "-c", script, "report", str(tmp_path), "--only-page"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").is_file()


def test_its_own_pictures_do_not_go_into_the_next_one(run, tmp_path):
    run("A", 0).write(tmp_path)
    fm.report(tmp_path)
    assert (tmp_path / "figures" / "report_curves_score.png").is_file()
    assert not gather(tmp_path).pictures
