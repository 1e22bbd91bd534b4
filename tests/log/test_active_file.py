"""The log file of an active segment: Kafka's FileRecordsTest and FileLogInputStreamTest."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from active_segments import FailingCalls, append, files, found_again, new_segment, none_open, records
from open_files import open_below
from raw_batches import batch, entry, record

from distlog.core.arrays import MAX_INT
from distlog.core.errors import CorruptRecordError, StorageError
from distlog.core.format.compression import compress
from distlog.core.format.record_batch import read_headers
from distlog.core.format.record_decoder import decode
from distlog.core.log.partition_files import ActiveFile, batches_from
from distlog.core.segments.segment_state import UnfitBatchError

BATCHES = [records(0, [b"abcd"]), records(1, [b"efgh"]), records(2, [b"ijkl"])]
ENDS = [0, *accumulate(map(len, BATCHES))]


@pytest.fixture
def file(tmp_path: Path) -> ActiveFile:
    active = ActiveFile(str(tmp_path / "log"))
    active.create()
    active.write(b"".join(BATCHES), 0)
    return active


def walked(file: ActiveFile, start: int = 0, end: int | None = None, step: int = 1 << 20) -> list[bytes]:
    return [
        bytes(batches.data[row["position"] : row["position"] + row["size"]])
        for batches in batches_from(file, start, file.checked_size() if end is None else end, step)
        for row in batches.rows
    ]


def test_a_log_cannot_grow_past_the_largest_position(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    append(segment, records(0))
    segment.resume(replace(segment.state, position=MAX_INT - len(records(1)) + 1))
    with pytest.raises(UnfitBatchError, match="roll"):
        append(segment, records(1))
    assert files(tmp_path)[".log"] == records(0)


def test_a_too_large_log_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.touch()
    os.truncate(path, MAX_INT + 1)
    with pytest.raises(StorageError, match="cannot have more"):
        found_again(tmp_path)


def test_reads_past_the_end_are_empty(file: ActiveFile) -> None:
    assert file.read(ENDS[-1] + 1, ENDS[-1] + 100).nbytes == 0


def test_the_size_is_that_of_the_file_after_each_append(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    for offset in range(20):
        append(segment, records(offset))
        assert segment.size == len(files(tmp_path)[".log"])


@pytest.mark.parametrize("count", range(7))
def test_a_few_bytes_after_the_last_batch_are_ignored(file: ActiveFile, count: int) -> None:
    file.write(bytes(range(1, count + 1)), ENDS[-1])
    assert walked(file) == BATCHES


def test_reading_does_not_change_where_the_next_append_goes(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    for number, data in enumerate(BATCHES):
        append(segment, data)
        assert segment.translate_offset(number) is not None
        assert files(tmp_path)[".log"] == b"".join(BATCHES[: number + 1])


@pytest.mark.parametrize("step", [1, 20, 61, 100, 1 << 20])
def test_batches_are_found_with_reads_of_any_size(file: ActiveFile, step: int) -> None:
    assert walked(file, step=step) == BATCHES
    assert walked(file, ENDS[1], step=step) == BATCHES[1:]
    assert walked(file, ENDS[1], ENDS[2], step=step) == BATCHES[1:2]
    assert walked(file, ENDS[1], ENDS[2] - 1, step=step) == []


def test_a_search_gives_the_first_batch_that_ends_at_the_offset_or_above(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    for data in BATCHES:
        append(segment, data)
    gap = records(50, [b"test", b"more"])
    append(segment, gap)
    expected = {offset: (offset, offset, ENDS[offset], len(BATCHES[offset])) for offset in range(3)}
    expected |= dict.fromkeys((3, 50, 51), (50, 51, ENDS[3], len(gap)))
    assert {offset: tuple(segment.translate_offset(offset) or ()) for offset in expected} == expected


def test_a_truncated_batch_is_ignored(file: ActiveFile) -> None:
    file.cut(ENDS[-1] - 13)
    assert walked(file) == BATCHES[:-1]


@pytest.mark.parametrize("position", [0, MAX_INT])
def test_an_empty_range_has_no_batch(file: ActiveFile, position: int) -> None:
    assert walked(file, position, position) == []


@pytest.mark.parametrize(
    ("position", "wrong"), [(8, (9).to_bytes(4, "big")), (16, b"\x25"), (8, b"\xff\xff\xff\xff"), (16, b"\xff")]
)
def test_an_invalid_batch_fails_after_the_good_ones(file: ActiveFile, position: int, wrong: bytes) -> None:
    file.write(wrong, ENDS[1] + position)
    walk = batches_from(file, 0, ENDS[-1], 1 << 20)
    assert bytes(next(walk).data) == BATCHES[0]
    with pytest.raises(CorruptRecordError) as caught:
        next(walk)
    assert caught.value.details["position"] == ENDS[1]


def test_a_length_past_the_file_ends_the_walk_without_allocation(file: ActiveFile) -> None:
    file.write((MAX_INT - 12).to_bytes(4, "big"), ENDS[1] + 8)
    assert walked(file) == BATCHES[:1]


@pytest.mark.parametrize("codec", range(5))
def test_batches_of_a_file_equal_batches_in_memory(tmp_path: Path, codec: int) -> None:
    many = [record(0, 0, None, b"v"), record(1, 5, b"k", None), record(2, 2, b"", b"")]
    section = compress(codec, b"".join(many))
    fields = {"producer": (1000, 7, 2**31 - 2), "leader_epoch": 9, "attributes": codec | 0x10}
    data = entry(0, 3, b"k", None) + entry(1, 4) + batch(many, base_offset=5, section=section, **fields)
    file = ActiveFile(str(tmp_path / "log"))
    file.write(data, 0)
    assert b"".join(walked(file, step=1)) == data
    (window,) = batches_from(file, 0, len(data), 1 << 20)
    assert window.rows.tobytes() == read_headers(data).tobytes()
    row = window.rows[-1]
    assert [row["producer_id"], row["producer_epoch"], row["base_sequence"], row["leader_epoch"]] == [
        1000,
        7,
        2**31 - 2,
        9,
    ]
    assert decode(window.data, window.rows[-1:], columns=("key", "value")).to_pydict() == {
        "key": [None, b"k", b""],
        "value": [b"v", None, b""],
    }


def test_a_truncation_to_the_present_size_calls_nothing(tmp_path: Path) -> None:
    calls = FailingCalls()
    file = ActiveFile(str(tmp_path / "log"), calls)
    file.write(bytes(42), 0)
    calls.calls_made.clear()
    file.cut(42)
    assert calls.calls_made == []
    with pytest.raises(StorageError, match="shorter than its recorded end"):
        file.cut(43)
    assert calls.calls_made == []
    file.cut(23)
    assert (calls.calls_made, file.checked_size()) == (["ftruncate"], 23)


def test_a_preallocated_log_has_its_blocks_and_no_bytes(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, preallocate=True, segment_bytes=1 << 20)
    status = os.stat(tmp_path / f"{0:020d}.log")
    assert (status.st_size, status.st_blocks * 512 >= 1 << 20, segment.size) == (1 << 20, True, 0)
    assert segment.translate_offset(0) is None


def test_a_log_is_empty_unless_it_is_preallocated(tmp_path: Path) -> None:
    assert new_segment(tmp_path).size == len(files(tmp_path)[".log"]) == 0


def timed(magic: int) -> list[bytes]:
    """Return batches at offset and time (5, 10), (6, 11), (7, 10), (8, 12)... of that format."""
    rows = [(5, 10), (6, 11)]
    if magic == 2:
        return [
            batch(
                [record(0, 0, None, b"v")],
                base_offset=offset,
                base_timestamp=time,
                max_timestamp=time,
                leader_epoch=4,
            )
            for offset, time in rows
        ]
    return [entry(magic, offset, timestamp=time) for offset, time in rows]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_time_is_found_in_every_format_that_has_times(tmp_path: Path, magic: int) -> None:
    segment = new_segment(tmp_path, 5)
    for data in timed(magic):
        append(segment, data)
    offset = [segment.find_offset_by_timestamp(time) for time in (9, 10, 11, 12)]
    first, second = (5, 6) if magic else (None, None)
    assert offset == [first, first, second, None]
    state = segment.state
    segment.recover(none_open())
    assert segment.state == state


def test_a_file_is_opened_once_by_many_threads(file: ActiveFile) -> None:
    file.close()
    with ThreadPoolExecutor(8) as pool:
        contents = list(pool.map(lambda _: bytes(file.read(0, ENDS[-1])), range(64)))
    assert set(contents) == {b"".join(BATCHES)}
    assert open_below(Path(file.path).parent) == [file.path]


def test_a_file_that_may_only_be_read_is_not_written(file: ActiveFile) -> None:
    reader = ActiveFile(file.path, writable=False)
    assert bytes(reader.read(0, ENDS[1])) == BATCHES[0]
    with pytest.raises(StorageError, match="cannot write"):
        reader.write(BATCHES[0], 0)
