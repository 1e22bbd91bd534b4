"""When a segment that is appended to in place must roll: Kafka's LogSegment.shouldRoll."""

from __future__ import annotations

from pathlib import Path

import pytest
from active_segments import NOW, Clock, append, new_segment, records

HOUR = 3_600_000


def test_a_segment_rolls_before_it_passes_its_size(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, internal_segment_bytes=1000)
    append(segment, records(0))
    assert not segment.should_roll(1000 - segment.size, 0, 1)
    assert segment.should_roll(1001 - segment.size, 0, 1)


def test_a_segment_rolls_by_the_time_of_its_records_and_not_by_the_clock(tmp_path: Path) -> None:
    clock = Clock()
    segment = new_segment(tmp_path, clock=clock, segment_ms=HOUR)
    append(segment, records(0, timestamp=NOW))
    clock.now_ms += 10 * HOUR
    assert not segment.should_roll(10, NOW + HOUR, 1)
    assert segment.should_roll(10, NOW + HOUR + 1, 1)
    assert not segment.should_roll(10, -1, 1)


def test_a_segment_without_record_times_rolls_by_the_clock(tmp_path: Path) -> None:
    clock = Clock()
    segment = new_segment(tmp_path, clock=clock, segment_ms=HOUR)
    append(segment, records(0, timestamp=-1))
    clock.now_ms += HOUR
    assert not segment.should_roll(10, -1, 1)
    clock.now_ms += 1
    assert segment.should_roll(10, -1, 1)


def test_an_empty_segment_never_rolls_but_for_its_offsets(tmp_path: Path) -> None:
    clock = Clock()
    segment = new_segment(tmp_path, 5, clock=clock, segment_ms=1, internal_segment_bytes=14, segment_index_bytes=4)
    clock.now_ms += HOUR
    assert not segment.should_roll(1000, NOW + HOUR, 5)
    assert not segment.should_roll(1000, NOW, 5 + 2**31 - 1)
    assert segment.should_roll(1000, NOW, 5 + 2**31)
    assert segment.should_roll(1000, NOW, 4)


@pytest.mark.parametrize(("index_bytes", "entries"), [(8, 0), (24, 1), (36, 2), (47, 2), (48, 3)])
def test_a_segment_rolls_when_an_index_is_full(tmp_path: Path, index_bytes: int, entries: int) -> None:
    segment = new_segment(tmp_path, index_interval_bytes=0, segment_index_bytes=index_bytes)
    offset = 0
    while offset == 0 or not segment.should_roll(10, 10 * offset, offset):
        append(segment, records(offset))
        offset += 1
    assert segment.state.time_index_bytes == 12 * entries


def test_all_processes_draw_the_same_jitter(tmp_path: Path) -> None:
    def span(base_offset: int, folder: str) -> int:
        segment = new_segment(tmp_path / folder, base_offset, segment_ms=HOUR, segment_jitter_ms=HOUR)
        append(segment, records(base_offset, timestamp=NOW))
        low, high = 0, HOUR
        while low < high:
            middle = (low + high) // 2
            rolls = segment.should_roll(10, NOW + middle + 1, base_offset + 1)
            low, high = (low, middle) if rolls else (middle + 1, high)
        return low

    assert span(0, "a") == span(0, "b") != span(1, "c")
    assert 0 < span(0, "d") < HOUR
