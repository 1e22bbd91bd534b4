"""Appends of index entries by a segment: Kafka's OffsetIndexTest, TimeIndexTest and TransactionIndexTest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from active_segments import append, files, new_segment, none_open, records, reopened
from test_transaction_index import FOUR

from distlog.core.format.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    AbortedTransaction,
    GrowingOffsetIndex,
    GrowingTimeIndex,
    OffsetIndex,
    TimeIndex,
    decode_transactions,
)
from distlog.core.format.record_batch import read_headers
from distlog.core.log.log_segment import LogSegment
from distlog.core.segments.segment_state import UnfitBatchError

BASE = 45
SLOTS = 30
SETTINGS = {"index_interval_bytes": 0, "segment_index_bytes": SLOTS * TIME_ENTRY.itemsize}


@pytest.fixture
def segment(tmp_path: Path) -> LogSegment:
    """A new segment with room for 30 entries in its time index, and a batch without an entry."""
    segment = new_segment(tmp_path, BASE, **SETTINGS)
    append(segment, records(BASE, timestamp=0))
    return segment


def add(segment: LogSegment, *offsets: int) -> None:
    for offset in offsets:
        append(segment, records(BASE + offset, timestamp=10 * offset))


def written(folder: Path, segment: LogSegment) -> tuple[list[int], list[int]]:
    """Return the offsets above BASE in the entries of the offset index and of the time index."""
    contents, state = files(folder, BASE), segment.state
    offsets = np.frombuffer(contents[".index"][: state.offset_index_bytes], OFFSET_ENTRY)
    times = np.frombuffer(contents[".timeindex"][: state.time_index_bytes], TIME_ENTRY)
    return offsets["relative_offset"].tolist(), times["relative_offset"].tolist()


def growing(folder: Path, segment: LogSegment) -> tuple[GrowingOffsetIndex, GrowingTimeIndex]:
    contents, state = files(folder, BASE), segment.state
    offsets = GrowingOffsetIndex(lambda a, b: contents[".index"][a:b], state.offset_index_bytes, BASE)
    return offsets, GrowingTimeIndex(lambda a, b: contents[".timeindex"][a:b], state.time_index_bytes, BASE)


def test_every_appended_offset_and_time_is_found_in_the_growing_and_in_the_sealed_index(
    tmp_path: Path, segment: LogSegment
) -> None:
    steps = range(3, 60, 3)
    positions = dict[int, int]()
    for step in steps:
        positions[BASE + step] = segment.size
        add(segment, step)
    offsets, times = growing(tmp_path, segment)
    segment.seal()
    sealed_offsets = OffsetIndex(str(tmp_path / f"{BASE:020d}.index"), BASE)
    sealed_times = TimeIndex(str(tmp_path / f"{BASE:020d}.timeindex"), BASE)
    for step in range(-2, 65):
        below = max((other for other in steps if other <= step), default=None)
        floor = (BASE, 0) if below is None else (BASE + below, positions[BASE + below])
        assert offsets.lookup(BASE + step) == sealed_offsets.lookup(BASE + step) == floor
        assert times.lookup(10 * step).offset == sealed_times.lookup(10 * step).offset == floor[0]


def test_the_index_is_full_when_only_the_slot_of_the_last_entry_is_left(tmp_path: Path, segment: LogSegment) -> None:
    for step in range(1, SLOTS):
        assert not segment.should_roll(10, 10 * step, BASE + step), step
        add(segment, step)
    assert len(written(tmp_path, segment)[1]) == SLOTS - 1
    assert segment.should_roll(10, 10 * SLOTS, BASE + SLOTS)


def test_the_last_entry_of_a_sealed_time_index_is_the_largest_time(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, BASE, **{**SETTINGS, "index_interval_bytes": 1 << 20})
    add(segment, 0, 5, 9)
    assert segment.state.time_index_bytes == 0
    segment.seal()
    index = TimeIndex(str(tmp_path / f"{BASE:020d}.timeindex"), BASE)
    assert (index.entries, index.lookup(2**40)) == (1, (90, BASE + 9))


@pytest.mark.parametrize("offset", [5, 6])
def test_an_offset_must_be_above_the_last_one_or_nothing_is_written(
    tmp_path: Path, segment: LogSegment, offset: int
) -> None:
    add(segment, 6)
    contents = files(tmp_path, BASE)
    with pytest.raises(UnfitBatchError, match="are not above the last offset in the segment"):
        add(segment, offset)
    assert files(tmp_path, BASE) == contents
    assert written(tmp_path, segment) == ([6], [6])


def test_a_time_that_is_not_later_is_not_added(tmp_path: Path, segment: LogSegment) -> None:
    add(segment, 6)
    append(segment, records(BASE + 7, timestamp=60), records(BASE + 8, timestamp=59))
    assert written(tmp_path, segment) == ([6, 7, 8], [6])


def test_records_without_a_timestamp_leave_the_time_index_empty(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, BASE, **SETTINGS)
    append(segment, *(records(BASE + step, timestamp=-1) for step in range(3)))
    segment.seal()
    contents = files(tmp_path, BASE)
    assert (contents[".timeindex"], len(contents[".index"])) == (b"", 16)


def test_a_sealed_index_is_trimmed_to_its_entries(tmp_path: Path, segment: LogSegment) -> None:
    add(segment, 6, 7)
    assert {len(files(tmp_path, BASE)[name]) for name in (".index", ".timeindex")} == {SLOTS * 12}
    segment.seal()
    index = OffsetIndex(str(tmp_path / f"{BASE:020d}.index"), BASE)
    offsets = [index.lookup(BASE + offset).offset for offset in (5, 6, 7, 60)]
    assert (index.entries, offsets) == (2, [BASE, BASE + 6, BASE + 7, BASE + 7])
    assert len(files(tmp_path, BASE)[".timeindex"]) == 2 * 12


def test_another_process_appends_after_the_entries(tmp_path: Path, segment: LogSegment) -> None:
    add(segment, 6, 7)
    again = reopened(tmp_path, segment.state, **SETTINGS)
    add(again, 8)
    assert written(tmp_path, again) == ([6, 7, 8], [6, 7, 8])


def test_unflushed_batches_are_dropped_with_their_entries(tmp_path: Path, segment: LogSegment) -> None:
    add(segment, *range(1, 6))
    segment.flush()
    add(segment, *range(6, 10))
    segment.drop_unflushed(none_open())
    assert written(tmp_path, segment) == (list(range(1, 6)), list(range(1, 6)))
    # what was dropped are zeros, so that a crash brings nothing back
    assert files(tmp_path, BASE)[".index"][5 * 8 :] == bytes(SLOTS * 12 - 5 * 8)


def test_a_transaction_index_is_made_by_its_first_entry_and_grows_across_processes(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, **SETTINGS)
    append(segment, records(0))
    segment.flush()
    assert ".txnindex" not in files(tmp_path)
    for entry in FOUR:
        marker = records(entry.last_offset)
        segment.append(marker, read_headers(marker), aborted=[entry])
    segment.flush()
    assert decode_transactions(files(tmp_path)[".txnindex"], "", 0) == FOUR
    again, another = reopened(tmp_path, segment.state, **SETTINGS), AbortedTransaction(3, 50, 60, 55)
    marker = records(60)
    again.append(marker, read_headers(marker), aborted=[another])
    again.seal()
    assert decode_transactions(files(tmp_path)[".txnindex"], "", 0) == [*FOUR, another]
    assert len(files(tmp_path)[".txnindex"]) == 5 * 34
