"""Whose checksum is that of its bytes: CRC-32C in batches of format 2, CRC-32 (zlib's) in formats 0 and 1."""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.batch_scan import read_int
from distlog.core.kernels.crc import crc32c_of, crc_of_tables, crc_tables
from distlog.core.kernels.native.jit import fill_kernel, inlined
from distlog.core.kernels.native.memory import item_at, put_at

_TABLES = crc_tables(0xEDB88320)


@inlined
def _crc32(data: np.ndarray, start: int, end: int) -> int:
    return crc_of_tables(_TABLES, 0, data, start, end)


@fill_kernel
def find_valid(data: np.ndarray, batches: np.ndarray, checked_from: int, legacy_from: int, valid: np.ndarray) -> None:
    """Say of each of `batches` (BATCH rows) whether its checksum is right.

    It covers the bytes from `checked_from` on, or from `legacy_from` on in formats below 2; later formats count as 2.
    No row may reach beyond `data`.
    """
    for row in range(batches.size):
        batch = batches[row]
        start = batch["position"]
        end = start + batch["size"]
        if batch["magic"] < 2:
            crc = _crc32(data, start + legacy_from, end)
        else:
            crc = crc32c_of(0, data, start + checked_from, end)
        put_at(valid, row, crc == batch["crc"])


@fill_kernel
def find_valid_messages(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    crc_at: int,
    checked_from: int,
    crcs: np.ndarray,
    valid: np.ndarray,
) -> None:
    """Give the checksum that each message of format 0 or 1 has at `crc_at`, and whether it is right."""
    for row in range(starts.size):
        start = item_at(starts, row)
        stored = read_int(data, start + crc_at, 4) & 0xFFFFFFFF
        put_at(crcs, row, stored)
        put_at(valid, row, _crc32(data, start + checked_from, item_at(ends, row)) == stored)
