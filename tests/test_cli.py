"""The command line: what it prints for people, for pipes and as JSON, and its exit status."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import distlog
from distlog.cli import line_formats, main, reading

LIBRARY = Path(distlog.__file__).parent.parent


class Outcome(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The tab-separated lines."""
        return [line.split("\t") for line in self.out.splitlines()]


class CommandLine:
    """Runs `distlog` in this process on one topic."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.url, self._monkeypatch, self._capsys = url, monkeypatch, capsys

    def __call__(self, command: str, *arguments: str, stdin: bytes = b"") -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["distlog", command, self.url, *arguments])
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capsys.readouterr()
        assert ended.value.code is None or isinstance(ended.value.code, int)
        return Outcome(ended.value.code or 0, out, err)

    def ok(self, command: str, *arguments: str, stdin: bytes = b"") -> Outcome:
        outcome = self(command, *arguments, stdin=stdin)
        assert (outcome.status, outcome.err) == (0, "")
        return outcome


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(str(tmp_path / "clicks"), monkeypatch, capsys)


@pytest.fixture
def filled(cli: CommandLine) -> CommandLine:
    """One partition with five records, v0 to v4, at 1001 to 5005 ms."""
    cli.ok("create")
    lines = [json.dumps({"key": f"k{n}", "value": f"v{n}", "timestamp": 1001 * (n + 1)}) for n in range(5)]
    cli.ok("append", "--format", "jsonl", stdin="\n".join(lines).encode())
    return cli


def test_create_says_what_it_made(cli: CommandLine) -> None:
    assert cli.ok("create", "--partitions", "4").out == f"created {cli.url} with 4 partitions\n"
    assert distlog.open(cli.url).partitions == 4


def test_create_takes_settings_by_kafkas_names(cli: CommandLine) -> None:
    made = cli.ok("create", "--config", "retention.ms=1000", "--config", "cleanup.policy=compact", "--json").json
    assert made == {"url": cli.url, "version": 0, "partitions": 1}
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
    found = filled.ok("offsets", "--time", time, "--json").json
    assert found == {"partitions": [{"partition": 0, "offset": offset, "timestamp": timestamp}]}


def test_read_prints_lines_with_titles_once(filled: CommandLine) -> None:
    shown = filled.ok("read", "--offset", "3").rows
    assert shown[0] == ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert shown[1:] == [
        ["0", "3", "1970-01-01T00:00:04.004Z", "k3", "v3", ""],
        ["0", "4", "1970-01-01T00:00:05.005Z", "k4", "v4", ""],
    ]


def test_read_as_json_is_an_object_a_line(filled: CommandLine) -> None:
    (line,) = filled.ok("read", "--partition", "0", "--offset", "4", "--limit", "1", "--json").out.splitlines()
    assert json.loads(line) == {
        "partition": 0,
        "offset": 4,
        "timestamp": 5005,
        "timestamp_type": 0,
        "key": "k4",
        "value": "v4",
        "headers": [],
    }


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ([], "01234"),
        (["--limit", "2"], "01"),
        (["--limit", "0"], ""),
        (["--offset", "3", "--limit", "9"], "34"),
        (["--offset", "5"], ""),
        (["--since", "2500"], "234"),
        (["--until", "1970-01-01T00:00:03Z"], "01"),
        (["--since", "2000", "--until", "4000"], "12"),
        (["--since", "9999"], ""),
        (["--offset", "4", "--until", "2000"], ""),
    ],
)
def test_read_keeps_within_its_bounds(filled: CommandLine, options: list[str], offsets: str) -> None:
    lines = filled.ok("read", *options, "--columns", "offset", "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [{"offset": int(offset)} for offset in offsets]


def test_a_limit_spans_partitions_and_many_small_appends(cli: CommandLine) -> None:
    cli.ok("create", "--partitions", "3")
    for partition in "012":
        for _ in range(3):
            cli.ok("append", "--partition", partition, stdin=b"a\nb\n")
    lines = cli.ok("read", "--limit", "8", "--columns", "partition,offset").rows[1:]
    assert lines == [["0", str(n)] for n in range(6)] + [["1", "0"], ["1", "1"]]
    assert cli.ok("read", "--partition", "2", "--partition", "0", "--columns", "partition").out.count("\n") == 13


class GappyTopic:
    """One partition that compaction has left these offsets of."""

    def __init__(self, offsets: set[int], end: int) -> None:
        self._offsets, self._end = sorted(offsets), end

    def check_partition(self, partition: int) -> None:
        assert partition == 0

    def start_offsets(self) -> dict[int, int]:
        return {0: 0}

    def end_offsets(self) -> dict[int, int]:
        return {0: self._end}

    def scan(
        self, partitions: list[int], start: dict[int, int], end: dict[int, int], columns: list[str]
    ) -> list[pa.RecordBatch]:
        return [pa.record_batch({"offset": [n for n in self._offsets if start[0] <= n < end[0]]})]


@example(offsets=set(range(10, 100)), start=0, limit=5)
@given(offsets=st.sets(st.integers(0, 1000)), start=st.integers(0, 1001), limit=st.none() | st.integers(0, 50))
def test_a_limit_is_reached_across_the_gaps_of_a_compaction(offsets: set[int], start: int, limit: int | None) -> None:
    topic: Any = GappyTopic(offsets, 1001)
    found = reading.batches(topic, [0], reading.Bounds(offset=start), limit, ["offset"])
    expected = sorted(offset for offset in offsets if offset >= start)[:limit]
    assert [offset for batch in found for offset in batch.column(0).to_pylist()] == expected


def test_append_takes_lines_of_text_from_standard_input(cli: CommandLine) -> None:
    cli.ok("create")
    assert cli.ok("append", stdin=b"one\ntwo\n").out == "appended 2 records, partition 0 [0, 2)\n"
    assert cli.ok("append", "-", "--json", stdin=b"three").json == {
        "version": 2,
        "records": 1,
        "offsets": {"0": [2, 3]},
    }
    assert [row[0] for row in cli.ok("read", "--columns", "value").rows[1:]] == ["one", "two", "three"]


def test_append_takes_a_file_with_keys(cli: CommandLine, tmp_path: Path) -> None:
    cli.ok("create")
    (tmp_path / "lines").write_bytes(b"a:1\nb:2\n")
    cli.ok("append", str(tmp_path / "lines"), "--key-separator", ":")
    assert cli.ok("read", "--columns", "key,value").rows[1:] == [["a", "1"], ["b", "2"]]


def test_a_key_decides_the_partition_as_in_kafka(cli: CommandLine) -> None:
    cli.ok("create", "--partitions", "4")
    cli.ok("append", "--key-separator", "=", stdin=b"\n".join(b"%d=v" % n for n in range(20)))
    first = {row[1]: row[0] for row in cli.ok("read", "--columns", "partition,key").rows[1:]}
    cli.ok("append", "--key-separator", "=", stdin=b"7=w")
    assert cli.ok("read", "--columns", "value,partition", "--partition", first["7"]).rows[-1] == ["w", first["7"]]


def test_an_append_of_nothing_commits_nothing(cli: CommandLine) -> None:
    cli.ok("create")
    assert cli.ok("append", "--json").json == {"version": None, "records": 0, "offsets": {}}
    assert distlog.open(cli.url).version == 0


def test_what_read_prints_as_json_can_be_appended(cli: CommandLine, tmp_path: Path) -> None:
    cli.ok("create")
    records = [
        {"key": b"\xff\x00", "value": "é\n".encode(), "timestamp": 7, "headers": [("h", b"\xfe"), ("n", None)]},
        {"key": None, "value": None, "timestamp": 8, "headers": []},
    ]
    distlog.open(cli.url).append(records)
    printed = cli.ok("read", "--json").out
    cli.ok("append", "--format", "jsonl", stdin=printed.encode())
    lines = [json.loads(line) for line in cli.ok("read", "--json").out.splitlines()]
    assert [{**line, "offset": 0} for line in lines[:2]] == [{**line, "offset": 0} for line in lines[2:]]
    assert lines[0]["key"] == {"base64": "/wA="}


def test_a_bad_line_appends_nothing_at_all(filled: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_formats.blocks, "__defaults__", (4,))
    outcome = filled("append", "--key-separator", ":", stdin=b"a:1\nb:2\nno\n")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == "distlog: a line has no key separator (line=3)\n"
    assert distlog.open(filled.url).end_offsets() == {0: 5}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["read", "--offset", "6"], "log_end_offset=5"),
        (["read", "--partition", "1"], "partition=1"),
        (["create"], "there is a topic"),
        (["append", "no such file"], "No such file"),
    ],
)
def test_a_failure_is_one_line_on_standard_error_and_status_1(
    filled: CommandLine, command: list[str], words: str
) -> None:
    outcome = filled(*command)
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert outcome.err.startswith("distlog: ")
    assert words in outcome.err


def test_a_missing_topic_is_a_failure(cli: CommandLine) -> None:
    for command in ("describe", "segments", "history", "offsets", "read", "append"):
        outcome = cli(command, "--json")
        assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["create", "--config", "retention.ms"], "NAME=VALUE"),
        (["create", "--partitions", "0"], "--partitions"),
        (["read", "--since", "yesterday"], "neither milliseconds since 1970 nor ISO 8601"),
        (["offsets", "--time", "newest"], "neither milliseconds since 1970 nor ISO 8601"),
        (["read", "--columns", "offset,size"], "no column size"),
        (["read", "--offset", "1", "--since", "1"], "--offset"),
        (["append", "--format", "jsonl", "--key-separator", ":"], "--key-separator"),
        (["append", "--format", "csv"], "--format"),
        (["compress"], "compress"),
    ],
)
def test_a_wrong_command_line_is_status_2(filled: CommandLine, command: list[str], words: str) -> None:
    outcome = filled(*command)
    assert (outcome.status, outcome.out) == (2, "")
    assert words in outcome.err


def test_an_unknown_setting_is_a_wrong_command_line_and_the_known_one_is_suggested(cli: CommandLine) -> None:
    outcome = cli("create", "--config", "retention.millis=5")
    assert (outcome.status, outcome.err.count("\n")) == (2, 1)
    assert "did you mean retention.ms" in outcome.err


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


def test_help_names_every_command(cli: CommandLine) -> None:
    cli.url = "--help"
    shown = cli.ok("--help").out
    for command in ("create", "describe", "segments", "history", "offsets", "append", "read"):
        assert f"\n  {command} " in shown


def run_python(program: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=LIBRARY, capture_output=True, text=True, check=False, **options
    )


def test_without_typer_one_line_says_what_to_install() -> None:
    run = run_python("import sys; sys.modules['typer'] = None; from distlog.cli import main; main()")
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (1, "", 1)
    assert "pip install 'distlog[cli]'" in run.stderr


def test_a_closed_pipe_ends_a_read_quietly(filled: CommandLine) -> None:
    filled.ok("append", stdin=b"x" * 100 + b"\n" * 100_000)
    command = f"{sys.executable} -m distlog.cli read {filled.url} | head -n 1"
    run = subprocess.run(
        ["bash", "-c", command], cwd=LIBRARY, capture_output=True, text=True, check=False, env=os.environ
    )
    assert (run.stdout.count("\n"), run.stderr) == (1, "")
