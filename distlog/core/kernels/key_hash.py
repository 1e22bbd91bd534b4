"""128-bit hashes of record keys: SipHash-2-4 with its long result, by Jean-Philippe Aumasson and Daniel J. Bernstein.

A hash stands for its key wherever keys are compared in bulk, so whoever finds two keys with one hash can have a
compaction delete another's record. Under a secret that nobody else knows nobody can look for them; by chance, of
10^9 keys two have the same hash with a probability of 10^-21.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distlog.core.kernels.jit import fill_kernel, inlined
from distlog.core.kernels.memory import item_at, word_at, wrapped

HASH_WORDS = 2
#: The bytes of a secret: drawn at random for each run, and written nowhere.
SECRET_BYTES = 16

_START_0, _START_1 = 0x736F6D6570736575, 0x646F72616E646F6D
_START_2, _START_3 = 0x6C7967656E657261, 0x7465646279746573
#: What makes the result a long one, and its two words differ.
_LONG, _FIRST_WORD, _SECOND_WORD = 0xEE, 0xEE, 0xDD

State = tuple[int, int, int, int]


def hash_keys(
    data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], offsets: npt.NDArray[np.int32], secret: bytes
) -> npt.NDArray[np.int64]:
    """The hash of each key, two int64 in a row: key i is offsets[i + 1] - offsets[i] bytes of `data` at positions[i].

    `secret` is SECRET_BYTES, else ValueError. Where the bytes lie is not checked; a null key is hashed as empty.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    first, second = np.frombuffer(secret, "<i8").tolist()
    hashes = np.empty((len(positions), HASH_WORDS), np.int64)
    _hash_all(data, positions, offsets, first, second, hashes)
    return hashes


@fill_kernel
def _hash_all(
    data: np.ndarray, positions: np.ndarray, offsets: np.ndarray, first: int, second: int, hashes: np.ndarray
) -> None:
    for row in range(positions.size):
        size = item_at(offsets, row + 1) - item_at(offsets, row)
        hashes[row, 0], hashes[row, 1] = _siphash(data, item_at(positions, row), size, first, second)


@inlined
def _rotated(value: int, bits: int) -> int:
    return wrapped(value << bits) | (value >> 64 - bits & (1 << bits) - 1)  # type: ignore[no-any-return]


@inlined
def _round(state: State) -> State:
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
    v0, v1, v2, v3 = _round(_round((v0, v1, v2, v3 ^ word)))
    return v0 ^ word, v1, v2, v3


@inlined
def _finished(state: State) -> State:
    return _round(_round(_round(_round(state))))


@inlined
def _part_of_word(data: np.ndarray, position: int, size: int) -> int:
    """The little-endian word of `size` bytes, 0 to 7."""
    if position + 8 <= data.size:
        word: int = word_at(data, position)
        return word & (1 << 8 * size) - 1
    value = 0
    for index in range(size):
        value |= item_at(data, position + index) << 8 * index
    return value


@inlined
def _siphash(data: np.ndarray, position: int, size: int, first: int, second: int) -> tuple[int, int]:
    state = first ^ _START_0, second ^ _START_1 ^ _LONG, first ^ _START_2, second ^ _START_3
    tail = position + (size & -8)
    for at in range(position, tail, 8):
        state = _with_word(state, word_at(data, at))
    state = _with_word(state, wrapped((size & 0xFF) << 56) | _part_of_word(data, tail, size & 7))
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _finished((v0, v1, v2 ^ _FIRST_WORD, v3))
    result = v0 ^ v1 ^ v2 ^ v3
    v0, v1, v2, v3 = _finished((v0, v1 ^ _SECOND_WORD, v2, v3))
    return result, v0 ^ v1 ^ v2 ^ v3
