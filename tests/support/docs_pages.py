"""The Markdown of the README and of the pages in docs/: their examples and tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?:<!-- not run: (?P<why>[^\n]+?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)


class Example(NamedTuple):
    """A block of a language; `why` says why it does not run, and is empty if it does."""

    language: str
    text: str
    why: str

    @property
    def commands(self) -> list[str]:
        """The command lines of a block for the shell, each in one line."""
        return self.text.replace("\\\n", " ").splitlines()


def read(name: str) -> str:
    """The text of a file, by its name from the root of the project."""
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one; the heading with its marks, as in `## Ten lines`."""
    return text.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]


def examples(text: str) -> list[Example]:
    """All blocks that name a language."""
    return [Example(one["language"], one["text"], one["why"] or "") for one in _BLOCK.finditer(text)]


def python(text: str, heading: str) -> str:
    """The first Python example under a heading."""
    return next(one.text for one in examples(section(text, heading)) if one.language == "python")


def table(text: str, heading: str, number: int = 0) -> list[list[str]]:
    """The rows of a table under a heading, without its head."""
    found = re.findall(r"(?:^\|.*\n)+", section(text, heading) + "\n", re.MULTILINE)[number].splitlines()[2:]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in found]
