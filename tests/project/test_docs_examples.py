"""The examples of the pages in docs/ run, from the first to the last, and print what the pages say."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from docs_pages import ROOT, examples, read, section, table
from topics import values

import distlog
from distlog.core.config import settings

DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}


def nothing(folder: Path) -> dict[str, Any]:
    """A page that makes its own topics."""
    return {"folder": str(folder)}


def python_names(folder: Path) -> dict[str, Any]:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    return {"folder": str(folder), "pyarrow": pyarrow}


def a_worn_topic(folder: Path) -> dict[str, Any]:
    """A topic that there is something to maintain in."""
    topic = distlog.create(f"{folder}/logs/clicks", config={"retention.ms": -1})
    for number in range(20):
        topic.append(values([number]))
    return {"topic": topic}


#: What each page needs that the runner below runs as it is; other pages have tests of their own.
NEEDS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "is-it-for-me.md": nothing,
    "tutorial.md": nothing,
    "python.md": python_names,
    "maintenance.md": a_worn_topic,
}


def run(command: str, folder: Path, cli: CommandLine) -> str:
    """What a command prints: one alone in this process, several of them in a shell, a job's is only parsed."""
    command = command.replace("/data/logs", f"{folder}/logs")
    if command.startswith("spark-submit "):
        job, *arguments = shlex.split(command.removeprefix("spark-submit "))
        given = runpy.run_path(str(ROOT / job))["parser"].parse_args(arguments)
        assert given.topic or given.root, command
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
def test_the_examples_run(
    name: str,
    tmp_path: Path,
    cli: CommandLine,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"distlog": distlog, **NEEDS[name](tmp_path)}
    found, printed = examples(PAGES[name]), ""
    assert found
    for example in found:
        if example.why:
            continue
        if example.language == "python":
            capsys.readouterr()
            exec(example.text.replace("/data/logs", f"{tmp_path}/logs"), names)
            printed = capsys.readouterr().out
        elif example.language == "text":
            assert printed == example.text
        else:
            assert example.language == "sh", example.language
            printed = [run(command, tmp_path, cli) for command in example.commands][-1]


@pytest.mark.s3
def test_the_lines_of_s3_run_on_a_server(s3_url: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (one for one in examples(read("docs/s3.md")) if one.language == "python" and not one.why)
    exec(example.text, {"bucket": s3_url.url, "storage_options": s3_url.options})
    assert capsys.readouterr().out == "300\n"


def test_every_page_with_examples_has_a_test_that_runs_them() -> None:
    tests = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "tests" / "project").glob("*.py")
        if path != Path(__file__)
    )
    named = {name for name in PAGES if re.search(rf"[\"/]{re.escape(name)}\"", tests)}
    with_examples = {name for name, text in PAGES.items() if any(not one.why for one in examples(text))}
    assert with_examples - NEEDS.keys() - named - {"s3.md"} == set()


def test_every_reason_not_to_run_an_example_stands_before_one() -> None:
    for name, text in PAGES.items():
        assert text.count("<!-- not run") == sum(bool(one.why) for one in examples(text)), name


def test_the_commands_beside_those_of_kafka_run(tmp_path: Path, cli: CommandLine) -> None:
    told = [row[1] for row in table(PAGES["from-kafka.md"], "## Commands")]
    commands = [command for cell in told for command in re.findall(r"`distlog (.+?)`", cell)]
    assert len(commands) == len(told)
    for command in commands:
        log = next(iter(sorted((tmp_path / "logs").rglob("*.log"))), None)
        # what is there comes at once
        given = command.replace("--timeout 1", "--timeout 0.1")
        given = given.replace("URL", f"{tmp_path}/logs/clicks").replace("ROOT", f"{tmp_path}/logs")
        outcome = cli.bare(*shlex.split(given.replace("FILE", str(log))), stdin=b"anna:/start\n")
        assert (outcome.status, outcome.err) == (0, ""), command


def test_the_settings_beside_those_of_kafka_are_refused_or_known() -> None:
    page = section(PAGES["from-kafka.md"], "## Settings")
    changed, refused = page.split("Refused,", 1)
    known = {one.name for one in settings()}
    rows = [re.findall(r"`([a-z.]+)`", line.split("|")[1]) for line in refused.splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in row]
    assert len(names) == 9
    assert not known & set(names)
    assert set(re.findall(r"^\| `([a-z.]+)`", changed, re.MULTILINE)) <= known
