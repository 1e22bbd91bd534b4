"""Written segments: their batches, their index entries, and their description in the snapshot."""

from __future__ import annotations

import gc
import itertools
import struct
from functools import partial

import crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from searches import examples
from written_segments import NOW, Batch, append, files, memory, records, walk, write, writer

from distlog.core.errors import InvalidRecordError, StorageError
from distlog.core.format.record_batch import read_headers
from distlog.core.format.record_decoder import decode
from distlog.core.format.record_encoder import RecordEncoder, RecordInput
from distlog.core.segments import segment_writer

#: The size of a batch of one record of 10 bytes: 61 of the header, 7 of the record's fields.
RECORD_BYTES = 78


def kafka_indexes(batches: list[Batch], interval: int) -> tuple[bytes, bytes]:
    """Return the indexes that `LogSegment.append` and `onBecomeInactiveSegment` write for appends of one batch."""
    index, times = b"", b""
    since, newest, newest_offset, last_time = 0, -1, -1, -1
    for batch in batches:
        if batch.max_timestamp > newest:
            newest, newest_offset = batch.max_timestamp, batch.last_offset
        if since > interval:
            index += struct.pack(">ii", batch.last_offset, batch.position)
            if newest > last_time:
                times, last_time = times + struct.pack(">qi", newest, newest_offset), newest
            since = 0
        since += batch.size
    return index, times + (struct.pack(">qi", newest, newest_offset) if newest > last_time else b"")


@given(
    st.lists(st.integers(-1, 50), min_size=1, max_size=60),
    st.integers(0, 400),
    st.integers(80, 400),
    st.integers(300, 3000),
)
def test_files_and_fields_follow_kafkas_rules(
    timestamps: list[int], interval: int, batch_bytes: int, segment_bytes: int
) -> None:
    config = {"index_interval_bytes": interval, "batch_bytes": batch_bytes, "internal_segment_bytes": segment_bytes}
    written = write(records(timestamps), **config)
    first = 0
    for info, parts in zip(*written, strict=True):
        batches = walk(parts[".log"])
        index, times = kafka_indexes(batches, interval)
        assert (parts.get(".index", b""), parts.get(".timeindex", b"")) == (index, times)
        assert (info.offset_index_bytes, info.time_index_bytes, info.txn_index_bytes) == (len(index), len(times), 0)
        assert (info.log_bytes, info.crc32c) == (len(parts[".log"]), crc32c.crc32c(parts[".log"]))
        assert info.log_bytes <= segment_bytes
        assert (info.base_offset, info.stored_base_offset, info.partition) == (0, 0, 3)
        assert info.next_offset == info.record_count == batches[-1].last_offset + 1
        own_times = timestamps[first : first + info.record_count]
        newest = max(own_times)
        assert (info.first_timestamp, info.min_timestamp, info.max_timestamp) == (
            own_times[0],
            min(own_times),
            newest,
        )
        assert info.offset_of_max_timestamp == (own_times.index(newest) if newest >= 0 else -1)
        assert (info.created_ms, info.compression) == (NOW, "none")
        first += info.record_count
    assert first == len(timestamps)


def test_every_record_comes_back_at_its_position() -> None:
    timestamps = [NOW + number % 7 for number in range(500)]
    written = write(records(timestamps), batch_bytes=300, internal_segment_bytes=4000)
    decoded = [decode(log, read_headers(log)) for log in (files[".log"] for files in written.files)]
    assert [part["offset"].to_pylist() for part in decoded] == [
        list(range(info.record_count)) for info in written.segments
    ]
    table = pa.Table.from_batches(decoded)
    assert table["value"].to_pylist() == [b"%010d" % number for number in range(500)]
    assert table["timestamp"].cast("int64").to_pylist() == timestamps


def test_an_interval_of_two_batches_less_a_byte_gives_kafkas_fourteen_entries() -> None:
    """LogSegmentTest: 30 appends of one size, `index.interval.bytes` twice that less one."""
    written = write(records(list(range(30))), batch_bytes=1, index_interval_bytes=2 * RECORD_BYTES - 1)
    (files,) = written.files
    assert len(files[".index"]) == 14 * 8
    assert struct.unpack(">ii", files[".index"][:8]) == (2, 2 * RECORD_BYTES)
    assert struct.unpack(">qi", files[".timeindex"][-12:]) == (29, 29)


def test_an_entry_comes_after_more_than_the_interval() -> None:
    written = write(records(list(range(30))), batch_bytes=1, index_interval_bytes=2 * RECORD_BYTES)
    assert struct.unpack(">ii", written.files[0][".index"][:8]) == (3, 3 * RECORD_BYTES)


def test_an_interval_of_zero_indexes_every_batch_but_the_first() -> None:
    written = write(records(list(range(5))), batch_bytes=1, index_interval_bytes=0)
    entries = np.frombuffer(written.files[0][".index"], ">i4").reshape(-1, 2)
    assert entries.tolist() == [[number, number * RECORD_BYTES] for number in range(1, 5)]


def test_an_index_without_entries_is_not_written() -> None:
    written = write(records([-1, -1]))
    assert written.files[0].keys() == {".log"}
    assert written.segments[0].offset_index_bytes == written.segments[0].time_index_bytes == 0
    assert write(records([5])).files[0].keys() == {".log", ".timeindex"}


def test_no_records_make_no_segment() -> None:
    assert write(records([])) == ([], [])


def test_a_batch_that_just_fits_does_not_roll_and_the_next_one_does() -> None:
    sizes = [
        info.log_bytes
        for info in write(records([0] * 7), batch_bytes=1, internal_segment_bytes=3 * RECORD_BYTES).segments
    ]
    assert sizes == [3 * RECORD_BYTES, 3 * RECORD_BYTES, RECORD_BYTES]


def test_a_segment_rolls_when_an_offset_would_not_fit_into_an_int32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "MAX_INT", 99)
    segments = write(records([0] * 250), batch_bytes=20 * 17).segments
    assert [info.record_count for info in segments] == [100, 100, 50]
    assert sum(info.next_offset for info in segments) == 250


def test_each_segment_has_its_own_stem_with_its_start_version() -> None:
    segments = write(records([0] * 4), batch_bytes=1, internal_segment_bytes=RECORD_BYTES).segments
    assert [info.stem for info in segments] == [f"v{7:020d}-{number:032x}" for number in range(4)]


@pytest.mark.parametrize(
    ("codec", "fast", "small"),
    [("gzip", 1, 9), ("zstd", -1000, 19), ("lz4", 9, 12)],
)
def test_compression_levels_come_from_the_topic(codec: str, fast: int, small: int) -> None:
    rng = np.random.default_rng(1)
    values = [rng.integers(97, 105, 200, np.uint8).tobytes() + b"a common part, the same in all" for _ in range(500)]
    batch = records([0] * 500, value=pa.array(values))
    sizes = []
    for level in (fast, small):
        written = write(batch, codec=codec, **{f"compression_{codec}_level": level})
        log = written.files[0][".log"]
        assert decode(log, read_headers(log))["value"].to_pylist() == values
        assert written.segments[0].compression == codec
        sizes.append(len(log))
    assert sizes[0] > 1.02 * sizes[1]


def test_log_append_time_is_every_records_time() -> None:
    (info,), (files,) = write(records([5, 9, 7]), message_timestamp_type="LogAppendTime")
    decoded = decode(files[".log"], read_headers(files[".log"]))
    assert decoded["timestamp"].cast("int64").to_pylist() == [NOW] * 3
    assert decoded["timestamp_type"].to_pylist() == [1] * 3
    assert (info.first_timestamp, info.max_timestamp, info.offset_of_max_timestamp) == (NOW, NOW, 0)
    assert files[".timeindex"] == struct.pack(">qi", NOW, 2)


@pytest.mark.parametrize("setting", ["max_message_bytes", "internal_segment_bytes"])
def test_a_record_that_fits_no_batch_is_refused_by_its_row(setting: str) -> None:
    batch = records([0] * 3, value=pa.array([b"", b"x" * 930, b"x" * 931]))
    assert write(batch.slice(0, 2), batch_bytes=1, **{setting: 1000}).segments
    with pytest.raises(InvalidRecordError, match=r"partition=3 row_of_partition=2 .*size=1001"):
        write(batch, batch_bytes=1, **{setting: 1000})


def test_rows_of_an_error_count_from_the_first_append() -> None:
    segment_writer = writer(memory(), max_message_bytes=2000)
    append(segment_writer, records([0] * 20_000, size=100))
    with pytest.raises(InvalidRecordError, match="row_of_partition=20000"):
        append(segment_writer, records([0], value=pa.array([b"x" * 2000])))


def test_small_appends_fill_batches() -> None:
    batch = records([0] * 50_000, size=100)
    single = write(batch)
    many = write(*(batch.slice(start, 10) for start in range(0, 50_000, 10)))
    assert single.files == many.files
    sizes = [batch.size for batch in walk(single.files[0][".log"])]
    assert min(sizes[:-1]) > 131_072 - 200


cuts = st.lists(st.integers(0, 400), max_size=12).map(sorted)


@examples(20)
@given(cuts, st.integers(1, 4000), st.sampled_from(["none", "lz4"]), st.integers(500, 20_000))
def test_equal_records_give_equal_bytes_for_any_slices(
    edges: list[int], gather_bytes: int, codec: str, segment_bytes: int
) -> None:
    batch = records([number % 90 for number in range(400)], size=20)
    config = {
        "codec": codec,
        "batch_bytes": 400,
        "internal_segment_bytes": segment_bytes,
        "index_interval_bytes": 1000,
    }
    whole_file = write(batch, **config)
    with pytest.MonkeyPatch.context() as patch:
        encoder = partial(RecordEncoder, room=100)
        patch.setattr(segment_writer, "RecordEncoder", lambda form, **_: encoder(form, gather_bytes=gather_bytes))
        parts = [batch.slice(low, high - low) for low, high in itertools.pairwise([0, *edges, 400])]
        assert write(*parts, **config) == whole_file


def test_selected_rows_are_written_in_order() -> None:
    segment_writer = writer(storage := memory())
    source = RecordInput.from_arrow(records(list(range(10))))
    segment_writer.append(source, np.array([7, 2, 2]))
    segment_writer.append(source, np.array([], np.int64))
    segment_writer.append(source, np.array([0]))
    (info,) = segment_writer.close()
    log = files(storage, info)[".log"]
    assert decode(log, read_headers(log))["timestamp"].cast("int64").to_pylist() == [7, 2, 2, 0]


def test_a_batch_larger_than_what_is_gathered_is_filled() -> None:
    batch = records([0] * 50_000, size=100)
    parts = [batch.slice(start, 1000) for start in range(0, 50_000, 1000)]
    (files,) = write(*parts, batch_bytes=4_000_000, max_message_bytes=5_000_000).files
    sizes = [batch_read.size for batch_read in walk(files[".log"])]
    assert len(sizes) == 2
    assert sizes[0] > 3_999_000


def test_appends_of_different_columns_and_types_go_together() -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"1"}]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    )
    written = write(
        records([1]),
        records([2], headers=headers),
        records([3], value=pa.array([b"large"], pa.large_binary())),
        records([4], key=pa.array([b"k"])),
    )
    (log,) = (files[".log"] for files in written.files)
    decoded = decode(log, read_headers(log), columns=("key", "value", "headers")).to_pylist()
    assert len(read_headers(log)) == 1
    assert [row["key"] for row in decoded] == [None, None, None, b"k"]
    assert [row["headers"] for row in decoded] == [[], [{"key": "h", "value": b"1"}], [], []]
    assert decoded[2]["value"] == b"large"


def test_a_small_slice_does_not_keep_its_source() -> None:
    segment_writer = writer(memory())
    gc.collect()
    old_total_allocated_bytes = pa.total_allocated_bytes()
    for _ in range(10):
        append(segment_writer, pa.concat_batches([records([0] * 10_000, size=100)] * 2).slice(17, 5))
    assert pa.total_allocated_bytes() - old_total_allocated_bytes < 100_000
    assert segment_writer.close()[0].record_count == 50


def test_close_twice_is_close_once() -> None:
    segment_writer = writer(memory())
    append(segment_writer, records([1, 2]))
    assert len(segment_writer.close()) == len(segment_writer.close()) == 1


def test_an_aborted_writer_cannot_be_closed() -> None:
    segment_writer = writer(memory())
    append(segment_writer, records([0] * 3000, size=1000))
    segment_writer.abort()
    with pytest.raises(StorageError, match=r"aborted.*partition=3"):
        segment_writer.close()


def test_columns_whose_memory_ends_in_the_middle_of_an_item_are_taken() -> None:
    numbers = np.arange(11, dtype=np.int64).tobytes() + b"loose"
    timestamps = pa.Array.from_buffers(pa.int64(), 10, [None, pa.py_buffer(numbers)])
    offsets = pa.py_buffer(np.arange(0, 44, 4, dtype=np.int32).tobytes() + b"end")
    values = pa.Array.from_buffers(pa.binary(), 10, [None, offsets, pa.py_buffer(bytes(40))])
    batch = pa.RecordBatch.from_pydict({"timestamp": timestamps, "key": pa.nulls(10, pa.binary()), "value": values})
    (log,) = (files[".log"] for files in write(batch).files)
    assert decode(log, read_headers(log))["timestamp"].cast("int64").to_pylist() == list(range(10))
