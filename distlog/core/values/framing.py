"""The header ahead of a value that names its schema: a zero byte and four bytes of the schema's id.

It is Confluent's wire format: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/.
Values of Protobuf go on with the place of the message in its file; Avro and JSON Schema have nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrays import flags_of

HEADER_BYTES = 5
#: How deep a message of Protobuf may lie in others, and the bytes that tell its place.
MAX_DEPTH = 32
PLACE_BYTES = 5 * (MAX_DEPTH + 1)

Longs = npt.NDArray[np.int64]


class Framed(NamedTuple):
    """Values without their headers, and the id of each; -1 for a null and for a value without a header."""

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
    """The begin of each value in the bytes of all, its length, and these bytes; a null has none."""
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
    kept = np.zeros(len(data), np.bool_)
    if len(starts) and not values.null_count:
        kept[starts[0] : starts[-1] + lengths[-1]] = True
    else:
        kept[np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())] = True
    kept[np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())] = False
    valid = values.is_valid().buffers()[1] if values.null_count else None
    parts = [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data[kept])]
    return pa.Array.from_buffers(pa.binary(), len(values), parts)


#: The place of a message in its file: its number there, then its number in that message, and so on.
Place = tuple[int, ...]


def places(payloads: pa.Array) -> tuple[list[Place | None], npt.NDArray[np.intp], pa.Array]:
    """The different places that payloads of Protobuf begin with, the number of each payload's, and what follows.

    None is the place of a payload that does not begin with one. Most begin with a zero byte, for the first message.
    """
    starts, lengths, data = _parts(payloads)
    numbers, sizes = np.zeros(len(payloads), np.intp), np.minimum(lengths, 1)
    known: dict[Place | None, int] = {(0,): 0}
    begun = np.flatnonzero(lengths)
    others = np.concatenate([begun[data[starts[begun]] != 0], np.flatnonzero(lengths == 0)])
    heads = _short_heads(starts[others], lengths[others], data)
    kinds, which = np.unique(heads, return_inverse=True)
    places_and_sizes = [_place(head.to_bytes(_SHORT, "little")) for head in kinds.tolist()]
    for place, _ in places_and_sizes:
        known.setdefault(place, len(known))
    numbers[others] = np.array([known[place] for place, _ in places_and_sizes], np.intp)[which]
    sizes[others] = np.array([size for _, size in places_and_sizes], np.int64)[which]
    for row in others[heads == 0].tolist():
        place, sizes[row] = _place(bytes(data[starts[row] : starts[row] + min(lengths[row], PLACE_BYTES)]))
        numbers[row] = known.setdefault(place, len(known))
    return list(known), numbers, without_first(payloads, sizes)


#: Places of at most this many bytes are told apart in bulk: up to seven levels of messages.
_SHORT = 8


def _short_heads(starts: Longs, lengths: Longs, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """The bytes of each place as one number; 0 for a place that is not short, and for none."""
    columns = np.arange(_SHORT)
    inside = columns < lengths[:, None]
    heads = np.where(inside, data[np.where(inside, starts[:, None] + columns, 0)], 0x80) if len(starts) else inside
    heads = heads.astype(np.uint8)
    sizes = 1 + (heads[:, :1] >> 1)
    wanted = columns < sizes
    short = (sizes[:, 0] <= _SHORT) & (heads[:, 0] % 2 == 0) & ((heads < 0x80) | ~wanted).all(axis=1)
    numbers: npt.NDArray[np.uint64] = np.where(wanted, heads, 0).astype(np.uint8).view("<u8").ravel()
    return np.where(short, numbers, 0).astype(np.uint64)


def _place(payload: bytes) -> tuple[Place | None, int]:
    """The place at the beginning, and its size in bytes: a count, then numbers, as zigzag varints."""
    count, at = _zigzag(payload, 0)
    if not 0 < count <= MAX_DEPTH:
        return ((0,), at) if count == 0 and at else (None, 0)
    numbers = []
    for _ in range(count):
        number, after = _zigzag(payload, at)
        if after == at or number < 0:
            return None, 0
        numbers.append(number)
        at = after
    return tuple(numbers), at


def _zigzag(payload: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position after it, which is the same if there is none."""
    number = 0
    for shift, byte in enumerate(payload[at : at + 5]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + shift + 1
    return -1, at
