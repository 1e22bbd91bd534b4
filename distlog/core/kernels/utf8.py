"""Bytes as UTF-8, byte by byte without a branch: what is no character becomes U+FFFD, as in Java's `String`.

There bytes that could begin a character count as one that cannot be read, and so do the three of a surrogate.
"""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.native.jit import inlined
from distlog.core.kernels.native.memory import copy_bytes, item_at, put_at

#: The state between characters; any other is within one.
BETWEEN = 0
#: The size of U+FFFD in UTF-8.
REPLACEMENT_BYTES = 3

_TAIL = (0x80, 0xBF)
_ONE_MORE, _TWO_MORE, _REST_OF_SURROGATE = 8, 9, 11
#: By state the bytes that may follow, as (first, last, next state).
_FOLLOWING = (
    (
        (0x00, 0x7F, BETWEEN),
        (0xC2, 0xDF, 1),
        (0xE0, 0xE0, 2),
        (0xE1, 0xEC, 3),
        (0xED, 0xED, 4),
        (0xEE, 0xEF, 3),
        (0xF0, 0xF0, 5),
        (0xF1, 0xF3, 6),
        (0xF4, 0xF4, 7),
    ),
    ((*_TAIL, BETWEEN),),
    ((0xA0, 0xBF, _ONE_MORE),),
    ((*_TAIL, _ONE_MORE),),
    ((0x80, 0x9F, _ONE_MORE), (0xA0, 0xBF, _REST_OF_SURROGATE)),
    ((0x90, 0xBF, _TWO_MORE),),
    ((*_TAIL, _TWO_MORE),),
    ((0x80, 0x8F, _TWO_MORE),),
    ((*_TAIL, BETWEEN),),
    ((*_TAIL, 10),),
    ((*_TAIL, BETWEEN),),
    ((*_TAIL, BETWEEN),),
)
#: The size of the character that ends in a state.
_SIZES = (1, 2, 0, 0, 0, 0, 0, 0, 3, 0, 4, 0)


def _transition(state: int, byte: int) -> tuple[int, int, int]:
    """The next state, how often U+FFFD is written, and behind it how many of the last bytes."""
    for first, last, following in _FOLLOWING[state]:
        if first <= byte <= last:
            ends = following == BETWEEN
            return following, int(ends and state == _REST_OF_SURROGATE), _SIZES[state] if ends else 0
    if state == BETWEEN:
        return BETWEEN, 1, 0
    following, replaced, size = _transition(BETWEEN, byte)
    return following, replaced + 1, size


def _transitions() -> np.ndarray:
    """For each state and byte: the next state, and from bit 4 and 6 on the two numbers of `_transition`."""
    found = np.zeros((len(_FOLLOWING), 256), np.int16)
    for state in range(len(_FOLLOWING)):
        for byte in range(256):
            following, replaced, size = _transition(state, byte)
            found[state, byte] = following | replaced << 4 | size << 6
    return found.ravel()


_TRANSITIONS = _transitions()
_REPLACEMENTS = np.frombuffer(2 * "\ufffd".encode() + bytes(2), np.uint8)


@inlined
def put_replacement(out: np.ndarray, at: int) -> int:
    """Write U+FFFD, and some bytes behind it that do not count; returns the position after it."""
    copy_bytes(out, at, _REPLACEMENTS, 0, 8)
    return at + REPLACEMENT_BYTES


@inlined
def put_byte(out: np.ndarray, at: int, data: np.ndarray, position: int, state: int) -> tuple[int, int, int]:
    """Take the byte at `position`: (the position in `out`, the next state, how many were replaced by U+FFFD).

    A character is written with its last byte. Up to 8 bytes behind it are overwritten.
    """
    entry = item_at(_TRANSITIONS, state << 8 | item_at(data, position))
    replaced = entry >> 4 & 3
    copy_bytes(out, at, _REPLACEMENTS, 0, 8)
    at += REPLACEMENT_BYTES * replaced
    size = entry >> 6
    start = position + 1 - size
    if start + 4 <= data.size:
        copy_bytes(out, at, data, start, 4)
    else:
        for index in range(size):
            put_at(out, at + index, item_at(data, start + index))
    return at + size, entry & 15, replaced
