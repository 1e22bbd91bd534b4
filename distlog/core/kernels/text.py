"""Writes numbers and bytes as text into an array of bytes.

Nothing is checked here: the caller makes the array large enough, with SLACK bytes behind all that is written, since
much is written in words.
"""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.native.jit import inlined
from distlog.core.kernels.native.memory import bits_of, copy_bytes, item_at, low_zeros, put_at, word_at, wrapped
from distlog.core.kernels.utf8 import BETWEEN, put_byte, put_replacement

#: The most bytes that `put_number` writes.
LONGEST_NUMBER = 20
#: The most bytes that `put_utf8` and `put_json_text` write for each byte that they read.
UTF8_GROWTH, JSON_GROWTH = 3, 6
#: How many bytes are overwritten behind what is written.
SLACK = 8

_MINUS, _ZERO, _QUOTE, _BACKSLASH = b'-0"\\'
_PAIRS = np.frombuffer(b"".join(b"%02d" % number for number in range(100)), np.uint8)
_POWERS = 10 ** np.arange(19, dtype=np.int64)
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
#: Two digits of base64 for each value of 12 bits.
_BASE64_PAIRS = np.frombuffer(bytes(digit for a in _BASE64 for b in _BASE64 for digit in (a, b)), np.uint8)
#: Bit 7, and bit 0, of each of eight bytes.
_HIGH_BITS, _ONES = -0x7F7F7F7F7F7F7F80, 0x0101010101010101


def _escaped(byte: int) -> bytes:
    """A character of ASCII as it stands in a JSON string."""
    if byte in (_QUOTE, _BACKSLASH):
        return bytes((_BACKSLASH, byte))
    return b"\\u%04x" % byte if byte < 32 else bytes((byte,))


_ESCAPED = np.frombuffer(b"".join(_escaped(byte).ljust(8, b"\0") for byte in range(128)), np.uint8)
_ESCAPED_SIZES = np.array([len(_escaped(byte)) for byte in range(128)], np.uint8)


@inlined
def put_text(out: np.ndarray, at: int, text: np.ndarray, start: int, size: int) -> int:
    """Copy a short text, which has SLACK bytes behind it; returns the position after it."""
    for index in range(0, size, 8):
        copy_bytes(out, at + index, text, start + index, 8)
    return at + size


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
        # 1233 / 4096 is close enough to the logarithm of 2
        size = bits_of(rest) * 1233 >> 12
        size += rest >= item_at(_POWERS, size)
        size = max(size, 1)
        place = at + size
        at = place
        while rest >= 100:
            place -= 2
            copy_bytes(out, place, _PAIRS, 2 * (rest % 100), 2)
            rest //= 100
        if rest >= 10:
            copy_bytes(out, place - 2, _PAIRS, 2 * rest, 2)
        else:
            put_at(out, place - 1, _ZERO + rest)
    if last >= 0:
        put_at(out, at, _ZERO + last)
        at += 1
    return at


@inlined
def put_utf8(out: np.ndarray, at: int, data: np.ndarray, position: int, size: int) -> int:
    """Write bytes as UTF-8, with U+FFFD in place of what is not; returns the position after them."""
    end = position + size
    state = BETWEEN
    while position < end:
        if state == BETWEEN and position + 8 <= data.size and word_at(data, position) & _HIGH_BITS == 0:
            copy_bytes(out, at, data, position, 8)
            count = min(8, end - position)
            position += count
            at += count
            continue
        stop = min(position + 8, end)
        while position < stop:
            at, state, _ = put_byte(out, at, data, position, state)
            position += 1
    return at if state == BETWEEN else put_replacement(out, at)


@inlined
def _below(word: int, bound: int) -> int:
    # the high bit of each byte that is below `bound`, up to 128; also of some behind the first of these
    return int(wrapped(word - bound * _ONES) & ~word & _HIGH_BITS)


@inlined
def _plain_bytes(word: int) -> int:
    """How many of eight bytes stand in a JSON string as they are, up to the first that is no ASCII or is escaped."""
    escaped = _below(word, 32) | _below(word ^ _QUOTE * _ONES, 1) | _below(word ^ _BACKSLASH * _ONES, 1)
    return int(low_zeros(escaped | word & _HIGH_BITS) >> 3)


@inlined
def put_json_text(
    out: np.ndarray, at: int, data: np.ndarray, position: int, size: int, strict: bool
) -> tuple[int, bool]:
    """Write bytes as a JSON string: the position after it, and whether they are UTF-8.

    What is not becomes U+FFFD, or, if `strict`, ends the work: then what was written is of no use.
    """
    put_at(out, at, _QUOTE)
    at += 1
    end = position + size
    valid = True
    while position < end and (valid or not strict):
        if position + 8 <= data.size:
            copy_bytes(out, at, data, position, 8)
            count = min(_plain_bytes(word_at(data, position)), end - position)
            position += count
            at += count
            if count == 8 or position == end:
                continue
        state = BETWEEN
        byte = item_at(data, position)
        if byte < 128:
            copy_bytes(out, at, _ESCAPED, 8 * byte, 8)
            at += item_at(_ESCAPED_SIZES, byte)
            position += 1
        while position < end and item_at(data, position) >= 128:
            at, state, replaced = put_byte(out, at, data, position, state)
            valid &= replaced == 0
            position += 1
        if state != BETWEEN:
            at = put_replacement(out, at)
            valid = False
    put_at(out, at, _QUOTE)
    return at + 1, valid


@inlined
def put_base64(out: np.ndarray, at: int, data: np.ndarray, position: int, size: int) -> int:
    """Write bytes in base64 (RFC 4648); returns the position after them."""
    end = position + size
    while position < end:
        group = item_at(data, position) << 16
        if position + 1 < end:
            group |= item_at(data, position + 1) << 8
        if position + 2 < end:
            group |= item_at(data, position + 2)
        copy_bytes(out, at, _BASE64_PAIRS, 2 * (group >> 12), 2)
        copy_bytes(out, at + 2, _BASE64_PAIRS, 2 * (group & 0xFFF), 2)
        position += 3
        at += 4
    for index in range(position - end):
        put_at(out, at - 1 - index, 61)
    return at
