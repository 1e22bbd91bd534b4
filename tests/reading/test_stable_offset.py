"""The last stable offset of a partition comes from the metadata, without a read of segments."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path
from typing import Any

import golden
import pytest
from adopted import adopt, adopt_golden, forget_fields, with_indexes
from compacting import CompactedTopic
from hypothesis import given
from hypothesis import strategies as st
from producers import Producers
from raw_batches import batch, record
from searches import examples

from distlog import Topic
from distlog.core.commits.segment_table import NO_OFFSET, UNDETERMINED_OFFSET, SegmentInfo
from distlog.core.commits.snapshot import PartitionState
from distlog.core.format.record_batch import TRANSACTIONAL
from distlog.core.segments.producer_states import last_stable_offset, transactions_of

GOLDEN = {name: partition for name, partition in golden.partitions().items() if "txn" in name}
DAY = 86_400_000


def stable_and_requests(topic: Topic, state: PartitionState | None = None) -> tuple[int, int]:
    """Return the last stable offset of partition 0, and the number of its requests."""
    counters = topic.storage.counters
    counters.gets = counters.bytes_read = 0
    stable_offset = last_stable_offset(topic.reader, state or topic.snapshot.partitions[0])
    return stable_offset, counters.gets + counters.bytes_read


def by_reading(topic: Topic) -> int:
    """Return the last stable offset without stored metadata."""
    state = topic.snapshot.partitions[0]
    segments = [dataclasses.replace(segment, first_unstable_offset=UNDETERMINED_OFFSET) for segment in state.segments]
    unknown = dataclasses.replace(state, segments=type(state.segments).of(segments))
    return last_stable_offset(topic.reader, unknown)


def unstable_offsets(topic: Topic) -> list[int]:
    return [info.first_unstable_offset for info in topic.snapshot.partitions[0].segments if info.has_transactions]


@pytest.mark.parametrize("name", GOLDEN)
def test_it_needs_no_request_for_a_brokers_log(memory_url: Any, name: str) -> None:
    topic = adopt_golden(memory_url.url, GOLDEN[name])
    assert stable_and_requests(topic) == (by_reading(topic), 0)


def test_appends_do_not_hide_an_open_transaction(memory_url: Any) -> None:
    topic = adopt_golden(memory_url.url, GOLDEN["first.txn-0"])
    old_offsets = by_reading(topic)
    assert old_offsets < topic.end_offsets()[0]
    topic.append([{"value": b"v"}] * 10)
    assert stable_and_requests(topic) == (old_offsets, 0)


def test_without_metadata_segments_are_read_until_a_rebuild(memory_url: Any) -> None:
    topic = adopt_golden(memory_url.url, GOLDEN["first.txn-0"])
    offsets = unstable_offsets(topic)
    forget_fields(topic)
    assert set(unstable_offsets(topic)) == {UNDETERMINED_OFFSET}
    stable_offset, cost = stable_and_requests(topic)
    assert cost > 0
    topic.rebuild_indexes()
    assert unstable_offsets(topic) == offsets
    assert stable_and_requests(topic) == (stable_offset, 0)


STEPS = st.one_of(
    st.tuples(st.sampled_from(["send", "commit", "abort"]), st.integers(1, 3)),
    st.just(("plain", 0)),
    st.just(("roll", 0)),
)


def written(log: CompactedTopic, steps: list[tuple[str, int]]) -> int:
    """Apply the valid steps; return the start of the first open transaction, or the end of the log."""
    producers, open_transactions = Producers(log), dict[int, int]()
    for key, (step, producer) in enumerate(steps):
        if step == "send":
            open_transactions.setdefault(producer, producers.next_offset)
            producers.send(producer, key % 4)
        elif step == "plain":
            producers.plain(key % 4)
        elif step == "roll":
            if producers.segment_bytes:
                producers.roll()
        elif producer in open_transactions:
            del open_transactions[producer]
            getattr(producers, step)(producer)
    if producers.segment_bytes:
        producers.roll()
    return min(open_transactions.values(), default=producers.next_offset)


@examples(12)
@given(steps=st.lists(STEPS, max_size=25))
def test_it_is_the_start_of_the_first_open_transaction(steps: list[tuple[str, int]]) -> None:
    log = CompactedTopic(f"memory://{uuid.uuid4()}/log")
    expected = written(log, steps)
    topic = log.topic()
    assert stable_and_requests(topic) == (expected, 0)
    assert by_reading(topic) == expected


@pytest.mark.long
@examples(12)
@given(steps=st.lists(STEPS, max_size=25))
def test_repeated_compaction_keeps_it(steps: list[tuple[str, int]]) -> None:
    log = CompactedTopic(f"memory://{uuid.uuid4()}/log", internal_segment_bytes=200)
    expected = written(log, steps)
    is_open = expected < log.topic().end_offsets()[0]
    for _ in range(3):
        log.compact()
        topic = log.topic()
        assert last_stable_offset(topic.reader, topic.snapshot.partitions[0]) == expected
        assert by_reading(topic) == expected
        # after delete.retention.ms and the expiration of producers, markers can be removed by the next compaction
        log.clock.now += 2 * DAY
        log.append((b"0", b"later"))
        expected = expected if is_open else log.topic().end_offsets()[0]


def test_an_emptied_batch_without_its_marker_holds_nothing_back(tmp_path: Path) -> None:
    emptied = batch([], count=0, last_delta=2, attributes=TRANSACTIONAL, producer=(7, 0, 0))
    log = emptied + batch([record(0)], base_offset=3)
    topic = adopt(f"{tmp_path}/log", [(0, with_indexes(log, 0))], 4)
    assert by_reading(topic) == 4
    (transaction,) = transactions_of(topic.reader, topic.snapshot.partitions[0])
    assert (transaction.aborted, transaction.first_unstable_offset) == ([], NO_OFFSET)


def test_compacted_segments_have_it(tmp_path: Path) -> None:
    log = CompactedTopic(str(tmp_path / "log"))
    producers = Producers(log)
    producers.send(1, 1, 2).plain(3).roll()
    producers.send(2, 1).commit(1).commit(2).roll()
    producers.send(1, 5).roll()
    assert [info.first_unstable_offset for info in log.segments()] == [0, NO_OFFSET, 6]
    log.compact()
    assert log.segments()[0].compacted
    assert [info.first_unstable_offset for info in log.segments()] == [NO_OFFSET, 6]
    assert stable_and_requests(log.topic()) == (6, 0)


def test_transactions_open_at_the_end_of_a_rewritten_segment_are_decided(tmp_path: Path) -> None:
    log = CompactedTopic(str(tmp_path / "log"), internal_segment_bytes=200)
    producers = Producers(log)
    producers.send(1, 1, 2).roll()
    producers.commit(1).plain(1).roll()
    assert [info.first_unstable_offset for info in log.segments()] == [0, NO_OFFSET]
    log.compact()
    first = log.segments()[0]
    assert (first.compacted, first.has_transactions, first.first_unstable_offset) == (True, True, NO_OFFSET)


def segment(base_offset: int, **fields: Any) -> SegmentInfo:
    like = {"stored_base_offset": 0, "record_count": 10, "log_bytes": 9, "created_ms": 0, "crc32c": 0}
    sizes = dict.fromkeys(["offset_index_bytes", "time_index_bytes", "txn_index_bytes"], 0)
    times = dict.fromkeys(["first_timestamp", "max_timestamp", "offset_of_max_timestamp"], -1)
    ends = {"base_offset": base_offset, "next_offset": base_offset + 10, "stem": f"{base_offset:020d}"}
    return SegmentInfo(**{"partition": 0, "compression": "none", **like, **sizes, **times, **ends, **fields})


def test_a_transaction_open_below_the_log_start_is_open_from_there(memory_url: Any) -> None:
    topic = adopt_golden(memory_url.url, GOLDEN["first.txn-0"])
    open_segment = segment(10, has_transactions=True, first_unstable_offset=3)
    table = type(topic.snapshot.partitions[0].segments).of([open_segment, segment(20)])
    state = dataclasses.replace(
        topic.snapshot.partitions[0], segments=table, log_start_offset=12, log_end_offset=30, first_dirty_offset=0
    )
    assert stable_and_requests(topic, state) == (12, 0)


def test_a_transaction_whose_end_marker_was_compacted_away_is_not_open(tmp_path: Path) -> None:
    log = CompactedTopic(str(tmp_path / "log"), internal_segment_bytes=200)
    producers = Producers(log)
    producers.send(1, 1).roll()
    producers.send(2, 9).commit(2).roll()
    producers.commit(1).plain(1).roll()
    assert [info.first_unstable_offset for info in log.segments()] == [0, 0, NO_OFFSET]
    for _ in range(4):
        log.append((b"x", b"y"))
        log.compact()
        log.clock.now += 2 * DAY
        topic = log.topic()
        assert by_reading(topic) == topic.end_offsets()[0]
        assert stable_and_requests(topic)[0] == topic.end_offsets()[0]
    transactional = [info for info in log.segments() if info.has_transactions]
    assert [(info.base_offset, info.first_unstable_offset) for info in transactional] == [(1, 0)]
