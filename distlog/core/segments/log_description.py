"""Describes a log, batch by batch: as it is written, read again, or taken over from a broker."""

from __future__ import annotations

import dataclasses
from typing import Any

from distlog.core.commits.format.segment_info import NOT_LOOKED, SegmentInfo
from distlog.core.config import MAX_INT
from distlog.core.errors import CorruptRecordError
from distlog.core.kernels.segment_fold import NEXT_OFFSET, POSITION
from distlog.core.segments.segment_state import UNKNOWN_CODEC, SegmentState
from distlog.core.segments.state_fold import BY_HEADERS, Batches, Folded, Longs, fold, fold_seal, room


class LogDescription:
    """The state of a segment whose file begins at `base_offset`, and its offset and time index.

    `interval_bytes` and `index_bytes` are `index.interval.bytes` and `segment.index.bytes`.
    """

    def __init__(self, base_offset: int = 0, *, interval_bytes: int = MAX_INT, index_bytes: int = MAX_INT) -> None:
        self._interval, self._index_bytes = interval_bytes, index_bytes
        self._numbers = dataclasses.replace(_EMPTY, base_offset=base_offset, next_offset=base_offset).numbers()
        self._offset_index, self._time_index = bytearray(), bytearray()

    @property
    def state(self) -> SegmentState:
        """What the batches so far say; it has neither stem nor creation time."""
        return SegmentState.of_numbers("", self._numbers)

    @property
    def size(self) -> int:
        """The bytes of the log so far."""
        return int(self._numbers[POSITION])

    @property
    def next_offset(self) -> int:
        """The offset behind the last batch."""
        return int(self._numbers[NEXT_OFFSET])

    def room(self, batches: Batches) -> int:
        """How many of the next `batches` fit before an index is full; a first batch always fits."""
        return room(self._numbers, batches, self._interval, self._index_bytes)

    def add(
        self, data: Any, batches: Batches, newest_offsets: Longs = BY_HEADERS, min_timestamps: Longs = BY_HEADERS
    ) -> None:
        """Take the next batches (BATCH rows), which are all of `data`; see `fold`, also for what it raises."""
        self._take(fold(self._numbers, data, batches, self._interval, newest_offsets, min_timestamps))

    def finish(self) -> dict[str, bytes]:
        """End the log; returns its index files by suffix, with no bytes for an index without entries."""
        self._take(fold_seal(self._numbers))
        return {".index": bytes(self._offset_index), ".timeindex": bytes(self._time_index)}

    def describe(self, partition: int, stem: str, created_ms: int) -> tuple[SegmentInfo, dict[str, bytes]]:
        """End the log; returns the segment, and its index files as `finish` does, without a transaction index.

        The first unstable offset is NOT_LOOKED. Raises CorruptRecordError for a batch with a codec that Kafka does
        not have.
        """
        files, state = self.finish(), dataclasses.replace(self.state, stem=stem, created_ms=created_ms)
        if UNKNOWN_CODEC in state.codec_names:
            raise CorruptRecordError(
                "a record batch has an unknown codec: verify, then restore it from a copy",
                partition=partition,
                stem=stem,
            )
        return state.segment_info(partition), files

    def _take(self, folded: Folded) -> None:
        self._numbers = folded.numbers
        self._offset_index += folded.entries[0]
        self._time_index += folded.entries[1]


_EMPTY = SegmentState("", first_unstable_offset=NOT_LOOKED)
