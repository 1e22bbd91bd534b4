"""An active segment: Kafka's LogSegmentTest."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from active_segments import (
    NOW,
    Clock,
    append,
    config,
    data_from,
    files,
    filled,
    new_segment,
    offsets,
    records,
    reopened,
)
from raw_batches import batch, record

from distlog.core.errors import CorruptRecordError
from distlog.core.format.record_batch import BATCH, read_headers
from distlog.core.log.log_segment import LogSegment
from distlog.core.segments.segment_state import LogDescription, UnfitBatchError


@pytest.mark.parametrize(
    ("base", "offset"),
    [(0, -(2**31)), (0, 2**31), (1, 0), (100, 10), (2**31, 0), (2**31, 2**32), (0, 2**63 - 1)],
)
def test_an_offset_past_the_range_of_an_index_is_refused(tmp_path: Path, base: int, offset: int) -> None:
    segment = new_segment(tmp_path, base)
    rows = np.zeros(1, BATCH)
    rows["size"], rows["base_offset"], rows["record_count"] = 70, offset, 1
    with pytest.raises(UnfitBatchError, match="roll"):
        segment.append(bytes(70), rows)
    assert segment.size == 0
    assert files(tmp_path, base)[".log"] == b""


def test_the_last_offset_in_the_range_of_an_index_is_accepted(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 7)
    append(segment, records(7 + 2**31 - 1))
    assert segment.next_offset == 7 + 2**31


def test_the_next_offset_follows_the_last_one(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 40)
    assert segment.next_offset == 40
    append(segment, records(50, [b"hello", b"there", b"you"]))
    assert segment.next_offset == 53


def test_offsets_must_ascend(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    append(segment, records(0, [b"a", b"b"]))
    with pytest.raises(ValueError, match="not above"):
        append(segment, records(1))
    with pytest.raises(ValueError, match="not above"):
        append(segment, records(5), records(5))
    assert offsets(segment) == [0]


def test_bytes_that_differ_from_their_headers_are_refused(tmp_path: Path) -> None:
    segment, data = new_segment(tmp_path), records(0) + records(1)
    rows = read_headers(data)
    for wrong in (data + b"x", data[:-1]):
        with pytest.raises(ValueError, match="do not fill their bytes"):
            segment.append(wrong, rows)
    with pytest.raises(ValueError, match="do not fill their bytes"):
        segment.append(data[len(records(0)) :], rows[1:])
    with pytest.raises(ValueError, match="a value for each batch"):
        segment.append(data, rows, offsets_of_max_timestamp=np.zeros(1, np.int64))
    assert segment.size == 0


def test_nothing_to_append_changes_nothing(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    old_state = segment.state
    segment.append(b"", np.zeros(0, BATCH))
    assert segment.state == old_state


def test_a_preallocated_segment_is_as_long_as_it_may_get_until_it_is_sealed(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, preallocate=True, segment_bytes=1 << 20)
    data = records(0, [b"hello", b"there"])
    append(segment, data)
    assert len(files(tmp_path)[".log"]) == 1 << 20
    assert segment.size == len(data)
    assert segment.bytes_past_end() == 0
    segment.close()
    again = reopened(tmp_path, segment.state, preallocate=True, segment_bytes=1 << 20)
    assert (again.size, offsets(again)) == (len(data), [0])
    again.seal()
    assert files(tmp_path)[".log"] == data


def test_the_first_timestamp_is_that_of_the_first_batch(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    assert segment.state.first_timestamp == -1
    append(segment, records(0, timestamp=1000))
    append(segment, records(1, timestamp=5))
    assert segment.state.first_timestamp == 1000


def test_indexes_are_preallocated_and_are_trimmed_by_the_seal(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, index_interval_bytes=0, segment_index_bytes=1000)
    assert {suffix: len(data) for suffix, data in files(tmp_path).items()} == {
        ".log": 0,
        ".index": 1000,
        ".timeindex": 996,
    }
    for offset in range(3):
        append(segment, records(offset))
    assert len(files(tmp_path)[".index"]) == 1000
    state = segment.seal()
    assert (state.offset_index_bytes, state.time_index_bytes) == (16, 24)
    assert {suffix: len(data) for suffix, data in files(tmp_path).items()} == {
        ".log": state.position,
        ".index": 16,
        ".timeindex": 24,
    }


@pytest.mark.parametrize("step", [1, 3, 40])
def test_indexes_equal_a_rebuild(tmp_path: Path, step: int) -> None:
    segment = new_segment(tmp_path, 90, index_interval_bytes=300)
    batches = [records(90 + 2 * n, [b"v" * n, b"w"], timestamp=NOW + n * 37 % 11) for n in range(40)]
    for start in range(0, len(batches), step):
        append(segment, *batches[start : start + step])
    segment.seal()
    log, description = b"".join(batches), LogDescription(90, interval_bytes=300)
    description.add(log, read_headers(log))
    file_contents = files(tmp_path, 90)
    assert {suffix: file_contents[suffix] for suffix in (".index", ".timeindex")} == description.finish()
    assert len(file_contents[".index"]) > 50


def test_two_alternating_writers_write_the_bytes_of_one(tmp_path: Path) -> None:
    batches = [records(n, [b"v" * n]) for n in range(40)]
    alone = new_segment(tmp_path / "one", index_interval_bytes=200)
    first = new_segment(tmp_path / "two", index_interval_bytes=200)
    second = reopened(tmp_path / "two", first.state, index_interval_bytes=200)
    for number, data in enumerate(batches):
        append(alone, data)
        writer, other = (first, second) if number % 3 else (second, first)
        append(writer, data)
        other.resume(writer.state)
    assert alone.seal() == first.seal()
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_segment_is_made_once(tmp_path: Path) -> None:
    append(new_segment(tmp_path), records(0))
    with pytest.raises(OSError, match="exists"):
        LogSegment.create(str(tmp_path), f"{0:020d}", 0, config(), clock=Clock())
    assert files(tmp_path)[".log"] == records(0)


def test_the_names_of_a_new_segment_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listings, fsync = list[list[str]](), os.fsync

    def noted(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}") == str(tmp_path):
            listings.append(sorted(path.suffix for path in tmp_path.iterdir()))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    new_segment(tmp_path)
    assert listings == [[".index", ".log", ".timeindex"]]


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


def test_an_empty_segment_has_nothing_to_read(tmp_path: Path) -> None:
    assert new_segment(tmp_path, 40).translate_offset(40) is None


def test_a_read_gives_the_whole_batch_that_has_the_offset_or_comes_next(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 40)
    first, second = records(50, [b"hello", b"there"]), records(60, [b"alpha", b"beta"])
    append(segment, first, second)
    assert segment.translate_offset(41) == (50, 51, 0, len(first))
    for offset, read in ((50, first + second), (51, first + second), (55, second), (61, second)):
        assert data_from(segment, offset) == read
    assert segment.translate_offset(62) is None


@pytest.mark.parametrize("interval", [0, 200, 4096])
def test_a_time_is_found_at_the_first_record_at_or_after_it(tmp_path: Path, interval: int) -> None:
    segment = new_segment(tmp_path, 40, index_interval_bytes=interval)
    for offset in range(40, 50):
        append(segment, records(offset, leader_epoch=3))
    offsets = {time: segment.find_offset_by_timestamp(time) for time in (420, 421, 490, 491, 401, 399)}
    assert offsets == {420: 42, 421: 43, 490: 49, 491: None, 401: 41, 399: 40}


def test_a_time_is_found_inside_of_a_batch(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    rows = [record(delta, time, None, b"v") for delta, time in enumerate((0, 50, 20))]
    append(segment, batch(rows, base_timestamp=100, max_timestamp=150))
    assert [segment.find_offset_by_timestamp(time) for time in (100, 101, 151)] == [0, 1, None]


def test_a_read_gives_nothing_that_another_process_appended_since(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    append(segment, records(0))
    other = reopened(tmp_path, segment.state)
    append(other, records(1))
    assert segment.translate_offset(1) is None
    assert data_from(segment) == records(0)


def test_a_damaged_batch_is_detected_by_a_lookup_of_a_time(tmp_path: Path) -> None:
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
def test_an_index_entry_with_a_wrong_offset_is_ignored(tmp_path: Path, wrong: int, inside: int) -> None:
    segment = reopened(tmp_path, filled(tmp_path), index_interval_bytes=0)
    positions = [segment.translate_offset(offset) for offset in range(100)]
    path, other = tmp_path / f"{0:020d}.index", positions[wrong]
    data = bytearray(path.read_bytes())
    index = data.index((50).to_bytes(4, "big"))
    assert other is not None
    data[index + 4 : index + 8] = (other.position + inside).to_bytes(4, "big")
    path.write_bytes(data)
    assert [segment.translate_offset(offset) for offset in range(100)] == positions


def test_a_seal_reads_nothing_of_a_log_without_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = new_segment(tmp_path)
    append(segment, records(0, [b"a", b"b"], timestamp=-1))

    def unwanted(*_: object) -> int:
        raise AssertionError("a seal reads the log")

    monkeypatch.setattr(os, "preadv", unwanted)
    assert segment.seal().offset_of_max_timestamp == -1
