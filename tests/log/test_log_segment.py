"""A segment that is appended to in place, by what Kafka's LogSegmentTest pins.

Held here: testAppendForLogSegmentOffsetOverflowException, testNextOffsetCalculation, testGetFirstBatchTimestamp,
testCreateWithInitFileSizeAppendMessage, testCreateWithInitFileSizeClearShutdown. What it pins of reads is held in
`test_segment_reads`, of recovery in `test_segment_recovery`, of truncation in `test_segment_truncation`. Nowhere:
testChangeFileSuffixes (files are never renamed, a commit removes them) and testAppendFromFile (no segment
is split: offsets that an index cannot tell are refused).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from active_segments import NOW, Clock, append, config, files, new_segment, offsets, records, reopened

from distlog.core.batches.record_batch import BATCH, read_headers
from distlog.core.log.log_segment import LogSegment
from distlog.core.segments.segment_state import LogDescription, UnfitBatchError


@pytest.mark.parametrize(
    ("base", "offset"),
    [(0, -(2**31)), (0, 2**31), (1, 0), (100, 10), (2**31, 0), (2**31, 2**32), (0, 2**63 - 1)],
)
def test_an_offset_that_an_index_cannot_tell_is_refused_before_a_byte_is_written(
    tmp_path: Path, base: int, offset: int
) -> None:
    segment = new_segment(tmp_path, base)
    rows = np.zeros(1, BATCH)
    rows["size"], rows["base_offset"], rows["record_count"] = 70, offset, 1
    with pytest.raises(UnfitBatchError, match="roll"):
        segment.append(bytes(70), rows)
    assert segment.size == 0
    assert files(tmp_path, base)[".log"] == b""


def test_the_last_offset_that_an_index_can_tell_is_taken(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, 7)
    append(segment, records(7 + 2**31 - 1))
    assert segment.next_offset == 7 + 2**31


def test_the_next_offset_is_behind_the_last_one(tmp_path: Path) -> None:
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


def test_bytes_that_are_not_those_of_the_headers_are_refused(tmp_path: Path) -> None:
    segment, data = new_segment(tmp_path), records(0) + records(1)
    rows = read_headers(data)
    for wrong in (data + b"x", data[:-1]):
        with pytest.raises(ValueError, match="back to back"):
            segment.append(wrong, rows)
    with pytest.raises(ValueError, match="back to back"):
        segment.append(data[len(records(0)) :], rows[1:])
    with pytest.raises(ValueError, match="each of them"):
        segment.append(data, rows, newest_offsets=np.zeros(1, np.int64))
    assert segment.size == 0


def test_nothing_to_append_changes_nothing(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    before = segment.state
    segment.append(b"", np.zeros(0, BATCH))
    assert segment.state == before


def test_a_preallocated_segment_is_as_long_as_it_may_get_until_it_is_sealed(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, preallocate=True, segment_bytes=1 << 20)
    data = records(0, [b"hello", b"there"])
    append(segment, data)
    assert len(files(tmp_path)[".log"]) == 1 << 20
    assert segment.size == len(data)
    assert segment.unknown_bytes() == 0
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
def test_indexes_are_those_that_a_rebuild_makes(tmp_path: Path, step: int) -> None:
    segment = new_segment(tmp_path, 90, index_interval_bytes=300)
    batches = [records(90 + 2 * n, [b"v" * n, b"w"], timestamp=NOW + n * 37 % 11) for n in range(40)]
    for start in range(0, len(batches), step):
        append(segment, *batches[start : start + step])
    segment.seal()
    log, description = b"".join(batches), LogDescription(90, interval_bytes=300)
    description.add(log, read_headers(log))
    found = files(tmp_path, 90)
    assert {suffix: found[suffix] for suffix in (".index", ".timeindex")} == description.finish()
    assert len(found[".index"]) > 50


def test_two_who_take_turns_write_what_one_would(tmp_path: Path) -> None:
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


def test_the_state_of_another_segment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of segment"):
        new_segment(tmp_path).resume(new_segment(tmp_path, 9).state)


def test_a_segment_is_made_once(tmp_path: Path) -> None:
    append(new_segment(tmp_path), records(0))
    with pytest.raises(OSError, match="exists"):
        LogSegment.create(str(tmp_path), f"{0:020d}", 0, config(), clock=Clock())
    assert files(tmp_path)[".log"] == records(0)


def test_the_names_of_a_new_segment_are_durable_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[list[str]] = []
    monkeypatch.setattr(
        "distlog.core.log.segment_files.sync_folder",
        lambda folder: there.append(sorted(path.suffix for path in Path(folder).iterdir())),
    )
    new_segment(tmp_path)
    assert there == [[".index", ".log", ".timeindex"]]
