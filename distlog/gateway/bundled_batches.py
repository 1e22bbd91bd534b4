"""Writes ready-made batches of several partitions as one bundle, or as files if they are of one partition."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from distlog.core.commits.segment_info import BY_COMMIT, SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.log.log_validator import ValidBatch
from distlog.core.segments.bundles import Bundles
from distlog.core.segments.segment_file import SegmentFile
from distlog.core.topic_handle import TopicHandle


def write_bundle(
    handle: TopicHandle, snapshot: Snapshot, batches: Mapping[int, Sequence[ValidBatch]]
) -> list[SegmentInfo]:
    """The segments of the batches, by partition, in their order; they are durable, and no commit names them yet.

    The base offsets in the batches are overwritten. Raises StorageError.
    """
    bundles = Bundles(handle.storage, lambda: handle.new_stem(snapshot.version))
    for partition in batches:
        bundles.join(partition)
    sealed = [
        segment
        for partition, each in sorted(batches.items())
        for segment in _segments(handle, snapshot, partition, each, bundles)
    ]
    bundles.close()
    return [bundles.placed(segment) for segment in sealed]


def _segments(
    handle: TopicHandle, snapshot: Snapshot, partition: int, batches: Sequence[ValidBatch], bundles: Bundles
) -> Iterator[SegmentInfo]:
    segment: SegmentFile | None = None
    for valid in batches:
        if segment is not None and not segment.room(valid.rows, np.array([segment.next_offset])):
            yield _sealed(handle, snapshot, segment)
            segment = None
        if segment is None:
            stem = handle.new_stem(snapshot.version)
            segment = SegmentFile(handle.storage, handle.name, partition, stem, snapshot.config, bundles)
        base = np.array([segment.next_offset])
        newest = base + valid.newest_offset if valid.newest_offset >= 0 else np.array([valid.newest_offset])
        segment.write(valid.data, valid.rows, base, newest, np.array([valid.min_timestamp]))
    if segment is not None:
        yield _sealed(handle, snapshot, segment)


def _sealed(handle: TopicHandle, snapshot: Snapshot, segment: SegmentFile) -> SegmentInfo:
    sealed = segment.seal(handle.clock())
    waits = snapshot.config.message_timestamp_type == "LogAppendTime"
    return dataclasses.replace(sealed, append_time_ms=BY_COMMIT) if waits else sealed
