"""Build the documentation site, strictly: a warning, a dead link, or anything fetched from a network is an error.

    python website/build.py --out build/site

Its pages are those in docs/, CONTRIBUTING.md, CHANGELOG.md, benchmarks/README.md, the examples, and the API reference, which
is made from docstrings. They link to each other as they do in the repository; here the links are turned into the site's.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

ELSEWHERE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/": "benchmarks.md",
    "README.md": "index.md",
}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]*)(#[^)\s]*)?(?=\))")


def page_of(path: str) -> str | None:
    """Return the site's page for a file of the repository; None: it has none."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.startswith("examples/"):
        return f"examples.md#{Path(path).stem}"
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def relinked(text: str, source: str, page: str) -> str:
    """Return Markdown whose links between files of the repository are links between pages of the site.

    Args:
        text: the Markdown.
        source: the file that it is from.
        page: the page that it becomes.
    """

    def replace(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        found = page_of(target + "/" if match[1].endswith("/") else target)
        if found is None:
            raise SystemExit(
                f"{source} links to {match[1]}, which is no page of the site: link to one, or give the path as code."
            )
        return posixpath.relpath(found, posixpath.dirname(page) or ".") + (match[2] or "")

    return _LINK.sub(replace, text)


def referring(text: str, links: dict[str, str]) -> str:
    """Return Markdown in which `Name` of a public class leads to its place in the reference, but for code and headings."""

    def line(written: str) -> str:
        if written.startswith(("#", "    ")):
            return written
        return re.sub(
            r"(?<![\[\w`])`(?:fm\.)?([A-Z]\w+)`(?!\])", lambda m: f"[{m[0]}][{links[m[1]]}]" if m[1] in links else m[0], written
        )

    parts = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if i % 2 else "\n".join(line(each) for each in part.split("\n")) for i, part in enumerate(parts))


def examples() -> str:
    """Return the page of the examples: what each does, and its code."""
    lines = [
        "# Examples",
        "",
        "Scripts that stand alone, in `examples/`. Most reproduce a figure or a table of a paper; all take `--help`.",
        "",
    ]
    for script in sorted((ROOT / "examples").glob("*.py")):
        text = script.read_text()
        doc = ast.get_docstring(ast.parse(text)) or ""
        code = text[text.index('"""', 3) + 3 :].strip()
        lines += [
            f"## {script.stem} {{ #{script.stem} }}",
            "",
            doc,
            "",
            f'??? note "examples/{script.name}"',
            "",
            "    ```python",
        ]
        lines += [f"    {line}".rstrip() for line in code.splitlines()] + ["    ```", ""]
    return "\n".join(lines)


def assemble(folder: Path) -> None:
    """Put all pages, and the configuration, into a folder."""
    import reference
    from docstrings import markdown

    pages = folder / "pages"
    shutil.copytree(ROOT / "docs", pages)
    shutil.copy(HERE / "style.css", pages)
    links = reference.identifiers()
    for path in sorted(pages.rglob("*.md")):
        page = path.relative_to(pages).as_posix()
        path.write_text(referring(relinked(path.read_text(), f"docs/{page}", page), links))
    for source, page in list(ELSEWHERE.items())[:3]:
        (pages / page).write_text(relinked((ROOT / source).read_text(), source, page))
    (pages / "examples.md").write_text(examples())
    (pages / "reference" / "methods").mkdir(parents=True)
    convert = functools.partial(markdown, links=links)
    (pages / "reference" / "index.md").write_text(reference.contents(convert))
    for each in reference.pages():
        (pages / each.path).write_text(reference.written(each, convert))
    (folder / "zensical.toml").write_text(configuration())


def configuration() -> str:
    """Return zensical.toml with the reference's pages in the nav."""
    import reference

    entry = lambda page: f'{{ "{page.title}" = "{page.path}" }}'
    methods = [entry(page) for page in reference.pages() if "/methods/" in page.path]
    others = [entry(page) for page in reference.pages() if "/methods/" not in page.path]
    nav = ", ".join(['{ "All names" = "reference/index.md" }', f'{{ "Methods" = [{", ".join(methods)}] }}', *others])
    text = (HERE / "zensical.toml").read_text().replace('{ "API reference" = [] }', f'{{ "API reference" = [{nav}] }}')
    return text.replace("SOURCE", str(ROOT / "src")).replace("WEBSITE", str(HERE))


def render(folder: Path) -> None:
    """Assemble and render in this process, for :func:`build` to listen to."""
    from zensical.main import cli

    assemble(folder)
    os.chdir(folder)
    cli(["build", "--strict", "--clean"])


def build(out: Path) -> None:
    """Build the site into a folder; whatever is wrong with it ends the program."""
    import links

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = os.pathsep.join([str(HERE), str(ROOT / "src")])
        command = [sys.executable, __file__, "--render", temporary]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        said = [line for line in re.sub(r"\x1b\[[\d;]*m", "", done.stderr).splitlines() if line.strip()]
        if done.returncode or said != [
            "No issues found"
        ]:  # what docstrings lack is said there too, and is no issue to Zensical
            raise SystemExit("\n".join([*said, "The documentation did not build without a warning."]))
        if wrong := links.problems(folder / "site"):
            raise SystemExit("\n".join(wrong))
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(folder / "site", out)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--render", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.render:
        render(options.render)
    else:
        build(options.out)
        print(f"The site: {options.out / 'index.html'}")


if __name__ == "__main__":
    main()
