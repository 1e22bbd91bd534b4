"""Kafka's codecs and their framings, for the records of a batch.

    codec      written                                              also read
    1  gzip    one RFC 1952 member                                  several members
    2  snappy  the stream of snappy-java: a header of 16 bytes,     larger blocks; one raw block, no header
               then int32 length and raw block per 32 KiB
    3  lz4     an LZ4 frame of independent 64 KiB blocks, without   checksums, content size, larger blocks
               checksums or content size
    4  zstd    one frame                                            several frames, with or without content size

Input is treated as hostile: a length field alone never causes an allocation, and growth stops at the caller's limit.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core.arrays import byte_array, new_array
from distlog.core.errors import CorruptRecordError, InvalidConfigError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
DEFAULT_LEVELS = {GZIP: -1, LZ4: 9, ZSTD: 3}
#: Kafka's ranges of levels, for errors.
LEVELS = {GZIP: "-1,1..9", LZ4: "1..17", ZSTD: "-131072..22"}

#: The most bytes that the records of a compressed batch may have when they are decompressed.
MAX_RECORDS_BYTES = 1 << 28

_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_SNAPPY_HEADER = _SNAPPY_MAGIC + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK = 32 * 1024
_SNAPPY_MAX_RATIO = 64  # Snappy data expands by less than this, since at best 3 bytes copy 64

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
#: After the magic: flags (independent blocks), the size of a block (64 KiB), and the checksum of both.
_LZ4_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 1 << 31  # the bit in a block's size for a block that is not compressed
_LZ4_INDEPENDENT, _LZ4_CONTENT_SIZE = 0x20, 0x08
_LZ4_FAST_LEVEL, _LZ4_MAX_LEVEL = 9, 12

#: The expansion that is assumed before data is decompressed, and the fewest bytes that are allocated.
_ASSUMED_RATIO = 4
_MIN_CAPACITY = 1 << 12


def compress(codec: int, data: Any, level: int | None = None) -> bytes:
    """Compress `data`, a contiguous buffer, by `codec` (Kafka's id, an index of CODEC_NAMES).

    `level` has Kafka's ranges. Level 9 of lz4 is the fast compressor; the other levels are of the high compressor.
    Raises InvalidConfigError for an unknown codec or level.
    """
    view = memoryview(data).cast("B")
    try:
        if codec == GZIP:
            deflate = zlib.compressobj(DEFAULT_LEVELS[GZIP] if level is None else level, wbits=31)
            return deflate.compress(view) + deflate.flush()
        if codec == SNAPPY:
            return _compress_snappy(view)
        if codec == LZ4:
            return _compress_lz4(view, level)
        if codec == ZSTD:
            zstd = pa.Codec("zstd", DEFAULT_LEVELS[ZSTD] if level is None else level)
            return zstd.compress(view, asbytes=True)  # type: ignore[no-any-return]
    except (ValueError, pa.ArrowInvalid):
        raise InvalidConfigError(
            f"the {CODEC_NAMES[codec]} codec does not have this level: change compression.{CODEC_NAMES[codec]}.level",
            level=level,
            levels=LEVELS.get(codec),
        ) from None
    if codec == NONE:
        return bytes(view)
    raise InvalidConfigError("unknown codec: use none, gzip, snappy, lz4 or zstd (0 to 4)", codec=codec)


def decompress(codec: int, data: Any, *, limit: int = MAX_RECORDS_BYTES, magic: int = 2) -> memoryview:
    """Decompress `data`, a contiguous buffer. Raises CorruptRecordError if the result has more than `limit` bytes.

    In format 0 (`magic`) Kafka writes a wrong header checksum in an LZ4 frame, so it is not checked.
    """
    expander = Expander(_ASSUMED_RATIO * len(memoryview(data)))
    expander.expand(codec, data, limit=limit, magic=magic)
    return expander.array.data


class Expander:
    """Decompresses chunks of data into one array, which grows with the result."""

    def __init__(self, capacity: int) -> None:
        self._room = new_array(max(capacity, _MIN_CAPACITY), np.uint8)
        self.size = 0

    @property
    def array(self) -> np.ndarray:
        return self._room[: self.size]

    def expand(self, codec: int, data: Any, *, limit: int, magic: int = 2) -> int:
        """Append the result of `decompress`, and return the new size."""
        view = memoryview(data).cast("B")
        try:
            if codec == NONE:
                self._append(view, limit)
            elif codec == SNAPPY:
                for block in _snappy_blocks(view):
                    limit -= self._append(_decompress_snappy_block(block, limit), limit)
            elif codec == LZ4:
                self._read("lz4", _checked_lz4_frame(view, magic), limit)
            elif codec in (GZIP, ZSTD):
                self._read(CODEC_NAMES[codec], view, limit)
            else:
                text = "a batch has an unknown codec: if a newer Kafka wrote it, upgrade distlog; otherwise its"
                text += " header is damaged: verify the topic, then restore it from a copy"
                raise CorruptRecordError(text, codec=codec)
        except (OSError, pa.ArrowException) as error:
            raise CorruptRecordError(f"the {CODEC_NAMES[codec]} data of a batch is malformed: {error}") from None
        return self.size

    def _append(self, chunk: Any, limit: int) -> int:
        size = len(chunk)
        if size > limit:
            raise _too_large(limit)
        while self._room.size - self.size < size:
            self._grow()
        self._room[self.size : self.size + size] = byte_array(chunk)
        self.size += size
        return size

    def _read(self, name: str, view: Any, limit: int) -> None:
        end = self.size + limit
        with pa.CompressedInputStream(pa.BufferReader(view), name) as stream:
            while True:
                # reads one byte more than allowed, to detect data above the limit
                target = self._room[self.size : end + 1]
                count = stream.readinto(target.data)
                self.size += count
                if self.size > end:
                    raise _too_large(limit)
                if count < target.size:  # the stream has ended
                    return
                self._grow()

    def _grow(self) -> None:
        grown = new_array(2 * self._room.size, np.uint8)
        grown[: self.size] = self.array
        self._room = grown


def _too_large(limit: int) -> CorruptRecordError:
    return CorruptRecordError("a compressed batch expands to more than is allowed", limit=limit)


def _compress_snappy(view: memoryview) -> bytes:
    codec = pa.Codec("snappy")
    parts = [_SNAPPY_HEADER]
    for start in range(0, len(view), _SNAPPY_BLOCK):
        block = codec.compress(view[start : start + _SNAPPY_BLOCK], asbytes=True)
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    if view[:8] != _SNAPPY_MAGIC:
        yield view
        return
    position = 0
    while position < len(view):
        if view[position : position + 8] == _SNAPPY_MAGIC:  # of the first or of an appended stream
            position += len(_SNAPPY_HEADER)
            continue
        start = position + 4
        position = start + int.from_bytes(view[position:start], "big")
        if position > len(view):
            raise CorruptRecordError("the snappy data of a batch is cut off")
        yield view[start:position]


def _decompress_snappy_block(block: memoryview, limit: int) -> Any:
    # a block begins with its uncompressed size, a number with 7 bits per byte
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    if size > limit:
        raise _too_large(limit)
    if size > _SNAPPY_MAX_RATIO * len(block):
        raise CorruptRecordError("a snappy block is too short for the length that it claims", length=size)
    return pa.Codec("snappy").decompress(block, decompressed_size=size)


def _compress_lz4(view: memoryview, level: int | None) -> bytes:
    if level is not None and not 1 <= level <= 17:
        raise ValueError(level)
    # Kafka's levels go to 17, but lz4 has only 12; without a level, Arrow takes the fast compressor
    raw_level = None if level is None or level == _LZ4_FAST_LEVEL else min(level, _LZ4_MAX_LEVEL)
    codec = pa.Codec("lz4_raw", raw_level)
    parts: list[Any] = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK):
        block = view[start : start + _LZ4_BLOCK]
        packed = codec.compress(block, asbytes=True)
        if len(packed) < len(block):
            parts += (struct.pack("<I", len(packed)), packed)
        else:
            parts += (struct.pack("<I", len(block) | _LZ4_STORED), block)
    parts.append(bytes(4))  # the end mark
    return b"".join(parts)


def _checked_lz4_frame(view: memoryview, magic: int) -> Any:
    """Check the frame header as Kafka does; returns the frame, in format 0 with the right header checksum."""
    # the checksum comes after 4 bytes of magic, 2 of flags, and 8 of the content's size if the flags have it
    checksum_at = 14 if len(view) > 4 and view[4] & _LZ4_CONTENT_SIZE else 6
    if view[:4] != _LZ4_MAGIC or len(view) <= checksum_at or not view[4] & _LZ4_INDEPENDENT:
        raise CorruptRecordError("the lz4 data of a batch is not a frame of independent blocks")
    if magic > 0:
        return view
    frame = bytearray(view)
    frame[checksum_at] = (_xxhash32_short(view[4:checksum_at]) >> 8) & 0xFF  # the second byte of the hash
    return frame


_PRIME_2, _PRIME_3, _PRIME_5 = 0x85EBCA77, 0xC2B2AE3D, 0x165667B1
_PRIME_1, _PRIME_4 = 0x9E3779B1, 0x27D4EB2F
_UINT32 = 0xFFFFFFFF


def _xxhash32_short(data: Any) -> int:
    """XXH32 with seed 0 of less than 16 bytes (the xxHash specification, steps 4 to 7)."""
    state = _PRIME_5 + len(data)
    lanes_end = len(data) & ~3
    for (lane,) in struct.iter_unpack("<I", data[:lanes_end]):
        state = _rotate_left(state + lane * _PRIME_3, 17) * _PRIME_4
    for byte in data[lanes_end:]:
        state = _rotate_left(state + byte * _PRIME_5, 11) * _PRIME_1
    state &= _UINT32
    state = ((state ^ (state >> 15)) * _PRIME_2) & _UINT32
    state = ((state ^ (state >> 13)) * _PRIME_3) & _UINT32
    return state ^ (state >> 16)


def _rotate_left(value: int, bits: int) -> int:
    value &= _UINT32
    return (value << bits) | (value >> (32 - bits))
