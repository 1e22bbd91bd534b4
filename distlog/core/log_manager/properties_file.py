"""Reads Java's properties files, such as Kafka's `server.properties` (the format of `java.util.Properties.load`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SPACE = " \t\f"
#: A key ends at the first space, colon or equals sign that has no backslash before it.
_KEY = re.compile(r"((?:\\.|[^\\:= \t\f])*)[ \t\f]*[:=]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """The settings in `text`; the last one of a name counts, as in Java."""
    found = {}
    for line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        if match:
            found[_unescaped(match[1])] = _unescaped(match[2])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """The lines without comments; a line that ends with an odd number of backslashes goes on in the next one."""
    begun = ""
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(_SPACE)
        if not begun and (not line or line[0] in "#!"):
            continue
        begun += line
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield begun
        begun = ""
    if begun:
        yield begun


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) == 5:
            return chr(int(escape[1:], 16))
        return _CONTROLS.get(escape, escape)

    return _ESCAPE.sub(character, text)
