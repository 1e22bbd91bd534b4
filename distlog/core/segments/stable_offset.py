"""The last stable offset of a partition: every transaction that began below it is decided (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import PartitionState
from distlog.core.segments.isolation import first_open_offset
from distlog.core.segments.segment import SegmentReader
from distlog.core.segments.slices import SegmentSlice


def last_stable_offset(reader: SegmentReader, state: PartitionState) -> int:
    """Where the first open transaction begins, or the log end; reads segments with transactions, no others.

    Raises CorruptRecordError.
    """
    first = first_open_offset(_headers(reader, state))
    return state.log_end_offset if first is None else max(first, state.log_start_offset)


def transactional_segments(state: PartitionState) -> list[SegmentInfo]:
    """The segments that may hold transactional data or markers."""
    flags = state.segments.columns()["has_transactions"].to_numpy(zero_copy_only=False)
    return [state.segments[int(index)] for index in np.flatnonzero(flags)]


def _headers(reader: SegmentReader, state: PartitionState) -> Iterator[tuple[npt.NDArray[np.void], int]]:
    for segment in transactional_segments(state):
        whole = SegmentSlice(segment, segment.base_offset, segment.next_offset, 0, segment.log_bytes)
        for chunk in reader.chunks(whole):
            chunk.check()
            yield chunk.batches, segment.shift
