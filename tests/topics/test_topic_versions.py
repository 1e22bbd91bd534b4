"""A topic at a version changes only on refresh, and any version or time can be opened."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pytest
from addressed_topics import create, reopened
from addresses import Address
from topics import NOW, Clock, contents, topic_on, values

import distlog
from distlog.core.storage.storage import Storage


def test_a_topic_changes_only_on_refresh_or_append(local_url: Address) -> None:
    writer = create(local_url)
    reader = reopened(writer, local_url)
    writer.append(values([1]))
    assert (contents(reader), contents(writer)) == ({0: []}, {0: [b"v1"]})
    assert reader.refresh() is reader
    assert contents(reader) == {0: [b"v1"]}
    writer.append(values([2]))
    assert reader.append(values([3])).offsets == {0: (2, 3)}
    assert contents(reader) == {0: [b"v1", b"v2", b"v3"]}


def test_a_scan_reads_the_snapshot_it_was_made_from(local_url: Address) -> None:
    topic = create(local_url)
    topic.append(values([1]))
    scan = topic.scan(columns=["value"])
    topic.append(values([2]))
    assert scan.to_table()["value"].to_pylist() == [b"v1"]
    assert (scan.count(), topic.scan().count()) == (1, 2)


def test_every_version_can_be_opened_again_and_is_read_only(storage_url: Address) -> None:
    topic = create(storage_url)
    for number in range(5):
        topic.append(values([number]))
    for version in range(6):
        old = reopened(topic, storage_url, version=version)
        assert (old.version, len(contents(old)[0])) == (version, version)
    for change in (
        lambda: old.append([]),
        lambda: old.writer(),
        lambda: old.transaction(),
        lambda: old.alter_config({}),
        lambda: old.drop(),
        lambda: old.retention(),
        lambda: old.delete_records({0: 1}),
        lambda: old.compact(),
        lambda: old.vacuum(),
        lambda: old.rebuild_indexes(),
    ):
        with pytest.raises(distlog.ReadOnlyTopicError, match="read-only: open it without them"):
            change()
    assert old.refresh().version == 5
    assert old.scan(start=2).count() == 3
    assert topic.refresh().version == 5


@pytest.mark.parametrize("wrong", ["1", 1.5, [1]])
def test_fractions_are_refused_by_name(local_url: Address, wrong: Any) -> None:
    topic = distlog.create(local_url.url)
    for name, call in (
        ("version", lambda: distlog.open(local_url.url, version=wrong)),
        ("linger_ms", lambda: topic.writer(linger_ms=wrong)),
        ("offset", lambda: topic.scan(start=wrong)),
        ("offset", lambda: topic.scan(end={0: wrong})),
        ("partition", lambda: topic.scan(partitions=[wrong])),
        ("partition", lambda: topic.scan(start={str(wrong): 1})),  # type: ignore[dict-item]
        ("start", lambda: list(topic.records(start=wrong))),
        ("limit", lambda: list(topic.records(limit=wrong))),
        ("offset", lambda: topic.read(0, wrong)),
        ("partition", lambda: topic.read(wrong, 0)),
        ("offset", lambda: topic.delete_records({0: wrong})),
    ):
        with pytest.raises(distlog.InvalidConfigError, match=f"{name} must be a whole number"):
            call()


def test_numbers_of_numpy_are_accepted(local_url: Address) -> None:
    topic = distlog.create(local_url.url)
    topic.append(values([0, 1, 2]))
    number = np.int64(1)
    assert topic.scan(partitions=[np.int32(0)], start=number, end={0: np.int64(2)}).count() == 1
    assert [record.offset for record in topic.records(start=number)] == [1, 2]
    assert len(topic.read(0, number)) == len(topic.read(0, 1)) > 0
    assert distlog.open(local_url.url, version=number).version == 1


def test_a_time_opens_the_version_of_that_time(local_url: Address) -> None:
    clock = Clock()
    topic = topic_on(Storage(local_url.url), 1, clock=clock)
    for number in range(3):
        clock.now_ms = NOW + 1000 * (number + 1)
        topic.append(values([number]))
    versions = {
        after: reopened(topic, local_url, timestamp=NOW + after).version for after in (0, 999, 1000, 2500, 9999)
    }
    assert versions == {0: 0, 999: 0, 1000: 1, 2500: 2, 9999: 3}
    moment = datetime.fromtimestamp((NOW + 2000) / 1000, timezone.utc)
    assert reopened(topic, local_url, timestamp=moment).version == 2
    assert reopened(topic, local_url, timestamp=moment.isoformat()).version == 2
    with pytest.raises(distlog.OffsetOutOfRangeError, match="did not exist at that time"):
        reopened(topic, local_url, timestamp=NOW - 1)


def test_a_missing_version_fails(local_url: Address) -> None:
    topic = create(local_url)
    for version in (-1, 1, 99):
        with pytest.raises(distlog.OffsetOutOfRangeError, match=f"version={version}"):
            reopened(topic, local_url, version=version)
    with pytest.raises(ValueError, match="not both"):
        reopened(topic, local_url, version=0, timestamp=NOW)
    with pytest.raises(ValueError, match="a time must be ms since 1970"):
        reopened(topic, local_url, timestamp="yesterday")


def test_no_thread_moves_a_topic_to_an_older_version(local_url: Address) -> None:
    topic = create(local_url)
    old_snapshot = topic.snapshot
    topic.append(values([1]))
    topic.advance(old_snapshot)
    assert topic.version == 1


def test_threads_may_share_a_topic(local_url: Address) -> None:
    topic = create(local_url, 2)
    versions: list[list[int | None]] = [[] for _ in range(4)]

    def work(mine: list[int | None]) -> None:
        for _ in range(10):
            mine.append(topic.append(values([7], partition=0)).version)
            assert topic.scan(partitions=[0]).count() >= len(mine)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(version for mine in versions for version in mine if version) == list(range(1, 41))
    assert all(mine == sorted(mine, key=lambda version: version or 0) for mine in versions)
    assert topic.version == 40
    assert contents(topic)[0] == [b"v7"] * 40
