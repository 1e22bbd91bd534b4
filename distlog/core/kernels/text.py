"""Writes numbers and bytes as text into an array of bytes.

Nothing is checked here: the caller makes the array large enough.
"""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.native.jit import inlined
from distlog.core.kernels.native.memory import copy_bytes, item_at, put_at, word_at

#: The most bytes that `put_number` writes.
LONGEST_NUMBER = 20
#: The most bytes that `put_utf8` and `put_json_text` write for each byte that they read.
UTF8_GROWTH, JSON_GROWTH = 3, 6

_MINUS, _ZERO, _QUOTE, _BACKSLASH = 45, 48, 34, 92
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
#: Bit 7 of each of eight bytes.
_HIGH_BITS = -0x7F7F7F7F7F7F7F80


@inlined
def put_number(out: np.ndarray, at: int, value: int) -> int:
    """Write `value` in decimal; returns the position after it."""
    rest = value
    last = -1
    if value < 0:
        put_at(out, at, _MINUS)
        at += 1
        # the smallest value has no positive counterpart, so its last digit is taken off first
        last = -(value % -10)
        rest = value // -10
    if rest or last < 0:
        size = 1
        bound = 10
        while size < 19 and rest >= bound:
            size += 1
            bound *= 10 if size < 19 else 1
        for index in range(at + size - 1, at - 1, -1):
            put_at(out, index, _ZERO + rest % 10)
            rest //= 10
        at += size
    if last >= 0:
        put_at(out, at, _ZERO + last)
        at += 1
    return at


@inlined
def _character(data: np.ndarray, position: int, end: int) -> tuple[int, bool]:
    """The bytes of the UTF-8 character at `position`, and whether it is one.

    Bytes that are none are counted as Java's `String` does: those that could begin a character count as one, and so
    do the three of a surrogate.
    """
    first = item_at(data, position)
    if first < 0x80:
        return 1, True
    if first < 0xC2 or first > 0xF4:
        return 1, False
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    low = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
    high = 0x8F if first == 0xF4 else 0xBF
    for index in range(1, size):
        if position + index >= end:
            return index, False
        byte = item_at(data, position + index)
        if byte < low or byte > high:
            return index, False
        low, high = 0x80, 0xBF
    return size, not (first == 0xED and item_at(data, position + 1) >= 0xA0)


@inlined
def put_utf8(out: np.ndarray, at: int, data: np.ndarray, position: int, size: int) -> int:
    """Write bytes as UTF-8, with U+FFFD in place of what is not; returns the position after them."""
    end = position + size
    while position < end:
        while position + 8 <= end and word_at(data, position) & _HIGH_BITS == 0:
            copy_bytes(out, at, data, position, 8)
            position += 8
            at += 8
        if position == end:
            break
        count, valid = _character(data, position, end)
        if valid:
            for index in range(count):
                put_at(out, at + index, item_at(data, position + index))
            at += count
        else:
            put_at(out, at, 0xEF)
            put_at(out, at + 1, 0xBF)
            put_at(out, at + 2, 0xBD)
            at += 3
        position += count
    return at


@inlined
def is_utf8(data: np.ndarray, position: int, size: int) -> bool:
    """Whether the bytes are UTF-8."""
    end = position + size
    while position < end:
        count, valid = _character(data, position, end)
        if not valid:
            return False
        position += count
    return True


@inlined
def put_json_text(out: np.ndarray, at: int, data: np.ndarray, position: int, size: int) -> int:
    """Write bytes as a JSON string, with U+FFFD in place of what is not UTF-8; returns the position after it."""
    put_at(out, at, _QUOTE)
    at += 1
    start = position
    for index in range(position, position + size):
        byte = item_at(data, index)
        if byte >= 32 and byte != _QUOTE and byte != _BACKSLASH:
            continue
        at = put_utf8(out, at, data, start, index - start)
        start = index + 1
        put_at(out, at, _BACKSLASH)
        at += 1
        if byte >= 32:
            put_at(out, at, byte)
            at += 1
            continue
        put_at(out, at, 117)
        put_at(out, at + 1, _ZERO)
        put_at(out, at + 2, _ZERO)
        put_at(out, at + 3, _DIGITS[byte >> 4])
        put_at(out, at + 4, _DIGITS[byte & 15])
        at += 5
    at = put_utf8(out, at, data, start, position + size - start)
    put_at(out, at, _QUOTE)
    return at + 1


@inlined
def put_base64(out: np.ndarray, at: int, data: np.ndarray, position: int, size: int) -> int:
    """Write bytes in base64 (RFC 4648); returns the position after them."""
    for start in range(position, position + size, 3):
        count = min(3, position + size - start)
        group = 0
        for index in range(3):
            group = group << 8 | (item_at(data, start + index) if index < count else 0)
        for index in range(4):
            put_at(out, at + index, _BASE64[group >> 6 * (3 - index) & 63] if index <= count else 61)
        at += 4
    return at
