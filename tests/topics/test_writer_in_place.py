"""The writer on a local disk: a partition's records go into its active segment, and succeed or fail by themselves."""

from __future__ import annotations

import errno
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from gated_writer import NEVER_MS
from topics import NOW, TINY, Clock, contents, topic_on

from distlog.core.batches.record_batch import LOG_APPEND_TIME, read_headers
from distlog.core.errors import InvalidRecordError, StorageError, TopicNotFoundError
from distlog.core.log.active_file import ActiveFile
from distlog.core.log.appended import LostRecordsError
from distlog.core.log.partition_log import PartitionLog
from distlog.core.storage.local import local_disk
from distlog.core.storage.storage import Storage
from distlog.core.topics import in_place_destination
from distlog.core.topics.commit_destination import CommitDestination
from distlog.core.topics.delivery import Delivery
from distlog.core.topics.in_place_destination import InPlaceDestination
from distlog.core.topics.topic import Topic


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def topic(tmp_path: Path, clock: Clock) -> Topic:
    return topic_on(Storage(str(tmp_path / "topic")), 2, clock=clock)


class Syncs:
    """Counts the syncs of log files, and lets them fail for one partition."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.failing = 0, -1
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, file: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        if path.endswith(".log"):
            self.count += 1
            if f"-{self.failing}/" in path:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fsync(file)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return Syncs(monkeypatch)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for another thread, for a minute at the most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def append_both(topic: Topic, told: list[Delivery], numbers: range) -> None:
    """Write each number to both partitions, in one buffer."""
    with topic.writer(linger_ms=NEVER_MS, on_delivery=told.append) as writer:
        for number in numbers:
            for partition in (0, 1):
                writer.append(b"%d" % number, partition=partition)


# --- where buffers go


def test_buffers_go_in_place_on_a_local_disk_and_into_commits_elsewhere(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(topic.destination(), InPlaceDestination)
    assert isinstance(topic_on(Storage("memory://elsewhere/topic"), 1).destination(), CommitDestination)
    # as a folder of a network file system is
    monkeypatch.setattr(local_disk, "LOCAL", frozenset())
    local_disk.known_local_disk.cache_clear()
    try:
        assert isinstance(topic.destination(), CommitDestination)
    finally:
        local_disk.known_local_disk.cache_clear()


def test_many_buffers_need_no_commit(topic: Topic) -> None:
    with topic.writer(linger_ms=NEVER_MS) as writer:
        for number in range(20):
            writer.append(b"%d" % number, partition=0)
            assert writer.flush().version is None
    assert topic.refresh().version == 1
    assert [commit.operation for commit in topic.log.history()] == ["active", "create"]
    assert contents(topic)[0] == [b"%d" % number for number in range(20)]


def test_writers_share_the_active_segment(topic: Topic) -> None:
    other = topic_on(topic.storage)
    told: list[Delivery] = []
    with topic.writer(linger_ms=NEVER_MS) as one, other.writer(linger_ms=NEVER_MS, on_delivery=told.append) as two:
        for number in range(10):
            for writer in (one, two):
                writer.append(b"%d" % number, partition=0)
                writer.flush()
    assert [delivery.first_offset for delivery in told] == list(range(1, 20, 2))
    assert contents(topic.refresh())[0] == [b"%d" % (number // 2) for number in range(20)]
    assert topic.version == 1


# --- what is acknowledged


def test_what_is_acknowledged_is_on_the_device_with_one_sync_for_a_partition(topic: Topic, syncs: Syncs) -> None:
    counts: list[int] = []
    append_both(topic, [], range(3))
    syncs.count = 0
    with topic.writer(linger_ms=NEVER_MS, on_delivery=lambda delivery: counts.append(syncs.count)) as writer:
        for partition in (0, 1, 0, 1):
            writer.append(b"", partition=partition)
    assert counts == [2, 2]


def test_a_partition_that_cannot_be_synced_fails_by_itself(topic: Topic, syncs: Syncs) -> None:
    told: list[Delivery] = []
    append_both(topic, told, range(2))
    syncs.failing = 1
    with pytest.raises(StorageError, match=r"cannot sync.* records_in_doubt=3 of_partitions={1: 3}"):
        append_both(topic, told, range(2, 5))
    assert told[:3] == [Delivery(0, 0, 2, 2, None), Delivery(1, 0, 2, 2, None), Delivery(0, 2, 5, 3, None)]
    (failed,) = told[3:]
    assert (failed.partition, failed.record_count, isinstance(failed.error, StorageError)) == (1, 3, True)
    syncs.failing = -1
    assert contents(topic.refresh()) == {0: [b"0", b"1", b"2", b"3", b"4"], 1: [b"0", b"1"]}
    append_both(topic, told, range(5, 6))
    assert contents(topic.refresh())[1] == [b"0", b"1", b"5"]


def test_a_partition_that_cannot_be_appended_to_fails_by_itself(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, told = PartitionLog._append, list[Delivery]()

    def failing(log: PartitionLog, *arguments: Any, **options: Any) -> Any:
        if log.partition == 0:
            raise StorageError("cannot write: No space left on device")
        return append(log, *arguments, **options)

    monkeypatch.setattr(PartitionLog, "_append", failing)
    with pytest.raises(StorageError, match=r"No space left .*records_not_committed=4 of_partitions={0: 4}"):
        append_both(topic, told, range(4))
    assert [(delivery.partition, delivery.first_offset, delivery.record_count) for delivery in told] == [
        (1, 0, 4),
        (0, None, 4),
    ]
    assert contents(topic) == {0: [], 1: [b"0", b"1", b"2", b"3"]}


def test_records_behind_a_partition_that_failed_are_not_appended(topic: Topic, syncs: Syncs) -> None:
    append_both(topic, [], range(1))
    told: list[Delivery] = []
    syncs.failing = 1
    writer = topic.writer(linger_ms=NEVER_MS, on_delivery=told.append)
    writer.append(b"a", partition=0)
    writer.append(b"b", partition=1)
    with pytest.raises(StorageError, match="cannot sync"):
        writer.flush()
    for call in (lambda: writer.append(b"c", partition=0), writer.flush, writer.close):
        with pytest.raises(StorageError, match="records_in_doubt=1"):
            call()
    writer.close()
    assert contents(topic.refresh())[0] == [b"0", b"a"]


def test_an_interrupt_leaves_what_was_appended_in_doubt_and_the_rest_out(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = PartitionLog._append

    def interrupted(log: PartitionLog, *arguments: Any, **options: Any) -> Any:
        if log.partition == 1:
            raise KeyboardInterrupt
        return append(log, *arguments, **options)

    monkeypatch.setattr(PartitionLog, "_append", interrupted)
    told: list[Delivery] = []
    with pytest.raises(KeyboardInterrupt):
        append_both(topic, told, range(2))
    assert {delivery.partition for delivery in told} == {0, 1}
    assert all(isinstance(delivery.error, KeyboardInterrupt) for delivery in told)
    monkeypatch.undo()
    # the lock is free, though the error is still referred to
    append_both(topic, told, range(2, 3))
    assert contents(topic.refresh()) == {0: [b"0", b"1", b"2"], 1: [b"2"]}


@pytest.mark.parametrize("close", [True, False])
def test_a_flush_policy_leaves_syncs_to_flush_and_close(close: bool, topic: Topic, syncs: Syncs) -> None:
    topic.alter_config({"flush.messages": "5"})
    told: list[Delivery] = []
    append_both(topic, told, range(3))
    synced = syncs.count
    assert synced == 2
    with topic.writer(linger_ms=NEVER_MS, on_delivery=told.append) as writer:
        send = writer._accumulator.drain
        for number in range(4):
            writer.append(b"%d" % number, partition=0)
        send()
        assert (syncs.count, told[-1].record_count) == (synced, 4)
        (writer.close if close else writer.flush)()
        assert syncs.count == synced + 1
        if not close:
            for number in range(5):
                writer.append(b"%d" % number, partition=0)
            send()
            assert syncs.count == synced + 2


@pytest.mark.parametrize(
    "error", [StorageError("too many open files"), KeyboardInterrupt()], ids=["error", "interrupt"]
)
def test_a_flush_that_did_not_sync_is_made_good_by_the_next(
    error: BaseException, topic: Topic, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.alter_config({"flush.messages": "1000"})
    writer = topic.writer(linger_ms=NEVER_MS)
    for partition in (0, 1):
        writer.append(b"a", partition=partition)
    writer._accumulator.drain()

    def failing(log: PartitionLog, *arguments: Any) -> None:
        monkeypatch.undo()
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "flush", failing)
        monkeypatch = patched
        with pytest.raises(type(error)):
            writer.flush()
    assert not writer._destination.is_flushed
    writer.close()
    for partition in (0, 1):
        log = PartitionLog(topic.handle, partition, topic.current)
        assert log.end() == (1, 1)
        log.close()


def test_a_partition_that_cannot_be_flushed_keeps_no_other_from_it(topic: Topic, syncs: Syncs) -> None:
    topic.alter_config({"flush.messages": "1000"})
    for failing in (0, 1):
        syncs.failing = failing
        writer = topic.writer(linger_ms=NEVER_MS)
        for partition in (0, 1):
            writer.append(b"%d" % failing, partition=partition)
        with pytest.raises(StorageError, match="cannot sync"):
            writer.flush()
        # the loss was told, and all else is on the device
        writer.close()
    assert contents(topic.refresh()) == {0: [b"1"], 1: [b"0"]}


def test_flush_ms_syncs_in_the_background(topic: Topic, syncs: Syncs) -> None:
    topic.alter_config({"flush.messages": "1000", "flush.ms": "20"})
    # the real clock: the sync must come while nobody does anything
    with topic.writer(linger_ms=0) as writer:
        writer.append(b"a", partition=0)
        log = PartitionLog(topic.handle, 0, topic.current)
        wait_until(lambda: log.end() == (1, 1))
        assert syncs.count == 1
        log.close()


def test_a_sync_that_fails_in_the_background_is_told_by_the_next_flush(topic: Topic, syncs: Syncs) -> None:
    topic.alter_config({"flush.messages": "1000", "flush.ms": "20"})
    writer = topic.writer(linger_ms=0)
    syncs.failing = 0
    writer.append(b"lost", partition=0)
    wait_until(lambda: syncs.count > 0 and writer._destination.is_flushed)
    with pytest.raises(StorageError, match="cannot sync"):
        writer.flush()
    syncs.failing = -1
    writer.append(b"kept", partition=0)
    writer.close()
    assert contents(topic.refresh())[0] == [b"kept"]


# --- segments


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_segments_roll_by_size_also_within_a_buffer(compression: str, topic: Topic) -> None:
    topic.alter_config({**TINY, "internal.segment.bytes": "2000"})
    told: list[Delivery] = []
    with topic.writer(linger_ms=NEVER_MS, compression=compression, on_delivery=told.append) as writer:
        for number in range(200):
            writer.append(b"%060d" % number, partition=0)
    segments = topic.live_snapshot.partitions[0].segments
    assert len(segments) > 3
    assert all(1000 < segment.log_bytes <= 2000 for segment in segments[:-1])
    assert [int(value or b"") for value in contents(topic)[0]] == list(range(200))
    assert told == [Delivery(0, 0, 200, 200, None)]
    assert topic.verify().ok


def test_segments_roll_by_time_also_within_a_buffer(topic: Topic) -> None:
    topic.alter_config({"segment.ms": "1000", "message.timestamp.after.max.ms": "1000000"})
    with topic.writer(linger_ms=NEVER_MS) as writer:
        for number in range(50):
            writer.append(b"%d" % number, timestamp=NOW + 100 * number, partition=0)
    segments = topic.live_snapshot.partitions[0].segments
    # as in Kafka, a segment's time begins with the largest timestamp of its first batch
    assert [segment.max_timestamp - segment.first_timestamp for segment in segments] == [1000, 1000, 1000, 1600]
    assert topic.verify().ok


def test_a_full_index_rolls_within_a_buffer_too(topic: Topic) -> None:
    topic.alter_config({**TINY, "internal.segment.bytes": "0", "segment.index.bytes": "60"})
    with topic.writer(linger_ms=NEVER_MS) as writer:
        for number in range(100):
            writer.append(b"%060d" % number, partition=0)
    segments = topic.live_snapshot.partitions[0].segments
    assert len(segments) > 5
    assert all(segment.time_index_bytes <= 60 for segment in segments)
    assert [int(value or b"") for value in contents(topic)[0]] == list(range(100))


@pytest.mark.parametrize("flush_messages", ["1", "1000"])
def test_the_files_of_some_partitions_only_stay_open(
    flush_messages: str, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place_destination, "OPEN_LOGS", 3)
    many = topic_on(Storage(str(tmp_path / "many")), 20)
    many.alter_config({"flush.messages": flush_messages})
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with many.writer(linger_ms=NEVER_MS) as writer:
        for number in range(100):
            writer.append(b"%d" % number, partition=number % 20)
            if number % 30 == 29:
                writer.flush()
                assert len(os.listdir("/proc/self/fd")) <= before + 25
    assert contents(many) == {n: [b"%d" % number for number in range(n, 100, 20)] for n in range(20)}
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_the_disk_lost_of_a_log_that_nobody_had_open_is_told(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place_destination, "OPEN_LOGS", 1)
    many = topic_on(Storage(str(tmp_path / "many")), 2)
    many.alter_config({"flush.messages": "1000"})
    told: SimpleQueue[Delivery] = SimpleQueue()
    writer = many.writer(linger_ms=0, on_delivery=told.put)
    for partition in range(2):
        writer.append(b"v%d" % partition, partition=partition)
        told.get()
    # the kernel could not write it, dropped the pages, and forgot that with the file's inode
    (log,) = (tmp_path / "many" / "many-0").glob("*.log")
    log.write_bytes(bytes(log.stat().st_size))
    with pytest.raises(LostRecordsError):
        writer.close()
    assert contents(many.refresh()) == {0: [], 1: [b"v1"]}


def test_a_writer_that_is_dropped_leaves_no_file_open(topic: Topic) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    writer = topic.writer(linger_ms=NEVER_MS)
    writer.append(b"")
    writer.flush()
    assert len(os.listdir("/proc/self/fd")) > before
    del writer
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


# --- the topic's rules


def test_a_changed_config_counts_from_the_next_buffer_on(topic: Topic) -> None:
    other = topic_on(topic.storage)
    writer = topic.writer(linger_ms=NEVER_MS)
    writer.append(b"x" * 500, partition=0)
    writer.flush()
    other.alter_config({"max.message.bytes": "300"})
    writer.append(b"x" * 500, partition=0)
    with pytest.raises(InvalidRecordError, match=r"max\.message\.bytes.*records_not_committed=1"):
        writer.close()
    with topic.writer(linger_ms=NEVER_MS) as small, pytest.raises(InvalidRecordError, match=r"max\.message\.bytes"):
        small.append(b"x" * 500, partition=0)


def test_a_topic_that_was_dropped_takes_nothing_more(topic: Topic) -> None:
    writer = topic.writer(linger_ms=NEVER_MS)
    topic_on(topic.storage).drop()
    writer.append(b"")
    with pytest.raises(TopicNotFoundError, match="records_not_committed=1"):
        writer.close()


def test_a_topics_object_sees_what_its_own_writer_appended(topic: Topic) -> None:
    other = topic_on(topic.storage)
    assert other.end_offsets() == topic.end_offsets() == {0: 0, 1: 0}
    append_both(topic, [], range(2))
    assert topic.end_offsets() == {0: 2, 1: 2}
    append_both(topic, [], range(2))
    assert topic.end_offsets() == {0: 4, 1: 4}
    assert other.end_offsets() == {0: 0, 1: 0}
    assert other.refresh().end_offsets() == {0: 4, 1: 4}


# --- LogAppendTime


@pytest.fixture
def stamped(topic: Topic) -> Topic:
    topic.alter_config({"message.timestamp.type": "LogAppendTime", **TINY})
    return topic


def times(topic: Topic) -> list[tuple[int, int]]:
    """The times of the records of partition 0, and the kinds of these times."""
    return [(record.timestamp - NOW, record.timestamp_type) for record in topic.refresh().records(0)]


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_log_append_time_is_the_time_of_the_append(compression: str, stamped: Topic, clock: Clock) -> None:
    with stamped.writer(linger_ms=NEVER_MS, compression=compression) as writer:
        for step in (0, 50, 100):
            writer.append(b"a", timestamp=5, partition=0)
            writer.append(b"b", partition=0)
            clock.now_ms = NOW + step
            writer.flush()
    assert times(stamped) == [(step, LOG_APPEND_TIME) for step in (0, 0, 50, 50, 100, 100)]
    assert stamped.offsets_for_times({0: NOW + 1}) == {0: (2, NOW + 50)}
    assert stamped.offsets_for_times({0: NOW + 51}) == {0: (4, NOW + 100)}
    batches = read_headers(bytes(stamped.read(0, 0)))
    assert set(batches["max_timestamp"].tolist()) <= {NOW, NOW + 50, NOW + 100}
    assert stamped.verify().ok


def test_log_append_time_is_told_under_the_lock_and_not_before(
    stamped: Topic, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = PartitionLog._append

    def late(log: PartitionLog, *arguments: Any) -> Any:
        clock.now_ms = NOW + 7
        return append(log, *arguments)

    monkeypatch.setattr(PartitionLog, "_append", late)
    with stamped.writer(linger_ms=NEVER_MS) as writer:
        writer.append(b"", partition=0)
    assert times(stamped) == [(7, LOG_APPEND_TIME)]


def test_log_append_time_never_goes_back_whatever_the_clocks_say(stamped: Topic, clock: Clock) -> None:
    behind = Clock(NOW - 5000)
    other = topic_on(stamped.storage, clock=behind)
    with stamped.writer(linger_ms=NEVER_MS) as one, other.writer(linger_ms=NEVER_MS) as two:
        for step in range(30):
            clock.now_ms = NOW + step
            # three, so that each of them rolls segments now and then
            for writer in (one, two, two):
                writer.append(b"%0100d" % step, partition=0)
                writer.flush()
    found = [time for time, _ in times(stamped)]
    assert found == sorted(found) == [step for step in range(30) for _ in range(3)]
    segments = stamped.live_snapshot.partitions[0].segments
    assert len(segments) > 3
    assert all(segment.min_timestamp <= segment.first_timestamp for segment in segments)
    assert stamped.verify().ok


def test_log_append_time_is_not_before_that_of_the_segment_ahead(stamped: Topic, clock: Clock) -> None:
    clock.now_ms = NOW + 1000
    stamped.append([{"value": b"committed"}], partition=0)
    clock.now_ms = NOW
    with stamped.writer(linger_ms=NEVER_MS) as writer:
        writer.append(b"in place", partition=0)
    assert [time >= 1000 for time, _ in times(stamped)] == [True, True]


# --- many partitions


def test_the_active_segments_of_a_buffers_partitions_begin_in_one_commit(topic: Topic, tmp_path: Path) -> None:
    many = topic_on(Storage(str(tmp_path / "many")), 20)
    version = many.version
    with many.writer(linger_ms=NEVER_MS) as writer:
        for number in range(40):
            writer.append(b"%d" % number, partition=number % 20)
        writer.flush()
        assert many.refresh().version == version + 1
        assert many.history().to_pylist()[0]["operation"] == "active"
        for number in range(40, 60):
            writer.append(b"%d" % number, partition=number % 20)
    assert many.refresh().version == version + 1
    assert contents(many) == {n: [b"%d" % number for number in range(n, 60, 20)] for n in range(20)}


def test_a_partition_that_cannot_be_opened_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, told, create = topic_on(Storage(str(tmp_path / "many")), 4), list[Delivery](), ActiveFile.create

    def refused(file: ActiveFile) -> None:
        if "topic-2" in file.path or "many-2" in file.path:
            raise StorageError("no such luck", file=file.path)
        create(file)

    monkeypatch.setattr(ActiveFile, "create", refused)
    writer = many.writer(linger_ms=NEVER_MS, on_delivery=told.append)
    for partition in range(4):
        writer.append(b"a", partition=partition)
    with pytest.raises(StorageError, match="no such luck"):
        writer.close()
    assert sorted(one.partition for one in told if one.error is None) == [0, 1, 3]
    assert contents(many) == {0: [b"a"], 1: [b"a"], 2: [], 3: [b"a"]}


def test_after_a_close_nothing_of_the_logs_is_read_when_the_machine_was_restarted(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_both(topic, [], range(10))
    monkeypatch.setattr("distlog.core.log.state_record.boot_id", lambda: bytes(16))
    read, real = list[str](), os.preadv

    def preadv(file: int, *arguments: Any) -> int:
        read.append(os.readlink(f"/proc/self/fd/{file}"))
        return real(file, *arguments)

    with monkeypatch.context() as patches:
        patches.setattr(os, "preadv", preadv)
        assert topic.refresh().end_offsets() == {0: 10, 1: 10}
        assert PartitionLog(topic.handle, 0, topic.current).end() == (10, 10)
    assert [name for name in read if name.endswith(".log")] == []
    append_both(topic, [], range(10, 12))
    assert contents(topic) == {key: [b"%d" % number for number in range(12)] for key in (0, 1)}
