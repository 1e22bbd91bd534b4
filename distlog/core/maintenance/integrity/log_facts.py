"""What a log file says of itself, gathered batch by batch, and where the metadata of its segment says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from distlog.core import paths
from distlog.core.batches.compression import CODEC_NAMES
from distlog.core.batches.record_batch import APPEND_TIME, CODEC_MASK, CONTROL, DELETE_HORIZON, TRANSACTIONAL
from distlog.core.commits.segment_info import UNKNOWN, SegmentInfo
from distlog.core.config import MAX_LONG
from distlog.core.times import NO_TIMESTAMP

_KNOWN_CODECS = dict(enumerate(CODEC_NAMES))


class LogFacts:
    """Sums over a segment's batches and records; offsets are those that readers know.

    Hidden batches, those of control records and those that compaction emptied, count in some metadata and not in
    other: both are right. They have no codec, whatever the topic's is.
    """

    def __init__(self, segment: SegmentInfo) -> None:
        self._segment = segment
        self.batches = self.records = 0
        self._counted = self._crc = 0
        self._next_offset = segment.base_offset
        self._base_timestamp = self._first_timestamp = NO_TIMESTAMP
        self._newest_batch = self._newest = NO_TIMESTAMP
        self._offset_of_newest = -1
        self._oldest = MAX_LONG
        self._first_batch_crc = self._last_batch_crc = UNKNOWN
        self._newest_hidden, self._offset_of_newest_hidden = NO_TIMESTAMP, -1
        self._attributes = 0
        self._codecs: set[str] = set()

    def add_batches(self, data: memoryview, batches: npt.NDArray[Any]) -> None:
        """Count the next batches, at least one, which are all of `data`."""
        self._crc = crc32c(data, self._crc)
        self._counted += int(batches["record_count"].sum())
        self._next_offset = (
            int(batches["base_offset"][-1] + batches["last_offset_delta"][-1]) + 1 + self._segment.shift
        )
        if self.batches == 0:
            # as SegmentFile takes it: the base may be a producer's time, or that from which on a tombstone may go
            unusual = batches["attributes"][0] & (APPEND_TIME | DELETE_HORIZON)
            self._base_timestamp = int(batches["max_timestamp" if unusual else "base_timestamp"][0])
            self._first_batch_crc = int(batches["crc"][0])
        self._last_batch_crc = int(batches["crc"][-1])
        self.batches += len(batches)
        self._newest_batch = max(self._newest_batch, int(batches["max_timestamp"].max()))
        self._attributes |= int(np.bitwise_or.reduce(batches["attributes"]))
        hidden = (batches["attributes"] & CONTROL != 0) | (batches["record_count"] == 0)
        codecs = np.unique(batches["attributes"][~hidden] & CODEC_MASK)
        self._codecs |= {_KNOWN_CODECS.get(codec, "?") for codec in codecs}
        self._add_hidden(batches[hidden])

    def _add_hidden(self, batches: npt.NDArray[Any]) -> None:
        newest = int(batches["max_timestamp"].argmax()) if len(batches) else None
        if newest is not None and batches["max_timestamp"][newest] > self._newest_hidden:
            self._newest_hidden = int(batches["max_timestamp"][newest])
            last = int(batches["base_offset"][newest] + batches["last_offset_delta"][newest])
            self._offset_of_newest_hidden = last + self._segment.shift

    def add_records(self, records: pa.RecordBatch) -> None:
        """Count the next records that readers get: offset, timestamp."""
        if not records.num_rows:
            return
        timestamps = records.column(1).cast(pa.int64()).to_numpy()
        if self.records == 0:
            self._first_timestamp = int(timestamps[0])
        self._oldest = min(self._oldest, int(timestamps.min()))
        newest = int(timestamps.argmax())
        if timestamps[newest] > self._newest:
            self._newest, self._offset_of_newest = int(timestamps[newest]), records.column(0)[newest].as_py()
        self.records += records.num_rows

    def contradictions(self) -> Iterator[str]:
        """The fields of the segment's metadata that are not what the log says, in words."""
        for name, right in self._expected():
            value = getattr(self._segment, name)
            if value not in right:
                yield f"{name} is {value} in the metadata, {' or '.join(map(str, sorted(right)))} in the log"
        unknown = sorted(self._codecs - set(self._segment.compression.split(",")))
        if unknown:
            yield f"compression is {self._segment.compression} in the metadata, {', '.join(unknown)} in the log"
        if self._attributes & (TRANSACTIONAL | CONTROL) and not self._segment.has_transactions:
            yield "has_transactions is false in the metadata, but the log holds transactions"

    def _expected(self) -> Iterator[tuple[str, set[int]]]:
        segment = self._segment
        yield "crc32c", {self._crc}
        if segment.first_batch_crc != UNKNOWN:
            yield "first_batch_crc", {self._first_batch_crc}
        if segment.last_batch_crc != UNKNOWN:
            yield "last_batch_crc", {self._last_batch_crc}
        if self._oldest < segment.min_timestamp:
            yield "min_timestamp", {self._oldest}
        yield "record_count", {self.records, self._counted}
        if is_contiguous(segment) or self._next_offset > segment.next_offset:
            yield "next_offset", {self._next_offset}
        yield "first_timestamp", {self._base_timestamp, self._first_timestamp}
        yield "max_timestamp", {self._newest, self._newest_batch}
        offsets = {self._offset_of_newest} if segment.max_timestamp == self._newest else set()
        if segment.max_timestamp == self._newest_hidden:
            offsets |= {self._offset_of_newest_hidden, -1}
        if offsets:
            yield "offset_of_max_timestamp", offsets


def is_contiguous(segment: SegmentInfo) -> bool:
    """Whether every offset of the segment is in a batch: unless it was compacted, by distlog or by Kafka."""
    return segment.dense or (paths.stem_begin(segment.stem) is not None and not segment.compacted)
