"""The segments that compaction leaves: what they cover, how large they are, where their indexes lead."""

from __future__ import annotations

import itertools
from pathlib import Path

from compacting import NOW, CompactedTopic
from compacting import log as log
from keyed_batches import keyed, last_offsets
from raw_batches import batch, record


def test_offsets_and_log_end_do_not_move(log: CompactedTopic) -> None:
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.clock.now += 5
    log.compact()
    (segment,) = log.segments()
    assert (segment.base_offset, segment.next_offset, segment.record_count) == (0, 2, 1)
    assert (segment.compacted, segment.dense, segment.stored_base_offset) == (True, False, 0)
    assert segment.created_ms == NOW
    assert log.topic().append([{"key": b"b", "value": b"1"}]).offsets == {0: (2, 3)}
    assert log.offsets() == [1, 2]


def test_a_segment_that_loses_nothing_is_left_where_it_is(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", internal_segment_bytes=100)
    log.append((b"a", b"1" * 20))
    log.append((b"b", b"1" * 20))
    before = log.segments()
    log.append((b"a", b"2" * 20))
    done = log.compact()
    assert done is not None
    assert log.segments()[0] == before[1]
    assert log.offsets() == [1, 2]
    assert log.topic().snapshot.partitions[0].log_start_offset == 0


def test_groups_of_which_nothing_stays_leave_a_gap(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", internal_segment_bytes=200)
    for _ in range(6):
        log.append((b"a", b"x" * 100))
    log.compact()
    assert [(segment.base_offset, segment.next_offset) for segment in log.segments()] == [(5, 6)]
    assert (log.topic().start_offsets(), log.offsets()) == ({0: 0}, [5])
    assert log.topic().scan(start=2).count() == 1


def test_a_segment_covers_the_batches_that_it_lost(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", internal_segment_bytes=170)
    log.add(keyed(0, 1, leader_epoch=3) + keyed(1, 2, leader_epoch=3))
    log.add(keyed(2, 2, 3, 4))
    log.compact()
    assert [(segment.base_offset, segment.next_offset) for segment in log.segments()] == [(0, 2), (2, 5)]
    assert [segment.leader_epoch for segment in log.segments()] == [3, -1]
    assert last_offsets(log) == [0, 4]


def test_outputs_grow_towards_the_segment_size(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", internal_segment_bytes=1000)
    for number in range(40):
        log.append((b"%d" % (number % 20), b"x" * 30))
    log.compact()
    log.append((b"last", b"x"))
    log.compact()
    sizes = [segment.log_bytes for segment in log.segments()]
    assert max(sizes) <= 1000
    assert all(a + b > 1000 for a, b in itertools.pairwise(sizes))
    assert log.offsets() == list(range(20, 41))


def test_a_batch_that_grows_rolls_the_segment(tmp_path: Path) -> None:
    """A delete horizon makes two tombstones larger than they were, and than the segment may be together."""
    log = CompactedTopic(f"{tmp_path}/log", internal_segment_bytes=140)
    one, other = (batch([record(0, 0, key, None)], base_offset=at) for at, key in enumerate((b"a", b"b")))
    log.add(one)
    log.add(other)
    assert len(one + other) <= 140
    log.compact()
    assert [(segment.base_offset, segment.next_offset) for segment in log.segments()] == [(0, 1), (1, 2)]
    assert log.offsets() == [0, 1]


def test_indexes_of_outputs_lead_to_their_records(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", index_interval_bytes=100, batch_bytes=200)
    for start in range(0, 400, 100):
        log.clock.now += 1
        log.append(*((b"%d" % (number % 150), b"x" * 50) for number in range(start, start + 100)))
    log.compact()
    (segment,) = log.segments()
    assert segment.offset_index_bytes > 0
    assert segment.time_index_bytes > 0
    topic = log.topic()
    assert [next(iter(topic.records(0, start=at, limit=1))).offset for at in (0, 250, 399)] == [250, 250, 399]
    assert topic.offsets_for_times(NOW + 4) == {0: (300, NOW + 4)}
