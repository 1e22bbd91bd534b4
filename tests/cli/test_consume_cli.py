"""`distlog read --follow` and `distlog groups`: what they print, and how they end."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import CommandLine
from forked_programs import Program, command

import distlog

LIBRARY = Path(__file__).parents[2]


@contextmanager
def following(url: str, *arguments: str) -> Iterator[Program]:
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = command("read", url, "--follow", "--json", *arguments, **outputs)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def first_line(child: Program) -> str:
    assert child.stdout
    return child.stdout.readline()


def test_it_prints_present_records_and_ends_at_the_timeout(filled: CommandLine) -> None:
    lines = filled.ok("read", "--follow", "--timeout", "0", "--columns", "offset,value")
    assert lines.rows == [["offset", "value"], *([str(n), f"v{n}"] for n in range(5))]
    lines = filled.ok("read", "--timeout", "0", "--since", "1970-01-01T00:00:03Z", "--columns", "offset", "--json")
    assert lines.out.split("\n")[:-1] == ['{"offset": 2}', '{"offset": 3}', '{"offset": 4}']
    assert filled.ok("read", "--follow", "--timeout", "0", "--offset", "latest", "--json").out == ""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_records_are_printed_as_they_come_until_a_signal(number: int, status: int, filled: CommandLine) -> None:
    with following(filled.url, "--columns", "value", "--offset", "4") as child:
        assert first_line(child) == '{"value": "v4"}\n'
        with distlog.open(filled.url).writer() as writer:
            writer.append(b"late")
        assert first_line(child) == '{"value": "late"}\n'
        child.send_signal(number)
        out, err = child.communicate(timeout=300)
        assert (child.returncode, out, err) == (status, "", "")


def test_a_closed_pipe_ends_the_command_quietly(filled: CommandLine) -> None:
    with following(filled.url) as child:
        assert first_line(child).startswith("{")
        assert child.stdout
        assert child.stderr
        child.stdout.close()
        topic = distlog.open(filled.url)
        end = time.monotonic() + 300
        while child.poll() is None and time.monotonic() < end:
            topic.append([{"value": b"x" * 100}])
            time.sleep(0.05)
        assert child.returncode == 1
        assert child.stderr.read() == ""


def test_a_group_continues_after_the_printed_records(filled: CommandLine) -> None:
    read = ("read", "--group", "jobs", "--timeout", "0", "--columns", "value", "--json")
    assert filled.ok(*read, "--limit", "2").out == '{"value": "v0"}\n{"value": "v1"}\n'
    assert filled.ok(*read, "--limit", "1").out == '{"value": "v2"}\n'
    assert filled.ok(*read).out == '{"value": "v3"}\n{"value": "v4"}\n'
    assert filled.ok(*read).out == ""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_commits_the_printed_records(number: int, status: int, filled: CommandLine) -> None:
    with following(filled.url, "--group", "jobs") as child:
        for _ in range(5):
            first_line(child)
        end = time.monotonic() + 300
        while filled.ok("groups", "--json").json["groups"][0]["lag"] and time.monotonic() < end:
            time.sleep(0.05)
        child.send_signal(number)
        assert child.wait(300) == status
    # it left the group, so its lease does not delay the next member
    (row,) = filled.ok("groups", "--group", "jobs", "--json").json["groups"]
    assert (row["position"], row["lag"], row["member"]) == (5, 0, None)


def test_committed_offsets_are_copied_to_a_kafka_group_and_back(filled: CommandLine) -> None:
    pytest.importorskip("kio")
    filled.ok("groups", "--group", "jobs", "--reset", "1")
    assert (
        filled.ok("groups", "--group", "jobs", "--to-kafka", "web").out == "committed the offsets of jobs for web\n"
    )
    (row,) = filled.ok("groups", "--group", "back", "--from-kafka", "web", "--json").json["groups"]
    assert row["position"] == 1
    outcome = filled("groups", "--group", "back", "--from-kafka", "no")
    assert (outcome.status, "no committed offset" in outcome.err) == (1, True)
    outcome = filled("groups", "--group", "no", "--to-kafka", "web")
    assert (outcome.status, "consumer group not found" in outcome.err) == (1, True)


def test_offsets_committed_before_a_topic_was_recreated_are_copied(
    filled: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kio")
    distlog.open(filled.url).drop()
    distlog.create(filled.url)
    filled.ok("groups", "--group", "jobs", "--reset", "0")
    with monkeypatch.context() as patched:
        late = time.time_ns() - 600 * 10**9
        patched.setattr(time, "time_ns", lambda: late)
        filled.ok("groups", "--group", "jobs", "--to-kafka", "web")
    (row,) = filled.ok("groups", "--group", "back", "--from-kafka", "web", "--json").json["groups"]
    assert row["position"] == 0


def test_groups_are_listed_reset_and_deleted(filled: CommandLine) -> None:
    assert filled.ok("groups", "--json").json == {"groups": []}
    filled.ok("read", "--group", "jobs", "--timeout", "0", "--limit", "2")
    head, row = filled.ok("groups").rows
    assert head == ["group", "partition", "position", "log_end_offset", "lag", "member", "name"]
    assert row == ["jobs", "0", "2", "5", "3", "null", "null"]
    for where, position in (("earliest", 0), ("latest", 5), ("3", 3), ("0:1", 1), ("1970-01-01T00:00:04Z", 3)):
        (row,) = filled.ok("groups", "--group", "jobs", "--reset", where, "--json").json["groups"]
        assert row["position"] == position
    for where in ("now", "-1h"):
        (row,) = filled.ok("groups", "--group", "jobs", "--reset", where, "--json").json["groups"]
        assert row["position"] == 5
    assert filled.ok("groups", "--group", "jobs", "--delete").out == "deleted jobs\n"
    outcome = filled("groups", "--group", "jobs")
    assert (outcome.status, "consumer group not found" in outcome.err) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("read", "--follow", "--until", "2020-01-01"),
        ("read", "--offset", "latest"),
        ("read", "--offset", "soon"),
        ("read", "--follow", "--timeout", "-1"),
        ("groups", "--reset", "earliest"),
        ("groups", "--delete"),
        ("groups", "--from-kafka", "g"),
        ("groups", "--to-kafka", "g"),
        ("groups", "--group", "g", "--to-kafka", "g", "--from-kafka", "g"),
        ("groups", "--group", "g", "--delete", "--reset", "earliest"),
        ("groups", "--group", "g", "--reset", "soon"),
        ("groups", "--group", "g", "--reset", "-5"),
        ("groups", "--group", "g", "--reset", "0:-1"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments: tuple[str, ...], filled: CommandLine) -> None:
    assert filled(*arguments).status == 2
