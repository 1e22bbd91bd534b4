"""docs/command-line.md cannot drift: its commands have its options, and its formats are right."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from docs_pages import table

from distlog.cli.app import command
from distlog.cli.options import Format
from distlog.console import output
from distlog.core.files.input_files import COMPRESSIONS, FORMAT_ENDINGS, FORMATS

TEXT = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"distlog ((?:append|read) /.*)$", TEXT, re.MULTILINE)


def test_the_commands_accept_the_options_of_the_page() -> None:
    assert len(COMMANDS) == 11
    for line in COMMANDS:
        name, *arguments = shlex.split(line)
        assert command(name).make_context(name, arguments).params["url"] == "/data/logs/clicks"


def test_the_suffixes_of_files_match_the_page() -> None:
    rows = table(TEXT, "### Inputs")
    endings = {ending: row[1].strip("`") for row in rows[:-1] for ending in re.findall(r"`(\.\w+)`", row[0])}
    assert endings == FORMAT_ENDINGS
    named = set(re.findall(r"`(\w+)`", TEXT.partition("then its name.")[2].partition("are decompressed")[0]))
    assert named == {*COMPRESSIONS.values()}


def test_the_formats_match_the_page() -> None:
    assert [row[0].strip("`") for row in table(TEXT, "## append")] == [kind.value for kind in Format]
    assert {*FORMATS} == {kind.value for kind in Format}
    rows = "".join(re.findall(r"^\| (`%.*?) \|", TEXT, re.MULTILINE))
    assert set(re.findall(r"`%(.)`", rows)) == {*output._COLUMN_OF, "t", "%"}
