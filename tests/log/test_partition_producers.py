"""Idempotent direct appends: a duplicate batch is not appended again by any process."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from active_segments import FailingCalls
from adopted import adopt_golden
from golden import partitions
from partition_logs import PID, Process, append, append_rows, commit_sealed, new_topic, produced, send
from topics import NOW, Clock

from distlog.core.config import DAY_MS
from distlog.core.errors import OutOfOrderSequenceError, ProducerFencedError
from distlog.core.format.record_batch import read_headers
from distlog.core.log.partition_log import LostRecordsError, PartitionLog
from distlog.core.segments.producer_states import read_producer_snapshot, write_producer_snapshot


def snapshots(process: Process) -> dict[str, list[Any]]:
    """Return (producer id, epoch, last sequence, last offset) of each entry, by the stem of the snapshot."""
    entries_by_stem = {
        path.stem: read_producer_snapshot(path.read_bytes()) for path in process.folder(0).glob("*.snapshot")
    }
    return {stem: [tuple(entry)[:4] for entry in entries.tolist()] for stem, entries in entries_by_stem.items()}


def active(process: Process) -> str:
    state = process.head().partitions[0].active
    return state.stem if state else ""


def test_a_silent_producer_expires_after_the_configured_time(folder: Path) -> None:
    """testRemoveExpiredPidsOnReload."""
    process, now = Process(folder), [NOW]
    handle = dataclasses.replace(process.handle, producer_expiration_ms=1000, clock=lambda: now[0])
    log = PartitionLog(handle, 0, process.snapshots)
    send(log, 0)
    for later_ms, count in ((999, 1), (1000, 0)):
        now[0] = NOW + later_ms
        assert len(log.producers()) == count
    log.close()


def test_old_records_of_a_live_producer_are_appended_once_across_a_roll(folder: Path) -> None:
    """A producer's snapshot has only the times of records, which may be old, as in a copy of a topic."""
    process, other, time = Process(folder), Process(folder), NOW - 2 * DAY_MS
    assert send(process[0], 0, time=time) == (0, 1)
    append(other[0], b"another")
    other[0].roll()
    assert [send(process[0], 0, time=time), send(process[0], 1, time=time)] == [(0, 1), (2, 3)]
    assert process.values()[0] == [b"0", b"another", b"1"]


def test_a_duplicate_batch_gets_its_first_offsets(folder: Path) -> None:
    process, other = Process(folder), Process(folder)
    assert [send(process[0], 0, 3), send(process[0], 3, 2)] == [(0, 3), (3, 5)]
    for writer in (process, other, process):
        assert [send(writer[0], 0, 3), send(writer[0], 3, 2)] == [(0, 3), (3, 5)]
    assert send(other[0], 5) == (5, 6)
    assert send(process[0], 5) == (5, 6)
    assert process.values()[0] == [b"%d" % number for number in range(6)]


def test_gaps_and_old_epochs_are_refused_and_nothing_is_written(folder: Path) -> None:
    process, other = Process(folder), Process(folder)
    send(process[0], 0)
    with pytest.raises(OutOfOrderSequenceError, match=r"sequence=2 expected=1"):
        send(other[0], 2)
    send(other[0], 0, epoch=1)
    with pytest.raises(ProducerFencedError, match="current_epoch=1"):
        send(process[0], 1)
    assert process.values()[0] == [b"0", b"0"]


def test_producers_are_independent(folder: Path) -> None:
    process = Process(folder)
    send(process[0], 0)
    append(process[0], b"plain")
    send(process[0], 7, producer=1)
    assert send(process[0], 1) == (3, 4)
    assert send(process[0], 7, producer=1) == (2, 3)


def test_batches_appended_together_are_recognized_together(folder: Path) -> None:
    process = Process(folder)
    rows = [produced(number) for number in range(8)]
    data = np.frombuffer(b"".join(rows), np.uint8).copy()
    headers = read_headers(data.data)
    headers["base_offset"] = np.arange(8)
    for position, row in zip(headers["position"].tolist(), range(8), strict=True):
        data[position : position + 8] = np.frombuffer(struct.pack(">q", row), np.uint8)
    for again in (process, Process(folder)):
        assert append_rows(again[0], data.copy(), headers.copy())[:2] == (0, 8)
    assert process.values()[0] == [b"%d" % number for number in range(8)]


def by_roll(process: Process) -> None:
    process[0].roll()


def by_bulk_append(process: Process) -> None:
    commit_sealed(process)


@pytest.mark.parametrize("seal", [by_roll, by_bulk_append])
@pytest.mark.parametrize("damage", ["none", "gone", "empty", "cut", "changed"])
def test_batches_before_the_segment_are_recognized(
    seal: Callable[[Process], None], damage: str, folder: Path
) -> None:
    process = Process(folder)
    send(process[0], 0, 2)
    seal(process)
    send(Process(folder)[0], 2, 2)
    assert snapshots(process) == {active(process): [(PID, 0, 1, 1)]}
    seal(process)
    assert send(process[0], 4) == (4, 5)
    assert snapshots(process)[active(process)] == [(PID, 0, 3, 3)]
    for path in process.folder(0).glob("*.snapshot"):
        if damage == "gone":
            path.unlink()
        elif damage != "none":
            data = path.read_bytes()
            path.write_bytes({"empty": b"", "cut": data[:-1], "changed": bytes(37) + data[37:]}[damage])
    other = Process(folder)
    assert send(other[0], 4) == (4, 5)
    # in a sealed segment, and the last batch before the active one
    assert send(other[0], 2, 2) == (2, 4)
    with pytest.raises(OutOfOrderSequenceError):
        send(other[0], 6)
    assert send(other[0], 5) == (5, 6)
    assert process.anomalies() == ()


def test_topics_without_producers_have_no_snapshots_and_read_nothing(folder: Path) -> None:
    process = Process(folder)
    append(process[0], b"a")
    process[0].roll()
    append(process[0], b"b")
    assert snapshots(process) == {}


def test_a_snapshot_goes_with_its_segment(tmp_path: Path) -> None:
    process = Process(new_topic(tmp_path / "events", file_delete_delay_ms=0))
    for number in range(3):
        send(process[0], number)
        process[0].roll()
    assert len(snapshots(process)) == 2
    topic = process.topic()
    topic.delete_records({0: 3})
    topic.retention()
    topic.vacuum()
    # except the state at the present log start
    assert snapshots(process) == {"00000000000000000003": [(PID, 0, 2, 2)]}
    assert len(list(process.folder(0).glob("*.log"))) == 1


def test_batches_lost_in_a_failed_sync_can_be_sent_again(folder: Path) -> None:
    calls = FailingCalls()
    process, other = Process(folder, calls=calls), Process(folder)
    send(process[0], 0)
    send(other[0], 1)
    calls.fail("fsync", code=5)
    with pytest.raises(LostRecordsError):
        send(process[0], 2)
    assert send(other[0], 2) == (2, 3)
    assert send(process[0], 2) == (2, 3)
    assert process.values()[0] == [b"0", b"1", b"2"]


def test_a_duplicate_batch_is_flushed(folder: Path) -> None:
    process, calls = Process(folder), FailingCalls()
    process[0].append_batches(produced(0))
    other = Process(folder, calls=calls)
    appended = other[0].append_batches(produced(0)).appended
    assert appended.flush_due
    other[0].flush(appended)
    assert other[0].end() == (1, 1)


def test_a_silent_producer_is_forgotten_after_a_day(folder: Path) -> None:
    clock = Clock()
    process = Process(folder, clock=clock)
    send(process[0], 0)
    clock.now_ms += DAY_MS - 1
    with pytest.raises(OutOfOrderSequenceError):
        send(process[0], 5)
    clock.now_ms += 1
    assert send(process[0], 5) == (1, 2)


def test_compaction_keeps_the_last_batch_of_each_producer(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    process = Process(folder)
    for number in range(3):
        send(process[0], number)
    send(process[0], 0, producer=1)
    process[0].roll()
    process.topic().compact()
    for path in process.folder(0).glob("*.snapshot"):
        path.unlink()
    other = Process(folder)
    assert send(other[0], 2) == (2, 3)
    with pytest.raises(OutOfOrderSequenceError):
        send(other[0], 5)


@pytest.mark.parametrize("keeps_snapshot", [False, True])
def test_the_producers_of_a_broker_continue(keeps_snapshot: bool, tmp_path: Path) -> None:
    partition = partitions()["first.idempotent-0"]
    topic = adopt_golden(str(tmp_path / "events"), partition)
    end = topic.end_offsets()[0]
    (stored,) = sorted(partition.folder.glob("*.snapshot"))[-1:]
    entries = read_producer_snapshot(stored.read_bytes()).copy()
    assert int(stored.stem) == end
    if keeps_snapshot:
        # a cleaned log has not all batches
        entries["last_sequence"] += 5
        (tmp_path / "events" / "events-0" / stored.name).write_bytes(write_producer_snapshot(entries))
    process = Process(tmp_path / "events", clock=Clock(int(entries["last_timestamp"].max())))
    producer, epoch, last = (int(entries[-1][name]) for name in ("producer_id", "producer_epoch", "last_sequence"))
    with pytest.raises(OutOfOrderSequenceError):
        send(process[0], last + 2, producer=producer, epoch=epoch)
    assert send(process[0], last + 1, producer=producer, epoch=epoch) == (end, end + 1)
