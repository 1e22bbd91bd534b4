"""XXH64 with seed 0 (Collet, xxHash fast digest algorithm, revision 0.1.1): the hash of a key in key indexes."""

from __future__ import annotations

import numpy as np

from distlog.core.format.kernels.native import inlined, int64_at, wrapped
from distlog.core.format.kernels.siphash import partial_word, rotated, shifted_right

# the five primes of the specification, as signed 64-bit numbers
_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = (
    prime - (1 << 64) * (prime >> 63)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


@inlined
def _round(accumulator: int, word: int) -> int:
    mixed: int = wrapped(rotated(wrapped(accumulator + wrapped(word * _PRIME_2)), 31) * _PRIME_1)
    return mixed


@inlined
def _merged(result: int, accumulator: int) -> int:
    return wrapped(wrapped((result ^ _round(0, accumulator)) * _PRIME_1) + _PRIME_4)  # type: ignore[no-any-return]


@inlined
def xxh64(data: np.ndarray, position: int, size: int) -> int:
    """Return the hash of `size` bytes, as a signed number."""
    end = position + size
    result = _PRIME_5
    if size >= 32:
        first, second, third, fourth = wrapped(_PRIME_1 + _PRIME_2), _PRIME_2, 0, wrapped(-_PRIME_1)
        while position + 32 <= end:
            first = _round(first, int64_at(data, position))
            second = _round(second, int64_at(data, position + 8))
            third = _round(third, int64_at(data, position + 16))
            fourth = _round(fourth, int64_at(data, position + 24))
            position += 32
        result = wrapped(rotated(first, 1) + rotated(second, 7) + rotated(third, 12) + rotated(fourth, 18))
        result = _merged(_merged(_merged(_merged(result, first), second), third), fourth)
    result = wrapped(result + size)
    while position + 8 <= end:
        result = wrapped(wrapped(rotated(result ^ _round(0, int64_at(data, position)), 27) * _PRIME_1) + _PRIME_4)
        position += 8
    remaining, tail = end - position, partial_word(data, position, end - position)
    if remaining >= 4:
        result = rotated(result ^ wrapped((tail & 0xFFFFFFFF) * _PRIME_1), 23)
        result = wrapped(wrapped(result * _PRIME_2) + _PRIME_3)
        remaining, tail = remaining - 4, tail >> 32
    for _ in range(remaining):
        result = wrapped(rotated(result ^ wrapped((tail & 0xFF) * _PRIME_5), 11) * _PRIME_1)
        tail >>= 8
    result = wrapped((result ^ shifted_right(result, 33)) * _PRIME_2)
    result = wrapped((result ^ shifted_right(result, 29)) * _PRIME_3)
    return result ^ shifted_right(result, 32)  # type: ignore[no-any-return]
