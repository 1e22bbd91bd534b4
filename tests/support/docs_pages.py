"""The Markdown of the README and of the pages in docs/: their examples and tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?:<!-- not run: (?P<why>[^\n]+?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)


class Example(NamedTuple):
    """A block of a language; `why` says why it does not run, and is empty if it does."""

    language: str
    text: str
    reason: str

    @property
    def commands(self) -> list[str]:
        """The command lines of a block for the shell, each in one line."""
        return self.text.replace("\\\n", " ").splitlines()


def read(name: str) -> str:
    """The text of a file, by its name from the root of the project."""
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """The text under a heading, up to the next one; the heading with its marks, as in `## Ten lines`."""
    return text.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]


def examples(text: str) -> list[Example]:
    return [Example(match["language"], match["text"], match["why"] or "") for match in _BLOCK.finditer(text)]


def python(text: str, heading: str) -> str:
    return next(example.text for example in examples(section(text, heading)) if example.language == "python")


class Reader:
    """Pastes the Python of a page, block by block, in a folder of its own. It begins without any name.

    A text after a block is the output of the block. `/tmp/distlog` is the folder, too.
    """

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.names: dict[str, Any] = {}
        self.printed = ""  #: by the last block
        self._folder, self._capsys = folder, capsys

    def pastes(self, page: str, replaced: str = "", by: str = "") -> Reader:
        """Run all blocks of a page that run, in which one text is replaced."""
        for example in examples(read(page)):
            if example.language == "text":
                assert self.printed in ("", example.text), page
            elif example.language == "python" and not example.reason:
                text = example.text.replace(replaced, by) if replaced else example.text
                self.paste(text, page)
        return self

    def paste(self, text: str, page: str) -> str:
        """Run one block; returns what it prints."""
        self._capsys.readouterr()
        exec(compile(text.replace("/tmp/distlog", str(self._folder)), page, "exec"), self.names)
        self.printed = self._capsys.readouterr().out
        return self.printed


def table(text: str, heading: str, number: int = 0) -> list[list[str]]:
    """The rows of a table under a heading, without its head."""
    rows = re.findall(r"(?:^\|.*\n)+", section(text, heading) + "\n", re.MULTILINE)[number].splitlines()[2:]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in rows]
