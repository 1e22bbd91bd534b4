"""Gives readers the active segments: each is the last segment of its partition, up to its current end.

No lock is taken. The page in the lock's file says where the segment ends. If the page does not check, is from
before the machine was started, or is of another segment, the log is walked, from its recovery point if that is known.
"""

from __future__ import annotations

import dataclasses
import os
from contextlib import closing

from distlog.core import paths
from distlog.core.commits.format.actions import Active
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.log.partition.state_record import StateRecord, Status, recovery_point, stored_value
from distlog.core.log.producers.stored_producers import transactions_before
from distlog.core.log.segment.readable_segment import ReadableSegment
from distlog.core.reading.files.missing_files import missing_file
from distlog.core.segments.segment_state import SegmentState
from distlog.core.topic_handle import TopicHandle

#: How often the page is read before the log is walked. Two writes during one read of the page are rare.
_LOOKS = 3


def with_tails(handle: TopicHandle, snapshot: Snapshot) -> Snapshot:
    """Return `snapshot` as readers see it now: with the active segments, up to their current ends.

    It must not be the base of a commit. Raises SnapshotTooOldError if an active segment was sealed, removed and
    vacuumed since, and StorageError.
    """
    if not any(state.active for state in snapshot.partitions):
        return snapshot
    partitions = tuple(
        with_tail(handle, snapshot, number) if state.active else state
        for number, state in enumerate(snapshot.partitions)
    )
    return dataclasses.replace(snapshot, partitions=partitions)


def without_tails(snapshot: Snapshot) -> Snapshot:
    """Return the commit log's snapshot, from one that `with_tails` gave."""
    partitions = tuple(
        dataclasses.replace(state, segments=state.segments.without_active(), log_end_offset=state.active.base_offset)
        if state.active
        else state
        for state in snapshot.partitions
    )
    return dataclasses.replace(snapshot, partitions=partitions)


def tail(handle: TopicHandle, snapshot: Snapshot, partition: int) -> SegmentInfo | None:
    """The partition's active segment as it is now; None if there is none, or it is empty."""
    active = snapshot.partitions[partition].active
    if active is None:
        return None
    folder = handle.storage.local_path(paths.partition_dir(handle.name, partition))
    page = os.path.join(folder, paths.LOCK_FILE)
    state = _known_state(page, snapshot, active)
    if state is None:
        walked = _walked_state(handle, snapshot, partition, active, page)
        # a writer that came meanwhile may not have counted yet what the walk has found, and may take it back
        state = _known_state(page, snapshot, active) or walked
    return state.tail_info(partition) if state.batches else None


def with_tail(handle: TopicHandle, snapshot: Snapshot, partition: int) -> PartitionState:
    """The state of one partition as readers see it now; see `with_tails`."""
    state, segment = snapshot.partitions[partition], tail(handle, snapshot, partition)
    if segment is None:
        return state
    return dataclasses.replace(
        state, segments=state.segments.with_active(segment), log_end_offset=segment.next_offset
    )


def _known_state(page: str, snapshot: Snapshot, active: Active) -> SegmentState | None:
    for _ in range(_LOOKS):
        record = StateRecord.unpack(stored_value(page))
        if record is not None:
            # a segment whose sync failed is being cut
            return None if record.status == Status.FAILED else record.state_of(snapshot.topic_id, active)
    return None


def _walked_state(handle: TopicHandle, snapshot: Snapshot, partition: int, active: Active, page: str) -> SegmentState:
    name = paths.segment_file(handle.name, partition, active.stem, ".log")
    if not os.path.exists(handle.storage.local_path(name)):
        raise missing_file(name, partition)
    folder, config = os.path.dirname(page), snapshot.config
    begin = SegmentState.new(active.stem, active.base_offset, handle.clock())
    point = recovery_point(stored_value(page), snapshot.topic_id, active)
    if point is not None:
        with closing(ReadableSegment(folder, point, config)) as segment:
            begin = point if segment.has_its_bytes() else begin
    with closing(ReadableSegment(folder, begin, config)) as segment:
        return segment.look_through(transactions_before(handle, snapshot.partitions[partition]))
