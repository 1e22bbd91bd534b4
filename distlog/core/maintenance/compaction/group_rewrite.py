"""Rewrites a group of adjacent segments as one segment, or as none if nothing of them stays."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from distlog.core.batches.record_batch import CONTROL
from distlog.core.commits.format.segment_info import NO_OFFSET, NOT_LOOKED, SegmentInfo
from distlog.core.maintenance.compaction.batch_filter import BatchFilter, FilteredBatches
from distlog.core.maintenance.compaction.cleaning_plan import GroupToRewrite
from distlog.core.maintenance.compaction.scanned_records import checked_chunks
from distlog.core.maintenance.compaction.survivors import Survivors
from distlog.core.segments.aborted_transactions import with_aborted
from distlog.core.segments.segment_file import SegmentFile
from distlog.core.topic_handle import TopicHandle


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """Adjacent segments, `inputs`, and the `outputs` that replace them; both are the same if nothing changes.

    `outputs` cover the offsets of the inputs, with gaps where records were dropped. `unkeyed` is the number of
    records dropped because they have no key.
    """

    inputs: tuple[SegmentInfo, ...]
    outputs: tuple[SegmentInfo, ...]
    unkeyed: int

    @property
    def partition(self) -> int:
        """The partition of all these segments."""
        return self.inputs[0].partition

    @property
    def base_offset(self) -> int:
        """The offset at which the first input begins."""
        return self.inputs[0].base_offset

    @property
    def next_offset(self) -> int:
        """The offset at which the last input ends."""
        return self.inputs[-1].next_offset

    @property
    def changed(self) -> bool:
        """Whether there is something to commit."""
        return self.inputs != self.outputs

    @property
    def forgets_transactions(self) -> bool:
        """Whether an input may hold transactions but no output does."""
        had, has = (any(one.has_transactions for one in some) for some in (self.inputs, self.outputs))
        return had and not has


def rewrite_group(handle: TopicHandle, group: GroupToRewrite, survivors: Survivors) -> RewrittenGroup:
    """Write the records of `group` that stay as new segments; no commit names these yet.

    Memory is bounded by a few chunks. Raises CorruptRecordError.
    """
    retention_ms = group.config.delete_retention_ms
    batch_filter = BatchFilter(survivors, group.verdicts, group.end_offset, group.now_ms, retention_ms)
    output = _Output(handle, group)
    unchanged, unkeyed = len(group.segments) == 1, 0
    try:
        for segment in group.segments:
            for chunk in checked_chunks(handle.reader, segment):
                for filtered in batch_filter.apply(chunk.timed()):
                    unchanged &= filtered.unchanged
                    unkeyed += filtered.unkeyed
                    output.write(filtered, segment)
        outputs = group.segments if unchanged else output.close()
    finally:
        output.abort()
    return RewrittenGroup(tuple(group.segments), tuple(outputs), unkeyed)


class _Output:
    """The segments that replace a group. There is a second one only if the first must not grow any more."""

    def __init__(self, handle: TopicHandle, group: GroupToRewrite) -> None:
        self._handle, self._group, self._segments = handle, group, group.segments
        self._file: SegmentFile | None = None
        self._base_offset = group.segments[0].base_offset
        self._has_producers = False
        self._sealed: list[SegmentInfo] = []

    def write(self, filtered: FilteredBatches, segment: SegmentInfo) -> None:
        """Append batches that `segment` held."""
        batches, first = filtered.batches, 0
        base_offsets = batches["base_offset"] + segment.shift
        while first < len(batches):
            file = self._file = self._file or self._open()
            moved = base_offsets[first:] - self._base_offset
            end = first + file.room(batches[first:], moved)
            if end == first and file.next_offset > 0:
                self._seal(int(base_offsets[first]))
                continue
            # a batch that is too large for any segment was too large before, so it gets a segment all the same
            end = max(end, first + 1)
            rows = batches[first:end].copy()
            start = int(rows["position"][0])
            rows["position"] -= start
            newest = filtered.offsets_of_max_timestamp[first:end]
            newest = np.where(newest < 0, -1, newest - self._base_offset)
            part = filtered.data[start : start + int(rows["size"].sum())]
            file.write(part, rows, moved[: end - first], newest, np.full(len(rows), segment.min_timestamp))
            self._has_producers |= bool(((rows["producer_id"] >= 0) | (rows["attributes"] & CONTROL != 0)).any())
            first = end

    def close(self) -> list[SegmentInfo]:
        """Make everything durable; returns the segments, none if nothing was written."""
        self._seal(self._segments[-1].next_offset)
        return self._sealed

    def abort(self) -> None:
        """Abort the segment that is not sealed, if there is one."""
        if self._file is not None:
            self._file.abort()
            self._file = None

    def _open(self) -> SegmentFile:
        handle, group = self._handle, self._group
        stem = handle.new_stem(group.read_version)
        return SegmentFile(handle.storage, handle.name, group.segments[0].partition, stem, group.config)

    def _seal(self, next_offset: int) -> None:
        """Seal the open segment, which covers everything up to `next_offset`."""
        if self._file is None:
            return
        sealed = self._file.seal(self._handle.clock())
        self._file = None
        handle, aborted = self._handle, self._group.verdicts.aborted
        own = [each for each in aborted if self._base_offset <= each.last_offset < next_offset]
        sealed = with_aborted(handle.storage, handle.name, sealed, own, self._base_offset)
        self._sealed.append(
            dataclasses.replace(
                sealed.at(self._base_offset),
                next_offset=next_offset,
                leader_epoch=self._segments[-1].leader_epoch,
                compacted=True,
                has_transactions=self._has_producers,
                first_unstable_offset=self._first_unstable_offset(next_offset),
                # Kafka keeps the file's time too: retention counts from it if records have no time
                created_ms=self._segments[-1].created_ms,
            )
        )
        self._base_offset, self._has_producers = next_offset, False

    def _first_unstable_offset(self, next_offset: int) -> int:
        """The first unstable offset of the output that ends at `next_offset`.

        A transaction that began below the clean end is decided, though its end may lie behind it.
        """
        known = [segment.first_unstable_offset for segment in self._segments if segment.has_transactions]
        clean_end = self._group.end_offset
        if next_offset <= clean_end or not known:
            return NO_OFFSET
        if next_offset < self._segments[-1].next_offset or 0 <= known[-1] < clean_end:
            return NOT_LOOKED
        return known[-1]
