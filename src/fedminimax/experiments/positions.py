"""Where the keys of a TOML file are: the line of every key, for messages that point at it.

The standard reader keeps no positions. This goes once through a text that the reader has already accepted, so that it need
not know what is wrong TOML, only where keys begin and values end.
"""

from __future__ import annotations

import re

Path = tuple[str | int, ...]
"""The keys from the top of the file to a value; the number of an entry in a list."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRINGS = ('"""', "'''", '"', "'")


def lines_of(text: str) -> dict[Path, int]:
    """Return the line, from 1, on which each key, each table and each entry of a list begins; the file itself is at 1."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str):
        self.text, self.at = text, 0
        self.found: dict[Path, int] = {(): 1}
        self.entries: dict[Path, int] = {}  # of arrays of tables: how many there are so far

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self.skip() is not None:
            if self.text[self.at] == "[":
                table = self.header()
            else:
                self.pair(table)
        return self.found

    def skip(self) -> str | None:
        """Go over spaces, lines and comments; return the character that follows."""
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif character.isspace():
                self.at += 1
            else:
                return character
        return None

    def mark(self, path: Path) -> None:
        """Note a path, and the tables above it that have no place of their own."""
        line = self.text.count("\n", 0, self.at) + 1
        for end in range(1, len(path) + 1):
            self.found.setdefault(path[:end], line)

    def header(self) -> Path:
        several = self.text.startswith("[[", self.at)
        begin = self.at
        self.at += 2 if several else 1
        path: Path = ()
        for key in self.keys("]"):
            path = (*path, key)
            if path in self.entries and not (several and self.text[self.at] == "]"):
                path = (*path, self.entries[path] - 1)  # a table in the newest entry of a list of tables
        self.at += 2 if several else 1
        end, self.at = self.at, begin
        if several:
            number = self.entries.get(path, 0)
            self.entries[path] = number + 1
            self.mark(path)
            path = (*path, number)
        self.found.pop(path, None)  # what was noted because of a table in it
        self.mark(path)
        self.at = end
        return path

    def pair(self, table: Path) -> None:
        begin = self.at
        path = (*table, *self.keys("="))
        end, self.at = self.at, begin
        self.mark(path)
        self.at = end + 1
        self.value(path)

    def keys(self, close: str) -> list[str]:
        """Return the keys of a dotted name, up to a character that is left."""
        keys = []
        while self.skip() != close:
            if self.text[self.at] == ".":
                self.at += 1
            elif self.text[self.at] in "\"'":
                keys.append(self.string())
            else:
                bare = _BARE.match(self.text, self.at)
                assert bare is not None, "a text that the reader accepted"
                self.at = bare.end()
                keys.append(bare.group())
        return keys

    def value(self, path: Path) -> None:
        opening = self.skip()
        if opening == "[":
            self.at += 1
            number = 0
            while self.skip() != "]":
                if self.text[self.at] == ",":
                    self.at += 1
                    continue
                self.mark((*path, number))
                self.value((*path, number))
                number += 1
            self.at += 1
        elif opening == "{":
            self.at += 1
            while self.skip() != "}":
                if self.text[self.at] == ",":
                    self.at += 1
                else:
                    self.pair(path)
            self.at += 1
        elif opening is not None and opening in "\"'":
            self.string()
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}\n#":
                self.at += 1

    def string(self) -> str:
        """Go over a text in quotes of any kind; return what is between them (escapes as they are)."""
        quote = next(q for q in _STRINGS if self.text.startswith(q, self.at))
        begin = self.at = self.at + len(quote)
        while not self.text.startswith(quote, self.at):
            self.at += 2 if self.text[self.at] == "\\" and quote[0] == '"' else 1
        end = self.at
        self.at += len(quote)
        while len(quote) == 3 and self.text.startswith(quote[0], self.at):  # quotes may end such a text
            self.at, end = self.at + 1, end + 1
        return self.text[begin:end]
