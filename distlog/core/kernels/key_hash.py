"""128-bit hashes of record keys: Austin Appleby's MurmurHash3_x64_128 with seed 0 (smhasher, public domain).

A hash stands for its key wherever keys are compared in bulk: of 10^9 keys two have the same with a probability of
10^-21. Arithmetic is that of int64, which wraps as the original's uint64 does; only the compiled kernels have it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distlog.core.kernels.jit import fill_kernel, inlined
from distlog.core.kernels.memory import item_at, word_at

HASH_WORDS = 2

_TWO_64 = 1 << 64
_C1 = 0x87C37B91114253D5 - _TWO_64
_C2 = 0x4CF5AD432745937F
_N1, _N2 = 0x52DCE729, 0x38495AB5
_FINAL_1 = 0xFF51AFD7ED558CCD - _TWO_64
_FINAL_2 = 0xC4CEB9FE1A85EC53 - _TWO_64


def hash_keys(
    data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], offsets: npt.NDArray[np.int32]
) -> npt.NDArray[np.int64]:
    """The hash of each key, two int64 in a row: key i is offsets[i + 1] - offsets[i] bytes of `data` at positions[i].

    Where the bytes lie is not checked; a null key is hashed as an empty one.
    """
    hashes = np.empty((len(positions), HASH_WORDS), np.int64)
    _hash_all(data, positions, offsets, hashes)
    return hashes


@fill_kernel
def _hash_all(data: np.ndarray, positions: np.ndarray, offsets: np.ndarray, hashes: np.ndarray) -> None:
    for row in range(positions.size):
        size = int(offsets[row + 1]) - int(offsets[row])
        hashes[row, 0], hashes[row, 1] = _murmur3(data, positions[row], size)


@inlined
def _rotate_left(value: int, bits: int) -> int:
    return value << bits | (value >> 64 - bits & (1 << bits) - 1)


@inlined
def _mix_first(word: int) -> int:
    return _rotate_left(word * _C1, 31) * _C2


@inlined
def _mix_second(word: int) -> int:
    return _rotate_left(word * _C2, 33) * _C1


@inlined
def _finish(value: int) -> int:
    value = (value ^ (value >> 33 & 0x7FFFFFFF)) * _FINAL_1
    value = (value ^ (value >> 33 & 0x7FFFFFFF)) * _FINAL_2
    return value ^ (value >> 33 & 0x7FFFFFFF)


@inlined
def _part_of_word(data: np.ndarray, position: int, size: int) -> int:
    """The little-endian word of `size` bytes, 0 to 8."""
    if size <= 0:
        return 0
    if position + 8 <= data.size:
        word: int = word_at(data, position)
        return word if size == 8 else word & (1 << 8 * size) - 1
    value = 0
    for index in range(size):
        value |= item_at(data, position + index) << 8 * index
    return value


@inlined
def _murmur3(data: np.ndarray, position: int, size: int) -> tuple[int, int]:
    first = 0
    second = 0
    for at in range(position, position + size - 15, 16):
        first = _rotate_left(first ^ _mix_first(word_at(data, at)), 27) + second
        first = first * 5 + _N1
        second = _rotate_left(second ^ _mix_second(word_at(data, at + 8)), 31) + first
        second = second * 5 + _N2
    rest = size & 15
    tail = position + size - rest
    second ^= _mix_second(_part_of_word(data, tail + 8, rest - 8))
    first ^= _mix_first(_part_of_word(data, tail, min(rest, 8)))
    first ^= size
    second ^= size
    first += second
    second += first
    first = _finish(first)
    second = _finish(second)
    first += second
    return first, second + first
