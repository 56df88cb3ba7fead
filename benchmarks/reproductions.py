"""The page of all items of the papers that were carried out: docs/reproductions.md, from their run folders.

    fedminimax reproduce scaff-pd/figure-2                # carries one out, into runs/
    python benchmarks/reproductions.py --collect runs     # takes in what the folders below say
    python benchmarks/reproductions.py                    # writes the page

Every number of the page is in results/reproductions.json, which is made of the folders' reproduction.json; its figures are
the folders' too, with fewer colours, in docs/reproductions.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from PIL import Image

from fedminimax.reproductions import items
from fedminimax.reproductions.expectations import BEYOND
from fedminimax.reproductions.item import SMALL
from fedminimax.reproductions.page import FIGURE, end

ROOT = Path(__file__).parent.parent
TABLE, PAGE = ROOT / "benchmarks" / "results" / "reproductions.json", ROOT / "docs" / "reproductions.md"
PICTURES = ROOT / "docs" / "reproductions"
COLOURS = 64
"""So many are enough for curves, and a picture takes a third of the space."""
EARLIER = "These runs are of an earlier version of the item, whose settings or expectations were not all as they are now."
HEAD = """# Figures and tables of the papers, run again

<!-- made by benchmarks/reproductions.py -->

`fedminimax reproduce --list` shows what there is; `fedminimax reproduce scaff-pd/figure-2` runs an item at the small scale,
into a folder with a page: the claim, our figure, the numbers, the verdict, and what differs from the paper. `--scale paper`
is the setting as printed, `--scale smoke` only tries it, `--resume` goes on.

An item is a file in `src/fedminimax/reproductions/catalogue`: an experiment as `fedminimax run` reads it, its panels, and
what should come out. Comparisons are made seed by seed; the intervals of one item are wrong together with a chance of 5% at
most (Bonferroni). *held*: all that was expected lies beyond its interval. *held in part*: some of it. *did not show*: nothing
does, either way. *contradicts*: something lies beyond it on the other side, and nothing on the right one. What is asked beyond
the paper, such as whether a plainer method would do, is told and does not count.
"""


def collect(folder: Path) -> None:
    known = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    for path in sorted(folder.rglob("reproduction.json")):
        one = json.loads(path.read_text())
        if not one["verdict"]:
            continue
        known[f"{one['item']} {one['scale']}"] = one
        picture(one).parent.mkdir(exist_ok=True)
        with Image.open(path.with_name(FIGURE)) as drawn:
            few = drawn.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
            few.save(picture(one), optimize=True)
    TABLE.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n")


def picture(one: dict[str, Any]) -> Path:
    """Return where the figure of an item is kept."""
    return PICTURES / f"{one['item'].replace('/', '-')}{'' if one['scale'] == SMALL else '-' + one['scale']}.png"


def page() -> str:
    known = list(json.loads(TABLE.read_text()).values())
    lines = [HEAD, "| item | what it shows | scale | runs | verdict |", "|---|---|---|---:|---|"]
    lines += [f"| {one['item']} | {one['title']} | {one['scale']} | {one['runs']} | {one['verdict']} |" for one in known]
    rest = sorted(set(items()) - {one["item"] for one in known})
    if rest:
        lines += ["", f"In the catalogue, and not carried out here yet: {', '.join(rest)}."]
    lines.append("")
    for one in known:
        where = "" if one["scale"] == SMALL else f", at the scale of the {one['scale']}"
        lines += [
            f"## {one['item']}{where}",
            "",
            f"{one['title']}. The claim: {one['claim']} **Verdict: {one['verdict']}.**",
            "",
        ]
        if picture(one).is_file():
            lines += [f"![{one['title']}]({picture(one).relative_to(PAGE.parent).as_posix()})", ""]
        lines += ["| expected | panel | verdict | numbers |", "|---|---|---|---|"]
        says = lambda f: f["says"] + (BEYOND if f.get("beyond") else "")
        lines += [f"| {says(f)} | {f['panel']} | {f['verdict']} | {f['sentence']} |" for f in one["findings"]]
        if one.get("version") != items()[one["item"]].digest(one["scale"]):
            lines += ["", EARLIER]
        last = one is [other for other in known if other["item"] == one["item"]][-1]
        for text in [
            *(items()[one["item"]].found if last else ()),
            *(f"Differs from the paper: {text}" for text in one["differs"]),
        ]:
            lines += ["", text]
        if numbers := one.get("numbers"):
            head, rows = end(numbers)
            lines += ["", "At the end of the runs, mean and standard deviation over seeds:", ""]
            lines += [f"| {' | '.join(head)} |", f"|{'---|' * 2}{'---:|' * (len(head) - 2)}"]
            lines += [f"| {' | '.join(row)} |" for row in rows]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", type=Path, help="a folder with items that were carried out")
    arguments = parser.parse_args()
    if arguments.collect:
        collect(arguments.collect)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
