"""CRC-32C (Castagnoli, RFC 3720): of many short ranges in one call, and of a whole from those of its parts.

Sixteen bytes a step (Intel's slicing-by-16). A library with the processor's own instruction is ten times as fast per
byte, but a call from Python costs as much as some hundred bytes do here.
"""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.jit import fill_kernel, inlined
from distlog.core.kernels.memory import item_at, word_at

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
#: Binary digits of the length of a part.
_LONGEST = 32


def _tables() -> np.ndarray:
    """Row k, 0 to 15: the checksum of each byte with k zero bytes behind it."""
    rows = np.zeros((16, 256), np.int64)
    first = np.arange(256)
    for _ in range(8):
        first = (first >> 1) ^ np.where(first & 1, _POLYNOMIAL, 0)
    rows[0] = first
    for row in range(1, 16):
        rows[row] = (rows[row - 1] >> 8) ^ first[rows[row - 1] & 0xFF]
    return rows


_TABLES = _tables()


def _product(left: int, right: int) -> int:
    # Of two polynomials, modulo that of the checksum.
    product = 0
    for bit in range(32):
        product ^= right & -(left >> (31 - bit) & 1)
        right = right >> 1 ^ (_POLYNOMIAL & -(right & 1))
    return product


def _powers() -> np.ndarray:
    """Entry k: x to the power of 8 times 2^k, modulo the polynomial, bits reversed as in the checksum."""
    powers = np.empty(_LONGEST, np.int64)
    power = 1 << 30
    for squarings in range(_LONGEST + 3):
        if squarings >= 3:
            powers[squarings - 3] = power
        power = _product(power, power)
    return powers


_POWERS = _powers()
_product_inlined = inlined(_product)


@inlined
def _with_zeros(crc: int, count: int) -> int:
    # What `crc` comes to when `count` zero bytes follow, but for the inversions, which cancel out in a sum.
    for digit in range(_LONGEST):
        if count >> digit & 1:
            crc = _product_inlined(_POWERS[digit], crc)
    return crc


@inlined
def _step(word: int, row: int) -> int:
    # What the 8 bytes of `word` come to, its last byte with `row` zero bytes behind it.
    return int(
        _TABLES[row + 7, word & 0xFF]
        ^ _TABLES[row + 6, word >> 8 & 0xFF]
        ^ _TABLES[row + 5, word >> 16 & 0xFF]
        ^ _TABLES[row + 4, word >> 24 & 0xFF]
        ^ _TABLES[row + 3, word >> 32 & 0xFF]
        ^ _TABLES[row + 2, word >> 40 & 0xFF]
        ^ _TABLES[row + 1, word >> 48 & 0xFF]
        ^ _TABLES[row, word >> 56 & 0xFF]
    )


@inlined
def _crc32c(before: int, data: np.ndarray, start: int, end: int) -> int:
    # Of what has the checksum `before`, and then these bytes.
    crc = before ^ _ONES
    position = start
    while end - position >= 16:
        crc = _step(word_at(data, position) ^ crc, 8) ^ _step(word_at(data, position + 8), 0)
        position += 16
    while position < end:
        crc = _TABLES[0, (crc ^ item_at(data, position)) & 0xFF] ^ crc >> 8
        position += 1
    return crc ^ _ONES


@fill_kernel
def first_mismatch(data: np.ndarray, batches: np.ndarray, below: int, checked_from: int) -> int:
    """The first of `batches` (BATCH rows of format 2, with a size below `below`) whose checksum is wrong, or -1.

    The checksum covers the batch's bytes from `checked_from` on; no row may reach beyond `data`.
    """
    for row in range(batches.size):
        batch = batches[row]
        if batch["magic"] == 2 and batch["size"] < below:
            start = batch["position"]
            if _crc32c(0, data, start + checked_from, start + batch["size"]) != batch["crc"]:
                return row
    return -1


@fill_kernel
def crc_of_batches(before: int, data: np.ndarray, batches: np.ndarray, checked_from: int) -> int:
    """The checksum of what has the checksum `before`, followed by `batches` of format 2, which have the right ones.

    Only the first `checked_from` bytes of each are looked at; no row may reach beyond `data`. Checksums of parts are
    joined as by zlib's `crc32_combine`: the first times a power of x, plus the second.
    """
    crc = before
    for row in range(batches.size):
        start = batches[row]["position"]
        crc = _crc32c(crc, data, start, start + checked_from)
        crc = _with_zeros(crc, batches[row]["size"] - checked_from) ^ batches[row]["crc"]
    return crc
