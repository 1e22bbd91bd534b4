"""`distlog append`: files in one commit or none, a stream in commits by time and size, and what stops them."""

from __future__ import annotations

import array
import bz2
import fcntl
import json
import os
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import CommandLine
from forked_programs import Program, command

import distlog
from distlog.cli import input
from distlog.cli.input import RecordAppender, blocks
from distlog.core.files.file_reader import InputPart, Origin

NO_SEPARATOR = "the line has no key separator: correct it, or leave out --key-separator"
SKIP = "(--bad-lines skip leaves bad lines out)"


def values(topic: distlog.Topic) -> list[bytes | None]:
    return [record.value for record in distlog.open(topic.url).records()]


def part(value: bytes) -> InputPart:
    return InputPart(pa.table({"value": [value]}), 0, 0, value, None, [Origin(0, None, 0, 0)])


def lines(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_files_are_one_commit(cli: CommandLine, topic: distlog.Topic, tmp_path: Path) -> None:
    files = [lines(tmp_path, "a", "1\n2\n"), lines(tmp_path, "b", "3")]
    assert cli.ok("append", *files).out == "appended 3 records, partition 0 [0, 3)\n"
    assert (values(topic), topic.refresh().version) == ([b"1", b"2", b"3"], 1)


def test_a_bad_line_of_a_file_is_named_and_nothing_is_appended(
    cli: CommandLine, topic: distlog.Topic, tmp_path: Path
) -> None:
    files = [lines(tmp_path, "a", "a:1\n"), lines(tmp_path, "b", "b:2\nno\n")]
    outcome = cli("append", *files, "--key-separator", ":")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == f"distlog: {NO_SEPARATOR} {SKIP} (file={files[1]} line=2 appended=0)\n"
    assert topic.refresh().version == 0


def test_a_stream_appends_the_lines_before_a_bad_line(cli: CommandLine, topic: distlog.Topic) -> None:
    outcome = cli("append", "--key-separator", ":", "--json", stdin=b"a:1\nb:2\nno\nc:3\n")
    assert (outcome.status, outcome.err) == (1, f"distlog: {NO_SEPARATOR} {SKIP} (line=3 appended=2)\n")
    assert outcome.json["type"] == "InvalidRecordError"
    assert values(topic) == [b"1", b"2"]


def test_a_refused_record_keeps_earlier_commits(cli: CommandLine) -> None:
    topic = distlog.create(cli.url, config={"max.message.bytes": 1000})
    outcome = cli("append", stdin=b"a\n" + b"x" * 2000)
    assert (outcome.status, outcome.out, "appended=0" in outcome.err) == (1, "", True)
    assert values(topic) == []


def test_bad_lines_are_left_out_and_counted(cli: CommandLine, topic: distlog.Topic) -> None:
    command = ("append", "--format", "records", "--bad-lines", "skip")
    assert cli.ok(*command, stdin=b'{"value": "a"}\n[\n').out.endswith("[0, 1); skipped 1 bad line\n")
    assert cli.ok(*command, "--json", stdin=b"[\n").json["skipped"] == 1


def test_a_quoted_field_may_have_line_ends(cli: CommandLine, topic: distlog.Topic, tmp_path: Path) -> None:
    command = ("append", "--format", "csv", "--value", "b")
    cli.ok(*command, stdin=b'a,b\n1,"x\r\n2,""y""\n\n3,"\n4,z')
    long = lines(tmp_path, "long.csv", 'a,b\n5,"' + "6,w\n" * 1000 + '"')
    cli.ok(*command, str(long))
    assert values(topic) == [b'x\r\n2,"y"\n\n3,', b"z", b"6,w\n" * 1000]


@pytest.mark.parametrize("rows", [3, 2000])
def test_a_stray_quote_loses_only_its_line(cli: CommandLine, topic: distlog.Topic, rows: int) -> None:
    command = ("append", "--format", "csv", "--value", "b")
    text = b'a,b\n0,w\n1,"x\n' + b"2,y\n" * rows + b'3,"z"'
    reason = "the quoted field does not end" if rows > 1000 else "there is text after the end of a quoted field"
    outcome = cli(*command, stdin=text)
    assert (outcome.status, outcome.out, reason in outcome.err) == (1, "", True)
    assert "(line=3 appended=1)" in outcome.err
    cli.ok(*command, "--bad-lines", "skip", stdin=text)
    assert values(topic) == [b"w", b"w", *[b"y"] * rows, b"z"]


@pytest.mark.parametrize("end", [".gz", ".bz2", ".zst", ".lz4"])
def test_compressed_files_are_decompressed(cli: CommandLine, topic: distlog.Topic, tmp_path: Path, end: str) -> None:
    path, codec = tmp_path / f"a.txt{end}", pa.Codec.detect(f"a{end}")
    with pa.output_stream(path, compression=codec.name) as file:
        file.write((b"v" * 59 + b"\n") * 100_000)
    assert cli.ok("append", str(path), "--json").json["records"] == 100_000
    assert topic.refresh().scan().head(1)["value"].to_pylist() == [b"v" * 59]
    path.write_bytes(path.read_bytes()[:-20])
    outcome = cli("append", str(path))
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.startswith("distlog: the file cannot be decompressed")
    assert f"(file={path} appended=0)" in outcome.err


def test_a_compressed_file_that_arrow_cannot_read_is_named(
    cli: CommandLine, topic: distlog.Topic, tmp_path: Path
) -> None:
    path, part = tmp_path / "a.txt.bz2", bz2.compress(b"v\n")
    path.write_bytes(part + bz2.compress(b"") + part)
    outcome = cli("append", str(path))
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.startswith("distlog: the file cannot be decompressed")
    assert f"(file={path} appended=0)" in outcome.err


def test_a_refused_record_is_named_by_its_line(cli: CommandLine, topic: distlog.Topic, tmp_path: Path) -> None:
    rows = [json.dumps({"value": "v" * 90, "partition": 9 if row == 90_000 else 0}) for row in range(90_001)]
    outcome = cli("append", str(lines(tmp_path, "a", "\n".join(rows))), "--format", "records")
    assert (outcome.status, "partition=9" in outcome.err and "line=90001" in outcome.err) == (1, True)


def test_a_record_with_a_field_twice_is_a_bad_line(cli: CommandLine, topic: distlog.Topic) -> None:
    text = b'{"value": "a", "value": "b"}\n{"value": "c", "headers": [{"key": "h", "key": "i", "value": "1"}]}'
    command = ("append", "--format", "records")
    assert "not a record: the line has the field value twice" in cli(*command, stdin=text).err
    assert cli.ok(*command, "--bad-lines", "skip", "--json", stdin=text).json["skipped"] == 2


def test_fields_and_headers_of_each_format(cli: CommandLine, topic: distlog.Topic, tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": ["p"], "body": [b"\xff"], "at": [3]}), tmp_path / "t.parquet")
    fields = ("--key", "user", "--value", "body", "--timestamp", "at", "--header", "h=1", "--header", "h=2")
    cli.ok("append", "--format", "jsonl", *fields, stdin=b'{"user": "j", "body": "v", "at": 1}')
    cli.ok("append", "--format", "csv", *fields, stdin=b"at,body,user\n2,w,c")
    cli.ok("append", str(tmp_path / "t.parquet"), "--format", "parquet", *fields)
    records = [(record.key, record.value, record.timestamp) for record in distlog.open(cli.url).records()]
    assert records == [(b"j", b"v", 1), (b"c", b"w", 2), (b"p", b"\xff", 3)]
    assert {tuple(record.headers) for record in distlog.open(cli.url).records()} == {(("h", b"1"), ("h", b"2"))}


@pytest.mark.parametrize("option", ["--key", "--value", "--timestamp"])
@pytest.mark.parametrize("is_file", [True, False])
def test_an_unknown_field_fails_and_appends_nothing(
    option: str, is_file: bool, cli: CommandLine, topic: distlog.Topic, tmp_path: Path
) -> None:
    text = '{"user": "a", "at": 5}\n{"at": 6, "n": null}\n'
    files = [lines(tmp_path, "a", text)] if is_file else []
    outcome = cli("append", *files, "--format", "jsonl", option, "usr", stdin=text.encode())
    reason = "no line has a field usr; the lines have user, at, n (appended=0)"
    assert outcome == (1, "", f"distlog: {reason}\n")
    assert topic.refresh().version == 0


def test_a_field_that_some_objects_have_is_null_in_the_others(
    cli: CommandLine, topic: distlog.Topic, tmp_path: Path
) -> None:
    files = [lines(tmp_path, "a", '{"n": 1}\n' * 30), lines(tmp_path, "b", '{"n": 2}\n{"us\\u0065r": null}\n')]
    assert cli.ok("append", *files, "--format", "jsonl", "--key", "user").out.startswith("appended 32 records")
    assert cli.ok("append", lines(tmp_path, "c", ""), "--format", "jsonl", "--key", "user").out == (
        "appended 0 records\n"
    )


def test_a_field_is_found_by_a_name_with_escapes_in_a_late_line(
    cli: CommandLine, topic: distlog.Topic, tmp_path: Path
) -> None:
    many = json.dumps({f"f{number}": number for number in range(20)})
    file = lines(tmp_path, "a", f'{many}\n{{"a\\/b": "k"}}\n')
    assert cli.ok("append", file, "--format", "jsonl", "--key", "a/b").out.startswith("appended 2 records")
    assert [record.key for record in distlog.open(cli.url).records()] == [None, b"k"]


def test_a_stream_reports_an_unknown_field_at_its_end(cli: CommandLine, topic: distlog.Topic) -> None:
    outcome = cli("append", "--format", "jsonl", "--key", "usr", "--commit-interval", "0", stdin=b'{"user": "a"}')
    reason = "no line has a field usr; the lines have user"
    assert outcome == (1, "", f"distlog: so far {reason}\ndistlog: {reason} (appended=1)\n")


def test_headers_of_the_command_follow_the_headers_of_the_record(cli: CommandLine, topic: distlog.Topic) -> None:
    line = b'{"value": "v", "headers": [{"key": "a", "value": "0"}]}'
    cli.ok("append", "--format", "records", "--header", "b=1", stdin=line)
    (record,) = distlog.open(cli.url).records()
    assert list(record.headers) == [("a", b"0"), ("b", b"1")]


def test_a_file_that_is_not_parquet_is_refused(cli: CommandLine, topic: distlog.Topic, tmp_path: Path) -> None:
    outcome = cli("append", lines(tmp_path, "a", "no"), "--format", "parquet")
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)
    assert "not a Parquet file" in outcome.err


def test_a_parquet_file_without_the_value_column_fails(
    cli: CommandLine, topic: distlog.Topic, tmp_path: Path
) -> None:
    file = str(tmp_path / "rows.parquet")
    pq.write_table(pa.table({"key": ["k"], "body": ["v"]}), file)
    for options, reason in (
        (["--format", "records"], "records need a column value: name it with --value; the file has key, body"),
        (["--value", "text"], "the file has no column text; it has key, body"),
    ):
        outcome = cli("append", file, *options)
        assert outcome == (1, "", f"distlog: {reason} (file={file} appended=0)\n")
    assert cli.ok("append", file, "--value", "body").out.startswith("appended 1 record,")
    cli.ok("append", file)
    assert values(topic) == [b"v", b'{"key": "k", "body": "v"}']


def test_a_stream_is_committed_when_it_is_due_or_large(topic: distlog.Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    with RecordAppender(topic, None, 5.0, lambda: now[0]) as stream:
        assert stream.wait() is None
        stream.append(part(b"a"))
        now[0] = 104.0
        stream.commit_if_due()
        assert (stream.wait(), stream.records) == (1.0, 0)
        now[0] = 106.0
        stream.commit_if_due()
        assert (stream.wait(), stream.records) == (None, 1)
        monkeypatch.setattr(input, "COMMIT_BYTES", 10)
        stream.append(part(b"x" * 20))
        stream.commit_if_due()
        assert stream.records == 2
        stream.append(part(b"c"))
    assert (stream.offsets, stream.version) == ({0: (0, 3)}, 3)


def test_blocks_of_a_pipe_are_the_available_lines() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as pipe, os.fdopen(write, "wb", 0) as writer:
        lines = blocks(pipe, wait=lambda: 0)
        assert next(lines) is None
        writer.write(b"a\nb\nc")
        assert next(lines) == b"a\nb"
        writer.write(b"d")
        assert next(lines) is None
        writer.close()
        assert list(lines) == [b"cd"]


@contextmanager
def appending_to(url: str, *arguments: str) -> Iterator[Program]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = command("append", url, "--commit-interval", 0, *arguments, **pipes)
    try:
        assert child.stdin
        child.stdin.write("first\n")
        child.stdin.flush()
        with distlog.open(url).consume(timeout=60) as consumer:
            assert next(consumer).num_rows == 1
        yield child
    finally:
        child.kill()
        child.communicate()


ENDINGS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.mark.parametrize(("number", "status"), ENDINGS)
def test_a_signal_keeps_and_reports_committed_lines(number: int, status: int, topic: distlog.Topic) -> None:
    with appending_to(topic.url, "--json") as child:
        child.send_signal(number)
        out, err = child.communicate(timeout=300)
        assert (child.returncode, err) == (status, "")
        report = json.loads(out)
        assert (report["records"], report["offsets"], report["interrupted"]) == (1, {"0": [0, 1]}, True)
    assert values(topic) == [b"first"]


def read_by_child(pipe: IO[str]) -> None:
    """Wait until the other process has read everything in the pipe."""
    waiting = array.array("i", [1])
    while waiting[0]:
        fcntl.ioctl(pipe.fileno(), termios.FIONREAD, waiting)
        time.sleep(0.001)


@pytest.mark.parametrize(("number", "status"), ENDINGS)
def test_a_signal_commits_pending_lines(number: int, status: int, topic: distlog.Topic) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with command("append", topic.url, "--commit-interval", 1000, **pipes) as child:
        assert child.stdin
        # a read of the next line follows the append of the previous one
        for line in ("first\n", "second\n", "third\n"):
            child.stdin.write(line)
            child.stdin.flush()
            read_by_child(child.stdin)
        child.send_signal(number)
        out, err = child.communicate(timeout=300)
    appended = values(topic)
    assert appended in ([b"first", b"second"], [b"first", b"second", b"third"])
    assert (child.returncode, err) == (status, "")
    assert out == f"interrupted: appended {len(appended)} records, partition 0 [0, {len(appended)})\n"


def test_a_signal_during_files_appends_nothing(
    cli: CommandLine, topic: distlog.Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RecordAppender.append

    def interrupted(self: RecordAppender, part: InputPart) -> None:
        signal.raise_signal(signal.SIGTERM)
        append(self, part)

    monkeypatch.setattr(RecordAppender, "append", interrupted)
    outcome = cli("append", lines(tmp_path, "a", "1\n"))
    assert (outcome.status, outcome.out) == (143, "interrupted: appended 0 records\n")
    assert values(topic) == []
