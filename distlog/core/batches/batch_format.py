"""The settings that all batches of one writer share: codec, sizes, producer, and the attribute bits they imply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from distlog.core.batches import compression
from distlog.core.batches.record_batch import APPEND_TIME, BATCH, CONTROL, HEADER_SIZE, TRANSACTIONAL
from distlog.core.config import MAX_LONG
from distlog.core.errors import InvalidRecordError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFormat:
    """How batches of format 2 are made. Raises InvalidRecordError for a combination that Kafka does not allow.

    A batch ends before its uncompressed records would pass `batch_bytes`, but holds at least one record. It also ends
    before a record that is more than `window_ms` newer than the record that began the window; that record begins the
    next batch. With `append_time`, a function that returns the time in ms, the batches are LogAppendTime. `codec` and
    `level` are those of `compress`. The sequence numbers go on from batch to batch.
    """

    codec: int = compression.NONE
    level: int | None = None
    batch_bytes: int = 131_072
    max_batch_bytes: int = 1_048_588
    window_ms: int = MAX_LONG
    append_time: Callable[[], int] | None = None
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    control: bool = False

    def __post_init__(self) -> None:
        if self.producer_id == -1:
            if self.transactional:
                raise InvalidRecordError("a transactional batch needs a producer id")
        elif self.producer_epoch < 0:
            raise InvalidRecordError("a producer id needs an epoch", producer_id=self.producer_id)
        elif self.base_sequence < 0 and not self.control:
            raise InvalidRecordError("a producer id needs a sequence number", producer_id=self.producer_id)
        elif self.control and not self.transactional:
            # a producer's only control records are those that end its transactions
            raise InvalidRecordError("an end marker needs a transactional batch", producer_id=self.producer_id)

    @property
    def largest(self) -> int:
        """The most bytes of uncompressed records that any batch may have."""
        if self.codec == compression.NONE:
            return self.max_batch_bytes - HEADER_SIZE
        return compression.MAX_RECORDS_BYTES

    @property
    def limit(self) -> int:
        """The most bytes of uncompressed records that a batch of more than one record may have."""
        room = self.max_batch_bytes - HEADER_SIZE
        if self.codec != compression.NONE:
            # Data that does not compress grows: by 10 bytes per 32 KiB at worst, in snappy.
            room = min(room - (room >> 10) - 64, compression.MAX_RECORDS_BYTES)
        return min(self.batch_bytes, room)

    def headers(self, count: int) -> np.ndarray:
        """BATCH rows for `count` batches, with the fields that all of them share."""
        batches = np.zeros(count, BATCH)
        batches["magic"], batches["leader_epoch"] = 2, self.leader_epoch
        batches["producer_id"], batches["producer_epoch"] = self.producer_id, self.producer_epoch
        by_append_time = self.append_time is not None
        batches["attributes"] = (
            self.codec | by_append_time * APPEND_TIME | self.transactional * TRANSACTIONAL | self.control * CONTROL
        )
        return batches
