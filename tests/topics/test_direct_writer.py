"""The writer on a local disk: records go into active segments, and partitions succeed or fail alone."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gated_writer import NEVER_MS
from topics import NOW, TINY, Clock, contents, topic_on
from waiting import until
from writers_in_place import append_both, open_files
from writers_in_place import clock as clock
from writers_in_place import syncs as syncs
from writers_in_place import topic as topic

from distlog.core.errors import InvalidRecordError, TopicNotFoundError
from distlog.core.format.record_batch import LOG_APPEND_TIME, read_headers
from distlog.core.log import partition_log
from distlog.core.log.active_partition import ActivePartition
from distlog.core.log.partition_log import PartitionLog
from distlog.core.storage import local_files
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.engine import CommitEngine, DirectEngine
from distlog.core.write.writer import Delivery


def test_buffers_are_direct_appends_on_a_local_disk_and_commits_elsewhere(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(topic.engine(), DirectEngine)
    assert isinstance(topic_on(Storage("memory://elsewhere/topic"), 1).engine(), CommitEngine)
    monkeypatch.setattr(local_files, "LOCAL_FILE_SYSTEMS", frozenset())
    local_files.known_local_disk.cache_clear()
    try:
        assert isinstance(topic.engine(), CommitEngine)
    finally:
        local_files.known_local_disk.cache_clear()


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
    deliveries: list[Delivery] = []
    with (
        topic.writer(linger_ms=NEVER_MS) as first,
        other.writer(linger_ms=NEVER_MS, on_delivery=deliveries.append) as two,
    ):
        for number in range(10):
            for writer in (first, two):
                writer.append(b"%d" % number, partition=0)
                writer.flush()
    assert [delivery.first_offset for delivery in deliveries] == list(range(1, 20, 2))
    assert contents(topic.refresh())[0] == [b"%d" % (number // 2) for number in range(20)]
    assert topic.version == 1


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_segments_roll_by_size_also_within_a_buffer(compression: str, topic: Topic) -> None:
    topic.alter_config({**TINY, "internal.segment.bytes": "2000"})
    deliveries: list[Delivery] = []
    with topic.writer(linger_ms=NEVER_MS, compression=compression, on_delivery=deliveries.append) as writer:
        for number in range(200):
            writer.append(b"%060d" % number, partition=0)
    segments = topic.live_snapshot.partitions[0].segments
    assert len(segments) > 3
    assert all(1000 < segment.log_bytes <= 2000 for segment in segments[:-1])
    assert [int(value or b"") for value in contents(topic)[0]] == list(range(200))
    assert deliveries == [Delivery(0, 0, 200, 200, None)]
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


def test_a_full_index_rolls_within_a_buffer(topic: Topic) -> None:
    topic.alter_config({**TINY, "internal.segment.bytes": "0", "segment.index.bytes": "60"})
    with topic.writer(linger_ms=NEVER_MS) as writer:
        for number in range(100):
            writer.append(b"%060d" % number, partition=0)
    segments = topic.live_snapshot.partitions[0].segments
    assert len(segments) > 5
    assert all(segment.time_index_bytes <= 60 for segment in segments)
    assert [int(value or b"") for value in contents(topic)[0]] == list(range(100))


@pytest.mark.parametrize("flush_messages", ["1", "1000"])
def test_the_number_of_open_files_is_bounded(
    flush_messages: str, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_log, "MAX_OPEN_LOGS", 3)
    many = topic_on(Storage(str(tmp_path / "many")), 20)
    many.alter_config({"flush.messages": flush_messages})
    old_files = open_files(tmp_path)
    with many.writer(linger_ms=NEVER_MS) as writer:
        for number in range(100):
            writer.append(b"%d" % number, partition=number % 20)
            if number % 30 == 29:
                writer.flush()
                assert open_files(tmp_path) <= old_files + 25
    assert contents(many) == {n: [b"%d" % number for number in range(n, 100, 20)] for n in range(20)}
    assert open_files(tmp_path) == old_files


@pytest.mark.long
def test_an_unreferenced_writer_leaves_no_file_open(topic: Topic, tmp_path: Path) -> None:
    old_files = open_files(tmp_path)
    writer = topic.writer(linger_ms=NEVER_MS)
    writer.append(b"")
    writer.flush()
    assert open_files(tmp_path) > old_files
    del writer

    def is_closed() -> bool:
        gc.collect()
        return open_files(tmp_path) == old_files

    until(is_closed)


def test_a_changed_config_applies_from_the_next_buffer(topic: Topic) -> None:
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


def test_a_dropped_topic_refuses_records(topic: Topic) -> None:
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


def test_after_a_close_and_a_reboot_no_log_is_read(
    topic: Topic, rebooted: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    append_both(topic, [], range(10))
    rebooted()
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


@pytest.fixture
def stamped(topic: Topic) -> Topic:
    topic.alter_config({"message.timestamp.type": "LogAppendTime", **TINY})
    return topic


def times(topic: Topic) -> list[tuple[int, int]]:
    """Return the timestamps and the timestamp types of partition 0."""
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


def test_log_append_time_is_assigned_under_the_lock(
    stamped: Topic, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover = ActivePartition.active_segment

    def late(active: ActivePartition) -> Any:
        clock.now_ms = NOW + 7
        return recover(active)

    monkeypatch.setattr(ActivePartition, "active_segment", late)
    with stamped.writer(linger_ms=NEVER_MS) as writer:
        writer.append(b"", partition=0)
    assert times(stamped) == [(7, LOG_APPEND_TIME)]


def test_log_append_time_never_decreases_with_any_clocks(stamped: Topic, clock: Clock) -> None:
    slow_clock = Clock(NOW - 5000)
    other = topic_on(stamped.storage, clock=slow_clock)
    with stamped.writer(linger_ms=NEVER_MS) as first, other.writer(linger_ms=NEVER_MS) as two:
        for step in range(30):
            clock.now_ms = NOW + step
            # each of the three rolls segments
            for writer in (first, two, two):
                writer.append(b"%0100d" % step, partition=0)
                writer.flush()
    stamps = [time for time, _ in times(stamped)]
    assert stamps == sorted(stamps) == [step for step in range(30) for _ in range(3)]
    segments = stamped.live_snapshot.partitions[0].segments
    assert len(segments) > 3
    assert all(segment.min_timestamp <= segment.first_timestamp for segment in segments)
    assert stamped.verify().ok


def test_log_append_time_is_not_before_the_previous_segment(stamped: Topic, clock: Clock) -> None:
    clock.now_ms = NOW + 1000
    stamped.append([{"value": b"committed"}], partition=0)
    clock.now_ms = NOW
    with stamped.writer(linger_ms=NEVER_MS) as writer:
        writer.append(b"in place", partition=0)
    assert [time >= 1000 for time, _ in times(stamped)] == [True, True]
