"""The README cannot drift: its examples run, its links lead somewhere, its figures are those of the documentation.

Its lines of Spark are compared in test_docs_spark.py.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from command_line import CommandLine
from docs_pages import ROOT, Reader, examples, python, read, table

README = read("README.md")
#: What people read from the root of the project, with links into docs/.
ROOT_FILES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_five_lines_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = examples(read(page))[0].text
    exec(text.replace("memory://logs", f"memory://{page}"), {})
    assert len(text.strip().splitlines()) == 6
    printed, ends = capsys.readouterr().out.split(" ", 1)
    assert (printed, sum(eval(ends).values())) == ("2", 2)


def test_the_ten_lines_run(reader: Reader) -> None:
    names = reader.names
    printed = reader.paste(python(README, "## Ten lines"), "README.md")
    assert names["result"].record_count == 1000
    assert names["table"].num_rows == 501
    assert printed.startswith("1 {")
    assert {row["lag"] for row in names["topic"].groups().to_pylist()} == {0}


def test_these_are_all_examples_in_python() -> None:
    assert [one.language for one in examples(README)] == [*("python", "sh", "python", "python", "text", "sh")]


@pytest.mark.long
def test_the_commands_run(tmp_path: Path, cli: CommandLine) -> None:
    """Those that need a shell in one, the others in this process."""
    (commands,) = (one.commands for one in examples(README) if "distlog create" in one.text)
    assert len(commands) == 7
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in commands:
        command = line.replace("/data/logs", shlex.quote(str(tmp_path)))
        if "|" in command or "*" in command:
            run = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, timeout=300)
            status, err = run.returncode, run.stderr
        else:
            status, _, err = cli.bare(*shlex.split(command.removeprefix("distlog ")))
        assert status == 0, (line, err)


def test_the_extras_are_those_of_the_package() -> None:
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    cells = "".join(row[0] for row in table(read("docs/index.md"), "## Install"))
    assert sorted(re.findall("`([a-z0-9]+)`", cells)) == sorted(extras)


def test_the_three_commands_are_those_of_make() -> None:
    commands = [command.split()[1] for command in examples(README)[1].commands]
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    assert set(commands) == {"demo", "test"} <= targets
    assert set(re.findall(r"(?:`|^)make ([\w-]+)", README + read("CONTRIBUTING.md"), re.MULTILINE)) <= targets


def headings(text: str) -> set[str]:
    """The anchors of the headings of a page."""
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", one).strip().lower()) for one in found}


@pytest.mark.parametrize("name", ROOT_FILES)
def test_links_lead_to_files_and_headings(name: str) -> None:
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", read(name))
    assert links
    for file, anchor in links:
        if file.startswith("https:"):
            continue
        assert (ROOT / file).is_file(), file
        assert not anchor or anchor in headings(read(file or name)), (file, anchor)


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")))
def test_links_of_a_page_lead_to_files_also_where_the_site_is_not_built(page: str) -> None:
    """As on the page of a host; the reference alone is made with the site."""
    text = re.sub(r"^```.*?^```", "", read(page), flags=re.DOTALL | re.MULTILINE)
    for file in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        target = (ROOT / page).parent / file
        is_made = "reference" in target.parts
        assert file.startswith(("https:", "mailto:")) or is_made or target.exists(), file


def test_the_measured_rows_are_those_of_the_documentation() -> None:
    page = {row[0]: row[1] + row[2] for row in table(read("docs/benchmarks.md"), "## All figures")}
    number = re.compile(r"[\d.,]*\d")
    for what, figure, beside in table(README, "## Measured"):
        assert set(number.findall(figure + beside)) <= set(number.findall(page[what])), what


def test_it_is_short_enough_to_be_read() -> None:
    assert README.count("\n") < 180
