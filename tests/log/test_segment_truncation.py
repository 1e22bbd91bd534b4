"""Truncation of a segment in place, by what Kafka's LogSegmentTest pins.

Held here: testTruncate, testTruncateEmptySegment, testTruncateFull, shouldTruncateEvenIfOffsetPointsToAGapInTheLog,
testReloadLargestTimestampAndNextOffsetAfterTruncation.
"""

from __future__ import annotations

from pathlib import Path

from active_segments import append, files, filled, new_segment, none_open, offsets, records, reopened

from distlog.core.batches.record_batch import read_headers


def test_truncating_again_and_again_leaves_what_is_before(tmp_path: Path) -> None:
    segment, offset = new_segment(tmp_path, 40), 40
    for _ in range(30):
        append(segment, records(offset, [b"hello"]))
        append(segment, records(offset + 1, [b"hello"]))
        assert offsets(segment, offset) == [offset, offset + 1]
        segment.truncate_to(offset + 1, none_open())
        assert offsets(segment, offset) == [offset]
        offset += 1


def test_an_empty_segment_that_is_truncated_can_be_appended_to(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 0, segment_ms=300_000)
    assert segment.truncate_to(57, none_open()) == 0
    assert not segment.should_roll(100, 10**15, 57)
    assert segment.should_roll(100, 10**15, 2**31)
    append(segment, records(57))
    assert offsets(segment) == [57]


def test_the_largest_timestamp_and_the_next_offset_after_a_truncation_are_those_of_what_is_left(
    tmp_path: Path,
) -> None:
    size = len(records(40, [b"hello"]))
    segment = new_segment(tmp_path, 40, index_interval_bytes=2 * size - 1)
    for offset in range(40, 70):
        append(segment, records(offset, [b"hello"]))
    assert segment.state.time_index_bytes == 14 * 12
    assert segment.truncate_to(41, none_open()) == 29 * size
    state = segment.state
    assert (state.time_index_bytes, state.max_timestamp, state.next_offset) == (0, 400, 41)


def test_a_segment_that_is_truncated_as_a_whole_begins_anew(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, segment_ms=300_000)
    append(segment, records(0, [b"hello", b"there"], timestamp=1000))
    assert segment.should_roll(10, 10_000_000, 2)
    segment.truncate_to(0, none_open())
    assert not segment.should_roll(10, 10_000_000, 2)
    assert (segment.size, segment.next_offset, segment.translate_offset(0)) == (0, 0, None)
    append(segment, records(0, [b"hello", b"there"]))
    assert offsets(segment) == [0]


def test_a_truncation_in_a_gap_drops_what_is_behind_the_gap(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 40)
    append(segment, records(40))
    append(segment, records(43))
    segment.truncate_to(41, none_open())
    assert offsets(segment) == [40]
    assert read_headers(files(tmp_path, 40)[".log"])["base_offset"].tolist() == [40]


def test_whoever_knows_an_older_state_reads_on_behind_a_truncation(tmp_path: Path) -> None:
    old = filled(tmp_path)
    reader, writer = (reopened(tmp_path, old, index_interval_bytes=0) for _ in range(2))
    writer.truncate_to(50, none_open())
    writer.seal()
    assert offsets(reader) == list(range(50))
    assert reader.translate_offset(49) is not None
    assert (reader.translate_offset(50), reader.find_offset_by_timestamp(900)) == (None, None)
