"""Reads of a segment that is appended to in place, by what Kafka's LogSegmentTest pins.

Held here: testReadOnEmptySegment, testReadBeforeFirstOffset, testReadAfterLast, testReadFromGap,
testFindOffsetByTimestamp.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from active_segments import append, data_from, filled, new_segment, records, reopened
from raw_batches import batch, record

from distlog.core.errors import CorruptRecordError


def test_an_empty_segment_has_nothing_to_read(tmp_path: Path) -> None:
    assert new_segment(tmp_path, 40).translate_offset(40) is None


def test_a_read_before_the_first_offset_gives_the_first_batch(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 40)
    data = records(50, [b"hello", b"there", b"little", b"bee"])
    append(segment, data)
    assert segment.translate_offset(41) == (50, 53, 0, len(data))


def test_a_read_behind_the_last_offset_gives_none(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 40)
    append(segment, records(50, [b"hello", b"there"]))
    assert segment.translate_offset(52) is None


def test_a_read_in_a_gap_gives_the_next_batch(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 40)
    second = records(60, [b"alpha", b"beta"])
    append(segment, records(50, [b"hello", b"there"]))
    append(segment, second)
    assert data_from(segment, 55) == second


def test_a_read_from_inside_a_batch_gives_the_whole_batch(tmp_path: Path) -> None:
    segment, data = new_segment(tmp_path), records(0, [b"a", b"b", b"c"])
    append(segment, data)
    assert data_from(segment, 2) == data


@pytest.mark.parametrize("interval", [0, 200, 4096])
def test_a_time_is_found_at_the_first_record_at_or_after_it(tmp_path: Path, interval: int) -> None:
    segment = new_segment(tmp_path, 40, index_interval_bytes=interval)
    for offset in range(40, 50):
        append(segment, records(offset, leader_epoch=3))
    found = {time: segment.find_offset_by_timestamp(time) for time in (420, 421, 490, 491, 401, 399)}
    assert {time: at and tuple(at) for time, at in found.items()} == {
        420: (420, 42, 3),
        421: (430, 43, 3),
        490: (490, 49, 3),
        491: None,
        401: (410, 41, 3),
        399: (400, 40, 3),
    }
    later = segment.find_offset_by_timestamp(420, 45)
    assert later is not None
    assert later.offset == 45


def test_a_time_is_found_inside_of_a_batch(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    rows = [record(delta, time, None, b"v") for delta, time in enumerate((0, 50, 20))]
    append(segment, batch(rows, base_timestamp=100, max_timestamp=150))
    assert [segment.find_offset_by_timestamp(time) for time in (100, 101, 151)] == [
        (100, 0, -1),
        (150, 1, -1),
        None,
    ]


def test_a_read_gives_nothing_that_another_process_appended_since(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    append(segment, records(0))
    other = reopened(tmp_path, segment.state)
    append(other, records(1))
    assert segment.translate_offset(1) is None
    assert data_from(segment) == records(0)


def test_a_damaged_batch_is_not_believed_when_a_time_is_looked_for(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    append(segment, records(0), records(1))
    path = tmp_path / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    assert segment.find_offset_by_timestamp(0) is not None
    with pytest.raises(CorruptRecordError) as caught:
        segment.find_offset_by_timestamp(10)
    assert caught.value.details["position"] == len(records(0))


@pytest.mark.parametrize("wrong", [60, 49, 0])
@pytest.mark.parametrize("inside", [0, 7, 30])
def test_an_entry_that_names_another_place_is_not_believed(tmp_path: Path, wrong: int, inside: int) -> None:
    segment = reopened(tmp_path, filled(tmp_path), index_interval_bytes=0)
    places = [segment.translate_offset(offset) for offset in range(100)]
    path, other = tmp_path / f"{0:020d}.index", places[wrong]
    data = bytearray(path.read_bytes())
    at = data.index((50).to_bytes(4, "big"))
    assert other is not None
    data[at + 4 : at + 8] = (other.position + inside).to_bytes(4, "big")
    path.write_bytes(data)
    assert [segment.translate_offset(offset) for offset in range(100)] == places


def test_a_time_is_looked_for_from_the_wanted_offset_on_and_not_from_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = new_segment(tmp_path, index_interval_bytes=0)
    for offset in range(50):
        append(segment, records(offset, timestamp=1000))
    place, read, positions = segment.translate_offset(45), os.preadv, []

    def noted(file: int, buffers: list[memoryview], position: int) -> int:
        if os.readlink(f"/proc/self/fd/{file}").endswith(".log"):
            positions.append(position)
        return read(file, buffers, position)

    monkeypatch.setattr(os, "preadv", noted)
    found = segment.find_offset_by_timestamp(1000, 45)
    assert place is not None
    assert found is not None
    assert found.offset == 45
    assert min(positions) == place.position


def test_a_seal_reads_nothing_of_a_log_without_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = new_segment(tmp_path)
    append(segment, records(0, [b"a", b"b"], timestamp=-1))

    def unwanted(*_: object) -> int:
        raise AssertionError("a seal reads the log")

    monkeypatch.setattr(os, "preadv", unwanted)
    assert segment.seal().offset_of_max_timestamp == -1
