"""The log of a remote partition, from its uploaded segments, and their entries in a snapshot."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from distlog.core import paths
from distlog.core.commits.actions import MAX_PARTITIONS
from distlog.core.commits.segment_table import NO_OFFSET, SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState
from distlog.core.errors import CorruptMetadataError, InvalidConfigError, TopicNotFoundError
from distlog.core.integers import MAX_LONG
from distlog.core.segments.producer_states import read_producer_snapshot
from distlog.core.segments.segment_reader import SegmentReader
from distlog.core.segments.slices import SegmentSlice
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import Storage
from distlog.core.tiered.tiered_storage import (
    INDEXES,
    LOG,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    SNAPSHOT,
    RemoteSegment,
    RemoteTopic,
    TieredStorage,
)

#: How many manifests are read at once.
MANIFESTS_AT_ONCE = 256

_UUID = "[A-Za-z0-9_-]{22}"
_TOPIC_ID = re.compile(_UUID)
_PARTITION = re.compile(r"0|[1-9][0-9]{0,5}")
_OBJECT = re.compile(rf"(?P<stem>[0-9]{{20}}-{_UUID})(?P<suffix>\.log|\.indexes|\.rsm-manifest)")

_log = logging.getLogger("distlog")

#: The sizes of a segment's objects, by suffix.
Sizes = Mapping[str, int]


def find_topic(
    url: str, topic: str, topic_id: str | None, storage_options: Mapping[str, Any] | None = None
) -> RemoteTopic:
    """Find a topic in a bucket; `url` includes the plugin's `key.prefix`, which need not end in a slash."""
    paths.check_topic_name(topic)
    if topic_id is not None and not _TOPIC_ID.fullmatch(topic_id):
        raise InvalidConfigError("a topic id has 22 of the characters A-Z a-z 0-9 _ -", topic_id=repr(topic_id))
    topics = list(_named(Storage(url, storage_options), "", topic))
    if not topics and not url.endswith("/"):
        parent, _, prefix = url.rpartition("/")
        if parent and not parent.endswith(("/", ":")):
            topics = list(_named(Storage(parent, storage_options), prefix, topic))
    candidates = [remote for remote in topics if topic_id in (None, remote.topic_id)]
    if len(candidates) > 1:
        ids = ", ".join(remote.topic_id for remote in candidates)
        raise InvalidConfigError(f"the bucket has several topics of this name: use a topic_id of {ids}", topic=topic)
    if not candidates:
        text = (
            "the topic is not in Kafka's tiered storage here: check the bucket, the key prefix and the topic's name"
        )
        raise TopicNotFoundError(text, url=Storage(url, storage_options).url, topic=topic, topic_id=topic_id)
    return candidates[0]


def _named(bucket: Storage, prefix: str, topic: str) -> Iterator[RemoteTopic]:
    for folder in sorted(bucket.list_folders()):
        name, dash, topic_id = folder[:-23], folder[-23:-22], folder[-22:]
        if (name, dash) == (prefix + topic, "-") and _TOPIC_ID.fullmatch(topic_id):
            yield RemoteTopic(bucket, folder, topic, topic_id)


@dataclass(frozen=True, slots=True)
class ListedSegment:
    partition: int
    stem: str
    sizes: Sizes


def list_segments(topic: RemoteTopic) -> list[ListedSegment]:
    """List the uploaded segments by the names of their objects, with one listing per partition, and one more.

    Ignores objects without a manifest, which a failed upload or an unfinished deletion left, and manifests without a
    log.
    """
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


#: For unknown numbers of a segment.
UNKNOWN = -1


class LogPart(NamedTuple):
    """A segment as part of a log, which is read up to `end_offset`, the start of the next segment."""

    segment: RemoteSegment
    end_offset: int


def log_parts(topic: RemoteTopic, uploaded: Iterable[RemoteSegment]) -> list[LogPart]:
    """Return the parts of a partition's log in the order of offsets, from all of its uploaded segments.

    A broker that restarts may upload a segment again: among segments with the same start, the one with most offsets
    applies, then the last upload. After a change of the leader, segments may overlap, since every broker rolls its
    own segments: as in Kafka, the later segment is read from its start. Raises CorruptMetadataError for missing
    offsets.
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
                "offsets are missing in the uploaded segments: an upload was deleted or is incomplete",
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
    raise CorruptMetadataError(
        "two uploaded segments overlap, and no batch ends at the start of the second",
        file=reader.name(segment),
        partition=segment.partition,
        offset=end,
    )


def segment_info(segment: RemoteSegment, unstable: int) -> SegmentInfo:
    """Describe a segment without its log: it may hold transactions, and its number of records is unknown."""
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
    """Return the first open offset at the end of the `last` segments, by their producers, or NO_OFFSET."""
    names = [f"{storage.topic.name}-{segment.partition}/{segment.stem}{SNAPSHOT}" for segment in last]
    sizes = [segment.index_bytes(SNAPSHOT) for segment in last]
    indexes = storage.read_ranges([(name, 0, size) for name, size in zip(names, sizes, strict=True) if size])
    snapshots = iter(indexes)
    return [
        _first_open(next(snapshots), name) if size else NO_OFFSET for name, size in zip(names, sizes, strict=True)
    ]


def _first_open(snapshot: memoryview, name: str) -> int:
    offsets = read_producer_snapshot(bytes(snapshot), file=name)["transaction_first_offset"]
    return int(offsets[offsets >= 0].min(initial=MAX_LONG)) if (offsets >= 0).any() else NO_OFFSET
