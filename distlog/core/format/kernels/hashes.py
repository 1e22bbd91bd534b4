"""Hashes of keys. Compaction uses SipHash, since it would lose a record if two keys had one hash; indexes use XXH64.

Readers of an index compare the keys, too. SipHash-2-4 of 128 bits: Aumasson and Bernstein, 2012. XXH64 with seed 0:
Collet, xxHash fast digest algorithm, revision 0.1.1. `wrapped` cuts a number to 64 bits (native.py).
"""

from __future__ import annotations

import numpy as np

from distlog.core.format.kernels.native import inlined, int64_at, item_at, wrapped

_START_0, _START_1 = 0x736F6D6570736575, 0x646F72616E646F6D
_START_2, _START_3 = 0x6C7967656E657261, 0x7465646279746573
#: Constants of SipHash's variant of 128 bits, which make the two words of its result differ.
_LONG, _FIRST_WORD, _SECOND_WORD = 0xEE, 0xEE, 0xDD

#: The five primes of XXH64, as signed 64-bit numbers.
_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = (
    prime - (1 << 64) * (prime >> 63)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)

State = tuple[int, int, int, int]


@inlined
def _shifted_right(value: int, bits: int) -> int:
    """Return the logical right shift of `value` as an unsigned 64-bit number."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


@inlined
def _rotated(value: int, bits: int) -> int:
    """Return the 64 bits of `value`, rotated to the left by `bits`."""
    return wrapped(value << bits) | _shifted_right(value, 64 - bits)  # type: ignore[no-any-return]


@inlined
def _partial_word(data: np.ndarray, position: int, size: int) -> int:
    """Return the little-endian word of `size` bytes, 0 to 7."""
    if position + 8 <= data.size:
        word: int = int64_at(data, position)
        return word & ((1 << (8 * size)) - 1)
    value = 0
    for index in range(size):
        value |= item_at(data, position + index) << (8 * index)
    return value


@inlined
def _sip_round(state: State) -> State:
    v0, v1, v2, v3 = state
    v0 = wrapped(v0 + v1)
    v2 = wrapped(v2 + v3)
    v1 = _rotated(v1, 13) ^ v0
    v3 = _rotated(v3, 16) ^ v2
    v0 = wrapped(_rotated(v0, 32) + v3)
    v2 = wrapped(v2 + v1)
    v1 = _rotated(v1, 17) ^ v2
    v3 = _rotated(v3, 21) ^ v0
    return v0, v1, _rotated(v2, 32), v3


@inlined
def _with_word(state: State, word: int) -> State:
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _sip_round(_sip_round((v0, v1, v2, v3 ^ word)))
    return v0 ^ word, v1, v2, v3


@inlined
def _finished(state: State) -> State:
    return _sip_round(_sip_round(_sip_round(_sip_round(state))))


@inlined
def siphash(data: np.ndarray, position: int, size: int, first: int, second: int) -> tuple[int, int]:
    """Return the two words of the hash of `size` bytes under the secret words `first` and `second`."""
    state = first ^ _START_0, second ^ _START_1 ^ _LONG, first ^ _START_2, second ^ _START_3
    tail = position + (size & -8)
    for index in range(position, tail, 8):
        state = _with_word(state, int64_at(data, index))
    v0, v1, v2, v3 = _with_word(state, wrapped((size & 0xFF) << 56) | _partial_word(data, tail, size & 7))
    v0, v1, v2, v3 = _finished((v0, v1, v2 ^ _FIRST_WORD, v3))
    result = v0 ^ v1 ^ v2 ^ v3
    v0, v1, v2, v3 = _finished((v0, v1 ^ _SECOND_WORD, v2, v3))
    return result, v0 ^ v1 ^ v2 ^ v3


@inlined
def _xxh_round(accumulator: int, word: int) -> int:
    mixed: int = wrapped(_rotated(wrapped(accumulator + wrapped(word * _PRIME_2)), 31) * _PRIME_1)
    return mixed


@inlined
def _xxh_merged(result: int, accumulator: int) -> int:
    return wrapped(wrapped((result ^ _xxh_round(0, accumulator)) * _PRIME_1) + _PRIME_4)  # type: ignore[no-any-return]


@inlined
def xxh64(data: np.ndarray, position: int, size: int) -> int:
    """Return the hash of `size` bytes, as a signed number."""
    end = position + size
    result = _PRIME_5
    if size >= 32:
        first, second, third, fourth = wrapped(_PRIME_1 + _PRIME_2), _PRIME_2, 0, wrapped(-_PRIME_1)
        while position + 32 <= end:
            first = _xxh_round(first, int64_at(data, position))
            second = _xxh_round(second, int64_at(data, position + 8))
            third = _xxh_round(third, int64_at(data, position + 16))
            fourth = _xxh_round(fourth, int64_at(data, position + 24))
            position += 32
        result = wrapped(_rotated(first, 1) + _rotated(second, 7) + _rotated(third, 12) + _rotated(fourth, 18))
        result = _xxh_merged(_xxh_merged(_xxh_merged(_xxh_merged(result, first), second), third), fourth)
    result = wrapped(result + size)
    while position + 8 <= end:
        result = wrapped(
            wrapped(_rotated(result ^ _xxh_round(0, int64_at(data, position)), 27) * _PRIME_1) + _PRIME_4
        )
        position += 8
    remaining, tail = end - position, _partial_word(data, position, end - position)
    if remaining >= 4:
        result = _rotated(result ^ wrapped((tail & 0xFFFFFFFF) * _PRIME_1), 23)
        result = wrapped(wrapped(result * _PRIME_2) + _PRIME_3)
        remaining, tail = remaining - 4, tail >> 32
    for _ in range(remaining):
        result = wrapped(_rotated(result ^ wrapped((tail & 0xFF) * _PRIME_5), 11) * _PRIME_1)
        tail >>= 8
    result = wrapped((result ^ _shifted_right(result, 33)) * _PRIME_2)
    result = wrapped((result ^ _shifted_right(result, 29)) * _PRIME_3)
    return result ^ _shifted_right(result, 32)  # type: ignore[no-any-return]
