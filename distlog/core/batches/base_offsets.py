"""Writing the base offsets of batches into their bytes: they lie outside of the checksum, so nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.errors import UnsupportedVersionError
from distlog.core.kernels.batch_scan import CODEC_MASK

Longs = npt.NDArray[np.int64]


def header_offsets(batches: npt.NDArray[Any], base_offsets: Longs) -> Longs:
    """What stands in the first 8 bytes of `batches` (BATCH rows) that begin at `base_offsets`.

    An entry of format 0 or 1 bears the offset of its last record. UnsupportedVersionError: a compressed one of format
    0 would have to move, and its records bear offsets of their own.
    """
    last = batches["magic"] < 2
    fixed = (batches["magic"] == 0) & (batches["attributes"] & CODEC_MASK != 0)
    if (fixed & (base_offsets != batches["base_offset"])).any():
        raise UnsupportedVersionError(
            "compressed messages of format 0 cannot get other offsets: append the records of this file anew"
        )
    return np.where(last, base_offsets + batches["last_offset_delta"], base_offsets)


def write_base_offsets(data: npt.NDArray[np.uint8], positions: Longs, offsets: Longs) -> None:
    """Write `offsets`, which `header_offsets` gives, into the batches of `data` that begin at `positions`."""
    data[positions[:, None] + np.arange(8)] = offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
