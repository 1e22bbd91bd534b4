"""Work on every segment of a topic: one after the other, or a few at a time where the storage is far away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.storage.parallel import in_order

#: Segments of a remote topic that are worked on at the same time; each holds a few MiB.
PARALLEL = 8

Result = TypeVar("Result")

#: Is told the records and the log bytes of each segment when it is done.
Tell = Callable[[int, int], None]


def tell_nobody(records: int, size: int) -> None:
    """What `Tell` is where nobody wants to know."""


def each_segment(
    reader: SegmentReader, snapshot: Snapshot, work: Callable[[SegmentReader, SegmentInfo], Result], tell: Tell
) -> Iterator[Result]:
    """`work` of each live segment, by partition and base offset."""
    segments = [segment for state in snapshot.partitions for segment in state.segments]
    tasks = (partial(work, reader, segment) for segment in segments)
    results = in_order(tasks, 0 if reader.storage.is_local else PARALLEL)
    for segment, result in zip(segments, results, strict=True):
        tell(segment.record_count, segment.log_bytes)
        yield result
