"""Batches into columns: selected columns and bounds, for every codec."""

from __future__ import annotations

from datetime import datetime, timezone

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from decoded_rows import HEADERS, offsets, rows
from raw_batches import batch, record

from distlog.core.arrays import byte_array
from distlog.core.errors import CorruptRecordError
from distlog.core.format import record_decoder
from distlog.core.format.compression import CODEC_NAMES, compress
from distlog.core.format.kernels.record_scan import SLACK
from distlog.core.format.record_batch import COLUMNS, SCHEMA, Source, read_headers
from distlog.core.format.record_decoder import BatchSelection, decode, decode_parts


def test_a_record_has_every_column_of_the_schema() -> None:
    data = batch([record(0, 5, b"k", b"v", HEADERS)], base_offset=7, base_timestamp=1000, max_timestamp=1005)
    decoded = decode(data, read_headers(data), partition=3)
    assert decoded.schema == SCHEMA
    assert decoded.to_pylist() == [
        {
            "partition": 3,
            "offset": 7,
            "timestamp": datetime.fromtimestamp(1.005, timezone.utc),
            "timestamp_type": 0,
            "key": b"k",
            "value": b"v",
            "headers": [{"key": "h1", "value": b"x"}, {"key": "h2", "value": None}, {"key": "ключ", "value": b""}],
        }
    ]
    decoded.validate(full=True)


@pytest.mark.parametrize("size", [6, 7, 8, 9])
def test_columns_of_one_value_may_have_any_number_of_rows(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_decoder, "_SHARED_ROWS", range(7, 9))
    contents = b"".join(record(number, 0, None, None) for number in range(size))
    data = batch([], count=size, last_delta=size - 1, section=contents)
    decoded = decode(data, read_headers(data), partition=3, columns=("partition", "timestamp_type", "headers"))
    decoded.validate(full=True)
    assert decoded.num_rows == size
    assert pc.sum(decoded["partition"]).as_py() == 3 * size
    assert pc.max(decoded["timestamp_type"]).as_py() == 0
    assert len(decoded["headers"].flatten()) == 0


def test_null_and_empty_are_different() -> None:
    contents = [None, b"", b"x", None, b""]
    data = batch([record(number, 0, content, content) for number, content in enumerate(contents)])
    decoded = decode(data, read_headers(data))
    decoded.validate(full=True)
    assert decoded["key"].to_pylist() == decoded["value"].to_pylist() == contents
    assert decoded["key"].null_count == 2
    assert decoded["headers"].to_pylist() == [[]] * 5


@pytest.mark.parametrize("content", [None, b""])
def test_columns_of_nothing_but_null_or_empty(content: bytes | None) -> None:
    data = batch([record(number, 0, content, content) for number in range(20)])
    decoded = decode(data, read_headers(data))
    decoded.validate(full=True)
    assert decoded["key"].to_pylist() == decoded["value"].to_pylist() == [content] * 20


@pytest.mark.parametrize(
    "columns", [(), ("value",), ("offset", "key"), tuple(reversed(COLUMNS)), ("offset", "offset")]
)
def test_selected_columns_keep_the_selected_order(columns: tuple[str, ...]) -> None:
    data = batch([record(0, 0, b"k", b"v", HEADERS), record(1)])
    decoded = decode(data, read_headers(data), columns=columns)
    assert decoded.num_rows == 2
    assert tuple(decoded.schema.names) == columns
    every = decode(data, read_headers(data))
    for index, name in enumerate(columns):
        assert decoded.column(index) == every[name]


def test_a_column_that_does_not_exist_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="valu"):
        decode(b"", read_headers(b""), columns=["valu"])


def test_nothing_decodes_to_an_empty_batch_of_the_schema() -> None:
    for data in (b"", batch([], last_delta=4)):
        decoded = decode(data, read_headers(data))
        assert decoded.num_rows == 0
        assert decoded.schema == SCHEMA
        assert decode(data, read_headers(data), columns=["key"]).schema.names == ["key"]


def test_control_batches_are_skipped() -> None:
    marker = batch([record(0, 0, b"\0\0\0\1", b"\0\0\0\0\0\7")], base_offset=1, attributes=0x30, producer=(1, 0, -1))
    data = batch([record()]) + marker + batch([record()], base_offset=2)
    assert offsets(data) == [0, 2]


def test_append_time_is_the_time_of_every_record() -> None:
    data = batch([record(0, 0), record(1, -5), record(2, 5)], attributes=0x08, base_timestamp=1, max_timestamp=99)
    decoded = rows(data)
    assert [row["timestamp"] for row in decoded] == [99, 99, 99]
    assert [row["timestamp_type"] for row in decoded] == [1, 1, 1]


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES.__getitem__)
def test_a_delete_horizon_is_the_base_that_deltas_count_from(codec: int) -> None:
    records = [record(0, -50), record(1, 0), record(2, 50)]
    section = bytes(compress(codec, b"".join(records)))
    data = batch(records, attributes=0x40 | codec, base_timestamp=100, section=section)
    assert [row["timestamp"] for row in rows(data)] == [50, 100, 150]


def test_records_without_a_timestamp_have_minus_one() -> None:
    data = batch([record(0, 0)], base_timestamp=-1, max_timestamp=-1)
    assert rows(data, columns=["timestamp", "timestamp_type"]) == [{"timestamp": -1, "timestamp_type": 0}]


def test_gaps_of_a_compacted_batch_stay() -> None:
    data = batch([record(1), record(4)], base_offset=10, last_delta=9)
    assert offsets(data) == [11, 14]


def test_bounds_cut_within_batches_and_leave_whole_batches_out() -> None:
    data = b"".join(batch([record(delta) for delta in range(5)], base_offset=base) for base in (0, 5, 10))
    assert offsets(data, start_offset=3, end_offset=12) == list(range(3, 12))
    assert offsets(data, start_offset=7, end_offset=8) == [7]
    assert offsets(data, start_offset=15) == []
    assert offsets(data, end_offset=0) == []
    selected = rows(data, start_offset=7, end_offset=8)
    assert selected[0]["value"] == b"v"


def test_batches_of_several_segments_are_moved_bounded_and_numbered_each_by_itself() -> None:
    data = b"".join(batch([record(delta) for delta in range(3)], base_offset=base) for base in (0, 0, 3))
    decoded = rows(
        data,
        columns=["partition", "offset"],
        shift=np.array([100, 200, 200]),
        partition=np.array([4, 5, 6], np.int32),
        start_offset=np.array([101, 0, 0]),
        end_offset=np.array([1000, 1000, 204]),
    )
    assert [(row["partition"], row["offset"]) for row in decoded] == [
        (4, 101),
        (4, 102),
        (5, 200),
        (5, 201),
        (5, 202),
        (6, 203),
    ]


def test_an_offset_moved_out_of_range_is_refused() -> None:
    data = batch([record(delta) for delta in range(3)], base_offset=2**62)
    assert offsets(data, shift=2**62 - 4) == [2**63 - 4, 2**63 - 3, 2**63 - 2]
    for shift in (2**62 - 2, 2**62, -(2**62) - 1):
        with pytest.raises(CorruptRecordError, match="out of range"):
            offsets(data, shift=shift)


def test_rows_outside_the_data_raise_value_error() -> None:
    data = batch([record()])
    headers = read_headers(data)
    with pytest.raises(ValueError, match="outside of the data"):
        decode(data[:-1], headers)
    headers["position"] = -5
    with pytest.raises(ValueError, match="outside of the data"):
        decode(data, headers)


def test_a_header_key_that_is_not_utf_8_is_read_as_java_reads_it() -> None:
    headers = ((b"good", b"1"), (b"bad\xff\xfe", b"2"), (b"\xe2\x82", b"3"))
    data = batch([record(0, 0, None, b"v", headers)])
    decoded = decode(data, read_headers(data))
    decoded.validate(full=True)
    assert [pair["key"] for pair in decoded["headers"].to_pylist()[0]] == ["good", "bad\ufffd\ufffd", "\ufffd"]


def test_headers_of_records_outside_the_bounds_are_not_read_into_others() -> None:
    data = batch([record(number, 0, None, b"v", ((b"h%d" % number, None),) * number) for number in range(5)])
    decoded = rows(data, start_offset=2, end_offset=4, columns=["headers"])
    assert [len(row["headers"]) for row in decoded] == [2, 3]
    assert decoded[1]["headers"][2] == {"key": "h3", "value": None}


@pytest.mark.parametrize("long_one", range(5))
@pytest.mark.parametrize("start", range(5))
def test_a_long_integer_anywhere_costs_no_record_before_or_after_it(long_one: int, start: int) -> None:
    days = [10**10 if number == long_one else number for number in range(5)]
    records = [record(number, days[number], b"k%d" % number, b"v" * number, HEADERS[:number]) for number in range(5)]
    data = batch(records, base_timestamp=1000)
    decoded = decode(data + bytes(SLACK), read_headers(data), start_offset=start)
    assert decoded["offset"].to_pylist() == list(range(start, 5))
    assert decoded["timestamp"].cast(pa.int64()).to_pylist() == [1000 + delta for delta in days[start:]]
    assert decoded["key"].to_pylist() == [b"k%d" % number for number in range(start, 5)]
    assert decoded["value"].to_pylist() == [b"v" * number for number in range(start, 5)]
    assert [len(row) for row in decoded["headers"].to_pylist()] == [min(number, 3) for number in range(start, 5)]


@pytest.mark.parametrize("codec", range(5))
def test_compressed_and_plain_batches_mix(codec: int) -> None:
    records = [record(delta, 0, b"k%d" % delta, b"v" * delta, HEADERS) for delta in range(50)]
    packed = bytes(compress(codec, b"".join(records)))
    data = (
        batch(records)
        + batch(records, base_offset=50, attributes=codec, section=packed)
        + batch(records, base_offset=100)
    )
    decoded = rows(data)
    assert [row["offset"] for row in decoded] == list(range(150))
    for row in decoded:
        del row["offset"]
    assert decoded[:50] == decoded[50:100] == decoded[100:]


def parts(data: bytes, part_bytes: int) -> list[pa.RecordBatch]:
    selection = BatchSelection(byte_array(data), read_headers(data), 0, 0, 0, 2**62, Source())
    return list(decode_parts(selection, COLUMNS, part_bytes))


@pytest.mark.parametrize("part_bytes", [1, 700, 1500, 10**9])
def test_compressed_batches_come_in_parts_of_bounded_size_and_all_of_them_come(part_bytes: int) -> None:
    records = [record(delta, 0, b"k%d" % delta, b"v" * 50) for delta in range(10)]
    size = sum(map(len, records))
    section = bytes(compress(4, b"".join(records)))
    packed = [batch(records, base_offset=base, attributes=4, section=section) for base in range(0, 100, 10)]
    data = b"".join(packed)
    split = parts(data, part_bytes)
    assert pa.concat_batches(split) == decode(data, read_headers(data))
    assert len(split) == {1: 10, 700: 5, 1500: 4, 10**9: 1}[part_bytes]
    assert all((part.num_rows / 10 - 1) * size < part_bytes for part in split)


def test_parts_keep_the_order_of_mixed_batches_and_there_is_always_one() -> None:
    records = [record(delta) for delta in range(3)]
    section = bytes(compress(1, b"".join(records)))
    packed = batch(records, base_offset=3, attributes=1, section=section)
    data = batch(records) + packed + batch([], base_offset=6, last_delta=2) + batch(records, base_offset=9)
    split = parts(data, 1)
    assert [part["offset"].to_pylist() for part in split] == [[0, 1, 2], [3, 4, 5], [9, 10, 11]]
    assert [part.num_rows for part in parts(b"", 1)] == [0]


def test_high_bits_of_the_attributes_are_ignored() -> None:
    assert offsets(batch([record()], attributes=0x7F80)) == [0]
