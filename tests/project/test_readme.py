"""The README cannot drift: its examples run, its links are valid, and its figures are from the documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from docs_pages import ROOT, Reader, examples, read, table

README = read("README.md")
#: Pages that people read from the root of the project, with links into docs/.
ROOT_FILES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_example_prints_its_output(page: str, reader: Reader) -> None:
    example, output = examples(read(page))[:2]
    assert reader.paste(example.text.replace("memory://logs", f"memory://{page}"), page) == output.text


def test_all_examples_run() -> None:
    languages = [example.language for example in examples(README)]
    assert languages == ["python", "text", "python", "text", "sh", "text", "sh"]


@pytest.mark.long
def test_the_commands_print_their_output(tmp_path: Path) -> None:
    _, _, _, _, commands, output, _ = examples(README)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shell = subprocess.run(
        ["bash", "-e", "-c", commands.text],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert (shell.returncode, shell.stdout.endswith(f"\n{output.text}")) == (0, True), shell.stderr


def test_the_extras_are_those_of_the_package() -> None:
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    cells = "".join(row[0] for row in table(read("docs/index.md"), "## Install"))
    assert sorted(re.findall("`([a-z0-9]+)`", cells)) == sorted(extras)


def test_the_two_commands_are_from_the_makefile() -> None:
    commands = [command.split()[1] for command in examples(README)[-1].commands]
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    assert commands == ["demo", "test"]
    assert {*commands} <= targets
    assert set(re.findall(r"(?:`|^)make ([\w-]+)", README + read("CONTRIBUTING.md"), re.MULTILINE)) <= targets


def headings(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


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
    """As on a code host; only the reference is built with the site."""
    text = re.sub(r"^```.*?^```", "", read(page), flags=re.DOTALL | re.MULTILINE)
    for file in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        target = (ROOT / page).parent / file
        is_made = "reference" in target.parts
        assert file.startswith(("https:", "mailto:")) or is_made or target.exists(), file


def test_the_measured_figure_is_from_the_documentation() -> None:
    rows = {row[0]: row[1] for row in table(read("docs/benchmarks.md"), "## All figures")}
    (millions,) = re.findall(r"one core decodes (\d+) million records a second", README)
    assert rows["decode to Arrow, one core"] == f"{millions} M records/s"


def test_it_is_short() -> None:
    assert len(README.split()) <= 700
