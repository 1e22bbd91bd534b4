"""What a partition's log says of its producers, as far as one process has read it: under the partition's lock.

Any process may append. So before it checks a batch, a process reads the batches that others appended since. What
the log said before the active segment is kept in the segment's `.snapshot`, in Kafka's format. Who needs it and does
not find it, or finds it damaged, reads the segments before: from the last one that has a snapshot, and only those
that have batches of producers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

import numpy.typing as npt

from distlog.core import paths
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.errors import CorruptIndexError, StorageError
from distlog.core.log.active_file import ActiveFile
from distlog.core.log.batch_walk import WALK_BYTES, batches_from
from distlog.core.log.log_segment import LogSegment
from distlog.core.storage.local.durable_files import failing_as
from distlog.core.transactions.producer_snapshot import read_producer_snapshot
from distlog.core.transactions.producer_states import EXPIRATION_CHECK_MS, KnownBatch, ProducerStates


class _Read(NamedTuple):
    """How far the log was read: to this position of the segment `stem`, and this offset."""

    stem: str
    position: int
    offset: int


_NOTHING = _Read("", 0, 0)


class PartitionProducers:
    """The producers of a partition whose files are in `folder`; `clock` tells the time in ms.

    All methods need the partition's lock, and get the active `segment` at its end. They raise StorageError, and
    CorruptRecordError for a damaged segment.
    """

    def __init__(self, partition: int, folder: str, snapshots: CurrentSnapshot, clock: Callable[[], int]) -> None:
        self._partition, self._folder, self._snapshots, self._clock = partition, folder, snapshots, clock
        self._states, self._read, self._expired_ms = ProducerStates(), _NOTHING, 0

    def check(self, rows: npt.NDArray[Any], segment: LogSegment) -> KnownBatch | None:
        """See `ProducerStates.check`."""
        self.catch_up(segment)
        now_ms = self._clock()
        is_time = now_ms - self._expired_ms >= EXPIRATION_CHECK_MS
        self._states.expire(now_ms, None if is_time else set(rows["producer_id"].tolist()))
        self._expired_ms = now_ms if is_time else self._expired_ms
        return self._states.check(rows)

    def appended(self, data: npt.NDArray[Any], rows: npt.NDArray[Any], segment: LogSegment) -> None:
        """Take the batches that were appended after their `check`."""
        self._states.see(data, rows, heard_ms=self._clock())
        self._read = _Read(segment.stem, segment.size, segment.next_offset)

    def catch_up(self, segment: LogSegment) -> None:
        """Read what the log has behind what was read; a segment that is met first gets its snapshot."""
        stem, position, _ = self._read
        if segment.stem != stem or segment.size < position:
            self._begin(segment)
            position = 0
        if segment.has_producers:
            for found in segment.batches(position):
                self._states.see(found.data, found.rows, heard_ms=self._clock())
        self._read = _Read(segment.stem, segment.size, segment.next_offset)

    def _begin(self, segment: LogSegment) -> None:
        """Know the states where the segment begins, and have them in its snapshot."""
        segments = self._snapshots.refresh().partitions[self._partition].segments
        if not self._ends_at(segments, segment):
            stored = self._stored(segment.stem)
            if stored is not None:
                self._states = stored
                return
            self._states = self._behind(segments)
        if len(segments):
            self._save(segment)

    def _ends_at(self, segments: Sequence[SegmentInfo], segment: LogSegment) -> bool:
        """Whether what was read ends where `segment` begins: it was sealed there, and nothing came between."""
        end = [(segments[-1].stem, segments[-1].next_offset)] if len(segments) else []
        read = self._read
        return end == [(read.stem, read.offset)] and segment.base_offset == read.offset

    def _behind(self, segments: Sequence[SegmentInfo]) -> ProducerStates:
        """The states behind the sealed `segments`."""
        found, later = None, list[SegmentInfo]()
        for sealed in reversed(segments):
            found = self._left_by_broker(sealed)
            if found is None:
                later.append(sealed)
                found = self._stored(sealed.stem)
            if found is not None:
                break
        states = found or ProducerStates()
        for sealed in reversed(later):
            if sealed.may_have_producers:
                self._see(states, sealed)
        states.expire(self._clock())
        return states

    def _left_by_broker(self, sealed: SegmentInfo) -> ProducerStates | None:
        """What a broker, or who adopted its log, has stored of the end of a segment; most often None."""
        is_adopted = paths.stem_read_version(sealed.stem) is None
        return self._stored(f"{sealed.next_offset:020d}") if is_adopted else None

    def _see(self, states: ProducerStates, sealed: SegmentInfo) -> None:
        with closing(ActiveFile(self._path(sealed.stem, ".log"), writable=False)) as file:
            for found in batches_from(file, 0, sealed.log_bytes, WALK_BYTES):
                states.see(found.data, found.rows, sealed.shift)

    def _stored(self, stem: str) -> ProducerStates | None:
        """What the segment's snapshot says; None if there is none, or it is damaged."""
        path = self._path(stem, ".snapshot")
        with failing_as("read", path), suppress(FileNotFoundError, CorruptIndexError), open(path, "rb") as file:
            states = ProducerStates.of_snapshot(read_producer_snapshot(file.read(), file=path))
            states.expire(self._clock())
            return states
        return None

    def _save(self, segment: LogSegment) -> None:
        data = self._states.snapshot()
        # a file that a crash leaves half written is read like none
        with suppress(StorageError), closing(ActiveFile(self._path(segment.stem, ".snapshot"))) as file:
            file.write(data, 0)
            file.cut(len(data))

    def _path(self, stem: str, suffix: str) -> str:
        return os.path.join(self._folder, stem + suffix)
