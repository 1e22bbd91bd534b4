"""Transactions of one partition: markers, index, first unstable offset, recovery. Comments name Kafka's tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from active_segments import FailingCalls
from partition_logs import Process, append, append_rows, commit_sealed
from topics import NOW
from transacting import Sender, committed, values_seen

from distlog.core.commits.segment_table import NO_OFFSET
from distlog.core.errors import InvalidRecordError
from distlog.core.format.indexes import decode_transactions
from distlog.core.format.record_batch import CONTROL, TRANSACTIONAL, read_headers
from distlog.core.kafka.transactions import marker
from distlog.core.log.live_snapshot import tail
from distlog.core.log.partition_log import LostRecordsError
from distlog.core.segments.producer_states import aborted_transactions, last_stable_offset

Damage = Callable[[Process], object]


def index(process: Process, partition: int = 0) -> list[tuple[int, int, int]]:
    """Return (first offset, last offset, last stable offset) of aborted transactions in the active index."""
    active = process.head().partitions[partition].active
    assert active
    path = process.folder(partition) / f"{active.stem}.txnindex"
    transactions = decode_transactions(path.read_bytes() if path.exists() else b"", path.name, 0)
    return [(entry.first_offset, entry.last_offset, entry.last_stable_offset) for entry in transactions]


def unstable(process: Process, partition: int = 0) -> int:
    log_tail = tail(process.handle, process.head(), partition)
    assert log_tail
    return log_tail.first_unstable_offset


def stable_end(process: Process) -> int:
    return last_stable_offset(process.handle.reader, process.topic().live_snapshot.partitions[0])


@pytest.mark.parametrize("kind", [0, 1])
def test_a_marker_is_one_control_record_of_78_bytes(kind: int) -> None:
    data = bytes(marker(0x1122334455667788, 9, NOW, is_committed=bool(kind)).data)
    (row,) = read_headers(data)
    assert len(data) == 78
    assert (row["attributes"], row["producer_id"], row["producer_epoch"]) == (
        CONTROL | TRANSACTIONAL,
        0x1122334455667788,
        9,
    )
    assert (row["base_sequence"], row["record_count"], row["max_timestamp"]) == (-1, 1, NOW)
    assert data[61:] == bytes.fromhex("20000000080000" + f"{kind:04x}" + "0c000000000000" + "00")


def test_the_first_unstable_offset_is_from_the_oldest_open_transaction(folder: Path) -> None:
    # testFirstUnstableOffsetNoTransactionalData, ..WithTransactionalData, testLastStableOffsetWithMixedProducerData
    process = Process(folder)
    append(process[0], b"a")
    assert unstable(process) == NO_OFFSET
    first = Sender(Process(folder), "payments").begin().send(0, b"b", b"c")
    second = Sender(Process(folder), "refunds").begin().send(0, b"d")
    append(process[0], b"e")
    first.send(0, b"f")
    assert (unstable(process), stable_end(process)) == (1, 1)
    first.commit()
    assert (unstable(process), stable_end(process)) == (3, 3)
    second.abort()
    assert (unstable(process), stable_end(process)) == (NO_OFFSET, 8)
    assert committed(folder)[0] == [b"a", b"b", b"c", b"e", b"f"]


def test_aborted_transactions_are_in_the_index_with_the_stable_offset(folder: Path) -> None:
    # testTransactionIndexUpdated, testLastStableOffsetCompletedTxn
    process = Process(folder)
    first = Sender(Process(folder), "payments").begin().send(0, b"0", b"1")
    second = Sender(Process(folder), "refunds").begin().send(0, b"2")
    third = Sender(Process(folder), "audits").begin().send(0, b"3")
    first.abort()
    assert index(process) == [(0, 4, 2)]
    third.commit()
    second.abort()
    assert index(process) == [(0, 4, 2), (2, 6, 7)]
    assert Process(folder).anomalies() == ()


def test_the_index_of_a_sealed_segment_has_its_markers(folder: Path) -> None:
    # testAbortedTransactionSpanningMultipleSegments
    process = Process(folder)
    sender = Sender(Process(folder)).begin().send(0, b"0")
    process[0].roll()
    sender.send(0, b"1")
    commit_sealed(process)
    sender.abort()
    process[0].roll()
    segments = process.head().partitions[0].segments
    assert [(segment.txn_index_bytes, segment.first_unstable_offset) for segment in segments] == [
        (0, 0),
        (0, 0),
        (34, -1),
    ]
    assert committed(folder)[0] == []
    assert Process(folder).anomalies() == ()


def test_transactional_batches_need_a_check_of_the_commit_log(folder: Path) -> None:
    process = Process(folder)
    run = marker(5, 0, NOW, is_committed=False)
    with pytest.raises(InvalidRecordError, match="outside of transactions"):
        append_rows(process[0], run.data, run.rows)
    assert process[0].end() == (0, 0)


def lose_page(process: Process) -> None:
    os.unlink(process.folder(0) / ".lock")


def lose_page_and_snapshots(process: Process) -> None:
    lose_page(process)
    for path in process.folder(0).glob("*.snapshot"):
        os.unlink(path)


def lose_page_and_indexes(process: Process) -> None:
    lose_page(process)
    active = process.head().partitions[0].active
    assert active
    for path in process.folder(0).glob(f"{active.stem}.*index"):
        os.truncate(path, 0)


@pytest.mark.parametrize("damage", [lose_page, lose_page_and_snapshots, lose_page_and_indexes])
@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("is_rolled", [False, True])
def test_a_walk_has_open_transactions_from_before_and_inside_it(
    damage: Damage, is_rolled: bool, is_committed: bool, folder: Path
) -> None:
    process = Process(folder)
    first = Sender(Process(folder), "payments").begin().send(0, b"a")
    second = Sender(Process(folder), "refunds").begin().send(0, b"b")
    if is_rolled:
        process[0].roll()
    append(process[0], b"c")
    damage(process)
    assert committed(folder)[0] == []
    assert unstable(Process(folder)) == 0
    append(Process(folder)[0], b"d")
    assert unstable(Process(folder)) == 0
    first.commit() if is_committed else first.abort()
    damage(process)
    assert committed(folder)[0] == [b"a"] * is_committed
    append(Process(folder)[0], b"e")
    assert unstable(Process(folder)) == 1
    assert len(index(process)) == 1 - is_committed
    second.commit()
    assert committed(folder)[0] == [*([b"a"] * is_committed), b"b", b"c", b"d", b"e"]
    assert Process(folder).anomalies() == ()


def test_a_walk_hides_aborted_records_that_the_index_lacks(folder: Path) -> None:
    """A writer was killed between the write of the marker and the write of the index, and the page was lost."""
    process = Process(folder)
    sender = Sender(Process(folder)).begin().send(0, b"a")
    sender.abort()
    append(process[0], b"b")
    (path,) = process.folder(0).glob("*.txnindex")
    os.truncate(path, 0)
    lose_page(process)
    assert committed(folder)[0] == [b"b"]


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_marker_lost_in_a_failed_sync_is_appended_again(folder: Path, is_committed: bool) -> None:
    process, calls = Process(folder), FailingCalls()
    sender = Sender(Process(folder, calls=calls)).begin().send(0, b"a")
    sender.process[0].flush()
    end = sender.commit if is_committed else sender.abort
    calls.fail("fsync", code=5)
    with pytest.raises(LostRecordsError):
        end()
    topic = process.topic()
    # the sync loses the marker and its index entry
    state = topic.live_snapshot.partitions[0]
    assert (aborted_transactions(topic.reader, state, 0), last_stable_offset(topic.reader, state)) == ([], 0)
    append(process[0], b"b")
    assert values_seen(process.topic()) == {0: []}
    end()
    assert committed(folder)[0] == ([b"a", b"b"] if is_committed else [b"b"])
    topic = Process(folder).topic()
    aborted = aborted_transactions(topic.reader, topic.live_snapshot.partitions[0], 0)
    assert [(entry.first_offset, entry.last_offset) for entry in aborted] == [(0, 2)] * (not is_committed)
    assert Process(folder).anomalies() == ()


def test_a_transaction_cut_by_retention_can_end(folder: Path) -> None:
    process = Process(folder)
    sender = Sender(Process(folder)).begin().send(0, b"a")
    process[0].roll()
    append(process[0], b"b")
    topic = process.topic()
    topic.delete_records({0: 1})
    topic.retention()
    for path in process.folder(0).glob("*.snapshot"):
        shutil.copy(path, path.with_suffix(".copy"))
    sender.send(0, b"c").abort()
    append(process[0], b"d")
    assert committed(folder)[0] == [b"b", b"d"]
    assert Process(folder).anomalies() == ()
