"""docs/command-line.md cannot drift: its commands have these options, its formats are those of the commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from docs_pages import table

from distlog.cli.app import command
from distlog.cli.options import Format
from distlog.console import record_lines
from distlog.core.files.input_files import COMPRESSIONS, FORMAT_ENDINGS, FORMATS

TEXT = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"distlog ((?:append|read) /.*)$", TEXT, re.MULTILINE)


def test_the_commands_take_what_the_page_gives_them() -> None:
    assert len(COMMANDS) == 11
    for line in COMMANDS:
        name, *arguments = shlex.split(line)
        assert command(name).make_context(name, arguments).params["url"] == "/data/logs/clicks"


def test_the_endings_of_names_are_those_of_the_reader() -> None:
    rows = table(TEXT, "### Inputs")
    endings = {ending: row[1].strip("`") for row in rows[:-1] for ending in re.findall(r"`(\.\w+)`", row[0])}
    assert endings == FORMAT_ENDINGS
    named = set(re.findall(r"`(\w+)`", TEXT.partition("then its name.")[2].partition("are decompressed")[0]))
    assert named == {*COMPRESSIONS.values()}


def test_the_formats_are_those_of_the_commands() -> None:
    assert [row[0].strip("`") for row in table(TEXT, "## append")] == [kind.value for kind in Format]
    assert {*FORMATS} == {kind.value for kind in Format}
    rows = "".join(re.findall(r"^\| (`%.*?) \|", TEXT, re.MULTILINE))
    assert set(re.findall(r"`%(.)`", rows)) == {*record_lines._SHOWN, "t", "%"}
