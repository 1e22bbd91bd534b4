"""The first, the last and random records of a scan, without a full read."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import golden
import pytest
from adopted import adopt_golden, offsets
from topics import NOW, TINY, topic_on, values

import distlog
from distlog.core.read import scan as sampling
from distlog.core.storage.storage import Storage


@pytest.fixture
def topic() -> distlog.Topic:
    new_topic = topic_on(Storage(f"memory://{uuid.uuid4().hex}/t"), 2, TINY)
    for start in range(0, 50, 10):
        for number in (0, 1):
            new_topic.append(values(range(100 * number + start, 100 * number + start + 10)), partition=number)
    assert new_topic.segments().num_rows > 6
    return new_topic


def numbers(table: Any) -> list[int]:
    return [int(value[1:]) for value in table["value"].to_pylist()]


def test_a_negative_limit_is_refused(topic: distlog.Topic) -> None:
    scan = topic.scan()
    for read in (scan.head, scan.tail, scan.sample, topic.history, lambda limit: list(topic.records(limit=limit))):
        with pytest.raises(distlog.InvalidConfigError, match=r"limit must be 0 or more.*value=-1"):
            read(-1)


@pytest.mark.parametrize("limit", [0, 1, 3, 49, 50, 51, 99, 100, 1000])
def test_the_last_records_are_the_end_of_all(topic: distlog.Topic, limit: int) -> None:
    scan = topic.scan(columns=["value"])
    every = numbers(scan.to_table())
    assert numbers(scan.tail(limit)) == every[max(0, 100 - limit) :]
    assert numbers(scan.head(limit)) == every[:limit]


def test_the_last_records_of_a_time_may_be_far_from_the_end(topic: distlog.Topic) -> None:
    scan = topic.scan(end_time=NOW + 3)
    assert numbers(scan.tail(2)) == [1, 2]
    assert numbers(scan.tail()) == [0, 1, 2]


def test_the_last_records_read_little() -> None:
    topic = topic_on(Storage(f"memory://{uuid.uuid4().hex}/t"), 1)
    for number in range(20):
        topic.append([{"value": b"x" * 10_000}] * 100 if number else values(range(5)))
    old_bytes_read = topic.storage.counters.bytes_read
    assert topic.scan().tail(3).num_rows == 3
    assert topic.storage.counters.bytes_read - old_bytes_read < 1_500_000


def test_aborted_records_are_never_returned(memory_url: Any) -> None:
    topic = adopt_golden(memory_url.url, golden.partitions()["first.txn-0"])
    scan = topic.scan(isolation="read_committed")
    every = offsets(scan.to_table())
    assert len(every) < len(topic.scan())
    for rows in (scan.head(1000), scan.tail(1000), scan.sample(1000)):
        assert offsets(rows) == every
    assert set(offsets(scan.sample(20, seed=5))) < set(every)


def test_a_sample_is_the_same_for_the_same_seed_and_in_order(topic: distlog.Topic) -> None:
    scan = topic.scan()
    sampled = numbers(scan.sample(20, seed=1))
    assert sampled == sorted(set(sampled)) == numbers(scan.sample(20, seed=1))
    assert len(sampled) == 20
    assert sampled != numbers(scan.sample(20, seed=2))
    assert numbers(scan.sample(1000)) == numbers(scan.to_table())
    assert (scan.sample(0).num_rows, topic.scan(start={0: 50, 1: 50}).sample(3).num_rows) == (0, 0)


@pytest.mark.parametrize("point_bytes", [1, 1 << 20])
def test_each_record_has_the_same_chance(
    topic: distlog.Topic, monkeypatch: pytest.MonkeyPatch, point_bytes: int
) -> None:
    monkeypatch.setattr(sampling, "POINT_BYTES", point_bytes)
    monkeypatch.setattr(sampling, "INDEX_WORTH_BYTES", 1)
    scan = topic.scan(start={0: 7, 1: 0}, columns="value")
    counter = Counter(number for seed in range(60) for number in numbers(scan.sample(31, seed=seed)))
    assert set(counter) == {*range(7, 50), *range(100, 150)}
    assert min(counter.values()) >= 5
    assert max(counter.values()) <= 38


def test_a_sample_of_a_large_segment_reads_little() -> None:
    topic = topic_on(Storage(f"memory://{uuid.uuid4().hex}/t"), 1)
    topic.append([{"value": b"%06d" % number + b"x" * 1000} for number in range(20_000)])
    old_bytes_read = topic.storage.counters.bytes_read
    rows = topic.scan().sample(5, seed=3)
    assert [int(value[:6]) for value in rows["value"].to_pylist()] == rows["offset"].to_pylist()
    assert topic.storage.counters.bytes_read - old_bytes_read < 4_000_000
