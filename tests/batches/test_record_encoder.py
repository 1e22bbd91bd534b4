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

from distlog.core.batches.compression import CODEC_NAMES, compress
from distlog.core.batches.record_batch import BatchFormat, check_crcs, read_headers
from distlog.core.batches.record_decoder import decode
from distlog.core.batches.record_encoder import RecordEncoder, RecordInput, encode
from distlog.core.errors import InvalidConfigError, InvalidRecordError


@given(ROWS, st.integers(0, 4), st.integers(1, 300), st.integers(0, 2**40))
def test_what_is_encoded_decodes_to_itself(rows: list[Row], codec: int, batch_bytes: int, base_offset: int) -> None:
    encoded = encode(table(rows), codec=codec, batch_bytes=batch_bytes, base_offset=base_offset)
    assert back(encoded) == rows
    batches = encoded.batches
    ends = batches["base_offset"] + batches["last_offset_delta"] + 1
    assert [base_offset, *ends.tolist()] == [*batches["base_offset"].tolist(), base_offset + len(rows)]
    extremes = zip(batches, encoded.offsets_of_max_timestamp, encoded.min_timestamps, strict=True)
    for each, offset, oldest in extremes:
        first = each["base_offset"] - base_offset
        stamps = [row[0] for row in rows[first : first + each["record_count"]]]
        assert each["base_timestamp"] == stamps[0]
        assert (oldest, each["max_timestamp"]) == (min(stamps), max(stamps))
        assert offset == (-1 if max(stamps) == -1 else each["base_offset"] + stamps.index(max(stamps)))
    assert encoded.batches["base_timestamp"][:1].tolist() == [row[0] for row in rows[:1]]


@given(ROWS, st.integers(0, 4))
def test_the_bytes_are_those_of_a_plain_encoder(rows: list[Row], codec: int) -> None:
    base = rows[0][0] if rows else 0
    records = [
        record(at, timestamp - base, key, value, [(name.encode(), content) for name, content in headers])
        for at, (timestamp, key, value, headers) in enumerate(rows)
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
    one = len(record(0, 0, b"k0", b"v"))
    for limit, counts in [(one, [1] * 6), (2 * one - 1, [1] * 6), (2 * one, [2] * 3), (6 * one, [6]), (0, [1] * 6)]:
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
    monkeypatch.setattr("distlog.core.batches.compression.MAX_RECORDS_BYTES", 1000)
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


def test_sequence_numbers_go_on_from_batch_to_batch_and_wrap() -> None:
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
def test_a_producer_id_needs_what_kafka_wants_with_it(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecordError):
        encode(table(simple(1)), **options)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(InvalidConfigError):
        encode(table(simple(1)), codec=5)


def test_the_encoded_bytes_can_be_patched_in_place() -> None:
    encoded = encode(table(simple(2)))
    encoded.data[0:8] = (41).to_bytes(8, "big")
    headers = read_headers(encoded.data)
    check_crcs(encoded.data, headers)
    assert decode(encoded.data, headers)["offset"].to_pylist() == [41, 42]


def test_long_values_and_many_rows() -> None:
    rows: list[Row] = [(row, None, b"x" * (row * 37 % 5000), []) for row in range(3000)]
    assert back(encode(table(rows))) == rows
    assert back(encode(table([(0, None, b"y" * 900_000, [])]))) == [(0, None, b"y" * 900_000, [])]


def test_encoders_that_hold_little_take_little_memory() -> None:
    source = RecordInput.from_arrow(table([(0, b"", b"x" * 1000, [])] * 100))
    before = pa.total_allocated_bytes()
    encoders = [RecordEncoder(BatchFormat()) for _ in range(20)]
    for encoder in encoders:
        assert not [*encoder.append(source, np.arange(100))]
    assert pa.total_allocated_bytes() - before < 20 * 300_000
    assert all(encoder.finish().batches["record_count"].tolist() for encoder in encoders)
