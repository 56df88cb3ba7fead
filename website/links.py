"""What a built site refers to: whether every link and anchor leads somewhere, and that nothing is fetched from a network."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("video", "src"),
    ("audio", "src"),
    ("object", "data"),
}
_FETCHING_LINKS = {"stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "icon", "modulepreload", "manifest"}


class _Read(HTMLParser):
    """A page's anchors, what it links to, and what a browser fetches to show it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and set(given.get("rel", "").split()) & _FETCHING_LINKS:
            self.fetched.append(given.get("href", ""))
        self.fetched += [given[name] for each, name in _FETCHED if each == tag and name in given]
        self.fetched += [part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()]


def problems(site: Path) -> list[str]:
    """Return what is wrong with a built site, a sentence each: dead links, missing anchors, and what is not on the site."""
    pages = {path.resolve(): _Read(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        if name.name == "404.html":  # its links start at the root of wherever the site is served
            continue
        for target in page.fetched:
            parts = urlsplit(target)
            if parts.scheme != "data" and (parts.scheme or parts.netloc):
                found.append(f"{name} fetches {target} from a network.")
            elif parts.scheme != "data" and not (path.parent / unquote(parts.path)).exists():
                found.append(f"{name} needs {target}, which is not there.")
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            where = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if where.is_dir():
                where /= "index.html"
            if not where.exists():
                found.append(f"{name} links to {link}, which is not there.")
            elif parts.fragment and where in pages and unquote(parts.fragment) not in pages[where].anchors:
                found.append(f"{name} links to {link}, which has no such anchor.")
    for style in sorted(site.rglob("*.css")):
        text = style.read_text()
        found += [
            f"{style.name} fetches something from a network." for mark in ("url(http", "url(//", "@import") if mark in text
        ]
    return found
