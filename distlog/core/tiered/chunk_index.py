"""How the log of a remote segment is cut: chunks of one size, each of them compressed by itself, or not at all."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.compression import ZSTD, decompress
from distlog.core.commits.format.fields import Integer
from distlog.core.config import MAX_INT
from distlog.core.errors import CorruptRecordError

#: The most chunks that a segment may have.
MAX_CHUNKS = 1 << 22

_SIZE = Integer(1, MAX_INT)
_LOG_BYTES = Integer(0, MAX_INT)
_MAX_WIDTH = 4


@dataclass(frozen=True, slots=True, eq=False)
class ChunkIndex:
    """A log of `log_bytes`, in chunks of `chunk_bytes`, the last one shorter.

    Chunk i is compressed at [ends[i], ends[i + 1]) of the object. Without `ends` the object is the log itself.
    """

    log_bytes: int
    chunk_bytes: int
    ends: npt.NDArray[np.int64] | None

    @property
    def stored_bytes(self) -> int:
        """The size of the object."""
        return self.log_bytes if self.ends is None else int(self.ends[-1])

    def numbers(self, start: int, end: int) -> range:
        """The chunks that hold bytes [start, end) of the log."""
        return range(start // self.chunk_bytes, -(-end // self.chunk_bytes)) if start < end else range(0)

    def start(self, number: int) -> int:
        """Where a chunk begins in the log; it ends where the next one begins."""
        return min(number * self.chunk_bytes, self.log_bytes)

    @classmethod
    def parse(cls, value: Any, *, compressed: bool) -> ChunkIndex:
        """The chunk index of a manifest; ValueError says what is wrong with it."""
        if not isinstance(value, dict) or value.get("type") not in ("fixed", "variable"):
            raise ValueError("chunkIndex must be an object of type fixed or variable")
        log_bytes, chunk_bytes = _LOG_BYTES(value.get("originalFileSize")), _SIZE(value.get("originalChunkSize"))
        if not compressed:
            return cls(log_bytes, chunk_bytes, None)
        count = -(-log_bytes // chunk_bytes)
        if count > MAX_CHUNKS:
            raise ValueError(f"chunkIndex has {count} chunks, more than {MAX_CHUNKS}")
        sizes = _fixed_sizes(value, count) if value["type"] == "fixed" else _variable_sizes(value, count)
        if (sizes <= 0).any():
            raise ValueError("chunkIndex has a chunk without bytes")
        return cls(log_bytes, chunk_bytes, np.concatenate([[0], np.cumsum(sizes)]))


def _fixed_sizes(value: dict[str, Any], count: int) -> npt.NDArray[np.int64]:
    sizes = np.full(count, _SIZE(value.get("transformedChunkSize")), np.int64)
    sizes[-1:] = _SIZE(value.get("finalTransformedChunkSize"))
    return sizes


def _variable_sizes(value: dict[str, Any], count: int) -> npt.NDArray[np.int64]:
    """The sizes in `transformedChunks`: base64 of a zstd frame.

    It has the count (int32); for more than one: a base (int32), the bytes per value (1 byte), and for all but the
    last what is to be added to the base; then the last size (int32). All is big-endian.
    """
    try:
        frame = base64.b64decode(value.get("transformedChunks", ""), validate=True)
        data = bytes(decompress(ZSTD, frame, limit=16 + _MAX_WIDTH * count))
    except (TypeError, binascii.Error, CorruptRecordError) as error:
        raise ValueError(f"transformedChunks is no base64 of a zstd frame: {error}") from None
    width = data[8] if count > 1 and len(data) > 8 else 0
    expected = 4 + (5 + width * (count - 1) if count > 1 else 0) + (4 if count else 0)
    if len(data) != expected or int.from_bytes(data[:4], "big") != count or width > _MAX_WIDTH:
        raise ValueError(f"transformedChunks does not hold the sizes of {count} chunks")
    sizes = np.zeros(count, np.int64)
    if count > 1:
        added = np.frombuffer(data, np.uint8, width * (count - 1), 9).reshape(count - 1, width).astype(np.int64)
        powers = 256 ** np.arange(width - 1, -1, -1, dtype=np.int64)
        sizes[:-1] = int.from_bytes(data[4:8], "big", signed=True) + added @ powers
    sizes[-1:] = int.from_bytes(data[-4:], "big", signed=True)
    return sizes
