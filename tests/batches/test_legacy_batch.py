"""Message formats 0 and 1: Kafka's LegacyRecord and AbstractLegacyRecordBatch tests, and hostile messages."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pyarrow as pa
import pytest
from raw_batches import batch, entry, record

from distlog.core.errors import CorruptRecordError
from distlog.core.format.compression import CODEC_NAMES, compress
from distlog.core.format.record_batch import check_crcs, read_headers
from distlog.core.format.record_decoder import decode

CODECS = [1, 2, 3]


def wrapper(
    magic: int, offset: int, inner: bytes, codec: int = 1, *, attributes: int = 0, timestamp: int = 1000
) -> bytes:
    """Return a compressed message; format 0 gets the wrong lz4 header checksum that Kafka writes."""
    packed = bytearray(compress(codec, inner))
    if codec == 3 and magic == 0:
        packed[6] = 0x1A
    return entry(magic, offset, None, bytes(packed), attributes=codec | attributes, timestamp=timestamp)


def rows(data: bytes, **options: Any) -> list[tuple[Any, ...]]:
    """Return (offset, timestamp, timestamp type, key, value) of each record, with checksums checked."""
    headers = read_headers(data)
    check_crcs(data, headers)
    decoded = decode(data, headers, **options)
    names = ("offset", "timestamp", "timestamp_type", "key", "value")
    columns = [decoded[name] for name in names]
    columns[1] = columns[1].cast(pa.int64())
    assert decoded["headers"].to_pylist() == [[]] * decoded.num_rows
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("value", [None, b"", b"value"])
@pytest.mark.parametrize("codec", [0, *CODECS], ids=CODEC_NAMES.__getitem__)
def test_every_field_of_a_message_is_read(magic: int, key: bytes | None, value: bytes | None, codec: int) -> None:
    inner = entry(magic, 0, key, value, timestamp=77)
    data = wrapper(magic, 0, inner, codec, timestamp=77) if codec else inner
    assert rows(data) == [(0, 77 if magic else -1, 0 if magic else -1, key, value)]


def test_each_uncompressed_message_is_a_batch() -> None:
    data = entry(0, 3) + entry(1, 7, timestamp=5) + entry(1, 8, timestamp=6, attributes=0x08)
    headers = read_headers(data)
    assert headers["base_offset"].tolist() == [3, 7, 8]
    assert headers["record_count"].tolist() == [1, 1, 1]
    assert headers["last_offset_delta"].tolist() == [0, 0, 0]
    assert headers["max_timestamp"].tolist() == [-1, 5, 6]
    assert headers["producer_id"].tolist() == headers["leader_epoch"].tolist() == [-1, -1, -1]
    assert [(row[0], row[1], row[2]) for row in rows(data)] == [(3, -1, -1), (7, 5, 0), (8, 6, 1)]


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_NAMES.__getitem__)
def test_offsets_in_a_format_0_wrapper_are_absolute(codec: int) -> None:
    data = wrapper(0, 12, b"".join(entry(0, offset) for offset in (9, 10, 12)), codec)
    (header,) = read_headers(data)
    assert (header["base_offset"], header["last_offset_delta"], header["record_count"]) == (9, 3, 3)
    assert [row[0] for row in rows(data)] == [9, 10, 12]


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_NAMES.__getitem__)
def test_the_offset_of_a_format_1_wrapper_is_that_of_its_last_record(codec: int) -> None:
    inner = b"".join(entry(1, offset, timestamp=offset) for offset in range(3))
    data = wrapper(1, 500, inner, codec)
    (header,) = read_headers(data)
    assert (header["base_offset"], header["last_offset_delta"], header["record_count"]) == (498, 2, 3)
    assert [(row[0], row[1]) for row in rows(data)] == [(498, 0), (499, 1), (500, 2)]


def test_gaps_of_a_cleaned_wrapper_stay() -> None:
    data = wrapper(1, 20, entry(1, 0) + entry(1, 3) + entry(1, 7))
    assert [row[0] for row in rows(data)] == [13, 16, 20]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_offset_of_zero_leaves_inner_offsets_as_they_are(magic: int) -> None:
    data = wrapper(magic, 0, b"".join(entry(magic, offset) for offset in range(3)))
    assert [row[0] for row in rows(data)] == [0, 1, 2]


def test_a_wrapper_offset_below_its_last_record_is_refused() -> None:
    data = wrapper(1, 1, b"".join(entry(1, offset) for offset in range(3)))
    with pytest.raises(CorruptRecordError, match="less than the offset of its last record"):
        read_headers(data)


def test_append_time_of_a_wrapper_is_the_time_of_every_record() -> None:
    data = wrapper(1, 1, entry(1, 0, timestamp=5) + entry(1, 1, timestamp=6), attributes=0x08, timestamp=99)
    assert [row[1:3] for row in rows(data)] == [(99, 1), (99, 1)]


def test_inner_messages_of_format_0_in_a_format_1_wrapper_are_tolerated() -> None:
    data = wrapper(1, 11, entry(0, 0) + entry(0, 1))
    assert [row[:3] for row in rows(data)] == [(10, -1, 0), (11, -1, 0)]


def test_a_partial_inner_message_at_the_end_is_left_out() -> None:
    data = wrapper(1, 11, entry(1, 0) + entry(1, 1) + entry(1, 2)[:-1])
    assert [row[0] for row in rows(data)] == [10, 11]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (entry(1, 0, None, None, attributes=1), "has no value"),
        (wrapper(1, 0, b""), "has no record"),
        (wrapper(0, 0, entry(0, 0)[:-1]), "has no record"),
        (wrapper(1, 0, wrapper(1, 0, entry(1, 0))), "has no record, or a malformed record"),
        (wrapper(1, 1, batch([record(), record(1)])), "has no record, or a malformed record"),
        (wrapper(1, 0, entry(1, 0), 4), "zstd does not exist"),
        (wrapper(0, 0, entry(0, 0), 4), "zstd does not exist"),
        (entry(1, 0, None, b"not gzip", attributes=1), "malformed"),
        (entry(1, 0, None, b"x", attributes=5), "newer Kafka"),
        (wrapper(0, 5, entry(0, 9) + entry(0, 7)), "do not increase"),
        (wrapper(0, 5, entry(0, -1)), "do not increase"),
        (wrapper(0, 5, entry(0, 0) + entry(0, 2**40)), "do not increase"),
    ],
)
def test_a_malformed_wrapper_is_refused_with_its_position(data: bytes, complaint: str) -> None:
    with pytest.raises(CorruptRecordError, match=complaint) as caught:
        read_headers(entry(1, 0) + data, file="t-0/x.log", file_position=1000)
    assert caught.value.details["file"] == "t-0/x.log"
    assert caught.value.details["position"] == 1000 + len(entry(1, 0))


def with_field(data: bytes, position: int, value: int) -> bytes:
    """Return `data` with another int32 at `position` and a valid checksum."""
    fields = data[16:position] + struct.pack(">i", value) + data[position + 4 :]
    return data[:12] + struct.pack(">I", zlib.crc32(fields)) + fields


@pytest.mark.parametrize("size", [-(2**31), -2, 4, 100, 2**31 - 1])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compressed", [False, True])
def test_lengths_that_do_not_fill_a_message_are_refused(size: int, magic: int, compressed: bool) -> None:
    plain = entry(magic, 0, b"key", b"value")
    key_at = 26 if magic else 18
    for position in (key_at, key_at + 7):
        bad = with_field(plain, position, size)
        with pytest.raises(CorruptRecordError):
            rows(wrapper(magic, 0, bad) if compressed else bad)


def test_inner_offsets_out_of_order_are_refused() -> None:
    data = wrapper(1, 20, entry(1, 0) + entry(1, 5) + entry(1, 5) + entry(1, 7))
    with pytest.raises(CorruptRecordError, match=r"not after the previous offset.*record=2"):
        decode(data, read_headers(data))


def test_a_wrong_checksum_of_a_message_is_detected() -> None:
    data = entry(1, 3, b"key", b"value")
    for position in range(16, len(data)):
        damaged = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        with pytest.raises(CorruptRecordError):
            check_crcs(damaged, read_headers(damaged))


def test_formats_mix_and_keep_their_order() -> None:
    data = (
        entry(0, 0)
        + wrapper(0, 2, entry(0, 1) + entry(0, 2))
        + wrapper(1, 4, entry(1, 0) + entry(1, 1))
        + batch([record(), record(1)], base_offset=5)
        + entry(1, 7)
    )
    assert [row[0] for row in rows(data)] == list(range(8))
    assert [row[0] for row in rows(data, start_offset=2, end_offset=6)] == [2, 3, 4, 5]
    assert [row[0] for row in rows(data, shift=100, start_offset=104)] == [104, 105, 106, 107]


def test_a_bomb_in_a_wrapper_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlog.core.format.record_decoder.MAX_RECORDS_BYTES", 1000)
    data = wrapper(1, 0, entry(1, 0, None, bytes(2000)))
    with pytest.raises(CorruptRecordError, match="more than is allowed"):
        decode(data, read_headers(data))
