"""The headers of batches: the promises of Kafka's DefaultRecordBatchTest and its log input stream tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from raw_batches import batch, entry, record, with_right_crc

from distlog.core.errors import CorruptRecordError
from distlog.core.format.record_batch import BATCH, HEADER, HEADER_SIZE, check_crcs, increment_sequence, read_headers
from distlog.core.format.record_decoder import decode

V2 = bytes.fromhex(
    "000000000000000000000055ffffffff02e58cf1ff00000000000100000000000454c300000000000454c3ffffffffffffffffffffffffffff"
    "0000000220000000086b6579310c76616c756531002400e1bf2202086b6579320c76616c75653200"
)
EMPTY_BATCH = bytes.fromhex(
    "000000000000006400000031ffffffff02353e8835000000000004ffffffffffffffff0000018bcfe56800000000000000000100000000000a"
    "00000000"
)
THREE = batch([record(0), record(1), record(2)])


def test_the_header_has_61_bytes_and_every_field_where_the_format_has_it() -> None:
    assert HEADER.size == HEADER_SIZE == 61
    data = batch(
        [record(0), record(2)],
        base_offset=2**40,
        last_delta=7,
        attributes=0x18,
        base_timestamp=-1,
        max_timestamp=2**41,
        producer=(2**42, 3, 2**31 - 1),
        leader_epoch=9,
    )
    (row,) = read_headers(data)
    assert row.dtype == BATCH
    fields = dict(zip(BATCH.names, row.tolist(), strict=True))
    assert fields.pop("crc") == int.from_bytes(data[17:21], "big")
    assert fields == {
        "position": 0,
        "size": len(data),
        "base_offset": 2**40,
        "last_offset_delta": 7,
        "leader_epoch": 9,
        "magic": 2,
        "attributes": 0x18,
        "base_timestamp": -1,
        "max_timestamp": 2**41,
        "producer_id": 2**42,
        "producer_epoch": 3,
        "base_sequence": 2**31 - 1,
        "record_count": 2,
    }


def test_batches_follow_each_other_with_their_positions() -> None:
    data = V2 + THREE + EMPTY_BATCH
    rows = read_headers(data)
    assert rows["position"].tolist() == [0, len(V2), len(V2) + len(THREE)]
    assert rows["size"].tolist() == [97, len(THREE), 61]
    check_crcs(data, rows)
    part = read_headers(data, start=len(V2), end=len(V2) + len(THREE))
    assert part.tolist() == rows[1:2].tolist()


def test_a_batch_without_records_keeps_its_offsets_and_its_producer() -> None:
    (row,) = read_headers(EMPTY_BATCH)
    check_crcs(EMPTY_BATCH, np.array([row]))
    assert (row["base_offset"], row["last_offset_delta"], row["record_count"]) == (100, 4, 0)
    assert (row["producer_id"], row["producer_epoch"], row["base_sequence"]) == (1, 0, 10)
    assert (row["base_timestamp"], row["max_timestamp"]) == (-1, 1_700_000_000_000)


@pytest.mark.parametrize("size", range(len(THREE)))
def test_a_partial_batch_at_the_end_is_left_out(size: int) -> None:
    assert len(read_headers(THREE[:size])) == 0
    assert len(read_headers(V2 + THREE[:size])) == 1
    assert len(read_headers(V2 + THREE, end=len(V2) + size)) == 1


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer, as_array])
def test_any_buffer_is_read(kind: Callable[[bytes], Any]) -> None:
    data = kind(V2 + THREE)
    rows = read_headers(data)
    check_crcs(data, rows)
    assert decode(data, rows).num_rows == 5
    assert len(read_headers(kind(b""))) == 0


@pytest.mark.parametrize(
    ("position", "replacement", "complaint"),
    [
        (8, (13).to_bytes(4, "big"), "shorter than any batch"),
        (8, (-1).to_bytes(4, "big", signed=True), "shorter than any batch"),
        (8, (48).to_bytes(4, "big"), "shorter than its header"),
        (8, (10).to_bytes(4, "big"), "shorter than any batch"),
        (16, b"\x03", "unknown format"),
        (16, b"\x25", "unknown format"),
        (16, b"\xff", "unknown format"),
        (0, b"\xff", "negative offset"),
        (0, b"\x7f" + b"\xff" * 7, "negative offset, or its last offset is less"),
        (23, b"\xff", "negative offset, or its last offset is less"),
        (57, b"\xff", "negative number of records"),
    ],
)
def test_an_impossible_header_is_refused_with_its_position(position: int, replacement: bytes, complaint: str) -> None:
    bad = THREE[:position] + replacement + THREE[position + len(replacement) :]
    with pytest.raises(CorruptRecordError, match=complaint) as caught:
        read_headers(V2 + bad + V2, file="t-0/x.log", file_position=1000)
    assert caught.value.details["file"] == "t-0/x.log"
    assert caught.value.details["position"] == 1000 + len(V2)


def test_a_bad_magic_or_length_is_detected_in_the_first_17_bytes() -> None:
    assert len(read_headers(THREE[:17])) == 0
    for bad in (THREE[:16] + b"\x0a", THREE[:8] + bytes(4) + THREE[12:17]):
        with pytest.raises(CorruptRecordError):
            read_headers(bad)
        assert len(read_headers(bad[:16])) == 0


@pytest.mark.parametrize("magic", [0, 1])
def test_a_legacy_message_too_short_for_its_fields_is_refused(magic: int) -> None:
    data = entry(magic, 5, value=b"")
    short = data[:8] + (len(data) - 13).to_bytes(4, "big") + data[12:-1]
    with pytest.raises(CorruptRecordError, match="shorter than"):
        read_headers(short)


@pytest.mark.parametrize("position", range(len(V2)))
def test_offset_and_leader_epoch_alone_lie_outside_the_checksum(position: int) -> None:
    damaged = V2[:position] + bytes([V2[position] ^ 0x01]) + V2[position + 1 :]
    try:
        rows = read_headers(damaged)
        check_crcs(damaged, rows)
    except CorruptRecordError:
        assert not 1 <= position < 8
        assert not 12 <= position < 16
    else:
        assert position < 16
        assert len(rows) == (0 if 8 <= position < 12 else 1)


def test_a_failed_checksum_names_file_position_and_offset_of_its_batch() -> None:
    data = V2 + batch([record(0)], base_offset=77)[:-1] + b"\x01"
    with pytest.raises(CorruptRecordError, match="checksum") as caught:
        check_crcs(data, read_headers(data), file="t-0/x.log", file_position=500)
    assert caught.value.details == {"file": "t-0/x.log", "position": 500 + 97, "offset": 77}
    origins = {"file": ["a.log", "b.log"], "file_position": np.array([0, -97])}
    with pytest.raises(CorruptRecordError) as caught:
        check_crcs(data, read_headers(data), **origins)
    assert caught.value.details == {"file": "b.log", "position": 0, "offset": 77}


def test_sequence_numbers_wrap_to_zero_in_both_directions() -> None:
    assert increment_sequence(5, 5) == 10
    assert increment_sequence(2**31 - 1, 1) == 0
    assert increment_sequence(2**31 - 6, 10) == 4
    assert increment_sequence(5, -5) == 0
    assert increment_sequence(0, -1) == 2**31 - 1


def test_a_new_offset_or_leader_epoch_needs_no_new_checksum() -> None:
    moved = (498).to_bytes(8, "big") + THREE[8:12] + (7).to_bytes(4, "big") + THREE[16:]
    rows = read_headers(moved)
    check_crcs(moved, rows)
    assert decode(moved, rows, columns=["offset"])["offset"].to_pylist() == [498, 499, 500]
    assert with_right_crc(moved) == moved


def test_a_negative_start_raises_value_error() -> None:
    with pytest.raises(ValueError, match="start"):
        read_headers(V2, start=-1)
    assert len(read_headers(V2, start=1000)) == 0
    assert len(read_headers(V2, start=50, end=10)) == 0
