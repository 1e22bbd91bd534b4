"""Gathers facts of a log file batch by batch, and finds where the metadata of its segment says something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from distlog.core import paths
from distlog.core.batches.record_batch import CONTROL
from distlog.core.commits.format.segment_info import UNKNOWN, SegmentInfo
from distlog.core.segments.log_description import LogDescription
from distlog.core.segments.record_facts import RecordFacts
from distlog.core.segments.segment_state import SegmentState
from distlog.core.segments.state_fold import UnfitBatchError
from distlog.core.times import NO_TIMESTAMP


class LogFacts:
    """Facts of a segment's batches and records: counts, offsets, times, checksums. Offsets are those readers see.

    `batches` is the number of batches. Batches of control records and batches that compaction emptied are hidden.
    They count in some metadata and not in other metadata, and both are right. They have no codec, whatever the
    topic's codec is.
    """

    def __init__(self, segment: SegmentInfo) -> None:
        self._segment = segment
        # what the headers of all batches say, and what the records say that readers get
        self._log, self._read = LogDescription(segment.stored_base_offset), RecordFacts()
        self._unfit: UnfitBatchError | None = None
        self.batches = 0
        self._newest_hidden, self._offset_of_newest_hidden = NO_TIMESTAMP, -1

    @property
    def records(self) -> int:
        """The number of records that readers get."""
        return self._read.count

    def add_batches(self, data: memoryview, batches: npt.NDArray[Any]) -> None:
        """Count the next batches, at least one; `data` holds these batches and nothing else."""
        self.batches += len(batches)
        if self._unfit is None:
            try:
                self._log.add(data, batches)
            except UnfitBatchError as error:
                self._unfit = error
        self._add_hidden(batches[(batches["attributes"] & CONTROL != 0) | (batches["record_count"] == 0)])

    def _add_hidden(self, batches: npt.NDArray[Any]) -> None:
        newest = int(batches["max_timestamp"].argmax()) if len(batches) else None
        if newest is not None and batches["max_timestamp"][newest] > self._newest_hidden:
            self._newest_hidden = int(batches["max_timestamp"][newest])
            last = int(batches["base_offset"][newest] + batches["last_offset_delta"][newest])
            self._offset_of_newest_hidden = last + self._segment.shift

    def add_records(self, records: pa.RecordBatch) -> None:
        """Count the next records that readers get; the columns are offset and timestamp."""
        self._read.add(records)

    def contradictions(self) -> Iterator[str]:
        """Messages about the fields of the segment's metadata that contradict the log."""
        if self._unfit is not None:
            yield f"the batches cannot be those of one segment: {self._unfit}"
            return
        state = self._log.state
        for name, right in self._expected(state):
            value = getattr(self._segment, name)
            if value not in right:
                yield f"{name} is {value} in the metadata, {' or '.join(map(str, sorted(right)))} in the log"
        unknown = sorted(state.codec_names - set(self._segment.compression.split(",")))
        if unknown:
            yield f"compression is {self._segment.compression} in the metadata, {', '.join(unknown)} in the log"
        if state.has_transactions and not self._segment.has_transactions:
            yield "has_transactions is false in the metadata, but the log holds transactions"

    def _expected(self, state: SegmentState) -> Iterator[tuple[str, set[int]]]:
        segment = self._segment
        yield "crc32c", {state.crc32c}
        if segment.first_batch_crc != UNKNOWN:
            yield "first_batch_crc", {state.first_batch_crc}
        if segment.last_batch_crc != UNKNOWN:
            yield "last_batch_crc", {state.last_batch_crc}
        if self._read.oldest < segment.min_timestamp:
            yield "min_timestamp", {self._read.oldest}
        yield "record_count", {self.records, state.record_count}
        next_offset = segment.shift + state.next_offset
        if is_contiguous(segment) or next_offset > segment.next_offset:
            yield "next_offset", {next_offset}
        yield "first_timestamp", {state.first_timestamp, self._read.first}
        yield "max_timestamp", {state.max_timestamp, self._read.newest}
        offsets = {self._read.offset_of_newest} if segment.max_timestamp == self._read.newest else set()
        if segment.max_timestamp == self._newest_hidden:
            offsets |= {self._offset_of_newest_hidden, -1}
        if segment.is_active:
            # the headers do not always tell it: the seal finds it out
            offsets.add(-1)
        if offsets:
            yield "offset_of_max_timestamp", offsets


def is_contiguous(segment: SegmentInfo) -> bool:
    """Whether every offset of the segment is in a batch: true unless distlog or Kafka has compacted it."""
    return segment.dense or (paths.stem_read_version(segment.stem) is not None and not segment.compacted)
