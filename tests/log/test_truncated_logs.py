"""Producers and transactions of a log that was truncated or could not be written. Comments name Kafka's tests."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from active_segments import FailingCalls
from partition_logs import Process, append, send
from raw_batches import batch, record
from topics import NOW
from transacting import Sender, committed

from distlog.core.commits.segment_table import NO_OFFSET
from distlog.core.errors import OutOfOrderSequenceError, StorageFullError
from distlog.core.format.record_batch import TRANSACTIONAL, read_headers
from distlog.core.log.live_snapshot import tail
from distlog.core.log.partition_log import BatchRun, LostRecordsError


def in_transaction() -> BatchRun:
    data = batch([record()], attributes=TRANSACTIONAL, base_timestamp=NOW, max_timestamp=NOW, producer=(7, 0, 0))
    rows, none = read_headers(data), np.empty(0, np.int64)
    return BatchRun(np.frombuffer(data, np.uint8).copy(), rows, none, none, in_transaction=True)


def unstable(folder: Path) -> int:
    process = Process(folder)
    append(process[0], b"next")
    log_tail = tail(process.handle, process.head(), 0)
    assert log_tail is not None
    return log_tail.first_unstable_offset


def test_a_transaction_with_truncated_first_records_is_not_open(folder: Path) -> None:
    # testTruncateBelowFirstUnstableOffset, testTruncateFullyAndStartBelowFirstUnstableOffset
    calls = FailingCalls()
    process = Process(folder, calls=calls)
    append(process[0], b"kept")
    process[0].flush()
    (appended,) = process[0].append_runs([in_transaction()])
    log_tail = tail(process.handle, process.head(), 0)
    assert log_tail is not None
    assert log_tail.first_unstable_offset == 1
    calls.fail("fsync", code=errno.EIO)
    with pytest.raises(LostRecordsError):
        process[0].flush(appended)
    assert unstable(folder) == NO_OFFSET
    assert committed(folder)[0] == [b"kept", b"next"]
    assert Process(folder).anomalies() == ()


def test_a_marker_without_space_for_its_index_entry_is_retried(folder: Path) -> None:
    # testAppendToTransactionIndexFailure: Kafka has the marker then, and no entry until it recovers
    calls = FailingCalls()
    sender = Sender(Process(folder, calls=calls)).begin().send(0, b"no")
    end = sender.process[0].end().end_offset
    calls.fail("pwrite", spared=1)
    with pytest.raises(StorageFullError):
        sender.abort()
    assert Process(folder)[0].end().end_offset == end
    assert committed(folder)[0] == []
    append(Process(folder)[0], b"yes")
    sender.abort()
    assert committed(folder)[0] == [b"yes"]
    assert Process(folder).anomalies() == ()


def test_a_log_start_inside_a_segment_forgets_no_producer(folder: Path) -> None:
    # testLoadProducersAfterDeleteRecordsMidSegment
    process = Process(folder)
    send(process[0], 0, producer=1)
    send(process[0], 0, producer=2)
    process.topic().delete_records({0: 1})
    process.topic().retention()
    process.topic().vacuum()
    for producer, offset in ((1, 0), (2, 1)):
        assert send(Process(folder)[0], 0, producer=producer) == (offset, offset + 1)
        with pytest.raises(OutOfOrderSequenceError):
            send(Process(folder)[0], 3, producer=producer)
    assert send(Process(folder)[0], 1, producer=1) == (2, 3)


def test_a_failed_snapshot_is_replaced_by_reading_the_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # testRecoveryPointNotIncrementedOnProducerStateSnapshotFlushFailure, testRecoverLastSegmentWithNoSnapshots
    real = os.pwrite

    def pwrite(file: int, data: Any, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{file}").endswith(".snapshot"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, data, offset)

    process = Process(folder)
    send(process[0], 0, 3)
    with monkeypatch.context() as patches:
        patches.setattr(os, "pwrite", pwrite)
        process[0].roll()
        assert send(process[0], 3, 2) == (3, 5)
    for reader in (process, Process(folder)):
        assert send(reader[0], 3, 2) == (3, 5)
        with pytest.raises(OutOfOrderSequenceError):
            send(reader[0], 9)
    assert send(Process(folder)[0], 5) == (5, 6)
