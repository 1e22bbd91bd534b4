"""The times that commits gave stay with the records: in merged and compacted segments, in indexes, in lookups."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from append_times import check_readers, rows, segment, topic_of, written_wrong
from hypothesis import given
from hypothesis import strategies as st
from searches import examples
from topics import NOW, Clock, topic_on

import distlog
from distlog.core.batches.record_batch import check_crcs, read_headers
from distlog.core.topics.topic import Topic


def late_appends(topic: Topic, clock: Clock, count: int) -> None:
    """Appends, each with a time of its own that its batches do not have."""
    for number in range(count):
        with topic.transaction() as transaction:
            transaction.append(rows(f"a{number}", f"{number}b"))
            clock.now_ms += 1000


def test_a_merged_segment_has_the_times_of_its_parts_in_its_batches() -> None:
    clock = Clock(NOW)
    topic = topic_of(clock)
    late_appends(topic, clock, 8)
    before = check_readers(topic)
    topic.compact()
    (merged,) = topic.snapshot.partitions[0].segments
    assert merged.append_time_ms == -1
    assert check_readers(topic) == before
    data = topic.storage.read(topic.reader.name(merged))
    headers = read_headers(data)
    check_crcs(data, headers)
    assert headers["max_timestamp"].tolist() == sorted({time for _, time, _ in before})
    assert topic.verify().ok


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_compacted_segments_have_the_times_of_their_parts_in_their_batches(codec: str) -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    for number in range(6):
        with topic.transaction(compression=codec) as transaction:
            # the first loses a record, the second loses nothing, and so is copied as it is
            transaction.append(rows(f"a{number}", f"{number} stays") if number % 2 else rows(f"{number} stays"))
            clock.now_ms += 1000
    before = check_readers(topic)
    topic.compact()
    after = check_readers(topic)
    assert set(after) < set(before)
    assert [value for _, _, value in after if b"stays" in value] == [
        value for _, _, value in before if b"stays" in value
    ]
    assert {each.append_time_ms for each in topic.snapshot.partitions[0].segments} == {-1}
    assert topic.verify().ok


def test_a_compaction_that_changes_nothing_keeps_the_segment_and_its_time() -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    late_appends(topic, clock, 1)
    before = check_readers(topic)
    topic.compact()
    assert segment(topic).append_time_ms == NOW + 1000
    assert check_readers(topic) == before


def test_rebuilt_indexes_are_those_that_were_written(tmp_path: Path) -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, str(tmp_path / "clicks"), index_interval_bytes=0, batch_bytes=1)
    with topic.transaction() as transaction:
        for number in range(20):
            transaction.append(rows(f"{number}"))
        clock.now_ms += 5000
    before = check_readers(topic)
    assert topic.verify().ok
    assert topic.rebuild_indexes().rebuilt == ()
    paths = [tmp_path / "clicks" / topic.reader.name(segment(topic), suffix) for suffix in (".index", ".timeindex")]
    written = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    topic.rebuild_indexes()
    assert [path.read_bytes() for path in paths] == written
    assert segment(topic).append_time_ms == NOW + 5000
    assert check_readers(topic) == before
    assert topic.verify().ok


def test_a_lookup_by_time_in_a_large_segment_asks_no_time_index(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, str(tmp_path / "clicks"), batch_bytes=1000)
    for _ in range(2):
        with topic.transaction() as transaction:
            transaction.append([{"value": bytes(500)} for _ in range(1000)])
            clock.now_ms += 5000
    (tmp_path / "clicks" / topic.reader.name(segment(topic, 1), ".timeindex")).unlink()
    assert topic.offsets_for_times(NOW + 1)[0] == (0, NOW + 5000)
    assert topic.offsets_for_times(NOW + 5001)[0] == (1000, NOW + 10_000)
    assert topic.offsets_for_times(NOW + 10_001)[0] is None
    # an index that was asked would have been found wrong, or gone
    assert caplog.messages == []


def test_a_scan_by_time_begins_where_the_commit_says() -> None:
    clock = Clock(NOW)
    topic = topic_of(clock)
    late_appends(topic, clock, 4)
    found = topic.scan(start_time=NOW + 2000, end_time=NOW + 4000, columns=["offset"]).to_table()
    assert found["offset"].to_pylist() == [2, 3, 4, 5]


def test_a_damaged_batch_is_found_before_its_time_is_written_anew(tmp_path: Path) -> None:
    clock = Clock(NOW)
    topic = topic_of(clock, str(tmp_path / "clicks"))
    late_appends(topic, clock, 2)
    path = tmp_path / "clicks" / topic.reader.name(segment(topic))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    topic = topic_on(topic.storage, clock=clock)
    for attempt in (lambda: topic.read(0, 0), lambda: topic.scan().to_table()):
        with pytest.raises(distlog.CorruptRecordError, match="checksum"):
            attempt()
    (failed,) = topic.compact().failed
    assert "checksum" in failed.reason
    assert not topic.verify().ok


@pytest.mark.long
@given(st.integers(0, 2**32), st.sampled_from(["delete", "compact"]), st.sampled_from(["none", "lz4"]))
@examples(6)
def test_whatever_the_order_of_encoding_and_committing_time_never_steps_back(
    seed: int, policy: str, codec: str
) -> None:
    order, clock = random.Random(seed), Clock(NOW)
    config = {
        "cleanup_policy": policy,
        "internal_segment_bytes": 600,
        "batch_bytes": 100,
        "min_cleanable_dirty_ratio": 0.0,
    }
    topic = topic_of(clock, index_interval_bytes=0, retention_ms=-1, **config)
    writers = [written_wrong(topic_on(topic.storage, clock=clock)) for _ in range(4)]
    under_way: list[Any] = []
    for number in range(25):
        clock.now_ms += order.randrange(-1000, 3000)
        if len(under_way) < 4 and order.random() < 0.6:
            under_way.append(order.choice(writers).transaction(compression=codec))
        elif under_way and order.random() < 0.5:
            under_way.pop(order.randrange(len(under_way))).commit()
        for transaction in under_way:
            if order.random() < 0.5:
                transaction.append(rows(*(f"{order.randrange(5)} {number}" for _ in range(order.randrange(1, 4)))))
        if order.random() < 0.2:
            before = check_readers(topic.refresh())
            topic.compact()
            after = check_readers(topic)
            assert after == before if policy == "delete" else set(after) <= set(before)
    for transaction in under_way:
        transaction.commit()
    found = check_readers(topic.refresh())
    topic.rebuild_indexes(force=True)
    assert check_readers(topic) == found
    topic.compact()
    assert check_readers(topic) == found if policy == "delete" else set(check_readers(topic)) <= set(found)
    report = topic.verify()
    assert report.ok, str(report)
