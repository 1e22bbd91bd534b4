"""Writes the base offsets of batches into their bytes. The checksum does not cover them, so nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.errors import UnsupportedVersionError
from distlog.core.kernels.batch_scan import CODEC_MASK

Longs = npt.NDArray[np.int64]


def header_offsets(batches: npt.NDArray[Any], base_offsets: Longs) -> Longs:
    """The values for the first 8 bytes of `batches` (BATCH rows), when these begin at `base_offsets`.

    An entry of format 0 or 1 stores the offset of its last record there. Raises UnsupportedVersionError when a
    compressed entry of format 0 would have to move, since its records store their own offsets.
    """
    last = batches["magic"] < 2
    fixed = (batches["magic"] == 0) & (batches["attributes"] & CODEC_MASK != 0)
    if (fixed & (base_offsets != batches["base_offset"])).any():
        raise UnsupportedVersionError(
            "compressed messages of format 0 cannot get other offsets: append the records of this file anew"
        )
    return np.where(last, base_offsets + batches["last_offset_delta"], base_offsets)


def write_base_offsets(data: npt.NDArray[np.uint8], positions: Longs, offsets: Longs) -> None:
    """Write `offsets`, the result of `header_offsets`, into the batches of `data` that begin at `positions`."""
    data[positions[:, None] + np.arange(8)] = offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
