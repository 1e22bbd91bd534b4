"""The command line: what it prints for people, for pipes and as JSON, and its exit status."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CommandLine

import distlog
from distlog.cli.app import app

LIBRARY = Path(distlog.__file__).parent.parent


def test_create_prints_the_new_topic(cli: CommandLine) -> None:
    assert cli.ok("create", "--partitions", "4").out == f"created {cli.url} with 4 partitions\n"
    assert distlog.open(cli.url).partitions == 4


def test_the_help_of_no_command_shows_a_python_type(cli: CommandLine) -> None:
    for command in app.registered_commands:
        name = command.name or str(command.callback.__name__).replace("_", "-")  # type: ignore[union-attr]
        shown = cli.ok(name, "--help").out
        assert "--storage NAME=VALUE" in shown or name in ("users", "warmup"), name
        # typer always shows <list[str]> for a repeatable argument
        assert not re.search(r"class '|(?<!<)list\[|int range", shown), name


def test_create_takes_settings_by_kafkas_names(cli: CommandLine) -> None:
    document = cli.ok("create", "--config", "retention.ms=1000", "--config", "cleanup.policy=compact", "--json").json
    assert document == {"url": cli.url, "version": 0, "partitions": 1}
    assert distlog.open(cli.url).config.overrides() == {"retention.ms": "1000", "cleanup.policy": "compact"}


def test_describe_shows_partitions_and_changed_settings(filled: CommandLine) -> None:
    shown = filled.ok("describe").rows
    assert shown[0] == [f"clicks version 1 at {filled.url}"]
    assert shown[1] == ["partition", "start_offset", "end_offset", "segments", "bytes"]
    assert shown[2][:4] == ["0", "0", "5", "1"]


def test_describe_as_json_has_every_setting(filled: CommandLine) -> None:
    shown = filled.ok("describe", "--json").json
    assert (shown["name"], shown["version"], shown["partitions"][0]["end_offset"]) == ("clicks", 1, 5)
    assert shown["config"]["retention.ms"] == 604_800_000


def test_segments_lists_the_live_segments(filled: CommandLine) -> None:
    titles, row = filled.ok("segments").rows
    shown = dict(zip(titles, row, strict=True))
    assert (shown["partition"], shown["base_offset"], shown["next_offset"]) == ("0", "0", "5")
    (segment,) = filled.ok("segments", "--json").json["segments"]
    assert (segment["stem"], segment["max_timestamp"]) == (shown["stem"], 5005)


def test_history_lists_the_commits_newest_first(filled: CommandLine) -> None:
    commits = filled.ok("history", "--json").json["commits"]
    assert [(commit["version"], commit["operation"]) for commit in commits] == [(1, "append"), (0, "create")]
    assert isinstance(commits[0]["timestamp"], int)
    titles, row = filled.ok("history", "--limit", "1").rows
    assert titles == ["version", "timestamp", "operation", "records_added", "segments"]
    assert (row[0], *row[2:]) == ("1", "append", "5", "+1 -0")


def test_offsets_are_start_and_end_without_a_time(filled: CommandLine) -> None:
    assert filled.ok("offsets").rows == [["partition", "start_offset", "end_offset"], ["0", "0", "5"]]


@pytest.mark.parametrize(
    ("time", "offset", "timestamp"),
    [
        ("earliest", 0, -1),
        ("latest", 5, -1),
        ("max-timestamp", 4, 5005),
        ("2003", 2, 3003),
        ("1970-01-01T00:00:03Z", 2, 3003),
        ("1970-01-01T01:00:03+01:00", 2, 3003),
        ("9999", None, None),
    ],
)
def test_offsets_finds_a_time(filled: CommandLine, time: str, offset: int | None, timestamp: int | None) -> None:
    document = filled.ok("offsets", "--time", time, "--json").json
    assert document == {"partitions": [{"partition": 0, "offset": offset, "timestamp": timestamp}]}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["create", "--config", "retention.ms"], "NAME=VALUE"),
        (["create", "--partitions", "0"], "--partitions"),
        (["read", "--since", "yesterday"], "not a time: write 2026-01-31, "),
        (["read", "--until", "1969-12-31"], "before 1970"),
        (["offsets", "--time", "newest"], "milliseconds since 1970, or earliest, latest, max-timestamp"),
        (["read", "--columns", "offset,size"], "no column size"),
        (["read", "--offset", "1", "--since", "1"], "--offset"),
        (["append", "--format", "jsonl", "--key-separator", ":"], "--key-separator"),
        (["append", "--format", "xml"], "--format"),
        (["append", "--key", "user"], "a line of text has no fields"),
        (["append", "--format", "parquet"], "use a file"),
        (["compress"], "compress"),
    ],
)
def test_a_wrong_command_line_is_status_2(filled: CommandLine, command: list[str], words: str) -> None:
    outcome = filled(*command)
    assert (outcome.status, outcome.out) == (2, "")
    assert words in outcome.err
    assert words in filled(*command, "--json").json["error"]


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["create", "L/x", "--partitions"], "distlog create --help"),
        (["--version=1"], "distlog --help"),
    ],
)
def test_a_wrong_command_line_names_the_help_of_its_command(cli: CommandLine, words: list[str], about: str) -> None:
    assert cli.bare(*words).err.endswith(f"({about})\n")


def test_storage_settings_reach_the_client_and_secrets_are_not_shown(cli: CommandLine) -> None:
    cli.url = "memory://cli/clicks"
    outcome = cli("create", "--storage", "secret=hunter2", "--storage", "nonsense=hunter3")
    assert "hunter" not in outcome.out + outcome.err


def test_a_terminal_gets_tables_without_control_characters(
    filled: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.ok("append", stdin=b"\x1b[2J[bold]x")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "dumb")
    shown = filled.ok("read", "--offset", "4", "--columns", "offset,value").out
    lines = [line.split() for line in shown.splitlines()]
    assert [lines[0], lines[1][0], lines[1][-1]] == [["offset", "value"], "4", "v4"]
    assert lines[2] == ["5", r"\x1b[2J[bold]x"]


def test_a_terminal_gets_one_table_of_the_records_of_all_partitions(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("create", "--partitions", "2")
    for partition, value in enumerate((b"a value that is long", b"short")):
        cli.ok("append", "--partition", str(partition), stdin=value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert cli.ok("read", "--columns", "partition,value,offset").out.splitlines() == [
        "partition  value                 offset",
        "0          a value that is long  0     ",
        "1          short                 0     ",
    ]


def test_verify_prints_a_line_per_row(filled: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    assert len(filled.ok("verify").out.splitlines()) == 3


def test_a_narrow_terminal_never_cuts_a_number(filled: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.ok("append", stdin=b"x\n" * 2000)
    (end,) = {row[2] for row in filled.ok("offsets").rows[1:] if row[0] == "0"}
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    shown = list[str]()
    for columns in ("80", "20"):
        monkeypatch.setenv("COLUMNS", columns)
        rows = [line.split() for line in filled.ok("describe").out.splitlines()]
        shown += [row[2] for row in rows if row[:2] == ["0", "0"]]
    assert shown == [end, f"{end[:2]}…"]


def run_python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=LIBRARY, capture_output=True, text=True, check=False
    )


def test_without_typer_one_line_says_what_to_install() -> None:
    run = run_python("import sys; sys.modules['typer'] = None; from distlog.cli import main; main()")
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (1, "", 1)
    assert "pip install 'pydistlog[cli]'" in run.stderr


#: Runs `distlog`, and then prints the imported modules.
DISTLOG = """
import atexit, sys
atexit.register(lambda: print(*sys.modules))
sys.argv[0] = "distlog"
from distlog.cli import main
main()
"""
SLOW = {"numba", "numpy", "pyarrow", "pyspark"}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_no_slow_modules(option: str) -> None:
    run = run_python(DISTLOG, option)
    assert (run.returncode, run.stderr) == (0, "")
    assert SLOW & set(run.stdout.splitlines()[-1].split()) == set()


@pytest.mark.long
def test_commands_are_completed_without_their_imports_and_options_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_DISTLOG_COMPLETE", "complete_bash")
    for typed, completed in (("distlog dele", "delete-records"), ("distlog read --ta", "--tail")):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
        *shown, modules = run_python(DISTLOG).stdout.splitlines()
        assert shown == [completed]
        assert ("pyarrow" in modules.split()) == (completed == "--tail")


@pytest.mark.long
def test_only_serve_imports_the_gateway() -> None:
    program = "import sys; sys.modules['kio'] = None; from distlog.cli import load; load(); print(*sys.modules)"
    run = run_python(program, "serve")
    assert (run.returncode, run.stderr) == (0, "")
    assert "distlog.cli.service_commands" in run.stdout.split()
    assert "distlog.gateway.gateway_server" not in run.stdout.split()
