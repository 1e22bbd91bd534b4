"""Sets the append time of LogAppendTime batches of format 2, in their rows and bytes (`setMaxTimestamp` of Kafka).

The checksum covers the attributes and the largest timestamp, so the checksum changes too. The base timestamp, the
deltas and compressed records stay as the producer wrote them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import APPEND_TIME, CRC_AT, CRC_START
from distlog.core.kernels.crc import write_crcs

_ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 21, 35


def give_append_times(batches: npt.NDArray[Any], times: npt.NDArray[np.int64]) -> None:
    """Change BATCH rows as appending them at `times` would: ms per batch, -1 for a batch that keeps its own times."""
    given = times >= 0
    batches["max_timestamp"][given] = times[given]
    batches["attributes"][given] |= APPEND_TIME


def write_append_times(data: npt.NDArray[np.uint8], batches: npt.NDArray[Any]) -> None:
    """Write the attributes and largest timestamps of the rows into `data`, and the new checksums into both."""
    _put(data, batches["position"] + _ATTRIBUTES_AT, batches["attributes"].astype(">i2"))
    _put(data, batches["position"] + _MAX_TIMESTAMP_AT, batches["max_timestamp"].astype(">i8"))
    write_crcs(data, batches, CRC_START, CRC_AT)


def _put(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
    size = values.dtype.itemsize
    data[positions[:, None] + np.arange(size)] = values.view(np.uint8).reshape(-1, size)
