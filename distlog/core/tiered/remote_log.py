"""The log of a remote partition: which of its uploaded segments make it up, and what a snapshot says of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from distlog.core import paths
from distlog.core.commits.actions import MAX_PARTITIONS
from distlog.core.commits.segment_info import NO_OFFSET, SegmentInfo
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.commits.snapshot import PartitionState
from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptMetadataError, InvalidConfigError, TopicNotFoundError
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.reading.slices import SegmentSlice
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
from distlog.core.transactions.producer_states import read_producer_snapshot

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
    """The topic in a bucket; `url` has the plugin's `key.prefix`, which need not end in a slash."""
    paths.check_topic_name(topic)
    if topic_id is not None and not _TOPIC_ID.fullmatch(topic_id):
        raise InvalidConfigError("a topic id has 22 of the characters A-Z a-z 0-9 _ -", topic_id=repr(topic_id))
    topics = list(_named(Storage(url, storage_options), "", topic))
    if not topics and not url.endswith("/"):
        parent, _, prefix = url.rpartition("/")
        if parent and not parent.endswith(("/", ":")):
            topics = list(_named(Storage(parent, storage_options), prefix, topic))
    chosen = [each for each in topics if topic_id in (None, each.topic_id)]
    if len(chosen) > 1:
        ids = ", ".join(each.topic_id for each in chosen)
        raise InvalidConfigError(
            f"the bucket has several topics of this name: choose a topic_id of {ids}", topic=topic
        )
    if not chosen:
        text = "Kafka's tiered storage has no such topic here: give the bucket, the key prefix, and the topic's name"
        raise TopicNotFoundError(text, url=Storage(url, storage_options).url, topic=topic, topic_id=topic_id)
    return chosen[0]


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
    """The segments that were uploaded, by the names of their objects: one listing for each partition, and one more.

    Objects without a manifest are left from a failed upload, or a deletion has not come to them: they do not count.
    A manifest whose log is deleted already does not either.
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
            _log.warning("a remote segment is being deleted, so it is left out (file=%s)", file_name)


def read_manifests(topic: RemoteTopic, listed: Iterable[ListedSegment]) -> list[RemoteSegment]:
    """The contents of the manifests; CorruptMetadataError also for an object of another size than in its manifest."""
    wanted, segments = list(listed), []
    for start in range(0, len(wanted), MANIFESTS_AT_ONCE):
        group = wanted[start : start + MANIFESTS_AT_ONCE]
        places = [_place(topic, segment) for segment in group]
        for segment, data in zip(group, topic.bucket.read_ranges(places), strict=True):
            parsed = topic.parse(segment.partition, segment.stem, bytes(data))
            _check_sizes(topic, parsed, segment.sizes)
            segments.append(parsed)
    return segments


def _place(topic: RemoteTopic, segment: ListedSegment) -> tuple[str, int, int]:
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


#: For unknown facts of a segment.
UNKNOWN = -1


class LogPart(NamedTuple):
    """A segment as part of a log, which is read only up to `end_offset`: there the next one begins."""

    segment: RemoteSegment
    end_offset: int


def log_parts(topic: RemoteTopic, uploaded: Iterable[RemoteSegment]) -> list[LogPart]:
    """The parts of a partition's log, in the order of their offsets, from all of its segments that were uploaded.

    A segment may have been uploaded more than once, since a broker that died begins again: of two that hold the same
    offsets the one with more of them counts, then the one whose upload began last. After a change of the leader two
    may overlap, since each broker rolls its segments by itself: as in Kafka, the one that begins later is read from
    there on. Raises CorruptMetadataError for offsets that are in no segment.
    """
    parts: list[LogPart] = []
    for segment in sorted(uploaded, key=lambda each: (each.start_offset, -each.next_offset, -each.event_ms)):
        end = parts[-1].end_offset if parts else segment.start_offset
        if parts and segment.next_offset <= end:
            file = topic.file(segment.partition, segment.stem, LOG)
            _log.warning("a segment was uploaded twice; this one is not read (file=%s)", file)
            continue
        if segment.start_offset > end:
            raise CorruptMetadataError(
                "there are offsets that no uploaded segment holds: an upload was deleted or is not complete",
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
    """The state of a partition of these parts, at whose end the first open transaction begins at `unstable`."""
    infos = [segment_info(part.segment, NO_OFFSET) for part in parts[:-1]]
    infos = [_cut(reader, info, part.end_offset) for info, part in zip(infos, parts[:-1], strict=True)]
    infos.append(segment_info(parts[-1].segment, unstable))
    start, end = infos[0].base_offset, infos[-1].next_offset
    return PartitionState(log_start_offset=start, log_end_offset=end, segments=SegmentTable.of(infos))


def _cut(reader: SegmentReader, segment: SegmentInfo, end: int) -> SegmentInfo:
    """The segment up to the offset `end`; raises CorruptMetadataError if a batch goes on there."""
    if end == segment.next_offset:
        return segment
    for chunk in reader.chunks(SegmentSlice(segment, end - 1, segment.next_offset, 0, segment.log_bytes)):
        rows = np.flatnonzero(chunk.batches["base_offset"] + chunk.batches["last_offset_delta"] >= end)
        if len(rows) and chunk.batches["base_offset"][rows[0]] < end:
            break
        if len(rows):
            position = chunk.pieces[0].origin + int(chunk.batches["position"][rows[0]])
            # the entries of its indexes go on beyond that
            return replace(segment, next_offset=end, log_bytes=position, offset_index_bytes=0, time_index_bytes=0)
    raise CorruptMetadataError(
        "two uploaded segments overlap, and no batch ends where the second begins",
        file=reader.name(segment),
        partition=segment.partition,
        offset=end,
    )


def segment_info(segment: RemoteSegment, unstable: int) -> SegmentInfo:
    """The facts about a segment without its log: it may hold transactions, and its number of records is unknown."""
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
    """The first open offset at the end of each of the `last` segments, by its producers; NO_OFFSET for none."""
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
