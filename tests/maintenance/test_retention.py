"""Retention and delete-records delete in Kafka's order, by Kafka's predicates."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from histories import History, segment
from hypothesis import given
from hypothesis import strategies as st
from searches import examples
from topics import Clock, topic_on

from distlog.core import opening as topics
from distlog.core import paths
from distlog.core.commits.actions import AddTable, Commit, RemoveTable, SetLogStartOffset
from distlog.core.commits.segment_table import SegmentInfo, to_rows
from distlog.core.errors import InvalidConfigError, OffsetOutOfRangeError, RetentionWarning, TopicNotFoundError
from distlog.core.maintain.retention import LOG_END, delete_records, plan_retention, retention
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage.storage import Storage
from distlog.core.times import NO_TIMESTAMP, now_ms
from distlog.core.topic import Topic
from distlog.core.write.writer import RecordSender

SIZE = 69 + 1
"""Bytes of a batch with one record, a null key and a value of two bytes."""
FUTURE = 10**15


def topic_of(folder: Path, timestamps: list[int], **config: Any) -> Topic:
    """Return a topic of one partition with one segment, of one record and SIZE bytes, per timestamp."""
    topic = topics.create(f"{folder}/log", config={name.replace("_", "."): value for name, value in config.items()})
    for timestamp in timestamps:
        topic.append([{"value": b"vv", "timestamp": timestamp}])
    return topic


def at_time(topic: Topic, now_ms: int) -> TopicHandle:
    return dataclasses.replace(topic.handle, clock=lambda: now_ms)


def remaining_offsets(topic: Topic, now_ms: int) -> list[int]:
    retention(at_time(topic, now_ms), topic.snapshot)
    return [segment.base_offset for segment in topic.refresh().snapshot.partitions[0].segments]


def test_a_segment_older_than_retention_ms_is_deleted_at_one_ms_more(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [1000, 2000, 3000], retention_ms=500)
    assert remaining_offsets(topic, 2500) == [1, 2]
    assert remaining_offsets(topic, 2501) == [2]
    assert topic.start_offsets() == {0: 2}


def test_time_stops_at_the_first_segment_that_must_stay(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [1000, 9000, 1000], retention_ms=500)
    assert remaining_offsets(topic, 9100) == [1, 2]


def test_a_future_timestamp_does_not_block_later_segments_forever(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [FUTURE, 1000], retention_ms=500, **{"message.timestamp.after.max.ms": FUTURE})
    written = topic.snapshot.partitions[0].segments[0].created_ms
    assert remaining_offsets(topic, written + 500) == [0, 1]
    assert remaining_offsets(topic, written + 501) == []


def test_records_without_a_time_age_from_their_append(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [-1], retention_ms=500)
    written = topic.snapshot.partitions[0].segments[0].created_ms
    assert remaining_offsets(topic, written + 500) == [0]
    assert remaining_offsets(topic, written + 501) == []


@pytest.mark.parametrize("ahead_ms", [500, None], ids=["in the future", "without a time"])
@pytest.mark.parametrize("flush_messages", [1, 100])
def test_a_recent_direct_append_stays_in_an_old_segment(
    tmp_path: Path, ahead_ms: int | None, flush_messages: int
) -> None:
    """Without record times, only the time of their append gives their age, before and after the seal."""
    clock = Clock(now_ms() - 60_000)
    topic = topic_on(Storage(f"{tmp_path}/log"), 1, {"retention.ms": 1000, "flush.messages": flush_messages}, clock)
    sender = RecordSender(topic.handle, topic.current, topic.engine())
    with closing(sender.engine):
        for _ in range(5):
            clock.now_ms += 900
            timestamp = NO_TIMESTAMP if ahead_ms is None else clock.now_ms + ahead_ms
            sender.send(pa.record_batch({"value": [b"vv"], "timestamp": [timestamp]}))
            assert topic.retention(dry_run=True).partitions == topic.retention().partitions == ()
    topic.append([{"value": b"seals the segment", "timestamp": clock.now_ms}])
    assert remaining_offsets(topic, clock.now_ms + 900) == [0, 5]
    assert remaining_offsets(topic, clock.now_ms + 1600) == []


@pytest.mark.parametrize(
    ("limit", "remaining"), [(-1, 4), (0, 0), (1, 1), (SIZE, 1), (SIZE + 1, 2), (3 * SIZE, 3), (10**9, 4)]
)
def test_size_never_lets_a_partition_fall_below_retention_bytes(tmp_path: Path, limit: int, remaining: int) -> None:
    topic = topic_of(tmp_path, [1] * 4, retention_bytes=limit, retention_ms=-1)
    assert topic.snapshot.partitions[0].segments.log_bytes.tolist() == [SIZE] * 4
    assert len(remaining_offsets(topic, 10)) == remaining


def test_a_partition_may_become_empty_and_its_log_end_stays(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [1000, 1000], retention_ms=0)
    assert remaining_offsets(topic, 5000) == []
    assert (topic.start_offsets(), topic.end_offsets()) == ({0: 2}, {0: 2})
    assert topic.append([{"value": b"next"}]).offsets == {0: (2, 3)}


def test_a_compacted_topic_loses_only_segments_below_its_log_start(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [1000, 1000, 1000], retention_ms=0, retention_bytes=0)
    delete_records(topic.handle, topic.snapshot, {0: 2})
    topic.alter_config({"cleanup.policy": "compact"})
    assert remaining_offsets(topic, 10**6) == [2]
    topic.alter_config({"cleanup.policy": "compact,delete"})
    assert remaining_offsets(topic, 10**6) == []


def test_the_report_has_deleted_segments_and_reasons(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [1000, 9000, 1000, 9000, 9000], retention_ms=500, retention_bytes=2 * SIZE)
    delete_records(topic.handle, topic.snapshot, {0: 1})
    (plan,) = plan_retention(topic.refresh().snapshot, 9100)
    assert (plan.below_log_start, plan.above_size, plan.too_old) == (1, 2, 0)
    assert (plan.log_bytes, plan.records, plan.log_start_offset) == (3 * SIZE, 3, 3)


def test_a_dry_run_commits_nothing(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [1000], retention_ms=0)
    plans, snapshot = retention(at_time(topic, 5000), topic.snapshot, dry_run=True)
    assert (len(plans), snapshot.version) == (1, topic.refresh().version)


def test_retention_without_deletions_commits_nothing(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [1000])
    old_version = topic.version
    assert remaining_offsets(topic, 1000) == [0]
    assert topic.version == old_version


def test_retention_reads_no_data_and_deletes_no_file(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [1000] * 3, retention_ms=0)
    for log in tmp_path.glob("log/log-0/*"):
        log.chmod(0)
    files = sorted(tmp_path.glob("log/log-0/*"))
    assert remaining_offsets(topic, 5000) == []
    assert sorted(tmp_path.glob("log/log-0/*")) == files


def test_a_lost_race_plans_again(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [1000, 1000, 9000], retention_ms=500)
    stale = topic.snapshot
    other = topics.open(topic.url)
    retention(at_time(other, 9100), other.snapshot)
    other.refresh().append([{"value": b"vv", "timestamp": 9100}])
    plans, after = retention(at_time(topic, 9700), stale)
    assert [plan.segments[0].base_offset for plan in plans] == [2]
    assert after.partitions[0].log_start_offset == 4


def test_delete_records_raises_the_log_start_and_never_lowers_it(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [1] * 5)
    assert delete_records(topic.handle, topic.snapshot, {0: 3})[0] == {0: 3}
    assert delete_records(topic.handle, topic.snapshot, {0: 2})[0] == {0: 3}
    assert delete_records(topic.handle, topic.snapshot, {0: LOG_END})[0] == {0: 5}
    assert topic.refresh().scan().count() == 0


def test_delete_records_refuses_what_kafka_refuses(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [1])
    for offset in (2, -2):
        with pytest.raises(OffsetOutOfRangeError, match=f"offset={offset} log_start_offset=0 log_end_offset=1"):
            delete_records(topic.handle, topic.snapshot, {0: offset})
    with pytest.raises(TopicNotFoundError, match="give one from 0 to 0"):
        delete_records(topic.handle, topic.snapshot, {1: 0})
    topic.alter_config({"cleanup.policy": "compact"})
    with pytest.raises(InvalidConfigError, match=r"cleanup.policy has delete"):
        delete_records(topic.handle, topic.snapshot, {0: 1})


ages = st.lists(st.integers(0, 20), max_size=6)


@examples(20)
@given(ages, st.integers(-1, 25), st.integers(-1, 8), st.integers(0, 6))
def test_retention_is_kafkas_algorithm(timestamps: list[int], keep_ms: int, keep: int, start: int) -> None:
    """Compare with a plain `deleteOldSegments` over a list of (base offset, timestamp)."""
    topic = topics.create(
        f"memory://retention/{id(timestamps)}-{len(timestamps)}/log", config={"retention.ms": keep_ms}
    )
    topic.alter_config({"retention.bytes": keep * SIZE if keep >= 0 else -1})
    for timestamp in timestamps:
        topic.append([{"value": b"vv", "timestamp": timestamp}])
    start = min(start, len(timestamps))
    delete_records(topic.handle, topic.snapshot, {0: start})
    remaining = list(enumerate(timestamps))
    while remaining and remaining[0][0] + 1 <= start:
        remaining.pop(0)
    surplus = len(remaining) - keep
    while remaining and keep >= 0 and surplus - 1 >= 0:
        remaining.pop(0)
        surplus -= 1
    while remaining and keep_ms >= 0 and 25 - remaining[0][1] > keep_ms:
        remaining.pop(0)
    try:
        assert remaining_offsets(topic, 25) == [base for base, _ in remaining]
    finally:
        topic.drop()


@pytest.mark.long
@examples(40)
@given(st.integers(0, 2**32))
def test_planning_all_partitions_equals_single_plans(seed: int) -> None:
    """A table of ages and sizes for partitions, some of which have their own state."""
    random, history, count = Random(seed), History(), 6
    keep_ms, keep = random.choice([-1, 0, 500, 1000]), random.choice([-1, 0, 1500, 3000])
    policy = random.choice(["delete", "delete", "compact"])
    history.create(count, **{"retention.ms": str(keep_ms), "retention.bytes": str(keep), "cleanup.policy": policy})
    for _ in range(random.randrange(6)):
        ends = [state.log_end_offset for state in history.snapshot().partitions]
        partitions = sorted(random.sample(range(count), random.randrange(1, count + 1)))
        times = [random.choice([-1, 3000, 4000, 5000]) for _ in partitions]
        added = [
            segment(number, ends[number], random.randrange(1, 9), max_timestamp=time, first_timestamp=time)
            for number, time in zip(partitions, times, strict=True)
        ]
        history.commit(AddTable(to_rows(added)))
        history.commit(SetLogStartOffset(partitions[0], random.randrange(added[0].next_offset)))
    snapshot = history.snapshot()
    expected = {}
    for number, state in enumerate(snapshot.partitions):
        removed = list[SegmentInfo]()
        for info in state.segments:
            size = sum(info.log_bytes for info in state.segments) - sum(info.log_bytes for info in removed)
            time = info.max_timestamp if 0 <= info.max_timestamp <= 4600 else info.created_ms
            by_size = policy == "delete" and 0 <= keep <= size - info.log_bytes
            by_time = policy == "delete" and 0 <= keep_ms < 4600 - time
            if not (info.next_offset <= state.log_start_offset or by_size or by_time):
                break
            removed.append(info)
        if removed:
            expected[number] = removed
    plans = plan_retention(snapshot, 4600)
    assert {plan.partition: [*plan.segments] for plan in plans} == expected
    assert [plan.partition for plan in plans] == sorted(expected)
    for plan in plans:
        state = snapshot.partitions[plan.partition]
        start = state.log_end_offset if len(plan.segments) == len(state.segments) else plan.segments[-1].next_offset
        assert plan.log_start_offset == max(start, state.log_start_offset)
        assert plan.below_log_start + plan.above_size + plan.too_old == len(plan.segments)


def test_deletions_in_many_partitions_are_one_table(memory_url: Any) -> None:
    topic = topics.create(f"{memory_url.url}/log", partitions=300)
    rows = {"partition": [*range(300)] * 2, "value": ["v"] * 600, "timestamp": [0] * 600}
    for _ in range(2):
        topic.append(pa.table(rows))
    old_snapshot = topics.open(topic.url)
    assert len(topic.retention().partitions) == 300
    removed, *starts = Commit.decode(topic.storage.read(paths.commit_file(topic.version)), "").actions
    assert isinstance(removed, RemoveTable)
    assert (len(removed.rows), len(starts)) == (600, 300)
    assert set(map(type, starts)) == {SetLogStartOffset}
    after = old_snapshot.refresh().snapshot
    assert (after.partitions.own_states, after.partitions.log_start_offsets.tolist()) == ({}, [4] * 300)
    assert after.partitions.segment_count == 0


def test_more_segments_than_a_commit_takes_are_deleted_by_several_runs(
    memory_url: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create(f"{memory_url.url}/log", partitions=300)
    rows = pa.table({"partition": range(300), "value": ["v"] * 300, "timestamp": [0] * 300})
    for _ in range(4):
        topic.append(rows)
    monkeypatch.setattr("distlog.core.commits.actions.MAX_COMMIT_ROWS", 1001)
    monkeypatch.setattr("distlog.core.maintain.retention.MAX_SEGMENTS", 1001)
    planned = topic.retention(dry_run=True).partitions
    assert topic.retention().partitions == planned
    assert [len(partition.segments) for partition in planned] == [4] * 250 + [1]
    assert topic.snapshot.partitions.log_start_offsets.tolist() == [4] * 250 + [1] + [0] * 49
    assert topics.open(topic.url).scan().count() == 199
    assert sum(len(partition.segments) for partition in topic.retention().partitions) == 199
    assert topics.open(topic.url).scan().count() == 0


def test_the_report_has_the_setting_and_the_time(tmp_path: Path) -> None:
    topic = topic_of(tmp_path, [1000, 2000, 9000, 9000], retention_ms=86_400_000)
    topic.alter_config({"retention.bytes": 2 * SIZE, "retention.ms": "1000"})
    delete_records(topic.handle, topic.snapshot, {0: 1})
    said = str(topic.retention(dry_run=True))
    assert said.startswith("would delete 4 segments, ")
    assert "2 by retention.ms=1000 (the newest record is of 1970-01-01T00:00:09.000Z)" in said
    assert "1 by retention.bytes=140; 1 below the log start offset" in said
    document = topic.retention().to_dict()
    assert document["config"] == {"retention.ms": 1000, "retention.bytes": 140}
    assert str(topic.retention()) == "deleted 0 segments, 0 bytes, 0 records"


def test_an_append_of_expired_records_warns(tmp_path: Path) -> None:
    topic = topics.create(str(tmp_path / "log"))
    with pytest.warns(RetentionWarning, match=r"log: 2 records are older than retention.ms=604800000.* or to -1"):
        topic.append([{"value": "v", "timestamp": "2015-05-17"}, {"value": "v", "timestamp": "2015-05-18"}])


@pytest.mark.filterwarnings("error::distlog.RetentionWarning")
def test_with_warnings_as_errors_nothing_is_appended(tmp_path: Path) -> None:
    topic = topics.create(str(tmp_path / "log"))
    for _ in range(2):
        with pytest.raises(RetentionWarning):
            topic.append([{"value": "v", "timestamp": "2015-05-17"}])
    assert topic.refresh().end_offsets() == {0: 0}


def test_a_producer_warns_too(memory_url: Any) -> None:
    topic = topics.create(f"{memory_url.url}/log")
    with pytest.warns(RetentionWarning, match="1 record is older than retention.ms"), topic.producer() as producer:
        producer.append("v", timestamp="2015-05-17")
