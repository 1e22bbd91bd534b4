"""When a flush is due, by messages or by time, and who gets its result."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from active_segments import FailingCalls
from partition_logs import Process, append, append_rows, encoded, new_topic
from topics import NOW, Clock

from distlog.core import paths
from distlog.core.arrays import MAX_LONG
from distlog.core.config import TopicConfig
from distlog.core.errors import StorageError
from distlog.core.log.log_segment import Unflushed, is_flush_due

NEVER = {"flush_messages": MAX_LONG}


@pytest.mark.parametrize(
    ("messages", "age_ms", "settings", "is_due"),
    [
        (0, 1 << 40, {"flush_ms": 0}, False),
        (1, 0, {}, True),
        (1, 0, {"flush_messages": 2}, False),
        (2, 0, {"flush_messages": 2}, True),
        (1, 1 << 40, NEVER, False),
        (1, 0, {**NEVER, "flush_ms": 0}, True),
        (1, 999, {**NEVER, "flush_ms": 1000}, False),
        (1, 1000, {**NEVER, "flush_ms": 1000}, True),
        (1, -999, {**NEVER, "flush_ms": 1000}, False),
        (1, -1000, {**NEVER, "flush_ms": 1000}, True),
    ],
)
def test_a_flush_is_due_by_messages_or_by_time(
    messages: int, age_ms: int, settings: dict[str, int], is_due: bool
) -> None:
    unflushed = Unflushed(messages, 100 * messages, NOW)
    assert is_flush_due(unflushed, TopicConfig(**settings), lambda: NOW + age_ms) is is_due


def test_an_append_reports_whether_it_needs_a_sync(tmp_path: Path) -> None:
    process = Process(new_topic(tmp_path / "events"))
    assert append_rows(process[0], *encoded(b"a")).flush_due
    log = Process(new_topic(tmp_path / "lax", flush_messages=3))[0]
    due = [append_rows(log, *encoded(*values)).flush_due for values in ([b"a"], [b"b"], [b"c"], [b"d", b"e"])]
    assert due == [False, False, True, True]
    log.flush()
    assert not append_rows(log, *encoded(b"f")).flush_due


def test_messages_of_other_processes_count(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", flush_messages=3)
    first, other = Process(folder), Process(folder)
    append(first[0], b"a", b"b")
    assert append_rows(other[0], *encoded(b"c")).flush_due
    first[0].flush()
    assert not append_rows(other[0], *encoded(b"d")).flush_due


def test_time_makes_a_flush_due_without_appends(tmp_path: Path) -> None:
    clock, calls = Clock(), FailingCalls()
    folder = new_topic(tmp_path / "events", flush_messages=MAX_LONG, flush_ms=1000)
    append(Process(folder, clock=clock)[0], b"a")
    flusher = Process(folder, clock=clock, calls=calls)
    clock.now_ms += 999
    assert not flusher[0].flush_if_due()
    clock.now_ms += 1
    assert flusher[0].flush_if_due()
    assert calls.calls_made == ["fsync"]
    assert flusher[0].end() == (1, 1)
    clock.now_ms += 1000
    assert not flusher[0].flush_if_due()


def test_the_interval_starts_at_the_last_sync_of_any_process(tmp_path: Path) -> None:
    clock = Clock()
    folder = new_topic(tmp_path / "events", flush_messages=MAX_LONG, flush_ms=1000)
    first, other = Process(folder, clock=clock), Process(folder, clock=clock)
    append(first[0], b"a")
    clock.now_ms += 600
    other[0].flush()
    append(first[0], b"b")
    clock.now_ms += 600
    assert not first[0].flush_if_due()
    clock.now_ms += 400
    assert append_rows(first[0], *encoded(b"c")).flush_due
    assert first[0].flush_if_due()


def test_a_policy_that_never_flushes_leaves_it_to_rolls_and_the_caller(tmp_path: Path) -> None:
    clock, calls = Clock(), FailingCalls()
    process = Process(new_topic(tmp_path / "events", flush_messages=MAX_LONG), clock=clock, calls=calls)
    for _ in range(5):
        clock.now_ms += 1 << 40
        assert not append_rows(process[0], *encoded(b"a", time=clock.now_ms)).flush_due
        assert not process[0].flush_if_due()
    assert process[0].end() == (5, 4)


def test_a_check_of_unused_partitions_creates_no_file(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", partitions=2, flush_ms=0)
    process = Process(folder)
    assert not process[0].flush_if_due()
    assert not (folder / "events-0").exists()
    append(process[1], b"a")
    process.close()
    (folder / "events-1" / paths.LOCK_FILE).write_bytes(b"")
    assert not process[1].flush_if_due()


def test_a_failed_background_sync_fails_waiting_flushes(tmp_path: Path) -> None:
    calls = FailingCalls()
    folder = new_topic(tmp_path / "events", flush_messages=MAX_LONG, flush_ms=0)
    process, flusher = Process(folder), Process(folder, calls=calls)
    appended = append_rows(process[0], *encoded(b"a"))
    calls.fail("fsync", code=errno.EIO)
    with pytest.raises(StorageError, match="cannot sync"):
        flusher[0].flush_if_due()
    with pytest.raises(StorageError, match="lost"):
        process[0].flush(appended)
    assert not flusher[0].flush_if_due()
