"""The examples of the pages in docs/ run in order, and print the output on the pages."""

from __future__ import annotations

import ast
import builtins
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from docs_pages import ROOT, Reader, examples, read, section, table

from distlog.core.config import settings

DOCS = ROOT / "docs"
VARIABLES = {"AWS_ENDPOINT_URL": "endpoint_url", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}


#: Pages with commands that the runner below runs; other pages have their own tests.
NEEDS = ("tutorial.md", "python.md", "find.md", "maintenance.md")


def run(command: str, folder: Path, cli: CommandLine) -> str:
    """Return the output of a command: a single one in this process, several in a shell; a job is only parsed."""
    command = command.replace("/data/logs", f"{folder}/logs")
    if command.startswith("spark-submit "):
        job, *arguments = shlex.split(command.removeprefix("spark-submit "))
        options = import_module("distlog.jobs.__main__").JOBS[Path(job).stem].parser.parse_args(arguments)
        assert options.topic or options.root, command
        return ""
    if re.search(r"[|*>]|&&", command):
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        shell = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, timeout=300)
        assert (shell.returncode, shell.stderr) == (0, ""), command
        return shell.stdout
    status, out, err = cli.bare(*shlex.split(command.removeprefix("distlog ")))
    assert (status, err) == (0, ""), command
    return out


@pytest.mark.long
@pytest.mark.parametrize("name", NEEDS)
def test_the_examples_run(name: str, tmp_path: Path, cli: CommandLine, reader: Reader) -> None:
    pytest.importorskip("pandas")
    printed = ""
    for example in examples(PAGES[name]):
        if example.reason:
            continue
        if example.language == "python":
            printed = reader.paste(example.text.replace("/data/logs", "./logs"), name)
        elif example.language == "text":
            assert printed == example.text
        else:
            assert example.language == "sh", example.language
            printed = [run(command, tmp_path, cli) for command in example.commands][-1]


@pytest.mark.s3
def test_the_s3_example_runs_on_a_server(s3_url: Any, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, option in VARIABLES.items():
        monkeypatch.setenv(variable, s3_url.options[option])
    reader.pastes("docs/s3.md", "s3://bucket", s3_url.url)


def test_no_page_uses_a_name_that_it_does_not_define() -> None:
    texts = {**PAGES, "README.md": read("README.md")}
    assert {name: hidden for name, text in texts.items() if (hidden := hidden_names(text))} == {}


def hidden_names(page: str) -> set[str]:
    """Return the names that Python blocks use before a block defines the name."""
    defined, hidden = set(vars(builtins)), set[str]()
    for example in examples(page):
        if example.language == "python":
            names = [node for node in ast.walk(ast.parse(example.text)) if isinstance(node, ast.Name)]
            defined |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
            defined |= {
                (alias.asname or alias.name).partition(".")[0]
                for node in ast.walk(ast.parse(example.text))
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            }
            defined |= {node.arg for node in ast.walk(ast.parse(example.text)) if isinstance(node, ast.arg)}
            defined |= {node.name for node in ast.walk(ast.parse(example.text)) if isinstance(node, ast.FunctionDef)}
            hidden |= {node.id for node in names} - defined
    return hidden


def test_the_figures_of_many_writers_are_on_one_page() -> None:
    writers = json.loads(read("docs/scale.json"))["writers"]
    commits = [round(writers[count]["names in _commits"] / 30) for count in ("1", "10", "100")]
    appends = round(writers["100"]["appends a second"], -1)
    said = f"{min(commits)} to {max(commits)} commits a second on S3, which [{appends:.0f} appends of 100 writers]"
    assert said in PAGES["guarantees.md"]
    number = re.compile(r"\b\d+ commits a second\b")
    measured = {
        name: text for name, text in {**PAGES, "README.md": read("README.md")}.items() if name != "guarantees.md"
    }
    assert [name for name, text in measured.items() if number.search(text) and "gateway-operations" not in name] == []


def test_no_command_is_copied_with_a_prompt() -> None:
    pages = {**PAGES, **{name: read(name) for name in ("README.md", "CONTRIBUTING.md")}}
    assert [name for name, text in pages.items() if re.search(r"^(\$ |```console)", text, re.MULTILINE)] == []


def test_every_page_with_examples_has_a_test_that_runs_them() -> None:
    tests = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "tests" / "project").glob("*.py")
        if path != Path(__file__)
    )
    named = {name for name in PAGES if re.search(rf"[\"/]{re.escape(name)}\"", tests)}
    with_examples = {name for name, text in PAGES.items() if any(not example.reason for example in examples(text))}
    assert with_examples - set(NEEDS) - named - {"s3.md"} == set()


def test_every_skip_reason_precedes_an_example() -> None:
    for name, text in PAGES.items():
        assert text.count("<!-- not run") == sum(bool(example.reason) for example in examples(text)), name


def test_the_equivalents_of_kafkas_commands_run(tmp_path: Path, cli: CommandLine) -> None:
    rows = [row[1] for row in table(PAGES["from-kafka.md"], "## Commands")]
    commands = [command for cell in rows for command in re.findall(r"`distlog (.+?)`", cell)]
    assert len(commands) == len(rows)
    for command in commands:
        log = next(iter(sorted((tmp_path / "logs").rglob("*.log"))), None)
        # present records come at once
        arguments = command.replace("--timeout 1", "--timeout 0.1")
        arguments = arguments.replace("URL", f"{tmp_path}/logs/clicks").replace("ROOT", f"{tmp_path}/logs")
        outcome = cli.bare(*shlex.split(arguments.replace("FILE", str(log))), stdin=b"anna:/start\n")
        assert (outcome.status, outcome.err) == (0, ""), command


def test_the_equivalents_of_kafkas_settings_are_right() -> None:
    page = section(PAGES["from-kafka.md"], "## Settings")
    changed, refused = page.split("Refused,", 1)
    setting_names = {setting.name for setting in settings()}
    rows = [re.findall(r"`([a-z.]+)`", line.split("|")[1]) for line in refused.splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in row]
    assert len(names) == 9
    assert not setting_names & set(names)
    assert set(re.findall(r"^\| `([a-z.]+)`", changed, re.MULTILINE)) <= setting_names
