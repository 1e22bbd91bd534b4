"""SipHash-2-4 of 128 bits (Aumasson and Bernstein, 2012): the hash of a key in compaction."""

from __future__ import annotations

import numpy as np

from distlog.core.format.kernels.native import inlined, int64_at, item_at, wrapped

_START_0, _START_1 = 0x736F6D6570736575, 0x646F72616E646F6D
_START_2, _START_3 = 0x6C7967656E657261, 0x7465646279746573
#: Constants of the variant with a result of 128 bits, which make its two words differ.
_LONG, _FIRST_WORD, _SECOND_WORD = 0xEE, 0xEE, 0xDD

State = tuple[int, int, int, int]


@inlined
def shifted_right(value: int, bits: int) -> int:
    """Return the 64 bits of `value` without the last `bits`, above which come zeros."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


@inlined
def rotated(value: int, bits: int) -> int:
    """Return the 64 bits of `value`, of which the first `bits` have become the last."""
    return wrapped(value << bits) | shifted_right(value, 64 - bits)  # type: ignore[no-any-return]


@inlined
def _round(state: State) -> State:
    v0, v1, v2, v3 = state
    v0 = wrapped(v0 + v1)
    v2 = wrapped(v2 + v3)
    v1 = rotated(v1, 13) ^ v0
    v3 = rotated(v3, 16) ^ v2
    v0 = wrapped(rotated(v0, 32) + v3)
    v2 = wrapped(v2 + v1)
    v1 = rotated(v1, 17) ^ v2
    v3 = rotated(v3, 21) ^ v0
    return v0, v1, rotated(v2, 32), v3


@inlined
def _with_word(state: State, word: int) -> State:
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _round(_round((v0, v1, v2, v3 ^ word)))
    return v0 ^ word, v1, v2, v3


@inlined
def _finished(state: State) -> State:
    return _round(_round(_round(_round(state))))


@inlined
def partial_word(data: np.ndarray, position: int, size: int) -> int:
    """Return the little-endian word of `size` bytes, 0 to 7."""
    if position + 8 <= data.size:
        word: int = int64_at(data, position)
        return word & ((1 << (8 * size)) - 1)
    value = 0
    for index in range(size):
        value |= item_at(data, position + index) << (8 * index)
    return value


@inlined
def siphash(data: np.ndarray, position: int, size: int, first: int, second: int) -> tuple[int, int]:
    """Return the two words of the hash of `size` bytes under the secret words `first` and `second`."""
    state = first ^ _START_0, second ^ _START_1 ^ _LONG, first ^ _START_2, second ^ _START_3
    tail = position + (size & -8)
    for index in range(position, tail, 8):
        state = _with_word(state, int64_at(data, index))
    v0, v1, v2, v3 = _with_word(state, wrapped((size & 0xFF) << 56) | partial_word(data, tail, size & 7))
    v0, v1, v2, v3 = _finished((v0, v1, v2 ^ _FIRST_WORD, v3))
    result = v0 ^ v1 ^ v2 ^ v3
    v0, v1, v2, v3 = _finished((v0, v1 ^ _SECOND_WORD, v2, v3))
    return result, v0 ^ v1 ^ v2 ^ v3
