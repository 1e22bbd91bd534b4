"""Damaged logs: decoding returns the written records or fails, and never crashes or returns a wrong record."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_batches import batch, body, entry, record, sized, with_right_crc

from distlog.core.errors import CorruptRecordError
from distlog.core.format.compression import CODEC_NAMES, compress
from distlog.core.format.kernels.record_scan import SLACK
from distlog.core.format.record_batch import check_crcs, read_headers
from distlog.core.format.record_decoder import decode

KINDS = [*((2, codec) for codec in range(5)), *((magic, codec) for magic in (0, 1) for codec in range(4))]
IDS = [f"v{magic}-{CODEC_NAMES[codec]}" for magic, codec in KINDS]
LENGTH, LEADER_EPOCH = range(8, 12), range(12, 16)


def log(magic: int, codec: int) -> list[bytes]:
    return [_batch(magic, codec, base) for base in (0, 3, 6)]


def _batch(magic: int, codec: int, base: int) -> bytes:
    contents = [(b"key %d" % (base + delta), b"a value of some length " * (delta + 1)) for delta in range(3)]
    if magic == 2:
        headers = ((b"name", b"content"), (b"none", None))
        records = [record(delta, delta, *contents[delta], headers) for delta in range(3)]
        section = bytes(compress(codec, b"".join(records)))
        return batch(records, base_offset=base, attributes=codec, section=section)
    relative = 0 if magic == 1 and codec else base
    inner = b"".join(entry(magic, relative + delta, *contents[delta]) for delta in range(3))
    return entry(magic, base + 2, None, bytes(compress(codec, inner)), attributes=codec) if codec else inner


def read(data: bytes, following: bytes = b"") -> tuple[list[dict[str, Any]], int]:
    """Return the records and their size in bytes; `following` is later in the buffer and not a batch."""
    headers = read_headers(data)
    check_crcs(data, headers)
    decoded = decode(data + following, headers)
    decoded.validate(full=True)
    stamps = decoded["timestamp"].cast(pa.int64())
    return decoded.set_column(2, "timestamp", stamps).to_pylist(), int(headers["size"].sum())


def attempt(data: bytes, following: bytes = b"") -> tuple[list[dict[str, Any]], int] | CorruptRecordError:
    try:
        return read(data, following)
    except CorruptRecordError as error:
        return error


@pytest.mark.parametrize(("magic", "codec"), KINDS, ids=IDS)
def test_every_truncation_gives_the_whole_batches_before_it(magic: int, codec: int) -> None:
    batches = log(magic, codec)
    data = b"".join(batches)
    every, _ = read(data)
    assert [row["offset"] for row in every] == list(range(9))
    for size in range(len(data)):
        rows, used = read(data[:size])
        assert rows == every[: len(rows)]
        assert size - used < max(len(batch) for batch in batches)
        assert data[:used] == b"".join(batches)[:used]


@pytest.mark.parametrize("flip", [0x01, 0x10, 0x80, 0xFF])
@pytest.mark.parametrize(("magic", "codec"), KINDS, ids=IDS)
def test_every_flipped_byte_is_detected_or_harmless(magic: int, codec: int, flip: int) -> None:
    batches = log(magic, codec)
    data = bytearray(b"".join(batches))
    every, _ = read(bytes(data))
    starts = [row["position"] for row in read_headers(bytes(data))]
    detected = 0
    for damaged in range(len(data)):
        data[damaged] ^= flip
        start = max(start for start in starts if start <= damaged)
        result = attempt(bytes(data))
        if isinstance(result, CorruptRecordError):
            detected += 1
            position = result.details["position"]
            # A wrong length makes the following bytes look like a batch.
            assert position == start or (damaged - start in LENGTH and position > start)
        else:
            _check_undetected(*result, every, damaged - start, len(data), magic)
        data[damaged] ^= flip
    assert detected >= len(data) - len(starts) * 16


def _check_undetected(
    rows: list[dict[str, Any]], used: int, every: list[dict[str, Any]], within: int, size: int, magic: int
) -> None:
    if within in LENGTH:
        # It reads as a partial batch at the end: the caller checks the consumed bytes.
        assert rows == every[: len(rows)]
        assert used < size
    elif within < 8:
        # The offset is outside the checksum: the caller checks it.
        assert [{**row, "offset": 0} for row in rows] == [{**row, "offset": 0} for row in every]
    else:
        assert magic == 2
        assert within in LEADER_EPOCH
        assert rows == every


SECTIONS = st.lists(
    st.binary(max_size=30)
    | st.binary(max_size=20).map(sized)
    | st.builds(
        lambda delta, stamp, key, value, count, cut: sized(body(delta, stamp, key, value, header_count=count))[cut:],
        st.integers(-3, 9),
        st.integers(-(2**63), 2**63 - 1),
        st.none() | st.binary(max_size=9),
        st.none() | st.binary(max_size=9),
        st.integers(-2, 3) | st.just(2**31 - 1),
        st.integers(0, 2),
    ),
    max_size=8,
).map(b"".join)


@given(SECTIONS, st.integers(-1, 12), st.integers(0, 4), st.integers(0, 20))
def test_noise_with_a_right_checksum_decodes_or_is_refused(section: bytes, count: int, codec: int, last: int) -> None:
    packed = bytes(compress(codec, section))
    data = batch([], count=count, last_delta=last, attributes=codec, section=packed)
    result = attempt(data)
    if isinstance(result, CorruptRecordError):
        assert result.details["position"] == 0
    else:
        offsets = [row["offset"] for row in result[0]]
        assert len(offsets) == count
        assert offsets == sorted(set(offsets))
        assert all(0 <= offset <= last for offset in offsets)


@given(SECTIONS, st.integers(-1, 12), st.integers(0, 4), st.binary(min_size=SLACK, max_size=SLACK))
def test_bytes_past_a_batch_do_not_change_its_records_or_its_error(
    section: bytes, count: int, codec: int, following: bytes
) -> None:
    data = batch([], count=count, last_delta=20, attributes=codec, section=bytes(compress(codec, section)))
    alone, among_others = attempt(data), attempt(data, following)
    if isinstance(alone, CorruptRecordError):
        assert str(among_others) == str(alone)
    else:
        assert among_others == alone


@given(st.binary(max_size=200), st.integers(-1, 3), st.booleans())
def test_noise_is_not_a_log(noise: bytes, magic: int, framed: bool) -> None:
    if framed:
        noise = noise[:8] + struct.pack(">iib", max(len(noise) - 3, 0), 0, magic) + noise[8:]
    with contextlib.suppress(CorruptRecordError):
        headers = read_headers(noise)
        assert headers["size"].sum() <= len(noise)
        decode(noise, headers)


@given(st.sampled_from(KINDS[:5]), st.data())
def test_damage_under_a_right_checksum_never_crashes(kind: tuple[int, int], data: st.DataObject) -> None:
    batch = bytearray(log(*kind)[0])
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(21, len(batch) - 1))] = data.draw(st.integers(0, 255))
    result = attempt(with_right_crc(bytes(batch)))
    assert not isinstance(result, CorruptRecordError) or result.details["position"] == 0
