"""A topic in Kafka's tiered storage: it is read like any other topic, and cannot be changed."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

import numpy as np

from distlog.core import paths
from distlog.core.commits.actions import MAX_PARTITIONS
from distlog.core.commits.segment_table import NO_OFFSET, SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.commits.transaction_table import NO_TRANSACTIONS
from distlog.core.config import TopicConfig
from distlog.core.display import Listing
from distlog.core.errors import CorruptMetadataError, ReadOnlyTopicError
from distlog.core.format.indexes import IndexCache
from distlog.core.integers import MAX_LONG
from distlog.core.maintain.executor import Executor
from distlog.core.maintain.verify import VerifyReport
from distlog.core.segments.chunks import SegmentSlice
from distlog.core.segments.producer_states import read_producer_snapshot
from distlog.core.segments.segment_reader import SegmentReader, TopicHandle
from distlog.core.storage.parallel import in_parallel
from distlog.core.tiered.tiered_storage import (
    INDEXES,
    LOG,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    SNAPSHOT,
    UUID_PATTERN,
    RemoteSegment,
    RemoteTopic,
    TieredStorage,
    find_topic,
)
from distlog.core.topic import Topic

_PARTITION_OF = attrgetter("partition")
READ_ONLY = "Kafka's tiered storage is read-only here, and only its brokers add to it: refresh() reads new segments"
#: How many manifests are read at once.
MANIFESTS_AT_ONCE = 256
_PARTITION = re.compile(r"0|[1-9][0-9]{0,5}")
_OBJECT = re.compile(rf"(?P<stem>[0-9]{{20}}-{UUID_PATTERN})(?P<suffix>\.log|\.indexes|\.rsm-manifest)")
_log = logging.getLogger("distlog")
#: The sizes of a segment's objects, by suffix.
Sizes = Mapping[str, int]
#: For unknown numbers of a segment.
UNKNOWN = -1


class TieredTopic(Topic):
    """A topic in a bucket, as of its last `refresh`. Unsupported methods raise ReadOnlyTopicError."""

    def __init__(self, topic: RemoteTopic) -> None:
        storage = TieredStorage(topic)
        super().__init__(TopicHandle.of(storage, topic.name), load(storage), pinned=True, pin_reason=READ_ONLY)

    @property
    def _bucket(self) -> TieredStorage:
        assert isinstance(self.storage, TieredStorage)
        return self.storage

    def refresh(self) -> TieredTopic:
        """Read the segments that were uploaded or deleted since; reads only new manifests."""
        self.advance(load(self._bucket, self.version + 1))
        return self

    def history(self, limit: int | None = None) -> Listing:
        """Raise ReadOnlyTopicError: a bucket has no commits."""
        self._refuse("history")

    def groups(self) -> Listing:
        """Raise ReadOnlyTopicError: Kafka's groups are in its brokers."""
        self._refuse("groups")

    def verify(self, *, executor: Executor | None = None) -> VerifyReport:
        """Raise ReadOnlyTopicError: the checksums to compare are in commits. A scan checks every batch."""
        self._refuse("verify")

    def _refuse(self, feature: str) -> NoReturn:
        raise ReadOnlyTopicError(f"a topic in Kafka's tiered storage has no {feature}", url=self.url)

    def __reduce__(self) -> tuple[Any, ...]:
        return TieredTopic, (self._bucket.topic,)


def open_tiered(
    url: str, topic: str, topic_id: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> TieredTopic:
    """Open a topic of Kafka's tiered storage (KIP-405, Aiven's plugin) in a bucket, read-only and without a broker.

    Records that the brokers have not uploaded, in the active segments, are missing.

    Args:
        url: The bucket, with the plugin's `key.prefix`.
        topic: The name of the topic.
        topic_id: The id, if several topics had that name.
        storage_options: Options of the storage client.

    Returns:
        The topic. Methods that it does not support raise ReadOnlyTopicError.

    Raises:
        TopicNotFoundError: The topic is not in the bucket.
        UnsupportedVersionError: Segments are encrypted.
        CorruptMetadataError: A manifest is damaged, or offsets are missing.

    Examples:
        >>> distlog.open_tiered("tiered", "clicks")
        Traceback (most recent call last):
        distlog.core.errors.TopicNotFoundError: ...
    """
    return TieredTopic(find_topic(url, topic, topic_id, storage_options))


def load(storage: TieredStorage, version: int = 0) -> Snapshot:
    """Load the topic in the bucket as `version`; manifests that `storage` has are not read again."""
    listed, cached = list_segments(storage.topic), storage.files.segments
    current = {segment.stem: cached[segment.stem] for segment in listed if segment.stem in cached}
    new = read_manifests(storage.topic, [segment for segment in listed if segment.stem not in cached])
    storage.files.segments = current | {segment.stem: segment for segment in new}
    return _snapshot(storage, list(storage.files.segments.values()), version)


def _snapshot(storage: TieredStorage, uploaded: list[RemoteSegment], version: int) -> Snapshot:
    by_partition = groupby(sorted(uploaded, key=_PARTITION_OF), key=_PARTITION_OF)
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
        transactions=NO_TRANSACTIONS,
    )


@dataclass(frozen=True, slots=True)
class ListedSegment:
    partition: int
    stem: str
    sizes: Sizes


def list_segments(topic: RemoteTopic) -> list[ListedSegment]:
    """List the uploaded segments that have a manifest and a log, with one listing per partition, and one more."""
    names = (paths.last_part(folder) for folder in topic.bucket.list_folders(topic.folder))
    numbers = sorted(int(name) for name in names if _PARTITION.fullmatch(name) and int(name) < MAX_PARTITIONS)
    listings = in_parallel(lambda number: list(_listed(topic, number)), numbers)
    return [segment for segments in listings for segment in segments]


def _listed(topic: RemoteTopic, partition: int) -> Iterator[ListedSegment]:
    objects: dict[str, dict[str, int]] = {}
    for file in topic.bucket.list(f"{topic.folder}/{partition}"):
        if match := _OBJECT.fullmatch(paths.last_part(file.name)):
            objects.setdefault(match["stem"], {})[match["suffix"]] = file.size
    for stem, sizes in sorted(objects.items()):
        if MANIFEST in sizes and LOG in sizes:
            yield ListedSegment(partition, stem, sizes)
        elif MANIFEST in sizes:
            file_name = topic.file(partition, stem, MANIFEST)
            _log.warning("skipped a remote segment that is being deleted (file=%s)", file_name)


def read_manifests(topic: RemoteTopic, listed: Iterable[ListedSegment]) -> list[RemoteSegment]:
    """Read the manifests. Raises CorruptMetadataError also for an object of another size than in its manifest."""
    unread, segments = list(listed), []
    for start in range(0, len(unread), MANIFESTS_AT_ONCE):
        group = unread[start : start + MANIFESTS_AT_ONCE]
        ranges = [_manifest_range(topic, segment) for segment in group]
        for segment, data in zip(group, topic.bucket.read_ranges(ranges), strict=True):
            parsed = topic.parse(segment.partition, segment.stem, bytes(data))
            _check_sizes(topic, parsed, segment.sizes)
            segments.append(parsed)
    return segments


def _manifest_range(topic: RemoteTopic, segment: ListedSegment) -> tuple[str, int, int]:
    name, size = topic.file(segment.partition, segment.stem, MANIFEST), segment.sizes[MANIFEST]
    if size > MAX_MANIFEST_BYTES:
        raise CorruptMetadataError("the manifest of a remote segment is too large", file=name, size=size)
    return name, 0, size


def _check_sizes(topic: RemoteTopic, segment: RemoteSegment, sizes: Sizes) -> None:
    ends = [end for _, end in segment.indexes.values()]
    for suffix, least in ((LOG, segment.chunks.stored_bytes), (INDEXES, max(ends, default=0))):
        size = sizes.get(suffix, 0)
        if size < least or (suffix == LOG and size != least):
            raise CorruptMetadataError(
                "an object of a remote segment does not have the size in its manifest: restore it from a copy",
                file=topic.file(segment.partition, segment.stem, suffix),
                size=size,
                expected=least,
            )


class LogPart(NamedTuple):
    """A segment as part of a log, which is read up to `end_offset`, the start of the next segment."""

    segment: RemoteSegment
    end_offset: int


def log_parts(topic: RemoteTopic, uploaded: Iterable[RemoteSegment]) -> list[LogPart]:
    """Return the parts of a partition's log in the order of offsets, from all of its uploaded segments.

    A restarted broker may upload a segment again: of segments with the same start offset the longest is read, and of
    equally long ones the last upload. After a leader change segments overlap, since each broker rolls its own: as in
    Kafka, the one with the higher start offset is read from its start.

    Raises CorruptMetadataError for missing offsets.
    """
    parts: list[LogPart] = []
    for segment in sorted(uploaded, key=lambda remote: (remote.start_offset, -remote.next_offset, -remote.event_ms)):
        end = parts[-1].end_offset if parts else segment.start_offset
        if parts and segment.next_offset <= end:
            file = topic.file(segment.partition, segment.stem, LOG)
            _log.warning("skipped a duplicate upload of a segment (file=%s)", file)
            continue
        if segment.start_offset > end:
            raise CorruptMetadataError(
                "offsets are missing before this segment: the segment with them was deleted, so restore it, or "
                "its upload is incomplete, so try again later",
                file=topic.file(segment.partition, segment.stem, MANIFEST),
                partition=segment.partition,
                start_offset=segment.start_offset,
                expected=end,
            )
        if segment.start_offset < end:
            parts[-1] = LogPart(parts[-1].segment, segment.start_offset)
        parts.append(LogPart(segment, segment.next_offset))
    return parts


def partition_state(reader: SegmentReader, parts: Sequence[LogPart], unstable: int) -> PartitionState:
    """Return the state of a partition of `parts`, whose first open transaction starts at `unstable`."""
    infos = [segment_info(part.segment, NO_OFFSET) for part in parts[:-1]]
    infos = [_cut(reader, info, part.end_offset) for info, part in zip(infos, parts[:-1], strict=True)]
    infos.append(segment_info(parts[-1].segment, unstable))
    start, end = infos[0].base_offset, infos[-1].next_offset
    return PartitionState(log_start_offset=start, log_end_offset=end, segments=SegmentTable.of(infos))


def _cut(reader: SegmentReader, segment: SegmentInfo, end: int) -> SegmentInfo:
    """Cut the segment at the offset `end`. Raises CorruptMetadataError if a batch spans it."""
    if end == segment.next_offset:
        return segment
    for chunk in reader.chunks(SegmentSlice(segment, end - 1, segment.next_offset, 0, segment.log_bytes)):
        rows = np.flatnonzero(chunk.batches["base_offset"] + chunk.batches["last_offset_delta"] >= end)
        if len(rows) and chunk.batches["base_offset"][rows[0]] < end:
            break
        if len(rows):
            position = chunk.ranges[0].origin + int(chunk.batches["position"][rows[0]])
            # without its indexes, which have later entries
            return replace(segment, next_offset=end, log_bytes=position, offset_index_bytes=0, time_index_bytes=0)
    text = "two uploaded segments overlap, and no batch ends at the start of the second"
    raise CorruptMetadataError(text, file=reader.name(segment), partition=segment.partition, offset=end)


def segment_info(segment: RemoteSegment, unstable: int) -> SegmentInfo:
    """Describe a segment without reading it: it may hold transactions, and its number of records is unknown."""
    return SegmentInfo(
        partition=segment.partition,
        stem=segment.stem,
        base_offset=segment.start_offset,
        next_offset=segment.next_offset,
        stored_base_offset=segment.start_offset,
        record_count=UNKNOWN,
        log_bytes=segment.chunks.log_bytes,
        offset_index_bytes=segment.index_bytes(".index"),
        time_index_bytes=segment.index_bytes(".timeindex"),
        txn_index_bytes=segment.index_bytes(".txnindex"),
        first_timestamp=UNKNOWN,
        max_timestamp=segment.max_timestamp,
        offset_of_max_timestamp=UNKNOWN,
        compression="unknown",
        leader_epoch=segment.leader_epoch,
        has_transactions=True,
        created_ms=segment.event_ms,
        crc32c=0,
        first_unstable_offset=unstable,
    )


def first_unstable_offsets(storage: TieredStorage, last: Sequence[RemoteSegment]) -> list[int]:
    """Return the first unstable offset at the end of each of the `last` segments, or NO_OFFSET.

    It is the first offset of the earliest open transaction in the segment's producer snapshot.
    """
    names = [f"{storage.topic.name}-{segment.partition}/{segment.stem}{SNAPSHOT}" for segment in last]
    sizes = [segment.index_bytes(SNAPSHOT) for segment in last]
    ranges = [(name, 0, size) for name, size in zip(names, sizes, strict=True) if size]
    snapshots = iter(storage.read_ranges(ranges))
    return [
        _first_open(next(snapshots), name) if size else NO_OFFSET for name, size in zip(names, sizes, strict=True)
    ]


def _first_open(snapshot: memoryview, name: str) -> int:
    offsets = read_producer_snapshot(bytes(snapshot), file=name)["transaction_first_offset"]
    return int(offsets[offsets >= 0].min(initial=MAX_LONG)) if (offsets >= 0).any() else NO_OFFSET
