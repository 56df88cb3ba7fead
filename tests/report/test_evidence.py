"""Who is best, whether it is more than noise, and what must be said before anybody believes it."""

import numpy as np
import pytest
from scipy import stats

import fedminimax as fm
from fedminimax import folders
from fedminimax.report import Evidence, rich_table, summary
from fedminimax.report.tables import latex, tex
from fedminimax.report.words import listed, number, p_value, quantity


def verdicts(evidence, metric="score"):
    return {row.label: row.verdict for row in evidence.rows(metric)}


def test_the_test_is_the_paired_t_test_times_the_comparisons(runs):
    best, near, far = [0.91, 0.93, 0.90, 0.95], [0.90, 0.91, 0.91, 0.93], [0.5, 0.7, 0.45, 0.6]
    evidence = Evidence.of([*runs("near", near), *runs("best", best), *runs("far", far)])
    rows = {row.label: row for row in evidence.rows("score")}
    for label, values in (("near", near), ("far", far)):
        test = stats.ttest_rel(best, values)
        assert rows[label].p == pytest.approx(2 * test.pvalue, rel=1e-9)
        assert rows[label].interval == pytest.approx(tuple(test.confidence_interval(0.95)), rel=1e-9)
        assert rows[label].behind == pytest.approx(np.mean(best) - np.mean(values))
    assert verdicts(evidence) == {"near": "noise", "best": "best", "far": "behind"}
    assert evidence.leaders("score") == ["best", "near", "far"]
    assert rows["best"].spread == pytest.approx(np.std(best, ddof=1))
    said = evidence.headline("score")
    assert said.startswith("best is best on score (higher is better)")
    assert "But its lead over near is not more than noise (paired t-test over 4 seeds, two-sided, Bonferroni for 2" in said


def test_seeds_are_paired(runs):
    shared = np.array([0.1, 0.5, 0.9, 0.3])  # what the seeds do is far larger than the lead, and the same for both
    ahead, behind = shared + np.array([0.011, 0.010, 0.009, 0.010]), shared
    assert stats.ttest_ind(ahead, behind).pvalue > 0.9
    evidence = Evidence.of([*runs("behind", behind), *runs("ahead", ahead)])
    assert verdicts(evidence) == {"behind": "behind", "ahead": "best"}
    assert "The lead is more than noise" in evidence.headline("score")
    # and by number of the seed, not by order
    assert verdicts(Evidence.of([*runs("behind", behind), *reversed(runs("ahead", ahead))])) == verdicts(evidence)


def test_lower_may_be_better(runs):
    evidence = Evidence.of([*runs("A", [1.0, 1.01, 1.03]), *runs("B", [2.0, 2.02, 2.01])])  # the loss has 0.1 of the end
    assert verdicts(evidence, "loss") == {"A": "best", "B": "behind"}
    assert "lower is better" in evidence.headline("loss")
    assert [row.behind for row in evidence.rows("loss")][1] == pytest.approx(0.0997, abs=1e-3)


def test_fewer_than_three_pairs_are_too_few(runs, run):
    evidence = Evidence.of([*runs("A", [0.9, 0.91, 0.92]), run("B", 0, 0.1), run("B", 2, 0.1)])
    assert verdicts(evidence) == {"A": "best", "B": "few"}
    assert "cannot be told: B and it share fewer than 3 seeds" in evidence.headline("score")
    assert any("not all been run with the same seeds" in note for note in evidence.notes)
    apart = Evidence.of([*runs("A", [0.9, 0.91, 0.92]), *(run("B", seed, 0.1) for seed in (7, 8, 9))])
    assert [(row.verdict, row.pairs) for row in apart.rows("score")] == [("best", 0), ("few", 0)]


def test_what_is_the_same_is_not_called_best_or_behind(runs):
    evidence = Evidence.of([*runs("A", [0.9, 0.8, 0.7]), *runs("B", [0.9, 0.8, 0.7]), *runs("C", [0.1, 0.2, 0.1])])
    assert verdicts(evidence) == {"A": "best", "B": "same", "C": "behind"}
    assert "B is the same to all digits" in evidence.headline("score")
    assert any("A and B are the same to all digits, in every metric" in note for note in evidence.notes)
    two = Evidence.of([*runs("A", [0.9, 0.8]), *runs("B", [0.9, 0.8])])
    assert two.headline("score").startswith("A and B are the same to all digits on score, with every seed")


def test_a_lead_that_no_seed_changes(runs):
    evidence = Evidence.of([*runs("A", [0.9] * 3), *runs("B", [0.8] * 3)])
    row = evidence.rows("score")[1]
    assert (row.verdict, row.constant) == ("behind", True)
    assert "the seeds change nothing here" in evidence.headline("score")
    assert "p" not in row.sentence.replace("pairs", "").split()


def test_curves_that_are_nearly_one_are_told(runs):
    near = Evidence.of([*runs("A", [0.9, 0.8, 0.7]), *runs("B", [0.9001, 0.8001, 0.7])])
    assert any("A and B are almost the same" in note for note in near.notes)
    apart = Evidence.of([*runs("A", [0.9, 0.8, 0.7]), *runs("B", [0.95, 0.8, 0.7])])
    assert not apart.notes


def test_a_method_that_diverged_is_not_best_and_not_averaged(runs, run):
    lost = [run("B", 0, 5.0), run("B", 1, 5.0), run("B", 2, 1e9, status=folders.DIVERGED)]
    evidence = Evidence.of([*runs("A", [0.9, 0.8, 0.7]), *lost])
    assert verdicts(evidence) == {"A": "best", "B": "out"}
    assert evidence.rows("score")[1].mean == 5.0
    assert "1 of 3 runs diverged" in evidence.rows("score")[1].sentence
    assert any(note.startswith("1 of 3 runs of B diverged (seed 2)") for note in evidence.notes)


def test_values_that_are_not_finite_count_as_lost(runs, run):
    broken = np.append(np.linspace(0, 1, 10), np.nan)
    evidence = Evidence.of([*runs("A", [0.9, 0.8, 0.7]), *(run("B", seed, history={"score": broken}) for seed in range(3))])
    row = evidence.rows("score")[1]
    assert (row.verdict, row.values, row.lost) == ("out", {}, 3)
    assert row.sentence == "3 of 3 runs not finite"
    assert any(n.startswith("score is not finite at round 20 in 3 of 3 runs of B (seeds 0, 1 and 2)") for n in evidence.notes)
    assert len(evidence.rows("loss")[1].values) == 3, "another metric of the same runs is sound"
    nothing = Evidence.of(run("B", seed, history={"score": broken}) for seed in range(3))
    assert nothing.headline("score") == "No run has a finite value of score."


def test_unfinished_runs_are_said_and_not_averaged(runs, run):
    going = run("B", 2, 0.1, rounds=6, wanted=20, status=folders.INTERRUPTED)
    evidence = Evidence.of([*runs("A", [0.9, 0.8, 0.7]), *runs("B", [0.5, 0.5]), going])
    assert evidence.round == 20
    assert evidence.rows("score")[1].values == {0: 0.5, 1: 0.5}
    assert any("B has unfinished runs that are not counted (seed 2: interrupted at round 6 of 20)" in n for n in evidence.notes)
    alone = Evidence.of([going, run("B", 3, rounds=10, wanted=20, status=folders.RUNNING)])
    assert alone.round == 6, "where nothing is finished, all that goes on is compared at the common length"
    assert len(alone.rows("score")[0].values) == 2
    assert any("No run is finished" in note for note in alone.notes)


def test_runs_of_different_lengths_are_compared_at_the_common_one(runs):
    evidence = Evidence.of([*runs("A", [1.0, 1.0, 1.0], rounds=40), *runs("B", [0.6, 0.61, 0.62], rounds=20)])
    assert evidence.round == 20
    rows = {row.label: row for row in evidence.rows("score")}
    assert rows["A"].mean == pytest.approx(0.5), "half way"
    assert rows["B"].verdict == "best"
    (said,) = (note for note in evidence.notes if "not equally long" in note)
    assert "(20 to 40 rounds). They are compared at round 20" in said
    assert said.endswith("Shorter than others: B, seed 0, at 20; B, seed 1, at 20; B, seed 2, at 20.")
    many = Evidence.of([*runs("A", [1.0] * 12, rounds=20), *runs("B", [1.0], rounds=40, status="stopped")])
    assert any(note.endswith("A, seed 7, at 20; and 4 more.") for note in many.notes)
    assert not any("equally long" in note for note in Evidence.of(runs("A", [1.0, 2.0])).notes)
    uneven = Evidence.of([*runs("A", [1.0], rounds=21, every=7), *runs("B", [1.0], rounds=20, every=2)])
    assert (uneven.round, uneven.at(uneven.counted["A"][0])) == (20, 2)
    assert any("not evaluated at the same rounds: the nearest before are taken, 14 to 20" in note for note in uneven.notes)


def test_settings_that_differ_under_one_label_are_said(run):
    evidence = Evidence.of([run("A", 0), run("A", 1, settings="A(lr_x=0.2)")])
    assert any("Runs called A have different settings: A(lr_x=0.1); A(lr_x=0.2)" in note for note in evidence.notes)


def test_a_metric_without_a_direction_has_no_best(runs):
    records = [*runs("A", [0.9, 0.8, 0.7], better={}), *runs("B", [0.5, 0.5, 0.4], better={})]
    evidence = Evidence.of(records)
    assert verdicts(evidence) == {"A": "unknown", "B": "unknown"}
    assert "nobody is called best" in evidence.headline("score")
    with pytest.raises(fm.InputError, match=r"no metric 'scores' in these runs: there are score, loss"):
        evidence.metric("scores")
    assert Evidence.of(runs("A", [1.0])).metric() == "score"
    assert Evidence.of(runs("A", [1.0], better={"loss": "lower"})).metric() == "loss", "the first that can be better"


def test_the_summary_and_the_table_in_the_terminal(runs):
    records = [*runs("A", [0.9, 0.8, 0.7], on={"score": "test"}), *runs("B [x]", [0.5, 0.5, 0.4])]
    table = summary(records)
    assert list(table[table.metric == "score"].method) == ["A", "B [x]"]
    best = table[(table.metric == "score") & table.best].iloc[0]
    assert (best.method, best.data, best["mean"], best.seeds) == ("A", "test", pytest.approx(0.8), 3)
    assert set(summary(records, ["loss"]).metric) == {"loss"}
    from rich.console import Console

    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(rich_table(records))
    shown = console.export_text()
    assert "score on test data at round 20, higher is better" in shown
    assert "0.80 ± 0.10" in shown
    assert "B [x]" in shown


def test_latex_has_the_best_in_bold_and_nothing_that_breaks_it(runs):
    evidence = Evidence.of([*runs("A_1 & 50%", [0.9, 0.8, 0.7]), *runs("B", [0.89, 0.79, 0.71])])
    text = latex(evidence)
    assert r"A\_1 \& 50\% & \textbf{\boldmath $0.80 \pm 0.10$}" in text
    assert r"B & $0.797 \pm 0.090{}^{\approx}$" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [line.replace(r"\&", "").count("&") for line in rows] == [2, 2, 2]
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    assert "resizebox" not in text
    assert [tex(name) for name in ("β ≤ 1", "a<b|c~d^e", "\\x{#}", "Ω, Α", "two\nlines")] == [
        r"$\beta$ $\leq$ 1", r"a\textless{}b\textbar{}c\textasciitilde{}d\textasciicircum{}e", r"\textbackslash{}x\{\#\}",
        r"$\Omega$, Α", "two lines",
    ]  # fmt: skip


def test_a_wide_table_is_turned_and_made_to_fit(runs):
    more = {"score on a rather long name": np.arange(11.0), "another one": np.arange(11.0)}
    better = {"score": "higher", "loss": "lower", **dict.fromkeys(more, "higher")}
    small = np.arange(11) * 1e-9
    evidence = Evidence.of(
        one for label in "ABC" for one in runs(label, [0.9, 0.8], history={**more, "loss": small}, better=better)
    )
    rows = [line for line in latex(evidence).splitlines() if line.endswith(r"\\")]
    assert rows[0] == r"Metric & A & B & C \\"
    assert [line.split(" & ")[0] for line in rows[1:]] == [
        r"score $\uparrow$", r"loss $\downarrow$", r"score on a rather long name $\uparrow$", r"another one $\uparrow$"
    ]  # fmt: skip
    assert r"$1.000 \cdot 10^{-8} \pm 0{}^{\approx}$" in rows[2]
    assert r"\resizebox{\linewidth}{!}{%" in latex(evidence)
    assert "booktabs, graphicx" in latex(evidence)


@pytest.mark.parametrize(
    ("mean", "spread", "shown"),
    [
        (0.81234, 0.0123, "0.812 ± 0.012"),
        (12345.6, 78.9, "12346 ± 79"),
        (3.2e-7, 1.1e-8, "(3.20 ± 0.11)e-7"),
        (2.5e9, 3e7, "(2.500 ± 0.030)e9"),
        (0.5, 1e-12, "0.5000000 ± 1.0e-12"),
        (0.25, float("nan"), "0.2500"),
        (0.25, 0.0, "0.2500 ± 0"),
        (0.0, 0.02, "0.000 ± 0.020"),
        (float("inf"), 1.0, "not finite"),
    ],
)
def test_numbers_have_the_digits_that_matter(mean, spread, shown):
    assert quantity(mean, spread) == shown


def test_words():
    assert [number(v) for v in (0.0, 0.012345, 123456.0, 1.5e-7, 2e8)] == ["0.00", "0.0123", "123456", "1.50e-7", "2.00e8"]
    assert [p_value(p) for p in (None, 1e-9, 0.034)] == ["not tested", "p < 0.001", "p = 0.034"]
    assert [listed(x) for x in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
