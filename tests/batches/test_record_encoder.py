"""Arrow into batches: Kafka's MemoryRecordsBuilderTest where it applies, sizes of batches, round trips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from encoded_rows import ROWS, Row, back, simple, table
from hypothesis import given
from hypothesis import strategies as st
from raw_batches import batch, record

from distlog.core.arrays import BLOCK_BYTES, lies_in_pages
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.format.compression import CODEC_NAMES, compress
from distlog.core.format.record_batch import HEADERS_TYPE, check_crcs, read_headers
from distlog.core.format.record_decoder import decode
from distlog.core.format.record_encoder import BatchFormat, EncodedBatches, RecordEncoder, RecordInput, encode


@given(ROWS, st.integers(0, 4), st.integers(1, 300), st.integers(0, 2**40))
def test_encoded_records_round_trip(rows: list[Row], codec: int, batch_bytes: int, base_offset: int) -> None:
    encoded = encode(table(rows), codec=codec, batch_bytes=batch_bytes, base_offset=base_offset)
    assert back(encoded) == rows
    batches = encoded.batches
    ends = batches["base_offset"] + batches["last_offset_delta"] + 1
    assert [base_offset, *ends.tolist()] == [*batches["base_offset"].tolist(), base_offset + len(rows)]
    extremes = zip(batches, encoded.offsets_of_max_timestamp, encoded.min_timestamps, strict=True)
    for extreme, offset, oldest in extremes:
        first = extreme["base_offset"] - base_offset
        stamps = [row[0] for row in rows[first : first + extreme["record_count"]]]
        assert extreme["base_timestamp"] == stamps[0]
        assert (oldest, extreme["max_timestamp"]) == (min(stamps), max(stamps))
        assert offset == (-1 if max(stamps) == -1 else extreme["base_offset"] + stamps.index(max(stamps)))
    assert encoded.batches["base_timestamp"][:1].tolist() == [row[0] for row in rows[:1]]


@given(ROWS, st.integers(0, 4))
def test_the_bytes_are_those_of_a_plain_encoder(rows: list[Row], codec: int) -> None:
    base = rows[0][0] if rows else 0
    records = [
        record(number, timestamp - base, key, value, [(name.encode(), content) for name, content in headers])
        for number, (timestamp, key, value, headers) in enumerate(rows)
    ]
    largest = max((row[0] for row in rows), default=-1)
    section = bytes(compress(codec, b"".join(records)))
    expected = batch(records, attributes=codec, base_timestamp=base, max_timestamp=largest, section=section)
    assert bytes(encode(table(rows), codec=codec).data) == (expected if rows else b"")


def test_no_records_are_no_bytes() -> None:
    for codec in range(5):
        encoded = encode(table([]), codec=codec)
        assert len(encoded.data) == len(encoded.batches) == len(encoded.offsets_of_max_timestamp) == 0


@pytest.mark.parametrize("codec", [0, 3])
def test_a_batch_ends_before_its_records_would_pass_the_limit(codec: int) -> None:
    size = len(record(0, 0, b"k0", b"v"))
    for limit, counts in [
        (size, [1] * 6),
        (2 * size - 1, [1] * 6),
        (2 * size, [2] * 3),
        (6 * size, [6]),
        (0, [1] * 6),
    ]:
        encoded = encode(table(simple(6)), codec=codec, batch_bytes=limit)
        assert encoded.batches["record_count"].tolist() == counts
        assert back(encoded) == simple(6)


def test_batches_stay_below_the_largest_size_when_nothing_compresses() -> None:
    noise = np.random.default_rng(7)
    rows: list[Row] = [(1, None, noise.bytes(999), []) for _ in range(400)]
    for codec in range(5):
        encoded = encode(table(rows), codec=codec, batch_bytes=2**31 - 1, max_batch_bytes=100_000)
        assert encoded.batches["size"].max() <= 100_000
        assert encoded.batches["size"].max() > 98_000
        assert back(encoded) == rows


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES.__getitem__)
def test_a_record_above_the_largest_batch_is_refused_and_named(codec: int) -> None:
    rows = simple(5)
    rows[3] = (1, None, np.random.default_rng(7).bytes(2000), [])
    size = int(encode(table(rows[3:4]), codec=codec).batches["size"][0])
    assert encode(table(rows), codec=codec, max_batch_bytes=size).batches["record_count"].sum() == 5
    with pytest.raises(
        InvalidRecordError, match=rf"above max.message.bytes,.* \(row=3 size={size} limit={size - 1}\)"
    ):
        encode(table(rows), codec=codec, max_batch_bytes=size - 1)


def test_a_compressed_record_that_no_reader_would_expand_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlog.core.format.compression.MAX_RECORDS_BYTES", 1000)
    rows = [*simple(2), (1, None, bytes(1001), [])]
    with pytest.raises(InvalidRecordError, match=r"too large to compress \(row=2 size=\d+\)"):
        encode(table(rows), codec=4)
    assert back(encode(table(rows), codec=0)) == rows


def test_append_time_marks_the_batch_and_keeps_the_deltas() -> None:
    rows = [(5, None, b"a", []), (9, None, b"b", [])]
    encoded = encode(table(rows), append_time=lambda: 77, base_offset=30)
    (header,) = read_headers(encoded.data)
    assert (header["attributes"], header["base_timestamp"], header["max_timestamp"]) == (0x08, 5, 77)
    assert bytes(encoded.data[61:]) == record(0, 0, None, b"a") + record(1, 4, None, b"b")
    assert [row[0] for row in back(encoded)] == [77, 77]
    assert encoded.offsets_of_max_timestamp.tolist() == [30]
    assert encoded.min_timestamps.tolist() == [77]


def test_records_without_a_timestamp_have_no_largest_one() -> None:
    encoded = encode(table([(-1, None, b"a", []), (-1, None, b"b", [])]), base_offset=30)
    assert encoded.batches["max_timestamp"].tolist() == encoded.offsets_of_max_timestamp.tolist() == [-1]
    assert encoded.batches["base_timestamp"].tolist() == [-1]
    assert [row[0] for row in back(encoded)] == [-1, -1]


def test_sequence_numbers_continue_across_batches_and_wrap() -> None:
    options = {"producer_id": 9, "producer_epoch": 1, "base_sequence": 2**31 - 3}
    encoded = encode(table(simple(6)), batch_bytes=20, **options)
    assert encoded.batches["record_count"].tolist() == [2, 2, 2]
    assert encoded.batches["base_sequence"].tolist() == [2**31 - 3, 2**31 - 1, 1]
    assert set(encoded.batches["producer_id"]) == {9}


@pytest.mark.parametrize(
    "options",
    [
        {"transactional": True},
        {"producer_id": 9},
        {"producer_id": 9, "base_sequence": 0},
        {"producer_id": 9, "producer_epoch": 1},
        {"producer_id": 9, "producer_epoch": 1, "transactional": True},
        {"producer_id": 9, "producer_epoch": 1, "control": True},
        {"producer_id": 9, "producer_epoch": 1, "base_sequence": 0, "control": True},
    ],
)
def test_a_producer_id_needs_an_epoch_and_a_sequence(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecordError):
        encode(table(simple(1)), **options)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(InvalidConfigError):
        encode(table(simple(1)), codec=5)


def test_the_encoded_bytes_can_be_patched() -> None:
    encoded = encode(table(simple(2)))
    encoded.data[0:8] = (41).to_bytes(8, "big")
    headers = read_headers(encoded.data)
    check_crcs(encoded.data, headers)
    assert decode(encoded.data, headers)["offset"].to_pylist() == [41, 42]


def test_encoders_with_few_records_use_little_memory() -> None:
    source = RecordInput.from_arrow(table([(0, b"", b"x" * 1000, [])] * 100))
    allocated = pa.total_allocated_bytes()
    encoders = [RecordEncoder(BatchFormat()) for _ in range(20)]
    for encoder in encoders:
        assert not [*encoder.append(source, np.arange(100))]
    assert pa.total_allocated_bytes() - allocated < 20 * 300_000
    assert all(encoder.finish().batches["record_count"].tolist() for encoder in encoders)


def in_steps(source: RecordInput, cuts: list[list[int]], **settings: Any) -> tuple[bytes, int]:
    """Return the encoder's bytes for rows in several calls, and the number of steps."""
    gather = settings.pop("gather_bytes")
    encoder = RecordEncoder(BatchFormat(**settings), base_offset=9, gather_bytes=gather, room=100)
    steps = [bytes(encoded.data) for rows in cuts for encoded in encoder.append(source, np.array(rows, np.int64))]
    steps.append(bytes(encoder.finish().data))
    return b"".join(steps), len(steps)


@given(
    ROWS.filter(bool),
    st.lists(st.lists(st.integers(0, 2**16), max_size=40), max_size=5),
    st.integers(1, 2000),
    st.sampled_from([1, 60, 300, 131_072]),
    st.sampled_from([0, 3]),
)
def test_rows_in_several_calls_become_the_same_batches(
    rows: list[Row], picked: list[list[int]], gather_bytes: int, batch_bytes: int, codec: int
) -> None:
    cuts = [[number % len(rows) for number in part] for part in picked]
    full = table([rows[number] for part in cuts for number in part])
    settings = {"batch_bytes": batch_bytes, "codec": codec}
    source = RecordInput.from_arrow(table(rows))
    stepwise, _ = in_steps(source, cuts, gather_bytes=gather_bytes, **settings)
    assert stepwise == bytes(encode(full, base_offset=9, **settings).data)


def test_full_batches_are_passed_on_early() -> None:
    source = RecordInput.from_arrow(table(simple(3000, bytes(1000))))
    data, steps = in_steps(source, [list(range(3000))], gather_bytes=BLOCK_BYTES, batch_bytes=100_000)
    assert steps == 2
    assert len(data) > 3_000_000


def test_batches_have_the_same_layout_in_memory_and_file() -> None:
    rows = table(simple(9000, bytes(1000)))
    encoder = RecordEncoder(BatchFormat(batch_bytes=100_000))
    data = b""

    def collect(encoded: EncodedBatches) -> None:
        nonlocal data
        assert lies_in_pages(np.frombuffer(encoded.data, np.uint8), len(data))
        data += encoded.data
        encoder.file_position = len(data)

    steps = sum(collect(encoded) is None for encoded in encoder.append(RecordInput.from_arrow(rows), np.arange(9000)))
    collect(encoder.finish())
    assert steps == 4
    assert data == bytes(encode(rows, batch_bytes=100_000).data)


def test_each_step_has_its_own_smallest_and_largest_timestamp() -> None:
    rows: list[Row] = [(number % 37, None, bytes(50), []) for number in range(500)]
    full = encode(table(rows), base_offset=9, batch_bytes=400)
    encoder = RecordEncoder(BatchFormat(batch_bytes=400), base_offset=9, gather_bytes=2000, room=100)
    steps = list(encoder.append(RecordInput.from_arrow(table(rows)), np.arange(500)))
    steps.append(encoder.finish())
    for name in ("offsets_of_max_timestamp", "min_timestamps"):
        assert np.concatenate([getattr(step, name) for step in steps]).tolist() == getattr(full, name).tolist()


def test_a_bad_row_among_many_calls_is_counted_from_the_first_record() -> None:
    good, bad = RecordInput.from_arrow(table(simple(10))), RecordInput.from_arrow(table([(-2, None, None, [])]))
    encoder = RecordEncoder(BatchFormat(batch_bytes=20))
    assert list(encoder.append(good, np.arange(10))) == []
    with pytest.raises(InvalidRecordError, match=r"timestamp is negative.*row=10"):
        list(encoder.append(bad, np.arange(1)))


def test_a_record_above_the_largest_batch_is_refused_before_allocation() -> None:
    source = RecordInput.from_arrow(table([(0, None, bytes(50_000_000), [])]))
    encoder = RecordEncoder(BatchFormat())
    allocated = pa.total_allocated_bytes()
    with pytest.raises(InvalidRecordError, match=r"above max.message.bytes.* size=50000\d+ limit=1048588\)"):
        list(encoder.append(source, np.arange(1)))
    assert pa.total_allocated_bytes() - allocated < 1_000_000


def test_passed_on_batches_stay_unchanged() -> None:
    rows = table(simple(9000, bytes(1000)))
    encoder = RecordEncoder(BatchFormat(batch_bytes=100_000))
    handed_on = [*encoder.append(RecordInput.from_arrow(rows), np.arange(9000)), encoder.finish()]
    assert b"".join(step.data for step in handed_on) == bytes(encode(rows, batch_bytes=100_000).data)


def test_non_consecutive_rows_are_refused_before_reading() -> None:
    source = RecordInput.from_arrow(pa.record_batch({"timestamp": [1] * 9, "key": pa.nulls(9), "value": [b"v"] * 9}))
    with pytest.raises(TypeError, match="contiguous"):
        list(RecordEncoder(BatchFormat()).append(source, np.arange(9)[::3]))


KINDS = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view()]


@pytest.mark.parametrize("key_kind", KINDS)
@pytest.mark.parametrize("value_kind", KINDS)
def test_keys_and_values_of_every_arrow_type_of_bytes(key_kind: pa.DataType, value_kind: pa.DataType) -> None:
    rows = [(row, None if row % 3 else b"key%d" % row, b"" if row % 4 else b"v" * row, []) for row in range(30)]
    source = table(rows)
    for column, name, kind in ((1, "key", key_kind), (2, "value", value_kind)):
        source = source.set_column(column, name, source[name].cast(kind))
    assert back(encode(source)) == rows
    assert back(encode(source.slice(7, 11))) == rows[7:18]


def test_columns_of_type_null_are_all_null() -> None:
    rows = [(row, None, None, []) for row in range(5)]
    columns = {"timestamp": pa.array(range(5)), "key": pa.nulls(5), "value": pa.nulls(5), "headers": pa.nulls(5)}
    assert back(encode(pa.RecordBatch.from_pydict(columns))) == rows
    assert back(encode(pa.RecordBatch.from_pydict(columns).slice(1, 3))) == rows[1:4]


@given(ROWS, st.data())
def test_any_slice_of_the_input_is_encoded(rows: list[Row], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    assert back(encode(table(rows).slice(start, end - start))) == rows[start:end]


def test_timestamps_of_any_zone_and_slice_are_unchanged() -> None:
    for kind in (pa.timestamp("ms"), pa.timestamp("ms", "UTC"), pa.timestamp("ms", "Europe/Berlin"), pa.int64()):
        source = table(simple(9)).set_column(0, "timestamp", pa.array(range(1000, 1009), pa.int64()).cast(kind))
        assert back(encode(source.slice(4, 3))) == simple(9)[4:7]


def headers_column(kind: pa.DataType, rows: list[Any]) -> pa.RecordBatch:
    return table(simple(len(rows))).set_column(3, "headers", pa.array(rows, kind))


def test_null_headers_are_no_headers_even_where_their_slots_hold_some() -> None:
    source = headers_column(HEADERS_TYPE, [[{"key": "a", "value": b"1"}], None, [], [{"key": "b", "value": None}]])
    assert [row[3] for row in back(encode(source))] == [[("a", b"1")], [], [], [("b", None)]]
    full = pa.array([[{"key": "a", "value": b"1"}], [{"key": "b", "value": b"2"}]], HEADERS_TYPE)
    bitmap = pa.py_buffer(b"\x01")
    masked = pa.Array.from_buffers(HEADERS_TYPE, 2, [bitmap, full.buffers()[1]], children=[full.values])
    source = table(simple(2)).set_column(3, "headers", masked)
    assert [row[3] for row in back(encode(source))] == [[("a", b"1")], []]


def test_headers_of_other_list_and_string_types() -> None:
    rows = [[{"key": "a", "value": b"1"}], None, [{"key": "b", "value": None}] * 2]
    large = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    source = headers_column(large, rows)
    assert [row[3] for row in back(encode(source))] == [[("a", b"1")], [], [("b", None)] * 2]


def test_other_columns_are_ignored() -> None:
    source = table(simple(2)).append_column("offset", pa.array([55, 3])).append_column("extra", pa.array(["x", "y"]))
    assert back(encode(source)) == simple(2)


@pytest.mark.parametrize("timestamp", [-2, -(2**63)])
def test_a_negative_timestamp_is_refused_and_named(timestamp: int) -> None:
    with pytest.raises(InvalidRecordError, match=r"timestamp is negative.*row=2"):
        encode(table([*simple(2), (timestamp, None, None, [])]))


def test_a_null_timestamp_is_refused_and_named() -> None:
    rows = table(simple(3)).set_column(0, "timestamp", pa.array([1, None, 3], pa.int64()))
    with pytest.raises(InvalidRecordError, match=r"timestamp is null \(row=1\)"):
        encode(rows)


@pytest.mark.parametrize("name", ["timestamp", "key", "value"])
def test_a_missing_column_is_refused_and_named(name: str) -> None:
    with pytest.raises(InvalidRecordError, match=f"column={name}"):
        encode(table(simple(1)).drop_columns([name]))


def test_a_column_of_a_wrong_type_is_refused() -> None:
    rows = table(simple(1))
    with pytest.raises(InvalidRecordError, match="must be binary"):
        encode(rows.set_column(1, "key", pa.array([1.5])))
    with pytest.raises(InvalidRecordError, match="headers like"):
        encode(rows.set_column(3, "headers", pa.array(["h"])))
    for stamps in (pa.array([1], pa.timestamp("us")), pa.array([1], pa.int32()), pa.array(["1"])):
        with pytest.raises(InvalidRecordError, match=r"timestamp\[ms\] or int64"):
            encode(rows.set_column(0, "timestamp", stamps))


def test_a_null_header_or_header_key_is_refused_and_named_but_not_outside_the_slice() -> None:
    good = [{"key": "a", "value": b"1"}]
    for bad in ([None], [{"key": None, "value": b"1"}]):
        source = headers_column(HEADERS_TYPE, [good, good, bad, good])
        with pytest.raises(InvalidRecordError, match=r"key of a header is null \(row=2\)"):
            encode(source)
        with pytest.raises(InvalidRecordError, match=r"\(row=1\)"):
            encode(source.slice(1))
        assert len(back(encode(source.slice(0, 2)))) == 2
        assert len(back(encode(source.slice(3)))) == 1
