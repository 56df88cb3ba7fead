"""The pages that show code with what it prints: it runs as it stands, and prints that."""

import contextlib
import io
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import fedminimax as fm

DOCS = Path(__file__).parent.parent / "docs"
READ = ["index.md", "forms.md", "tables.md", "models.md", "estimators.md", "privacy.md", "many_machines.md"]
PAGES = [*READ, *(f"tutorials/{path.name}" for path in sorted((DOCS / "tutorials").glob("*.md")))]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def said_as_shown(said: str, shown: str) -> None:
    """Compare what was printed with what a page shows: the words exactly, the numbers nearly (seeds, not machines, decide)."""
    words = [" ".join(NUMBER.sub("#", text).split()) for text in (said, shown)]
    assert words[0] == words[1], f"The page shows\n{shown}\nand its code prints\n{said}"
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (said, shown)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.1, abs=0.05)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_prints_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("Agg")
    known, names = dict(fm.algorithms.ALGORITHMS), {"__name__": "shown"}
    blocks = re.findall(r"^```(python|text)\n(.*?)^```", (DOCS / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    assert sum(kind == "python" for kind, _ in blocks) >= 2 or page == "index.md"
    said = io.StringIO()
    try:
        for kind, block in blocks:
            if kind == "text":
                said_as_shown(said.getvalue(), block)
                said = io.StringIO()
                continue
            assert not said.getvalue(), f"The page does not show what its code prints:\n{said.getvalue()}"
            with contextlib.redirect_stdout(said):
                exec(block, names)
    finally:
        for name in set(fm.algorithms.ALGORITHMS) - set(known):
            del fm.algorithms.ALGORITHMS[name]
    assert not said.getvalue()


def test_a_page_that_shows_something_else_is_noticed():
    said_as_shown("round 3: 0.5123\n", "round 3: 0.51")
    with pytest.raises(AssertionError, match="The page shows"):
        said_as_shown("value 0.51", "values 0.51")
    with pytest.raises(AssertionError):
        said_as_shown("value 0.51", "value 0.62")
