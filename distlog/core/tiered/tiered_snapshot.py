"""A snapshot of a topic in a bucket: made from the names of its objects and from their manifests."""

from __future__ import annotations

from itertools import groupby

from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.commits.state.transaction_table import EMPTY
from distlog.core.config import TopicConfig
from distlog.core.indexes.index_cache import IndexCache
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.tiered.bucket import list_segments, read_manifests
from distlog.core.tiered.manifest import RemoteSegment
from distlog.core.tiered.remote_log import first_unstable_offsets, log_parts, partition_state
from distlog.core.tiered.tiered_storage import TieredStorage


def load(storage: TieredStorage, version: int = 0) -> Snapshot:
    """The topic as it is in the bucket now, called `version`; manifests that `storage` has read are not read again.

    Reads the state of the producers at the end of each partition too. Raises CorruptMetadataError, CorruptIndexError,
    UnsupportedVersionError.
    """
    listed, known = list_segments(storage.topic), storage.files.segments
    there = {segment.stem: known[segment.stem] for segment in listed if segment.stem in known}
    new = read_manifests(storage.topic, [segment for segment in listed if segment.stem not in known])
    storage.files.segments = there | {segment.stem: segment for segment in new}
    return _snapshot(storage, list(storage.files.segments.values()), version)


def _snapshot(storage: TieredStorage, uploaded: list[RemoteSegment], version: int) -> Snapshot:
    by_partition = groupby(sorted(uploaded, key=lambda each: each.partition), key=lambda each: each.partition)
    logs = {number: log_parts(storage.topic, segments) for number, segments in by_partition}
    unstable = first_unstable_offsets(storage, [parts[-1].segment for parts in logs.values()])
    reader = SegmentReader(storage, storage.topic.name, IndexCache())
    states = [PartitionState()] * (max(logs, default=-1) + 1)
    for (number, parts), offset in zip(logs.items(), unstable, strict=True):
        states[number] = partition_state(reader, parts, offset)
    return Snapshot(
        version=version,
        commit_id="",
        topic_id=storage.topic.topic_id,
        name=storage.topic.name,
        timestamp_ms=max((segment.event_ms for segment in uploaded), default=0),
        config=TopicConfig(),
        partitions=tuple(states),
        transactions=EMPTY,
        pins={},
    )
