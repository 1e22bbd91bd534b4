"""LogAppendTime on a local disk: the time under the lock, which never goes back."""

from __future__ import annotations

from typing import Any

import pytest
from gated_writer import NEVER_MS
from topics import NOW, TINY, Clock, topic_on
from writers_in_place import clock as clock
from writers_in_place import topic as topic

from distlog.core.batches.record_batch import LOG_APPEND_TIME, read_headers
from distlog.core.log.active_partition import ActivePartition
from distlog.core.topics.topic import Topic


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
    recover = ActivePartition.recover

    def late(active: ActivePartition) -> Any:
        clock.now_ms = NOW + 7
        return recover(active)

    monkeypatch.setattr(ActivePartition, "recover", late)
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
