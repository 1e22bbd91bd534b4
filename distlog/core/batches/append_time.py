"""The time of LogAppendTime in batches of format 2: in their rows, and in their bytes (`setMaxTimestamp` of Kafka).

Attributes and largest timestamp are under the checksum, so that changes too; base timestamp and deltas stay as the
producer wrote them, and so does what is compressed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import APPEND_TIME, CRC_AT, CRC_START
from distlog.core.kernels.crc import write_crcs

_ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 21, 35


def give_append_times(batches: npt.NDArray[Any], times: npt.NDArray[np.int64]) -> None:
    """Change BATCH rows to what they are when appended at `times`, ms for each, -1 where a batch has its own."""
    given = times >= 0
    batches["max_timestamp"][given] = times[given]
    batches["attributes"][given] |= APPEND_TIME


def write_append_times(data: npt.NDArray[np.uint8], batches: npt.NDArray[Any]) -> None:
    """Write the rows' attributes and largest timestamps into `data`, and the new checksums into both."""
    _put(data, batches["position"] + _ATTRIBUTES_AT, batches["attributes"].astype(">i2"))
    _put(data, batches["position"] + _MAX_TIMESTAMP_AT, batches["max_timestamp"].astype(">i8"))
    write_crcs(data, batches, CRC_START, CRC_AT)


def _put(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
    size = values.dtype.itemsize
    data[positions[:, None] + np.arange(size)] = values.view(np.uint8).reshape(-1, size)
