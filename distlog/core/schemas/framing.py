"""The header of a value that names its schema: a zero byte and four bytes of the schema's id.

It is Confluent's wire format: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/.
In values of Protobuf, the indexes of the message in its file follow; Avro and JSON Schema have no more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrays import flags_of

HEADER_BYTES = 5
#: The deepest nesting of a message of Protobuf, and the most bytes of its indexes.
MAX_DEPTH = 32
INDEXES_BYTES = 5 * (MAX_DEPTH + 1)

Longs = npt.NDArray[np.int64]


class Framed(NamedTuple):
    """Values without their headers, and their ids; -1 for a null and for a value without a header."""

    ids: Longs
    payloads: pa.Array


def unframed(values: pa.Array) -> Framed:
    ids = np.full(len(values), -1, np.int64)
    starts, lengths, data = _parts(values)
    rows = np.flatnonzero(lengths >= HEADER_BYTES)
    header = data[starts[rows][:, None] + np.arange(HEADER_BYTES)]
    number = header[:, 1:].copy().view(">i4").ravel().astype(np.int64)
    good = (header[:, 0] == 0) & (number >= 0)
    ids[rows[good]] = number[good]
    return Framed(ids, without_first(values, np.minimum(lengths, HEADER_BYTES)))


def _parts(values: pa.Array) -> tuple[Longs, Longs, npt.NDArray[np.uint8]]:
    """Return the starts of values in their bytes, their lengths, and the bytes; a null has no bytes."""
    if not len(values):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)
    _, ends, data = values.buffers()
    offsets = np.frombuffer(ends, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    if values.null_count:
        lengths[~flags_of(values.is_valid())] = 0
    return offsets[:-1], lengths, np.frombuffer(data or b"", np.uint8)


def without_first(values: pa.Array, sizes: Longs) -> pa.Array:
    starts, lengths, data = _parts(values)
    ends = np.concatenate([[0], np.cumsum(lengths - sizes)])
    is_payload = np.zeros(len(data), np.bool_)
    if len(starts) and not values.null_count:
        is_payload[starts[0] : starts[-1] + lengths[-1]] = True
    else:
        is_payload[np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())] = True
    is_payload[np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())] = False
    valid = values.is_valid().buffers()[1] if values.null_count else None
    parts = [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data[is_payload])]
    return pa.Array.from_buffers(pa.binary(), len(values), parts)


#: The indexes of a message in its file: the index of the outermost message, then the index in that message, and so
#: on.
Indexes = tuple[int, ...]


def split_messages(payloads: pa.Array) -> tuple[list[Indexes | None], npt.NDArray[np.intp], pa.Array]:
    """Split payloads of Protobuf; returns the different indexes, their number for each payload, and the messages.

    None are the indexes of a bad payload. Most payloads start with a zero byte, for the first message.
    """
    starts, lengths, data = _parts(payloads)
    numbers, sizes = np.zeros(len(payloads), np.intp), np.minimum(lengths, 1)
    numbers_by_indexes: dict[Indexes | None, int] = {(0,): 0}
    nonempty = np.flatnonzero(lengths)
    unusual = np.concatenate([nonempty[data[starts[nonempty]] != 0], np.flatnonzero(lengths == 0)])
    heads = _short_heads(starts[unusual], lengths[unusual], data)
    kinds, kind_of_row = np.unique(heads, return_inverse=True)
    decoded = [_read_indexes(head.to_bytes(_SHORT, "little")) for head in kinds.tolist()]
    for indexes, _ in decoded:
        numbers_by_indexes.setdefault(indexes, len(numbers_by_indexes))
    numbers[unusual] = np.array([numbers_by_indexes[indexes] for indexes, _ in decoded], np.intp)[kind_of_row]
    sizes[unusual] = np.array([size for _, size in decoded], np.int64)[kind_of_row]
    for row in unusual[heads == 0].tolist():
        indexes, sizes[row] = _read_indexes(bytes(data[starts[row] : starts[row] + min(lengths[row], INDEXES_BYTES)]))
        numbers[row] = numbers_by_indexes.setdefault(indexes, len(numbers_by_indexes))
    return list(numbers_by_indexes), numbers, without_first(payloads, sizes)


#: Indexes of at most this many bytes are decoded in bulk: up to seven levels of messages.
_SHORT = 8


def _short_heads(starts: Longs, lengths: Longs, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Return the bytes of the indexes as one number; 0 for long or bad indexes."""
    columns = np.arange(_SHORT)
    inside = columns < lengths[:, None]
    heads = np.where(inside, data[np.where(inside, starts[:, None] + columns, 0)], 0x80) if len(starts) else inside
    heads = heads.astype(np.uint8)
    sizes = 1 + (heads[:, :1] >> 1)
    is_index = columns < sizes
    short = (sizes[:, 0] <= _SHORT) & (heads[:, 0] % 2 == 0) & ((heads < 0x80) | ~is_index).all(axis=1)
    numbers: npt.NDArray[np.uint64] = np.where(is_index, heads, 0).astype(np.uint8).view("<u8").ravel()
    return np.where(short, numbers, 0).astype(np.uint64)


def _read_indexes(payload: bytes) -> tuple[Indexes | None, int]:
    """Read indexes, a count and numbers as zigzag varints; returns them and their size in bytes."""
    count, position = _zigzag(payload, 0)
    if not 0 < count <= MAX_DEPTH:
        return ((0,), position) if count == 0 and position else (None, 0)
    numbers = []
    for _ in range(count):
        number, next_position = _zigzag(payload, position)
        if next_position == position or number < 0:
            return None, 0
        numbers.append(number)
        position = next_position
    return tuple(numbers), position


def _zigzag(payload: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position and the next position, which is the same without a number."""
    number = 0
    for shift, byte in enumerate(payload[position : position + 5]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position + shift + 1
    return -1, position
