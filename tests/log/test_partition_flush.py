"""Flushing: one sync for all waiting callers, and none for durable records."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from active_segments import FailingCalls
from commits import put_commit
from partition_logs import Process, append, append_rows, encoded, sealed

from distlog.core import paths
from distlog.core.commits.actions import Remove
from distlog.core.errors import StorageError
from distlog.core.log.partition_log import Appended


def test_a_flush_publishes_the_durable_end(folder: Path) -> None:
    process, other = Process(folder), Process(folder)
    append(process[0], b"a")
    append(other[0], b"b")
    assert other[0].end() == (2, 0)
    process[0].flush()
    assert other[0].end() == (2, 2)
    append(other[0], b"c")
    assert process[0].end() == (3, 2)


def test_durable_records_are_not_synced_again(folder: Path) -> None:
    calls = FailingCalls()
    process, other = Process(folder, calls=calls), Process(folder, calls=calls)
    appended = append_rows(process[0], *encoded(b"a"))
    append(other[0], b"b")
    other[0].flush()
    syncs = calls.calls_made.count("fsync")
    for log in (process[0], other[0]):
        log.flush()
        log.flush(appended)
    assert calls.calls_made.count("fsync") == syncs


def test_a_flush_syncs_records_of_other_processes(folder: Path) -> None:
    calls = FailingCalls()
    append(Process(folder)[0], b"a")
    Process(folder, calls=calls)[0].flush()
    assert calls.calls_made == ["fsync"]


def test_a_seal_syncs_records_of_other_processes(folder: Path) -> None:
    calls = FailingCalls()
    append(Process(folder)[0], b"a")
    process = Process(folder, calls=calls)
    with process.holding(0) as active:
        active.active_segment()
        active.begin_seal()
    assert calls.calls_made.count("fsync") == 3


def test_without_an_active_segment_a_flush_does_nothing(folder: Path) -> None:
    calls = FailingCalls()
    process = Process(folder, calls=calls)
    process[0].flush()
    assert calls.calls_made == []


def test_callers_during_a_sync_share_the_next_one(folder: Path) -> None:
    """One of eight threads syncs; a second sync serves the seven that came during the first."""

    class Slow(FailingCalls):
        syncs = 0

        def fsync(self, fd: int) -> None:
            self.syncs += 1
            if self.syncs == 1:
                has_started.set()
                assert go_on.wait(60)
            os.fsync(fd)

    has_started, go_on, calls = threading.Event(), threading.Event(), Slow()
    process = Process(folder, calls=calls)
    log = process[0]
    append(log, b"a")
    calls.syncs = 0
    first = threading.Thread(target=log.flush)
    first.start()
    assert has_started.wait(60)
    threads = [threading.Thread(target=log.flush, args=[append_rows(log, *encoded(b"b"))]) for _ in range(7)]
    for thread in threads:
        thread.start()
    go_on.set()
    for thread in (first, *threads):
        thread.join()
    assert calls.syncs == 2
    assert log.end() == (8, 8)


def test_a_sync_concurrent_with_a_roll_succeeds(folder: Path) -> None:
    rolling = Process(folder)

    class Raced(FailingCalls):
        is_on = False

        def fsync(self, fd: int) -> None:
            os.fsync(fd)
            if self.is_on:
                self.is_on = False
                rolling[0].roll()

    calls = Raced()
    process = Process(folder, calls=calls)
    kept_end = append_all(process, b"a")
    calls.is_on = True
    process[0].flush(kept_end)
    assert sealed(process.head()) == [(0, 1)]


def test_sealed_records_are_durable_after_their_segment_was_removed(folder: Path) -> None:
    process, other = Process(folder), Process(folder)
    appended = append_rows(other[0], *encoded(b"a"))
    append(process[0], b"b")
    process[0].roll()
    other[0].flush(appended)
    # its segment was deleted, as after a compaction
    stem = process.head().partitions[0].segments[0].stem
    put_commit(process.handle.log, process.head(), "retention", lambda _: [Remove(0, stem)])
    Process(folder)[0].flush(appended)
    other.snapshots.refresh()
    other[0].flush(appended)


def test_a_recovered_log_is_flushed_before_the_next_append(folder: Path) -> None:
    process = Process(folder)
    append(process[0], b"a")
    process[0].flush()
    process.close()
    (folder / "events-0" / paths.LOCK_FILE).unlink()
    calls = FailingCalls()
    process = Process(folder, calls=calls)
    append(process[0], b"b")
    assert process[0].end() == (2, 1)
    calls.fail("fsync", code=errno.EIO)
    with pytest.raises(StorageError, match="cannot sync"):
        process[0].flush()
    assert process.values()[0] == [b"a"]


def append_all(process: Process, *values: bytes) -> Appended:
    return append_rows(process[0], *encoded(*values))
