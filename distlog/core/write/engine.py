"""Engines take batches into a topic: directly into active segments, or by a commit."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.format.record_batch import BatchFormat
from distlog.core.format.record_encoder import EncodedBatches, RecordEncoder, RecordInput
from distlog.core.storage.parallel import cores
from distlog.core.write.append import AppendResult

#: How long batches of a producer are tried again, in seconds (Kafka's delivery.timeout.ms).
DELIVERY_TIMEOUT_S = 120.0


class Engine(Protocol):
    """Takes batches into one topic, one append at a time.

    Batches of a producer are there once, and are tried again for DELIVERY_TIMEOUT_S after errors of the storage.
    """

    def append(self, parts: Sequence[PartitionBatches], fence: Fence | None = None) -> Appends:
        """Append the batches, unless `fence` refuses; an error that is raised applies to all parts."""

    @property
    def is_flushed(self) -> bool:
        """True if everything appended is known to be durable."""

    def flush(self) -> None:
        """Return when everything appended is durable."""

    def close(self) -> None:
        """Flush, and close files; a later `append` opens them again."""

    def begin_child(self) -> None:
        """Become usable in a forked child, in any state of the parent's threads."""


class Fence(Protocol):
    """A check at the head before an append: of a producer's epoch, or a leader's."""

    def check(self, head: Snapshot, partitions: Collection[int]) -> None:
        """Raise the appender's error if another one has replaced it by this head."""


#: Roughly the most bytes that a batch of a few records takes in addition to them.
_SPARE_BYTES = 1 << 12


@dataclass(frozen=True, slots=True, eq=False)
class PartitionBatches:
    """The `rows` of `source`, of about `record_bytes`, which go to `partition` in batches of this `form`."""

    partition: int
    source: RecordInput
    rows: npt.NDArray[np.int64]
    record_bytes: int
    config: TopicConfig
    form: BatchFormat
    now_ms: int

    @property
    def record_count(self) -> int:
        return len(self.rows)

    @property
    def has_producer(self) -> bool:
        return self.form.producer_id >= 0

    def encode(self) -> EncodedBatches:
        """Encode the batches, which takes most of the time of an append."""
        room = self.record_bytes + 8 * len(self.rows) + _SPARE_BYTES
        encoder = RecordEncoder(self.form, gather_bytes=sys.maxsize, room=room)
        # one step takes all rows, since `gather_bytes` has no limit here
        next(encoder.append(self.source, self.rows), None)
        return encoder.finish()


#: Parts of fewer bytes are encoded faster than threads can share them.
_SHARED_BYTES = 1 << 20


def workers_for(parts: Sequence[PartitionBatches]) -> int:
    """The number of threads that encode the parts."""
    return cores() if sum(part.record_bytes for part in parts) >= _SHARED_BYTES else 1


class Appends(NamedTuple):
    """The offsets of what was appended, by partition, and the parts that were not."""

    result: AppendResult
    failures: Sequence[Failure] = ()


class Failure(NamedTuple):
    """Records of one partition that were not appended, or, if `in_doubt`, may have been."""

    partition: int
    record_count: int
    error: BaseException
    in_doubt: bool
