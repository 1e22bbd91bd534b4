"""Batches of every format, byte by byte in plain Python: to compare the kernels with, and to malform."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from crc32c import crc32c

Headers = Sequence[tuple[bytes, bytes | None]]


def varint(value: int) -> bytes:
    """The zig-zag base-128 bytes of a 32- or 64-bit integer."""
    remainder = (value << 1) ^ (value >> 63)
    out = bytearray()
    while remainder > 0x7F:
        out.append(remainder & 0x7F | 0x80)
        remainder >>= 7
    return bytes([*out, remainder])


def sized(data: bytes | None) -> bytes:
    """A byte string with its length before it; None is null."""
    return varint(-1) if data is None else varint(len(data)) + data


def body(
    delta: int = 0,
    timestamp_delta: int = 0,
    key: bytes | None = None,
    value: bytes | None = b"v",
    headers: Headers = (),
    *,
    header_count: int | None = None,
) -> bytes:
    """A record of format 2 without its length."""
    pairs = b"".join(sized(name) + sized(content) for name, content in headers)
    count = varint(len(headers) if header_count is None else header_count)
    return b"\0" + varint(timestamp_delta) + varint(delta) + sized(key) + sized(value) + count + pairs


def record(*args: object, **kwargs: object) -> bytes:
    return sized(body(*args, **kwargs))  # type: ignore[arg-type]


def batch(
    records: Sequence[bytes],
    *,
    base_offset: int = 0,
    count: int | None = None,
    last_delta: int | None = None,
    attributes: int = 0,
    base_timestamp: int = 1000,
    max_timestamp: int = 1000,
    producer: tuple[int, int, int] = (-1, -1, -1),
    leader_epoch: int = -1,
    section: bytes | None = None,
) -> bytes:
    """A batch of format 2 with a right checksum; `section` stands for the records where they are compressed."""
    count = len(records) if count is None else count
    last_delta = len(records) - 1 if last_delta is None else last_delta
    section = b"".join(records) if section is None else section
    timestamps = (base_timestamp, max_timestamp)
    checked = struct.pack(">hiqqqhii", attributes, last_delta, *timestamps, *producer, count) + section
    prefix = struct.pack(">qiibI", base_offset, len(checked) + 9, leader_epoch, 2, crc32c(checked))
    return prefix + checked


def with_right_crc(data: bytes) -> bytes:
    """One batch of format 2, its checksum made to fit."""
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]


def entry(
    magic: int,
    offset: int,
    key: bytes | None = None,
    value: bytes | None = b"v",
    *,
    timestamp: int = 1000,
    attributes: int = 0,
) -> bytes:
    """A message of format 0 or 1 with a right checksum."""
    fields = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for data in (key, value):
        fields += struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
    return struct.pack(">qiI", offset, len(fields) + 4, zlib.crc32(fields)) + fields
