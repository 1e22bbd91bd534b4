"""Disks that fail while a segment is appended to, flushed or sealed: nothing is half there, and nothing is hidden."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from active_segments import (
    FailingCalls,
    ShortWrites,
    append,
    files,
    new_segment,
    none_open,
    offsets,
    records,
)

from distlog.core.errors import StorageError, StorageFullError
from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.record_batch import read_headers
from distlog.core.log.log_segment import LogSegment


def prepared(folder: Path, calls: FailingCalls, **settings: Any) -> LogSegment:
    segment = new_segment(folder, calls=calls, index_interval_bytes=0, **settings)
    append(segment, records(0))
    append(segment, records(1))
    return segment


@pytest.mark.parametrize("spared", [0, 1, 2])
@pytest.mark.parametrize("preallocate", [False, True])
def test_an_append_on_a_full_disk_leaves_the_files_unchanged(tmp_path: Path, spared: int, preallocate: bool) -> None:
    calls = FailingCalls()
    segment = prepared(tmp_path, calls, preallocate=preallocate, segment_bytes=1 << 20)
    state, original = segment.state, files(tmp_path)
    calls.fail("pwrite", spared=spared)
    with pytest.raises(StorageFullError, match="No space"):
        append(segment, records(2))
    assert (segment.state, files(tmp_path)) == (state, original)
    append(segment, records(2))
    assert offsets(segment) == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 7, 69, 70])
def test_a_short_write_is_continued(tmp_path: Path, count: int) -> None:
    segment = prepared(tmp_path, ShortWrites(count))
    assert files(tmp_path)[".log"] == records(0) + records(1)
    assert offsets(segment) == [0, 1]


def test_a_write_that_fails_after_a_part_is_undone(tmp_path: Path) -> None:
    calls = ShortWrites(30)
    segment = prepared(tmp_path, calls)
    original = files(tmp_path)
    calls.fail("pwrite", spared=1, code=errno.EIO)
    with pytest.raises(StorageError, match="cannot write"):
        append(segment, records(2))
    assert files(tmp_path) == original


def test_a_segment_that_cannot_be_truncated_refuses_changes_until_recovery(tmp_path: Path) -> None:
    calls = FailingCalls()
    segment = prepared(tmp_path, calls)
    original = files(tmp_path)
    calls.fail("pwrite", spared=1, code=errno.EIO)
    calls.fail("ftruncate", code=errno.EIO)
    with pytest.raises(StorageError, match="cannot write"):
        append(segment, records(2), records(3))
    assert segment.bytes_past_end() == len(records(2) + records(3))
    for change in (lambda: append(segment, records(2)), segment.flush, segment.seal):
        with pytest.raises(StorageError, match="torn write"):
            change()
    segment.recover_tail(none_open())
    assert offsets(segment) == [0, 1, 2, 3]
    assert files(tmp_path)[".log"].startswith(original[".log"])
    append(segment, records(4))


def test_an_interrupted_append_is_undone(tmp_path: Path) -> None:
    class Interrupted(FailingCalls):
        is_on = False

        def pwrite(self, fd: int, data: object, offset: int) -> int:
            written = self.__getattr__("pwrite")(fd, data, offset)
            if self.is_on:
                raise KeyboardInterrupt
            return int(written)

    calls = Interrupted()
    segment = prepared(tmp_path, calls)
    original, calls.is_on = files(tmp_path), True
    with pytest.raises(KeyboardInterrupt):
        append(segment, records(2))
    calls.is_on = False
    assert files(tmp_path) == original
    append(segment, records(2))


def test_a_failed_sync_is_not_repeated(tmp_path: Path) -> None:
    calls = FailingCalls()
    segment = prepared(tmp_path, calls)
    segment.flush()
    flushed = segment.state
    assert (flushed.flushed_offset, flushed.flushed_position) == (2, segment.size)
    append(segment, records(2))
    calls.fail("fsync", code=errno.EIO)
    with pytest.raises(StorageError, match="cannot sync"):
        segment.flush()
    syncs = calls.calls_made.count("fsync")
    for change in (segment.flush, segment.seal, lambda: append(segment, records(3))):
        with pytest.raises(StorageError, match="a sync failed"):
            change()
    assert calls.calls_made.count("fsync") == syncs
    assert segment.state.flushed_offset == 2
    segment.drop_unflushed(none_open())
    assert segment.seal().next_offset == 2


def test_a_flush_syncs_the_log_first_and_its_folder_once_there_is_a_transaction_index(tmp_path: Path) -> None:
    synced: list[str] = []

    def noted(file: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).suffix)

    calls, aborted = FailingCalls(), AbortedTransaction(7, 0, 1, 2)
    calls.fsync = noted  # type: ignore[attr-defined]
    segment = prepared(tmp_path, calls)
    segment.flush()
    assert synced == [".log", ".index", ".timeindex"]
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
        segment.append(records(2), read_headers(records(2)), aborted=[aborted])
        for expected in ([str(tmp_path)], []):
            del synced[:]
            segment.flush()
            assert synced == [".log", ".index", ".timeindex", ".txnindex", *expected]


def test_a_flush_covers_no_append_during_its_sync(tmp_path: Path) -> None:
    class Appending(FailingCalls):
        is_on = False

        def fsync(self, file: int) -> None:
            if self.is_on:
                self.is_on = False
                append(segment, records(2))

    calls = Appending()
    segment = prepared(tmp_path, calls)
    position, calls.is_on = segment.size, True
    segment.flush()
    assert segment.next_offset == 3
    assert (segment.state.flushed_offset, segment.state.flushed_position) == (2, position)


def test_a_sealed_segment_can_be_read_and_nothing_else(tmp_path: Path) -> None:
    segment = prepared(tmp_path, FailingCalls())
    segment.seal()
    assert offsets(segment) == [0, 1]
    for change in (lambda: append(segment, records(2)), segment.seal, segment.flush):
        with pytest.raises(StorageError, match="sealed"):
            change()


def test_preallocation_on_a_full_disk_leaves_no_log(tmp_path: Path) -> None:
    calls = FailingCalls()
    calls.fail("posix_fallocate")
    with pytest.raises(StorageFullError):
        new_segment(tmp_path, calls=calls, preallocate=True)
    assert files(tmp_path) == {}


def test_a_truncated_log_is_detected_and_cannot_be_extended(tmp_path: Path) -> None:
    segment = prepared(tmp_path, FailingCalls())
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(records(0) + records(1)[:-5])
    assert segment.bytes_past_end() == -5
    with pytest.raises(StorageError, match="shorter than its recorded end"):
        segment.seal()
    segment.recover(none_open())
    assert path.read_bytes() == records(0)
    assert offsets(segment) == [0]
