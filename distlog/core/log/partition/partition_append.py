"""One append to a partition, with its lock held: checked, put behind all that is there, and counted in the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.kernels.batch_move import move_batches
from distlog.core.log.partition.active_partition import ActivePartition
from distlog.core.log.partition.append_time import append_time, stamped
from distlog.core.log.partition.appended import SEALED, Appended
from distlog.core.log.partition.batch_runs import BatchRun, look_at
from distlog.core.log.partition.segment_begin import begin_segments, roll
from distlog.core.log.producers.partition_producers import NO_EFFECT, Effect, PartitionProducers
from distlog.core.log.segment.flush_policy import is_flush_due
from distlog.core.log.segment.log_segment import LogSegment
from distlog.core.times import NO_TIMESTAMP
from distlog.core.transactions.producer_state import KnownBatch


class PartitionAppend:
    """Appends to the `active` segment. All methods need the partition's lock; errors are those of `PartitionLog`."""

    def __init__(self, active: ActivePartition, producers: PartitionProducers, clock: Callable[[], int]) -> None:
        self._active, self._producers, self._clock = active, producers, clock

    def append(self, run: BatchRun) -> Appended:
        """See `PartitionLog.append`."""
        data, rows, newest_offsets, min_timestamps, in_transaction = run
        active, snapshots = self._active, self._active.snapshots
        end, newest, of_producers = look_at(
            rows, snapshots.snapshot.config, data.nbytes, in_transaction=in_transaction
        )
        segment = active.recover() or begin_segments([active])[0]
        if of_producers and (known := self._producers.check(rows, segment)):
            return self._appended_before(known, end, segment)
        time_ms = NO_TIMESTAMP
        if segment.config.message_timestamp_type == "LogAppendTime":
            state = snapshots.snapshot.partitions[active.partition]
            time_ms = append_time(state, segment, self._clock())
            rows, newest_offsets, min_timestamps = stamped(data, rows, time_ms)
            newest = time_ms
        if segment.should_roll(data.nbytes, newest, segment.next_offset + end - 1):
            segment = roll(active)
            if of_producers:
                self._producers.catch_up(segment)
        first = segment.next_offset
        moved = np.empty(len(rows), rows.dtype)
        move_batches(data, rows, first, moved)
        if len(newest_offsets):
            newest_offsets = newest_offsets + first
        effect = self._producers.effect_of(data, moved) if in_transaction else NO_EFFECT
        self._write(segment, BatchRun(data, moved, newest_offsets, min_timestamps), effect)
        if of_producers:
            self._producers.appended(data, moved, segment)
        due = is_flush_due(segment.unflushed, segment.config, self._clock)
        return Appended(first, first + end, segment.stem, snapshots.snapshot.version, due, time_ms)

    def has_open(self, row: Any) -> bool:
        """Whether a transaction of the producer of this batch (a BATCH row), in its epoch, is open here."""
        segment = self._active.recover() or begin_segments([self._active])[0]
        return self._producers.has_open(int(row["producer_id"]), int(row["producer_epoch"]), segment)

    def producers(self) -> npt.NDArray[np.void]:
        """See `PartitionLog.producers`."""
        return self._producers.entries(self._active.recover())

    def _appended_before(self, known: KnownBatch, count: int, segment: LogSegment) -> Appended:
        """What is told of batches that a producer appends again."""
        end, version = known.last_offset + 1, self._active.snapshots.snapshot.version
        is_active = known.last_offset >= segment.base_offset
        due = is_active and is_flush_due(segment.unflushed, segment.config, self._clock)
        by_log = segment.config.message_timestamp_type == "LogAppendTime"
        time_ms = known.timestamp if by_log else NO_TIMESTAMP
        return Appended(end - count, end, segment.stem if is_active else SEALED, version, due, time_ms)

    def _write(self, segment: LogSegment, run: BatchRun, effect: Effect) -> None:
        try:
            segment.append(
                run.data.data,
                run.rows,
                newest_offsets=run.newest_offsets,
                min_timestamps=run.min_timestamps,
                aborted=effect.aborted,
                first_unstable_offset=effect.first_unstable_offset,
            )
            self._active.moved_on()
        except BaseException:
            self._active.doubt()
            raise
