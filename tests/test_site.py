"""The documentation site: it builds without a warning, leads nowhere dead, fetches nothing, and describes every public name."""

import re
import subprocess
import sys
import tomllib
from html import unescape
from pathlib import Path

import pytest

import build
import docstrings
import formulas
import links
import reference
from fedminimax import names
from fedminimax.algorithms import ALGORITHMS

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as a user builds it: warnings and dead links have ended the build."""
    out = tmp_path_factory.mktemp("site") / "built"
    done = subprocess.run(
        [sys.executable, str(ROOT / "website" / "build.py"), "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return out


def section(site, name):
    """Return what the reference says of a public name, in HTML, and all of its page."""
    place = reference.identifiers()[name]
    page = next(page for page in reference.pages() if place in map(reference.identifier, page.objects.values()))
    html = (site / page.path.replace(".md", ".html")).read_text()
    found = re.search(rf'<h2 id="{re.escape(place)}".*?(?=<h2 |</article>)', html, flags=re.DOTALL)
    assert found, f"{name} is not described on {page.path}"
    return found[0], html


def test_every_public_name_is_described(site):
    for name in names.__all__:
        text, _ = section(site, name)
        assert f">{name}</code>" in text or name in text[:600]


def test_every_method_has_its_citation_and_its_formulas(site):
    for name in set(ALGORITHMS) & set(names.__all__):
        text, page = section(site, name)
        assert '<math display="block">' in text, f"{name} shows no formula on a line of its own"
        opening = unescape(page[page.index("<article") : page.index("<h2 ")])
        assert re.search(r'"[A-Z][^"]{20,}"', opening), f"{name} has no citation"


def test_nothing_is_left_of_how_docstrings_are_written(site):
    for path in sorted((site / "reference").rglob("*.html")):
        shown = re.sub(r"<(pre|code|script)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
        for mark in (":math:", ".. math", ":class:", ":func:", "$$", "\\frac"):
            assert mark not in shown, f"{path.name} shows {mark}"


def test_every_page_is_in_the_nav_and_fetches_nothing(site):
    assert links.problems(site) == []
    home = (site / "index.html").read_text()
    nav = home[home.index("<nav") :]
    for path in sorted(site.rglob("*.html")):
        where = path.relative_to(site).as_posix()
        assert where == "404.html" or re.search(rf'href="(\./)?{re.escape(where)}"', nav), f"{where} is not in the nav"


def test_what_is_wrong_with_a_site_is_said(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="top">a</h1><a href="b.html">gone</a><a href="#nope">gone</a><a href="#top">here</a>'
        '<script src="https://a.network/x.js"></script><img src="missing.png"><a href="https://elsewhere.org">fine</a>'
    )
    (tmp_path / "a.css").write_text("body { background: url(https://a.network/x.png) }")
    said = " ".join(links.problems(tmp_path))
    for what in (
        "a.html links to b.html",
        "#nope, which has no such anchor",
        "fetches https://a.network/x.js",
        "needs missing.png",
    ):
        assert what in said
    assert "a.css fetches" in said
    assert "elsewhere" not in said
    assert "#top" not in said


def test_a_page_that_leads_nowhere_is_refused():
    assert build.relinked("[g](docs/guide.md#engines)", "CONTRIBUTING.md", "contributing.md") == "[g](guide.md#engines)"
    assert build.relinked("[b](../benchmarks/README.md)", "docs/guide.md", "guide.md") == "[b](benchmarks.md)"
    assert build.relinked("[x](../../examples/a.py)", "docs/tutorials/t.md", "tutorials/t.md") == "[x](../examples.md#a)"
    with pytest.raises(SystemExit, match="no page of the site"):
        build.relinked("[s](../src/fedminimax/run.py)", "docs/guide.md", "guide.md")


def test_names_of_classes_lead_to_the_reference_and_code_stays():
    text = "# `SAGDA`\n\n`SAGDA`, `fm.SAGDA` and [`SAGDA`](methods.md), `Nothing`\n\n```python\n`SAGDA`\n```\n"
    there = {"SAGDA": "place.SAGDA"}
    linked = build.referring(text, there).splitlines()
    assert linked[2] == "[`SAGDA`][place.SAGDA], [`fm.SAGDA`][place.SAGDA] and [`SAGDA`](methods.md), `Nothing`"
    assert [linked[0], *linked[3:]] == ["# `SAGDA`", "", "```python", "`SAGDA`", "```"]


def test_the_nav_names_every_page_of_the_docs():
    nav = (ROOT / "website" / "zensical.toml").read_text()
    assert tomllib.loads(build.configuration())["project"]["nav"]
    for path in (ROOT / "docs").rglob("*.md"):
        assert f'"{path.relative_to(ROOT / "docs").as_posix()}"' in nav


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("eta_{x,l}, the step", r"$\eta_{x,l}$, the step"),
        ("sigma_{r-1} / sigma_r", r"$\sigma_{r-1}$ / $\sigma_r$"),
        ("lambda_max(W) and tau_eff", r"$\lambda_{\max}$(W) and $\tau_{eff}$"),
        ("f_i at x^{r+1} and K_0", r"$f_i$ at $x^{r+1}$ and $K_0$"),
        ("lr_x, x_set, x0, batch_size", "lr_x, x_set, x0, batch_size"),
        ("``mu_x`` and `tau_i`", "``mu_x`` and `tau_i`"),
        ("    gamma: of theta", r"    gamma: of $\theta$"),
        ("beta=0.9", "beta=0.9"),
        ("metadata, sum_i w_i u_i", r"metadata, $\sum_i$ $w_i$ $u_i$"),
    ],
)
def test_symbols_of_prose_become_formulas_and_code_does_not(written, shown):
    assert formulas.symbols(written) == shown


def test_formulas_become_mathml():
    lines = formulas.mathml(r"x &= 1 \\ y &= \frac{1}{2}", block=True)
    assert lines.count("<mtr>") == 2
    assert "<mfrac>" in lines
    assert "(1)" not in lines  # no numbers of equations
    assert "<munder><mo>max</mo>" in formulas.mathml(r"\max_{y \in Y} f", block=True)
    assert "<munder><mo>argmin</mo>" in formulas.mathml(r"\arg\min_{w \in W} f", block=True)
    with pytest.raises(ValueError, match="nosuchthing"):
        formulas.mathml(r"\nosuchthing x")


def test_docstrings_become_markdown():
    text = (
        "A step:\n\n.. math:: x = \\frac1K\n          \\sum_k g\n\nof :class:`Known` and :class:`Other`, :math:`z_0`; <a, b>."
        "\n\n1. one\n   more"
    )
    shown = docstrings.markdown(text, {"Known": "package.Known"})
    assert "$$ x = \\frac1K \\sum_k g $$\n\nof [`Known`][package.Known] and `Other`, $z_0$; &lt;a, b>." in shown
    assert shown.endswith("1. one\n    more")
