"""Zig-zag base-128 integers, as records hold them (Kafka's `ByteUtils`; Protocol Buffers' sint32 and sint64).

A reader returns `(value, next position)` and never touches a byte at or after `end`. A value that is cut off, or
longer than 5 (varint) or 10 (varlong) bytes, gives `end + 1` as the next position; so does every read from there on.
A kernel may thus read a chain of fields and compare once, at the end of the chain.

`read_short` is for kernels that use the other readers when it fails, and that ensure SLACK bytes after `end`.
"""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.native.jit import inlined
from distlog.core.kernels.native.memory import item_at, put_at, word_at

#: A chain of up to eight `read_short` calls that begins at `end` or before reads fewer bytes than this after `end`.
SLACK = 64


@inlined
def _read_bytewise(data: np.ndarray, position: int, end: int, longest: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * longest, 7):
        if position >= end:
            break
        byte = item_at(data, position)
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    return 0, end + 1


@inlined
def _read_word(word: int) -> tuple[int, int]:
    """The value in the first bytes of `word`, at most four, and how many bytes it takes; 0 if it is longer."""
    if word & 0x80 == 0:
        return word & 0x7F, 1
    if word & 0x8000 == 0:
        return word & 0x7F | word >> 1 & 0x3F80, 2
    if word & 0x800000 == 0:
        return word & 0x7F | word >> 1 & 0x3F80 | word >> 2 & 0x1FC000, 3
    if word & 0x80000000 == 0:
        return word & 0x7F | word >> 1 & 0x3F80 | word >> 2 & 0x1FC000 | word >> 3 & 0xFE00000, 4
    return 0, 0


@inlined
def _read_unsigned(data: np.ndarray, position: int, end: int, longest: int) -> tuple[int, int]:
    if position + 8 <= end:
        value, size = _read_word(word_at(data, position))
        if size:
            return value, position + size
    return _read_bytewise(data, position, end, longest)


@inlined
def read_short(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    """Read an integer of at most four bytes; one that is longer or cut off gives some position beyond `end`.

    Eight bytes from `position` on are read, wherever `end` is: they must be in `data`.
    """
    value, size = _read_word(word_at(data, position))
    return (value >> 1) ^ -(value & 1), position + size if size else end + 1


@inlined
def read_varint(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    """Read a 32-bit integer; as in Kafka, bits of a fifth byte beyond the 32nd are dropped."""
    value, position = _read_unsigned(data, position, end, 5)
    value &= 0xFFFFFFFF
    return (value >> 1) ^ -(value & 1), position


@inlined
def read_varlong(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    """Read a 64-bit integer."""
    value, position = _read_unsigned(data, position, end, 10)
    return (value >> 1 & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), position


@inlined
def varlong_size(value: int) -> int:
    """How many bytes `value` takes; the same for a varint that holds it."""
    rest = (value << 1) ^ (value >> 63)
    if rest & ~0x7F == 0:
        return 1
    if rest & ~0x3FFF == 0:
        return 2
    size = 1
    while rest & ~0x7F:
        rest = rest >> 7 & 0x1FFFFFFFFFFFFFF
        size += 1
    return size


@inlined
def write_varlong(target: np.ndarray, position: int, value: int) -> int:
    """Write `value` and return the next position; a varint that holds it has the same bytes."""
    rest = (value << 1) ^ (value >> 63)
    if rest & ~0x7F == 0:
        put_at(target, position, rest)
        return position + 1
    if rest & ~0x3FFF == 0:
        put_at(target, position, rest & 0x7F | 0x80)
        put_at(target, position + 1, rest >> 7)
        return position + 2
    while rest & ~0x7F:
        put_at(target, position, rest & 0x7F | 0x80)
        rest = rest >> 7 & 0x1FFFFFFFFFFFFFF
        position += 1
    put_at(target, position, rest)
    return position + 1
