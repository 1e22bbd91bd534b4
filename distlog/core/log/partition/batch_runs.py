"""Cuts a partition's new batches into runs that one segment may hold, and checks runs before their append."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import CONTROL, TRANSACTIONAL
from distlog.core.batches.record_encoder import EncodedBatches
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidRecordError, RecordTooLargeError
from distlog.core.indexes.time_index import ENTRY as TIME_ENTRY
from distlog.core.kernels.batch_move import BAD_FORMAT, FINE, NOT_ALL, look_at_batches
from distlog.core.log.partition.log_validator import check_size
from distlog.core.segments.roll import RollTime, time_span

Longs = npt.NDArray[np.int64]


_WRONG = {
    NOT_ALL: "the batches are not back to back in their bytes, or not all of them",
    BAD_FORMAT: "batches that are appended in place are of format 2, and not of transactions",
}
_BAD_OFFSETS = "batches that are appended have the offsets from 0 on, without a gap"


class BatchRun(NamedTuple):
    """Batches from offset 0 on, as `PartitionLog.append` takes them.

    `in_transaction` says that they are of a transaction that is open, or its end marker: only who has asked the
    commit log, with the partition's lock held, or keeps the transaction as it is, may say so.
    """

    data: npt.NDArray[np.uint8]
    rows: npt.NDArray[Any]
    newest_offsets: Longs
    min_timestamps: Longs
    in_transaction: bool = False


def runs(
    batches: EncodedBatches, config: TopicConfig, now_ms: int, *, in_transaction: bool = False
) -> Iterator[BatchRun]:
    """Cut `batches` where a segment must end by size, by time or by a full index; most often there is one run."""
    data, rows = np.frombuffer(batches.data, np.uint8), batches.batches
    first = 0
    while first < len(rows):
        end = first + _room(rows[first:], int(batches.min_timestamps[first]), config, now_ms)
        run = rows[first:end].copy()
        start, base_offset = int(run["position"][0]), int(run["base_offset"][0])
        run["position"] -= start
        run["base_offset"] -= base_offset
        newest = batches.offsets_of_max_timestamp[first:end]
        yield BatchRun(
            data[start : start + int(run["size"].sum())],
            run,
            np.where(newest < 0, newest, newest - base_offset),
            batches.min_timestamps[first:end],
            in_transaction,
        )
        first = end


def _room(rows: npt.NDArray[Any], smallest: int, config: TopicConfig, now_ms: int) -> int:
    """How many of the batches an empty segment may hold: at least one."""
    time = RollTime(time_span(config))
    time.open(rows[0], smallest, now_ms)
    by_size = int(np.searchsorted(np.cumsum(rows["size"], dtype=np.int64), config.segment_size, side="right"))
    # one entry of the time index is kept for the segment's end
    by_index = config.segment_index_bytes // TIME_ENTRY.itemsize - 1
    return max(1, min(by_size, by_index, time.room(rows, now_ms)))


def look_at(
    rows: npt.NDArray[Any], config: TopicConfig, size: int, *, in_transaction: bool = False
) -> tuple[int, int, bool]:
    """Check batches that are to be appended: all of `size` bytes. Those of transactions must be `in_transaction`.

    Returns the offset behind them, their largest timestamp, and whether any is of a producer. Raises
    InvalidRecordError, RecordTooLargeError.
    """
    if not len(rows):
        raise InvalidRecordError("there is no batch to append")
    verdict, largest, end, newest, of_producers = look_at_batches(
        rows, size, 0 if in_transaction else TRANSACTIONAL | CONTROL
    )
    check_size(largest, config)
    if size > config.segment_size:
        raise RecordTooLargeError(
            "the batches are larger than segment.bytes: append fewer at once", size=size, limit=config.segment_size
        )
    if verdict != FINE:
        raise InvalidRecordError(_WRONG.get(verdict, _BAD_OFFSETS))
    return end, newest, of_producers
