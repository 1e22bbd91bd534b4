"""The state of a segment: from its batches, as bytes, and as the sealing commit describes it."""

from __future__ import annotations

import dataclasses
import random
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from active_segments import NOW, append, files, new_segment, none_open, records
from crc32c import crc32c
from raw_batches import batch, entry, record

from distlog.core import paths
from distlog.core.arrays import MAX_LONG
from distlog.core.commits import fields
from distlog.core.config import TopicConfig
from distlog.core.format.compression import CODEC_NAMES
from distlog.core.format.kernels import segments
from distlog.core.format.record_batch import APPEND_TIME, CONTROL, DELETE_HORIZON, TRANSACTIONAL, read_headers
from distlog.core.format.record_encoder import RecordInput, encode
from distlog.core.segments.segment_state import NAMES, STATE_BYTES, SegmentState
from distlog.core.segments.segment_writer import SegmentWriter
from distlog.core.storage.storage import Storage

STEM = f"v{7:020d}-{'ab' * 16}"


def sample(**changes: int) -> SegmentState:
    """Return a state whose numbers all differ from the default."""
    numbers = dict.fromkeys(NAMES, 24) | {"base_offset": 20, "next_offset": 30, "codecs": 3, "producer_bits": 1}
    numbers |= {"flushed_offset": 25, "txn_index_bytes": 34, "position": 700}
    return SegmentState(STEM, **(numbers | changes))


def test_a_state_round_trips() -> None:
    for state in (sample(), SegmentState.new(STEM, 5, NOW), sample(first_unstable_offset=-2, base_offset=0)):
        assert len(state.pack()) == STATE_BYTES
        assert SegmentState.unpack(state.pack()) == state
        assert SegmentState.of_numbers(STEM, state.numbers()) == state
    assert SegmentState.unpack(SegmentState.new(f"{9:020d}", 9, 1).pack()).stem == f"{9:020d}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-(2**63), -3, 2**63 - 1])
def test_an_impossible_number_is_refused(name: str, value: int) -> None:
    data = bytearray(sample().pack())
    struct.pack_into("=q", data, STATE_BYTES - 8 * (len(NAMES) - NAMES.index(name)), value)
    time_fields = {"max_timestamp", "last_time_entry", "first_timestamp", "min_timestamp", "roll_timestamp"}
    if value > 0 and name in {*time_fields, "created_ms", "flushed_ms", "record_count"}:
        assert getattr(SegmentState.unpack(data), name) == MAX_LONG
        return
    with pytest.raises(ValueError, match="state"):
        SegmentState.unpack(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"next_offset": 19},
        {"flushed_offset": 31},
        {"flushed_offset": 19},
        {"flushed_position": 701},
        {"position": 0, "flushed_position": 0},
        {"batches": 0},
        {"offset_index_bytes": 25},
        {"time_index_bytes": 13},
        {"txn_index_bytes": 33},
        {"offset_of_max_timestamp": 30},
        {"first_unstable_offset": 30},
        {"next_offset": 20 + 2**31 + 1},
    ],
)
def test_numbers_that_contradict_each_other_are_refused(changes: dict[str, int]) -> None:
    SegmentState.unpack(sample().pack())
    with pytest.raises(ValueError, match="state"):
        SegmentState.unpack(sample(**changes).pack())


@pytest.mark.parametrize("stem", [b"../../etc/passwd", b"", b"\xff" * 56, b"0" * 21])
def test_an_invalid_stem_is_refused(stem: bytes) -> None:
    data = stem.ljust(56, b"\0") + sample().pack()[56:]
    with pytest.raises(ValueError, match="stem"):
        SegmentState.unpack(data)


def test_too_few_bytes_are_refused() -> None:
    with pytest.raises(struct.error):
        SegmentState.unpack(sample().pack()[:-1])


def test_the_kernels_have_the_positions_of_the_fields() -> None:
    indexes = {name: number for number, name in enumerate(NAMES)}
    for name, number in {
        "since_entry": segments.SINCE_ENTRY,
        "max_timestamp": segments.MAX_TIMESTAMP,
        "max_timestamp_delta": segments.MAX_TIMESTAMP_DELTA,
        "last_time_entry": segments.LAST_ENTRY_TIMESTAMP,
        "batches": segments.BATCHES,
        "base_offset": segments.BASE_OFFSET,
        "next_offset": segments.NEXT_OFFSET,
        "position": segments.POSITION,
        "record_count": segments.RECORDS,
        "first_timestamp": segments.FIRST_TIMESTAMP,
        "min_timestamp": segments.MIN_TIMESTAMP,
        "offset_of_max_timestamp": segments.OFFSET_OF_MAX,
        "roll_timestamp": segments.ROLL_TIMESTAMP,
        "first_batch_crc": segments.FIRST_CRC,
        "last_batch_crc": segments.LAST_CRC,
        "codecs": segments.CODECS,
        "leader_epoch": segments.LEADER_EPOCH,
        "producer_bits": segments.PRODUCER_BITS,
        "crc32c": segments.CRC,
    }.items():
        assert indexes[name] == number


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_an_active_segment_is_described_like_a_written_one(tmp_path: Path, codec: str) -> None:
    rows = [{"timestamp": NOW + n * 37 % 101, "key": None, "value": b"v%d" % n} for n in range(300)]
    settings = {"batch_bytes": 200, "index_interval_bytes": 500}
    storage = Storage(str(tmp_path / "whole"))
    writer = SegmentWriter(
        storage,
        "t",
        0,
        1,
        TopicConfig(**settings),
        codec=codec,
        clock=lambda: NOW,
        new_id=lambda: "ab" * 16,
        random=random.Random(1),
    )
    source = RecordInput.from_arrow(pa.RecordBatch.from_pylist(rows))
    writer.append(source, np.arange(len(rows)))
    (written,) = writer.close()
    log = storage.read(paths.segment_file("t", 0, written.stem, ".log"))
    segment = new_segment(tmp_path / "in-place", clock=lambda: NOW, **settings)
    append(segment, log)
    state = segment.seal()
    segment_info = state.segment_info(0)
    # headers do not have the oldest record of a batch
    assert dataclasses.replace(segment_info, stem=written.stem, min_timestamp=written.min_timestamp) == written
    for suffix, data in files(tmp_path / "in-place").items():
        assert storage.read(paths.segment_file("t", 0, written.stem, suffix)) == data
    segment_info.check()
    fields.write(segment_info)


def test_times_of_the_encoder_are_used(tmp_path: Path) -> None:
    source = [{"timestamp": time, "key": None, "value": b"v"} for time in (50, 20, 70, 70, 60)]
    encoded = encode(pa.RecordBatch.from_pylist(source))
    segment = new_segment(tmp_path)
    segment.append(
        encoded.data,
        encoded.batches,
        offsets_of_max_timestamp=encoded.offsets_of_max_timestamp,
        min_timestamps=encoded.min_timestamps,
    )
    state = segment.state
    assert (state.min_timestamp, state.max_timestamp, state.offset_of_max_timestamp) == (20, 70, 2)
    segment.recover(none_open())
    assert (segment.state.min_timestamp, segment.state.offset_of_max_timestamp) == (-1, -1)
    assert segment.seal().offset_of_max_timestamp == 2


def test_headers_have_the_times_of_single_records_and_of_append_time(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    append(segment, records(0, timestamp=50), records(1, timestamp=20), records(2, timestamp=70))
    append(segment, records(3, [b"a", b"b"], timestamp=60, attributes=APPEND_TIME))
    state = segment.state
    assert (state.min_timestamp, state.max_timestamp, state.offset_of_max_timestamp) == (20, 70, 2)
    append(segment, records(5, [b"a", b"b"], timestamp=65))
    assert segment.state.min_timestamp == -1


@pytest.mark.parametrize(("attributes", "first"), [(0, 5), (APPEND_TIME, 90), (DELETE_HORIZON, 90)])
def test_the_first_timestamp_is_one_that_readers_see(tmp_path: Path, attributes: int, first: int) -> None:
    segment = new_segment(tmp_path)
    rows = [record(0, 0, None, b"v"), record(1, 85, None, b"v")]
    append(segment, batch(rows, base_timestamp=5, max_timestamp=90, attributes=attributes))
    assert (segment.state.first_timestamp, segment.state.roll_timestamp) == (first, 90)


def test_codecs_come_from_data_batches(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    assert segment.state.segment_info(0).compression == "none"
    append(segment, records(0, attributes=4), records(1, attributes=1), records(2, attributes=CONTROL | 2))
    info = segment.state.segment_info(3)
    assert (info.partition, info.compression, info.has_transactions) == (3, "gzip,zstd", True)


@pytest.mark.parametrize(("attributes", "expected"), [(0, 0), (TRANSACTIONAL, 1), (CONTROL, 1)])
def test_transactions_are_recorded(tmp_path: Path, attributes: int, expected: int) -> None:
    segment = new_segment(tmp_path)
    append(segment, records(0, attributes=attributes))
    assert segment.state.has_transactions == bool(expected)


def test_checksums_match_the_files(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, index_interval_bytes=100)
    for offset in range(6):
        append(segment, records(offset))
        assert segment.state.crc32c == crc32c(files(tmp_path)[".log"])
    state, contents = segment.seal(), files(tmp_path)
    assert (state.offset_index_crc32c, state.time_index_crc32c) == (
        crc32c(contents[".index"]),
        crc32c(contents[".timeindex"]),
    )
    assert state.last_time_entry == state.max_timestamp == 50
    rows = read_headers(contents[".log"])
    assert (state.first_batch_crc, state.last_batch_crc) == (rows["crc"][0], rows["crc"][-1])


@pytest.mark.parametrize("magic", [1, 2])
def test_the_checksum_of_large_appends_matches_the_file(tmp_path: Path, magic: int) -> None:
    """Checksums of batches are joined, except in old formats with other checksums."""
    segment, value = new_segment(tmp_path), b"v" * 9000
    for first in (0, 3):
        offsets = range(first, first + 3)
        many = [records(offset, [value]) if magic == 2 else entry(magic, offset, value=value) for offset in offsets]
        append(segment, *many)
        assert segment.state.crc32c == crc32c(files(tmp_path)[".log"])


def test_the_first_unstable_offset_comes_from_the_append(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    segment.append(records(0), read_headers(records(0)), first_unstable_offset=0)
    assert segment.state.first_unstable_offset == 0
    append(segment, records(1))
    assert segment.state.first_unstable_offset == 0
    segment.append(records(2), read_headers(records(2)), first_unstable_offset=-1)
    assert segment.seal().segment_info(0).first_unstable_offset == -1


def test_the_packed_state_of_a_segment_is_that_of_its_state(tmp_path: Path) -> None:
    segment = new_segment(tmp_path)
    append(segment, records(0), records(1))
    assert segment.packed_state() == segment.state.pack()


def test_tail_readers_get_the_active_state_and_index_sizes(tmp_path: Path) -> None:
    segment = new_segment(tmp_path, index_interval_bytes=0)
    append(segment, records(0), records(1))
    info = segment.state.tail_info(0, NOW)
    assert info.is_active
    assert (info.offset_index_bytes, info.time_index_bytes, info.log_bytes) == (8, 12, segment.size)
