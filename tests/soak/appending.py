"""The interface that the campaigns append with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import distlog
from distlog.core.format.record_encoder import encode
from distlog.core.log.partition_files import FileCalls
from distlog.core.log.partition_log import BatchRun, PartitionLog


class Appending:
    """Appends to one partition of the topic at `url`, each call one batch."""

    def __init__(self, url: str, partition: int, calls: FileCalls = os, timeout_s: float = 60.0) -> None:
        self.topic = distlog.open(url)
        self.log = PartitionLog(self.topic.handle, partition, self.topic.current, calls=calls, timeout_s=timeout_s)

    def append(self, records: Sequence[dict[str, Any]]) -> int:
        encoded = encode(pa.RecordBatch.from_pylist(list(records)))
        data = np.frombuffer(encoded.data, np.uint8)
        (appended,) = self.log.append_runs([BatchRun(data, encoded.batches)])
        return appended.first_offset

    def flush(self) -> None:
        self.log.flush()
