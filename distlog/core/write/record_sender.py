"""Sends a writer's buffers to an engine: routes records to partitions, and numbers a producer's batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.format.record_batch import BatchFormat
from distlog.core.format.record_encoder import RecordInput
from distlog.core.segments.segment_writer import batch_format, codec_of
from distlog.core.segments.topic_handle import TopicHandle
from distlog.core.write.append import AppendResult
from distlog.core.write.commit_engine import CommitEngine
from distlog.core.write.direct_engine import DirectEngine
from distlog.core.write.engine import Engine, Failure, Fence, PartitionBatches
from distlog.core.write.rows import normalize
from distlog.core.write.segments_writer import Partitioner


class RecordSender:
    """Sends buffers of records of one topic to `engine`, unless `fence` refuses; `numbers` are a producer's."""

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        engine: Engine,
        compression: str | None = None,
        *,
        numbers: ProducerNumbers | None = None,
        fence: Fence | None = None,
    ) -> None:
        self.handle, self.current, self.compression = handle, current, compression
        self._engine, self._numbers, self._fence = engine, numbers, fence
        self._partitioner: tuple[int, Partitioner] | None = None

    def send(self, records: pa.RecordBatch) -> SendResult:
        """Append the records, each partition's in their order; an error that is raised applies to all records."""
        parts = self._route(records)
        fence = self._fence if self._numbers is None else self._numbers.fence
        result, failures = self._engine.append(parts, fence)
        if self._numbers is not None:
            incomplete = {failure.partition for failure in failures}
            for part in parts:
                if part.partition not in incomplete:
                    self._numbers.count(part.partition, part.record_count)
        return SendResult(result, successes(result), tuple(failures))

    def _route(self, records: pa.RecordBatch) -> list[PartitionBatches]:
        handle, snapshot = self.handle, self.current.recent()
        config, count, now_ms = snapshot.config, len(snapshot.partitions), self.handle.clock()
        form = batch_format(config, codec_of(config, self.compression), handle.clock, handle.random)
        records = normalize(records, config, now_ms)
        source = RecordInput.from_arrow(records)
        if self._partitioner is None or self._partitioner[0] != count:
            self._partitioner = count, Partitioner(count, handle.random.randrange(count))
        parts = list[PartitionBatches]()
        for partition, rows in self._partitioner[1].split(records):
            numbered = form if self._numbers is None else self._numbers.form_of(partition, form)
            size = records.nbytes * len(rows) // records.num_rows
            parts.append(PartitionBatches(partition, source, rows, size, config, numbered, now_ms))
        return parts

    @property
    def is_flushed(self) -> bool:
        """True if everything sent is known to be durable."""
        return self._engine.is_flushed

    def flush(self) -> None:
        """Return when everything sent is durable."""
        self._engine.flush()

    def close(self) -> None:
        """Flush, and close files; a later `send` opens them again."""
        self._engine.close()

    def begin_child(self) -> None:
        """Become usable in a forked child."""
        self._engine.begin_child()


class ProducerNumbers(Protocol):
    """The numbers of a producer's batches."""

    @property
    def fence(self) -> Fence: ...

    def form_of(self, partition: int, form: BatchFormat) -> BatchFormat:
        """`form` with the producer, and the next sequence number of the partition."""

    def count(self, partition: int, records: int) -> None:
        """Advance the sequence number of a partition past records that are in the log."""


class SendResult(NamedTuple):
    """The outcome of a buffer."""

    result: AppendResult
    deliveries: list[Delivery]
    failures: tuple[Failure, ...] = ()


def engine_of(
    handle: TopicHandle,
    current: CurrentSnapshot,
    on_append: Callable[[], None],
    lock_timeout_s: float | None = None,
) -> Engine:
    """The engine for a topic: direct on a disk of this machine, else commits."""
    if handle.storage.is_local_disk:
        return DirectEngine(handle, current, on_append, lock_timeout_s)
    return CommitEngine(handle, current)


_log = logging.getLogger("distlog")


@dataclass(frozen=True, slots=True)
class Delivery:
    """The records of one partition in one buffer: at `first_offset` (in) to `end_offset` (out), or an `error`.

    With an error there are no offsets, and records without a key have no partition, since none was chosen for them.
    """

    partition: int | None
    first_offset: int | None
    end_offset: int | None
    record_count: int
    error: BaseException | None


OnDelivery = Callable[[Delivery], object]


def successes(result: AppendResult) -> list[Delivery]:
    """The deliveries of what was appended."""
    return [Delivery(number, first, end, end - first, None) for number, (first, end) in result.offsets.items()]


def errors(counts: Mapping[int | None, int], error: BaseException | None) -> list[Delivery]:
    """The deliveries of records that were not appended, by partition."""
    return [Delivery(number, None, None, count, error) for number, count in counts.items()]


def deliver(deliveries: Iterable[Delivery], on_delivery: OnDelivery) -> None:
    """Call `on_delivery` for each delivery; its errors are logged."""
    for delivery in deliveries:
        try:
            on_delivery(delivery)
        except BaseException:  # noqa: PERF203 - none must end the thread that sends, or keep the next from its call
            _log.exception("the on_delivery of a writer failed with %r", delivery)
