"""A consumer returns each record once, in order, and as soon as it comes."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden
import pytest
from adopted import adopt_golden
from commits import put_commit
from gated_writer import NEVER_MS
from topic_consumers import Time, consume, drained, rows, span
from topics import NOW, TINY, topic_on, values

import distlog
from distlog.core.commits.actions import SetPartitions
from distlog.core.errors import (
    InvalidConfigError,
    OffsetOutOfRangeError,
    ReadOnlyTopicError,
    SnapshotTooOldError,
    TopicNotFoundError,
)
from distlog.core.read import consumer as consumer_module
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


@pytest.fixture(params=["local", "memory"])
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> Topic:
    url = str(tmp_path / "topic") if request.param == "local" else f"memory://{tmp_path.name}/topic"
    return topic_on(Storage(url), 2, {**TINY, "file.delete.delay.ms": "0"})


def append(topic: Topic, partition: int, count: int) -> None:
    topic_on(topic.storage).append(values(range(count)), partition=partition)


def write(topic: Topic, partition: int, count: int) -> None:
    """Write records as another process does: on a local disk into the active segment."""
    with topic_on(topic.storage).writer(linger_ms=NEVER_MS) as writer:
        for _ in range(count):
            writer.append(b"v", partition=partition)


def test_present_records_come_before_added_ones(topic: Topic) -> None:
    append(topic, 0, 30)
    append(topic, 1, 2)
    time = Time()
    time.events.extend([lambda: append(topic, 1, 3), lambda: None, lambda: append(topic, 0, 1)])
    records = drained(consume(topic, time))
    assert [row for row in records if row[0] == 0] == span(0, 0, 31)
    assert [row for row in records if row[0] == 1] == span(1, 0, 5)
    assert records.index((1, 4)) < records.index((0, 30))


def test_records_arrive_while_their_segment_grows(topic: Topic) -> None:
    write(topic, 0, 1)
    time, consumer = Time(), None
    time.events.extend(lambda: write(topic, 0, 2) for _ in range(20))
    consumer = consume(topic, time)
    assert drained(consumer) == span(0, 0, 41)
    assert consumer.position == {0: 41, 1: 0}


def test_the_topic_object_stays_at_its_snapshot(topic: Topic) -> None:
    append(topic, 0, 3)
    assert len(drained(consume(topic))) == 3
    assert topic.end_offsets() == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (None, 0),
        (4, 4),
        ({0: 5}, 5),
        ({1: 0}, 0),
        (10, 10),
        (distlog.EARLIEST, 0),
        (distlog.LATEST, 10),
        (datetime.datetime.fromtimestamp((NOW + 7) / 1000, datetime.timezone.utc), 7),
        ("2023-11-14T22:13:20.003Z", 3),
        (datetime.date(2023, 11, 14), 0),
        (datetime.date(2099, 1, 1), 10),
        ("2099-01-01", 10),
        ({0: "2023-11-14T22:13:20.003Z"}, 3),
    ],
)
def test_it_starts_at_an_offset_or_a_time(start: Any, first: int, tmp_path: Path) -> None:
    topic = topic_on(Storage(f"memory://{tmp_path.name}/topic"), 2)
    topic.append(values(range(10)), partition=0)
    topic.append(values(range(10)), partition=1)
    consumer = consume(topic, partitions=[0], start=start)
    topic.append(values(range(2)), partition=0)
    assert drained(consumer) == span(0, first, 12)


def test_it_ends_at_the_timeout_and_can_continue(topic: Topic) -> None:
    time = Time()
    consumer = consume(topic, time, timeout=3.0)
    assert drained(consumer) == []
    assert time.now_s == pytest.approx(3.0)
    append(topic, 0, 2)
    assert drained(consumer) == span(0, 0, 2)
    append(topic, 0, 1)
    time.now_s += 100
    assert drained(consumer) == span(0, 2, 3)


def test_a_timeout_of_zero_returns_present_records(topic: Topic) -> None:
    append(topic, 0, 2)
    time = Time()
    assert drained(consume(topic, time, timeout=0)) == span(0, 0, 2)
    assert time.pauses == []


def test_pauses_grow_to_the_interval_and_are_short_again_after_a_record(topic: Topic) -> None:
    time = Time()
    consumer = consume(topic, time, timeout=10.0, poll_interval=0.08)
    time.events.extend([lambda: None] * 90 + [lambda: append(topic, 0, 1)])
    next(consumer)
    assert time.pauses[-1] == 0.08
    assert time.pauses == sorted(time.pauses)
    del time.pauses[:]
    assert next(consumer, None) is None
    assert time.pauses[0] < 0.06
    assert max(time.pauses) == 0.08


@pytest.mark.parametrize(("is_local", "looks"), [(True, 35), (False, 9)])
def test_the_local_poll_interval_is_a_sixteenth_of_the_idle_time(
    is_local: bool, looks: int, memory_topic: Callable[[], Topic], tmp_path: Path
) -> None:
    topic = topic_on(Storage(str(tmp_path / "local")), 1, TINY) if is_local else memory_topic()
    time = Time()
    consumer = consume(topic, time, timeout=0.04 if is_local else 4.0)
    assert next(consumer, None) is None
    assert len(time.pauses) <= looks
    idle = 0.0
    for pause in time.pauses:
        assert pause <= (0.0005 + idle / 16 if is_local else 0.05 + idle) * 1.001
        idle += pause


def test_only_selected_columns_are_returned(topic: Topic) -> None:
    append(topic, 0, 2)
    append(topic, 1, 1)
    tables = list(consume(topic, columns=["value"]))
    assert [name for batch in tables for name in batch.schema.names] == ["value"] * len(tables)
    assert sorted(value for batch in tables for value in batch.column(0).to_pylist()) == [b"v0", b"v0", b"v1"]


def test_added_partitions_are_consumed_from_their_start(topic: Topic) -> None:
    def add() -> None:
        other = topic_on(topic.storage)
        put_commit(other.log, other.snapshot, "config", lambda _: [SetPartitions(4)])
        append(topic, 3, 2)

    append(topic, 0, 2)
    time = Time()
    time.events.extend([add, lambda: append(topic, 2, 1)])
    consumer = consume(topic, time, start=distlog.LATEST)
    assert drained(consumer) == [(3, 0), (3, 1), (2, 0)]
    assert consumer.position == {0: 2, 1: 0, 2: 1, 3: 2}


def test_selected_partitions_do_not_change(topic: Topic) -> None:
    append(topic, 0, 2)
    append(topic, 1, 2)
    assert drained(consume(topic, partitions=[1])) == span(1, 0, 2)
    with pytest.raises(TopicNotFoundError, match="from 0 to 1"):
        consume(topic, partitions=[2])


def test_windows_alternate_between_partitions_without_gaps(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        append(topic, 0, 20)
    append(topic, 1, 5)
    monkeypatch.setattr(consumer_module, "WINDOW_BYTES", 700)
    records = drained(consume(topic))
    assert [row for row in records if row[0] == 0] == span(0, 0, 100)
    assert records.index((1, 4)) < records.index((0, 60))


def test_a_segment_larger_than_a_window_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_on(Storage(f"memory://{tmp_path.name}/topic"), 1, {"batch.bytes": "150"})
    topic.append(values(range(200)))
    monkeypatch.setattr(consumer_module, "WINDOW_BYTES", 1000)
    windows = [rows(batch) for batch in consume(topic)]
    assert len(windows) > 3
    assert [row for window in windows for row in window] == span(0, 0, 200)


@pytest.mark.parametrize("policy", ["fail", "earliest", "latest"])
def test_a_position_before_the_log_start_follows_the_policy(policy: Any, topic: Topic) -> None:
    append(topic, 0, 10)
    time = Time()
    consumer = consume(topic, time, partitions=[0], out_of_range=policy, start=2)
    other = topic_on(topic.storage)
    other.delete_records({0: 6})
    time.events.append(lambda: append(topic, 0, 1))
    if policy == "fail":
        # records of an earlier plan are still returned; the next refresh detects the deletion
        consumer.close()
        consumer = consume(topic_on(topic.storage), time, partitions=[0])
        next(consumer)
        topic_on(topic.storage).delete_records({0: -1})
        append(topic, 0, 3)
        topic_on(topic.storage).delete_records({0: 13})
        with pytest.raises(OffsetOutOfRangeError, match="log_start_offset=13"):
            drained(consumer)
        return
    assert drained(consumer)[-1] == (0, 10)
    again = consume(topic_on(topic.storage), partitions=[0], out_of_range=policy, start=2)
    assert drained(again) == (span(0, 6, 11) if policy == "earliest" else [])


def test_a_dropped_or_recreated_topic_fails(topic: Topic) -> None:
    for create_again in (False, True):
        consumer = consume(topic)
        other = topic_on(topic.storage)
        other.drop()
        if create_again:
            other = topic_on(topic.storage, 2)
            other.append(values(range(3)))
        with pytest.raises(TopicNotFoundError, match="the topic was dropped"):
            drained(consumer)
        if not create_again:
            topic = topic_on(topic.storage, 2)


def test_it_continues_while_segments_are_merged_and_vacuumed(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(12):
        append(topic, 0, 5)
    monkeypatch.setattr(consumer_module, "WINDOW_BYTES", 700)
    consumer = consume(topic)
    records = rows(next(consumer))
    topic.refresh()
    topic.alter_config({"internal.segment.bytes": "100000"})
    old_values = topic.segments()["stem"].to_pylist()
    topic.compact()
    live = topic.segments()["stem"].to_pylist()
    assert len(live) < len(old_values)
    names = [file.name for file in topic.storage.list("topic-0") if any(stem in file.name for stem in old_values)]
    topic.storage.delete([name for name in names if not any(stem in name for stem in live)])
    records += drained(consumer)
    assert records == span(0, 0, 60)


@pytest.mark.parametrize("name", [name for name in golden.partitions() if "txn" in name])
def test_with_read_committed_it_ends_at_the_last_stable_offset(name: str, tmp_path: Path) -> None:
    topic = adopt_golden(f"memory://{tmp_path.name}", golden.partitions()[name])
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = consume(topic, isolation=isolation, columns=["offset"])
        offsets = [offset for batch in consumer for offset in batch.column(0).to_pylist()]
        assert offsets == topic.scan(isolation=isolation).to_table()["offset"].to_pylist()
        # past the markers and the aborted records at the end too, but never past an open transaction
        assert consumer.lag() == {0: 0}
    assert consumer.position == topic.end_offsets()


def test_an_open_transaction_holds_back_later_records(tmp_path: Path) -> None:
    topic = adopt_golden(f"memory://{tmp_path.name}", golden.partitions()["first.txn-0"])
    consumer = consume(topic, isolation="read_committed")
    drained(consumer)
    stable = consumer.position[0]
    assert stable < topic.end_offsets()[0]
    topic.append([{"value": b"v"}] * 10)
    assert drained(consumer) == []
    assert consumer.position == {0: stable}


def test_repeatedly_missing_files_fail(topic: Topic) -> None:
    append(topic, 0, 5)
    consumer = consume(topic)
    for file in topic.storage.list("topic-0"):
        topic.storage.delete([file.name])
    with pytest.raises(SnapshotTooOldError):
        next(consumer)


def test_lag_counts_the_records_after_the_positions(topic: Topic) -> None:
    append(topic, 0, 4)
    consumer = consume(topic, start={0: 1})
    append(topic, 1, 2)
    assert consumer.lag() == {0: 3, 1: 2}
    drained(consumer)
    assert consumer.lag() == {0: 0, 1: 0}


def test_a_pinned_topic_is_refused(topic: Topic) -> None:
    with pytest.raises(ReadOnlyTopicError, match="to change or consume it"):
        distlog.open(topic.url, version=0).consume()


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": -1},
        {"poll_interval": 0},
        {"lease": 0},
        {"lease": 10**9},
        {"timeout": "1"},
        {"max_workers": 0},
        {"start": {"0": 1}},
        {"start": {0.5: 1}},
    ],
)
def test_wrong_numbers_are_refused_before_it_joins(options: dict[str, Any], topic: Topic) -> None:
    with pytest.raises(InvalidConfigError):
        topic.consume(group="g", **options)
    assert not topic.groups().num_rows


@pytest.mark.parametrize("options", [{"isolation": "dirty"}, {"out_of_range": "skip"}, {"start": "soon"}])
def test_wrong_words_are_refused(options: dict[str, Any], topic: Topic) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        topic.consume(**options)


def test_without_a_group_there_is_nothing_to_commit(topic: Topic) -> None:
    with pytest.raises(InvalidConfigError, match="consume with group"):
        consume(topic).commit()


def test_an_idle_poll_of_an_object_store_is_one_request(memory_topic: Callable[[], Topic]) -> None:
    topic = memory_topic()
    time = Time()
    consumer = consume(topic, time, timeout=60.0)
    assert drained(consumer) == []
    old_gets, paused = topic.storage.counters.gets, len(time.pauses)
    assert drained(consumer) == []
    counters = topic.storage.counters
    assert counters.gets - old_gets == len(time.pauses) - paused + 1
    assert len(time.pauses) - paused > 50
    assert (counters.lists, counters.puts) == (1, counters.puts)


@pytest.fixture
def memory_topic(tmp_path: Path) -> Callable[[], Topic]:
    return lambda: topic_on(Storage(f"memory://{tmp_path.name}/idle"), 2)
