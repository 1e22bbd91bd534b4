"""Reads topics in Kafka's tiered storage (KIP-405, Aiven's plugin): presents a topic in a bucket as a folder.

`TieredStorage` presents the bucket's objects as segment files, which readers read as in any other topic. `load`
builds a Snapshot, the state of the topic, from the manifests: a JSON object describes each uploaded segment.
"""

from __future__ import annotations

import base64
import binascii
import errno
import itertools
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

import numpy as np

from distlog.core import paths
from distlog.core.arrays import MAX_INT, MAX_LONG, Longs
from distlog.core.commits import fields
from distlog.core.commits.actions import MAX_PARTITIONS
from distlog.core.commits.deduplication import NO_TRANSACTIONS
from distlog.core.commits.fields import LONG, Integer
from distlog.core.commits.partition_table import PartitionTable
from distlog.core.commits.segment_table import NO_OFFSET, SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import (
    CorruptMetadataError,
    CorruptRecordError,
    InvalidConfigError,
    ReadOnlyTopicError,
    SnapshotTooOldError,
    TopicNotFoundError,
    UnsupportedVersionError,
)
from distlog.core.format.compression import ZSTD, decompress
from distlog.core.format.indexes import IndexCache
from distlog.core.segments.chunks import SegmentSlice
from distlog.core.segments.producer_states import read_producer_snapshot
from distlog.core.segments.segment_reader import SegmentReader
from distlog.core.storage.calls import Task, in_parallel, process_lock
from distlog.core.storage.storage import Storage

#: The most chunks of a log; their bounds take 32 MiB.
MAX_CHUNKS = 1 << 22
_NUMBER, _SIZE = Integer(0, MAX_INT), Integer(1, MAX_INT)
_MAX_WIDTH = 4  # the most bytes of a size in `transformedChunks`
#: The most bytes of cached chunks; CACHE_CHUNKS of any size always fit. The cache has the chunks in which reads began
#: or ended, since the next read may need their remaining bytes.
CACHE_BYTES, CACHE_CHUNKS = 32 << 20, 2
#: A chunk: the name of the object, and its number there.
Key = tuple[str, int]
Chunks = dict[Key, memoryview]
#: The most bytes of a manifest, which has the sizes of all chunks.
MAX_MANIFEST_BYTES = 32 << 20
SNAPSHOT = ".snapshot"  # the suffix of a producer snapshot, the states of a partition's producers at a segment's end
#: The names of the indexes in the manifest, by the suffixes of their files.
_INDEXES = {".index": "offset", ".timeindex": "timestamp", ".txnindex": "transaction", SNAPSHOT: "producerSnapshot"}
_VERSION = "1"
_TIMESTAMP = Integer(-1, MAX_LONG)
#: A uuid as Kafka writes it.
UUID_PATTERN = "[A-Za-z0-9_-]{22}"
_TOPIC_ID = re.compile(UUID_PATTERN)
_TOPIC_FOLDER = re.compile(rf"(?P<name>.*)-(?P<id>{UUID_PATTERN})", re.DOTALL)
#: The objects of a segment: its chunks back to back, its index files back to back, and JSON, which is written last.
LOG, INDEXES, MANIFEST = ".log", ".indexes", ".rsm-manifest"
#: A file that readers request, `<topic>-<partition>/<stem>.log` or an index. A stem is a start offset and a uuid.
_FILE = re.compile(rf".*-(?P<partition>\d+)/(?P<stem>[0-9]{{20}}-{UUID_PATTERN})(?P<suffix>\.[a-z]+)", re.DOTALL)
_PARTITION_OF = attrgetter("partition")
MANIFESTS_AT_ONCE = 256
_PARTITION = re.compile(r"0|[1-9][0-9]{0,5}")
_OBJECT = re.compile(rf"(?P<stem>[0-9]{{20}}-{UUID_PATTERN})(?P<suffix>\.log|\.indexes|\.rsm-manifest)")
_log = logging.getLogger("distlog")
#: The sizes of a segment's objects, by suffix.
Sizes = Mapping[str, int]
#: Stands for an unknown number in a segment.
UNKNOWN = -1


class TieredStorage(Storage):
    """A remote topic as a folder of segment files. A pickled copy reads the manifests again, as it needs them."""

    def __init__(self, topic: RemoteTopic) -> None:
        self.topic = topic
        # the same as the topic's folder in the bucket, except for the backend
        self.__dict__.update(topic.bucket.child(topic.folder).__dict__)
        self.files = TieredFiles(topic, self.url)
        self._backend: Any = self.files

    @property
    def name(self) -> str:
        return self.topic.name

    def __reduce__(self) -> tuple[Any, ...]:
        return TieredStorage, (self.topic,)


@dataclass(frozen=True, slots=True)
class RemoteTopic:
    """A topic in a bucket: `folder` of `bucket` has a folder for each partition."""

    bucket: Storage
    folder: str
    name: str
    topic_id: str

    def file(self, partition: int, stem: str, suffix: str) -> str:
        return f"{self.folder}/{partition}/{stem}{suffix}"

    def parse(self, partition: int, stem: str, data: bytes) -> RemoteSegment:
        """Parse the manifest `data` of the segment `stem`. Raises UnsupportedVersionError if it is encrypted."""
        file = f"{self.bucket.url.rstrip('/')}/{self.file(partition, stem, MANIFEST)}"
        try:
            value = fields.parse(data)
            if not isinstance(value, dict):
                raise ValueError("the manifest must be an object")
            if value.get("version") != _VERSION:
                text = "a remote segment has a manifest of an unknown version: upgrade"
                raise UnsupportedVersionError(text, file=file, version=repr(value.get("version"))[:40])
            if value.get("encryption") is not None:
                raise UnsupportedVersionError(
                    "a remote segment is encrypted; its key is wrapped by a key pair of the Kafka cluster, so only "
                    "its brokers can read it: let them serve the topic",
                    file=file,
                )
            return self._segment(value, partition, stem)
        except (ValueError, RecursionError) as error:
            text = f"the manifest of a remote segment is malformed: {error}; restore it from a copy"
            raise CorruptMetadataError(text, file=file) from None

    def _segment(self, value: dict[str, Any], partition: int, stem: str) -> RemoteSegment:
        metadata = _member(value, "remoteLogSegmentMetadata")
        segment = _member(metadata, "remoteLogSegmentId")
        owner = _member(segment, "topicIdPartition")
        topic = _member(owner, "topicPartition")
        identity = (segment.get("id"), owner.get("topicId"), topic.get("topic"), topic.get("partition"))
        start_in_name, _, id_in_name = stem.partition("-")
        if identity != (id_in_name, self.topic_id, self.name, partition):
            raise ValueError(f"it is the manifest of another segment: {identity}")
        start, end = LONG(metadata.get("startOffset")), LONG(metadata.get("endOffset"))
        if start != int(start_in_name):
            raise ValueError(f"it starts at offset {start}, but its name has another start offset")
        if not start <= end < MAX_LONG:
            raise ValueError(f"its end offset {end} is below its start offset {start}, or too large")
        compressed = value.get("compression")
        if not isinstance(compressed, bool):
            raise ValueError(f"compression must be true or false, not {repr(compressed)[:40]}")
        epochs = _member(metadata, "segmentLeaderEpochs")
        if not epochs or not all(name.isdecimal() and len(name) <= len(str(MAX_INT)) for name in epochs):
            raise ValueError("segmentLeaderEpochs must be an object of start offsets by epoch")
        return RemoteSegment(
            stem=stem,
            partition=partition,
            start_offset=start,
            next_offset=end + 1,
            max_timestamp=_TIMESTAMP(metadata.get("maxTimestampMs")),
            event_ms=LONG(metadata.get("eventTimestampMs")),
            leader_epoch=_NUMBER(min(map(int, epochs))),  # of its first record
            chunks=ChunkIndex.parse(value.get("chunkIndex"), compressed=compressed),
            indexes=_index_ranges(_member(value, "segmentIndexes")),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ChunkIndex:
    """The positions of a log's chunks in an object: chunk i has `chunk_bytes` of the log, and begins at bounds[i]."""

    log_bytes: int
    chunk_bytes: int
    #: None if the log is not compressed, since the object has the log's own bytes.
    bounds: Longs | None

    @property
    def stored_bytes(self) -> int:
        return self.log_bytes if self.bounds is None else int(self.bounds[-1])

    def numbers(self, start: int, end: int) -> range:
        """Return the numbers of the chunks that have the bytes [start, end) of the log."""
        return range(start // self.chunk_bytes, -(-end // self.chunk_bytes)) if start < end else range(0)

    def log_position(self, number: int) -> int:
        return min(number * self.chunk_bytes, self.log_bytes)

    def object_range(self, number: int) -> tuple[int, int]:
        assert self.bounds is not None
        return int(self.bounds[number]), int(self.bounds[number + 1])

    @classmethod
    def parse(cls, value: Any, *, compressed: bool) -> ChunkIndex:
        if not isinstance(value, dict) or value.get("type") not in ("fixed", "variable"):
            raise ValueError("chunkIndex must be an object of type fixed or variable")
        log_bytes, chunk_bytes = _NUMBER(value.get("originalFileSize")), _SIZE(value.get("originalChunkSize"))
        if not compressed:
            return cls(log_bytes, chunk_bytes, None)
        count = -(-log_bytes // chunk_bytes)
        if count > MAX_CHUNKS:
            raise ValueError(f"chunkIndex has {count} chunks, more than {MAX_CHUNKS}")
        if value["type"] == "fixed":
            sizes = np.full(count, _SIZE(value.get("transformedChunkSize")), np.int64)
            sizes[-1:] = _SIZE(value.get("finalTransformedChunkSize"))
        else:
            sizes = _variable_sizes(value, count)
        if (sizes <= 0).any():
            raise ValueError("chunkIndex has a chunk without bytes")
        return cls(log_bytes, chunk_bytes, np.concatenate([[0], np.cumsum(sizes)]))


def _variable_sizes(value: dict[str, Any], count: int) -> Longs:
    """Return the sizes in `transformedChunks`: base64 of a zstd frame."""
    # The frame has the number of chunks (int32), and the size of the last chunk (int32). Between them, if there are
    # several chunks, are a base (int32), a width (1 byte), and for each chunk but the last, its size less the base in
    # `width` bytes. Numbers are big-endian. Without these differences, the frame has at most 13 bytes.
    try:
        frame = base64.b64decode(value.get("transformedChunks", ""), validate=True)
        data = bytes(decompress(ZSTD, frame, limit=16 + _MAX_WIDTH * count))
    except (TypeError, binascii.Error, CorruptRecordError) as error:
        raise ValueError(f"transformedChunks is not base64 of a zstd frame: {error}") from None
    width = data[8] if count > 1 and len(data) > 8 else 0
    base_and_difference_bytes = 5 + width * (count - 1) if count > 1 else 0
    expected_bytes = 4 + base_and_difference_bytes + (4 if count else 0)
    if len(data) != expected_bytes or int.from_bytes(data[:4], "big") != count or width > _MAX_WIDTH:
        raise ValueError(f"transformedChunks does not have the sizes of all {count} chunks")
    sizes = np.zeros(count, np.int64)
    if count > 1:
        # a row for each difference, with its bytes from the most significant one on
        digits = np.frombuffer(data, np.uint8, count=width * (count - 1), offset=9).reshape(count - 1, width)
        powers = 256 ** np.arange(width - 1, -1, -1, dtype=np.int64)
        sizes[:-1] = int.from_bytes(data[4:8], "big", signed=True) + digits.astype(np.int64) @ powers
    sizes[-1:] = int.from_bytes(data[-4:], "big", signed=True)
    return sizes


@dataclass(frozen=True, slots=True)
class ChunkedRange:
    """Bytes [start, end) of a compressed log in the object `name`."""

    name: str
    chunks: ChunkIndex
    start: int
    end: int

    @property
    def keys(self) -> list[Key]:
        return [(self.name, number) for number in self.chunks.numbers(self.start, self.end)]

    def bytes_in(self, key: Key, chunk: memoryview) -> memoryview:
        """Return the bytes of the range in the decompressed `chunk`, whose key is `key`."""
        chunk_start = self.chunks.log_position(key[1])
        return chunk[max(self.start - chunk_start, 0) : self.end - chunk_start]


class ChunkReader:
    """Reads compressed logs in `bucket`. Safe between threads, which share concurrent fetches."""

    def __init__(self, bucket: Storage) -> None:
        self._bucket, self._lock, self._process = bucket, process_lock(), os.getpid()
        self._fetches: dict[Key, Task[Chunks]] = {}
        self._cache: OrderedDict[Key, memoryview] = OrderedDict()

    def read(self, ranges: Sequence[ChunkedRange]) -> list[memoryview]:
        """Read ranges; fetches missing chunks together. Raises CorruptRecordError for a bad chunk."""
        requested = {key: chunked for chunked in ranges for key in chunked.keys}
        chunks, tasks, own_keys = self._start_fetch(requested)
        try:
            for task in tasks:
                chunks |= task.wait()
        finally:
            self._finish_fetch(ranges, chunks, own_keys)
        return [_joined([chunked.bytes_in(key, chunks[key]) for key in chunked.keys]) for chunked in ranges]

    def _start_fetch(self, requested: dict[Key, ChunkedRange]) -> tuple[Chunks, list[Task[Chunks]], list[Key]]:
        """Return cached chunks, the fetches of the missing ones, which `wait` starts, and the keys of a new fetch."""
        with self._lock:
            if self._process != os.getpid():
                # after a fork, since the parent's threads do not finish their fetches here
                self._process, self._fetches = os.getpid(), {}
            chunks = {key: self._cache[key] for key in requested if key in self._cache}
            # by id, since one task may fetch several of the chunks
            tasks = {id(task): task for key in requested if (task := self._fetches.get(key))}
            own_keys = [key for key in requested if key not in chunks and key not in self._fetches]
            if own_keys:
                task = Task(partial(self._fetch, [(key, requested[key].chunks) for key in own_keys]))
                self._fetches |= dict.fromkeys(own_keys, task)
                tasks[id(task)] = task
            return chunks, list(tasks.values()), own_keys

    def _finish_fetch(self, ranges: Iterable[ChunkedRange], chunks: Chunks, own_keys: Iterable[Key]) -> None:
        with self._lock:
            for key in own_keys:
                self._fetches.pop(key, None)
            for chunked in ranges:
                for key in (*chunked.keys[:1], *chunked.keys[-1:]):
                    if key in chunks:
                        self._cache[key] = chunks[key]
                        self._cache.move_to_end(key)
            while len(self._cache) > CACHE_CHUNKS and sum(map(len, self._cache.values())) > CACHE_BYTES:
                self._cache.popitem(last=False)

    def _fetch(self, requested: Sequence[tuple[Key, ChunkIndex]]) -> Chunks:
        ranges = [(name, *chunks.object_range(number)) for (name, number), chunks in requested]
        stored = self._bucket.read_ranges(ranges)
        return {
            key: _decompressed(data, chunks.log_position(key[1] + 1) - chunks.log_position(key[1]), stored_range)
            for (key, chunks), data, stored_range in zip(requested, stored, ranges, strict=True)
        }


def _decompressed(data: memoryview, size: int, stored_range: tuple[str, int, int]) -> memoryview:
    name, position, _ = stored_range
    try:
        decompressed = decompress(ZSTD, data, limit=size)
    except CorruptRecordError as error:
        text = f"a chunk of a remote segment does not decompress: {error.message}; restore the file from a copy"
        raise CorruptRecordError(text, file=name, position=position) from None
    if len(decompressed) != size:
        text = "a chunk of a remote segment does not have the size in its manifest: restore the file from a copy"
        raise CorruptRecordError(text, file=name, position=position, size=len(decompressed), expected=size)
    return decompressed.toreadonly()


def _joined(fragments: Sequence[memoryview]) -> memoryview:
    return fragments[0] if len(fragments) == 1 else memoryview(b"".join(fragments))


@dataclass(frozen=True, slots=True, eq=False)
class RemoteSegment:
    """An uploaded segment; `indexes` has the (start, end) of each nonempty index in `.indexes`, by suffix."""

    stem: str
    partition: int
    start_offset: int
    next_offset: int
    max_timestamp: int
    #: When the upload started.
    event_ms: int
    leader_epoch: int
    chunks: ChunkIndex
    indexes: Mapping[str, tuple[int, int]]

    def index_bytes(self, suffix: str) -> int:
        start, end = self.indexes.get(suffix, (0, 0))
        return end - start


def _member(value: dict[str, Any], name: str) -> dict[str, Any]:
    member = value.get(name)
    if not isinstance(member, dict):
        raise ValueError(f"{name} must be an object")
    return member


def _index_ranges(indexes: dict[str, Any]) -> dict[str, tuple[int, int]]:
    ranges = {}
    for suffix, name in _INDEXES.items():
        location = indexes.get(name)
        if location is None and suffix == ".txnindex":
            continue
        if not isinstance(location, dict):
            raise ValueError(f"segmentIndexes must have an object {name}")
        start, size = _NUMBER(location.get("position")), _NUMBER(location.get("size"))
        if size:
            ranges[suffix] = start, start + size
    if any(start < end for (_, end), (start, _) in itertools.pairwise(sorted(ranges.values()))):
        # a reader would take one index for another, and a wrong transaction index hides records
        raise ValueError("segmentIndexes has ranges that overlap")
    return ranges


class TieredFiles:
    """The read-only backend of `TieredStorage`. A file is a range of an object, or of its decompressed chunks."""

    def __init__(self, topic: RemoteTopic, url: str) -> None:
        self._topic, self._prefix = topic, f"{url}/"
        self._chunks = ChunkReader(topic.bucket)
        #: The segments with a read manifest, by stem; other manifests are read when they are needed.
        self.segments: dict[str, RemoteSegment] = {}

    def read(self, path: str, start: int, end: int | None) -> bytes:
        return bytes(self.read_ranges([(path, start, self.size(path) if end is None else end)])[0])

    def read_joined(self, ranges: Sequence[tuple[str, int, int]]) -> memoryview:
        return _joined(self.read_ranges(ranges))

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[memoryview]:
        # by index in `ranges`: the ranges of indexes and uncompressed logs in objects, and ranges of compressed logs
        stored: dict[int, tuple[str, int, int]] = {}
        chunked: dict[int, ChunkedRange] = {}
        for number, (path, start, end) in enumerate(ranges):
            segment, suffix = self._segment_of(path)
            log_end = min(end, segment.chunks.log_bytes)
            if suffix != LOG:
                index_start, index_end = segment.indexes[suffix]
                stored_end = min(index_start + end, index_end)
                stored[number] = self._object(segment, INDEXES), index_start + start, stored_end
            elif segment.chunks.bounds is None:
                stored[number] = self._object(segment, LOG), start, log_end
            else:
                chunked[number] = ChunkedRange(self._object(segment, LOG), segment.chunks, start, log_end)
        try:
            contents = dict(zip(stored, self._topic.bucket.read_ranges(list(stored.values())), strict=True))
            contents |= dict(zip(chunked, self._chunks.read(list(chunked.values())), strict=True))
        except FileNotFoundError as error:
            if not any(path.endswith(LOG) for path, _, _ in ranges):
                raise  # the reader continues without the index
            text = "a remote segment was deleted, as by the broker's retention: refresh the topic and read again"
            raise SnapshotTooOldError(text, file=error.filename or str(error)) from None
        return [contents[number] for number in range(len(ranges))]

    def size(self, path: str) -> int:
        segment, suffix = self._segment_of(path)
        return segment.chunks.log_bytes if suffix == LOG else segment.index_bytes(suffix)

    def _object(self, segment: RemoteSegment, suffix: str) -> str:
        return self._topic.file(segment.partition, segment.stem, suffix)

    def _segment_of(self, path: str) -> tuple[RemoteSegment, str]:
        match = _FILE.fullmatch(path.removeprefix(self._prefix))
        if match is None:
            raise FileNotFoundError(errno.ENOENT, "the tiered topic does not have this file", path)
        stem, partition = match["stem"], int(match["partition"])
        segment = self.segments.get(stem)
        if segment is None:
            manifest = self._topic.bucket.read(self._topic.file(partition, stem, MANIFEST), 0, MAX_MANIFEST_BYTES)
            segment = self.segments[stem] = self._topic.parse(partition, stem, manifest)
        if match["suffix"] != LOG and match["suffix"] not in segment.indexes:
            raise FileNotFoundError(errno.ENOENT, "the tiered topic does not have this index", path)
        return segment, match["suffix"]

    def replied_ms(self) -> int:
        return 0  # unknown: only commits need the store's time

    def _list_nothing(self, *_: object) -> Any:
        return ()

    def _refuse(self, *_: object) -> NoReturn:
        text = "a topic in Kafka's tiered storage is read-only: write to it by its brokers"
        raise ReadOnlyTopicError(text, url=self._prefix.rstrip("/"))

    # `load` lists the objects in the bucket instead
    entries = files_after = uploads = _list_nothing
    put_many = put_if_absent = probe_put_if_absent = sync = open_write = delete = abort_uploads = _refuse
    # only writers need the store's time, and the time of a file
    now_ms = modified_ms = _refuse


def find_topic(
    url: str, topic: str, topic_id: str | None, storage_options: Mapping[str, Any] | None = None
) -> RemoteTopic:
    """Find a topic in a bucket; `url` includes the plugin's `key.prefix`, which need not end in a slash."""
    paths.check_topic_name(topic)
    if topic_id is not None and not _TOPIC_ID.fullmatch(topic_id):
        raise InvalidConfigError("a topic id must have 22 of the characters A-Z a-z 0-9 _ -", topic_id=repr(topic_id))
    topics = list(_find_by_name(Storage(url, storage_options), "", topic))
    if not topics and not url.endswith("/"):
        # a key prefix without a slash at its end begins the names of the topics' folders
        parent, _, prefix = url.rpartition("/")
        if parent and not parent.endswith(("/", ":")):
            topics = list(_find_by_name(Storage(parent, storage_options), prefix, topic))
    candidates = [remote for remote in topics if topic_id in (None, remote.topic_id)]
    if len(candidates) > 1:
        ids = ", ".join(remote.topic_id for remote in candidates)
        raise InvalidConfigError(f"the bucket has several topics of this name: use a topic_id of {ids}", topic=topic)
    if not candidates:
        text = "the bucket has no tiered topic of this name: check the bucket, the key prefix and the topic's name"
        raise TopicNotFoundError(text, url=Storage(url, storage_options).url, topic=topic, topic_id=topic_id)
    return candidates[0]


def _find_by_name(bucket: Storage, prefix: str, topic: str) -> Iterator[RemoteTopic]:
    for folder in sorted(bucket.list_folders()):
        match = _TOPIC_FOLDER.fullmatch(folder)
        if match and match["name"] == prefix + topic:
            yield RemoteTopic(bucket, folder, topic, match["id"])


def load(storage: TieredStorage, version: int = 0) -> Snapshot:
    """Load the topic in the bucket as the snapshot `version`; manifests that `storage` has are not read again."""
    listed, cached = list_segments(storage.topic), storage.files.segments
    cached_segments = {segment.stem: cached[segment.stem] for segment in listed if segment.stem in cached}
    new_segments = read_manifests(storage.topic, [segment for segment in listed if segment.stem not in cached])
    storage.files.segments = cached_segments | {segment.stem: segment for segment in new_segments}
    uploaded = sorted(storage.files.segments.values(), key=_PARTITION_OF)
    logs = {number: log_spans(storage.topic, segments) for number, segments in groupby(uploaded, key=_PARTITION_OF)}
    unstable = first_unstable_offsets(storage, [spans[-1].segment for spans in logs.values()])
    reader = SegmentReader(storage, storage.topic.name, IndexCache())
    states = [PartitionState()] * (max(logs, default=-1) + 1)
    for (number, spans), first_unstable in zip(logs.items(), unstable, strict=True):
        # the last segment has the partition's first unstable offset: the start of the earliest open transaction
        infos = [_cut_at(reader, segment_info(span.segment, NO_OFFSET), span.end_offset) for span in spans[:-1]]
        infos.append(segment_info(spans[-1].segment, first_unstable))
        start, end = infos[0].base_offset, infos[-1].next_offset
        states[number] = PartitionState(log_start_offset=start, log_end_offset=end, segments=SegmentTable.of(infos))
    return Snapshot(
        version=version,
        commit_id="",
        topic_id=storage.topic.topic_id,
        name=storage.topic.name,
        timestamp_ms=max((segment.event_ms for segment in uploaded), default=0),
        config=TopicConfig(),
        partitions=PartitionTable.of(states),
        transactions=NO_TRANSACTIONS,
    )


@dataclass(frozen=True, slots=True)
class ListedSegment:
    partition: int
    stem: str
    sizes: Sizes


def list_segments(topic: RemoteTopic) -> list[ListedSegment]:
    """List the segments that have a manifest and a log, with one listing for the topic and one for each partition."""
    names = (paths.last_part(folder) for folder in topic.bucket.list_folders(topic.folder))
    numbers = sorted(int(name) for name in names if _PARTITION.fullmatch(name) and int(name) < MAX_PARTITIONS)
    listings = in_parallel(partial(_list_partition, topic), numbers)
    return [segment for segments in listings for segment in segments]


def _list_partition(topic: RemoteTopic, partition: int) -> list[ListedSegment]:
    objects: dict[str, dict[str, int]] = {}
    for file in topic.bucket.list(f"{topic.folder}/{partition}"):
        if match := _OBJECT.fullmatch(paths.last_part(file.name)):
            objects.setdefault(match["stem"], {})[match["suffix"]] = file.size
    uploaded = {stem: objects[stem] for stem in sorted(objects) if MANIFEST in objects[stem]}
    for stem in (stem for stem, sizes in uploaded.items() if LOG not in sizes):
        file_name = topic.file(partition, stem, MANIFEST)
        _log.warning("skipped a remote segment that is being deleted (file=%s)", file_name)
    return [ListedSegment(partition, stem, sizes) for stem, sizes in uploaded.items() if LOG in sizes]


def read_manifests(topic: RemoteTopic, listed: Iterable[ListedSegment]) -> list[RemoteSegment]:
    """Read the manifests. Raises CorruptMetadataError also for an object of another size than in its manifest."""
    unread, segments = list(listed), []
    for start in range(0, len(unread), MANIFESTS_AT_ONCE):
        group = unread[start : start + MANIFESTS_AT_ONCE]
        ranges = []
        for segment in group:
            name, size = topic.file(segment.partition, segment.stem, MANIFEST), segment.sizes[MANIFEST]
            if size > MAX_MANIFEST_BYTES:
                text = "the manifest of a remote segment is too large: restore it from a copy"
                raise CorruptMetadataError(text, file=name, size=size)
            ranges.append((name, 0, size))
        for segment, data in zip(group, topic.bucket.read_ranges(ranges), strict=True):
            parsed = topic.parse(segment.partition, segment.stem, bytes(data))
            _check_sizes(topic, parsed, segment.sizes)
            segments.append(parsed)
    return segments


def _check_sizes(topic: RemoteTopic, segment: RemoteSegment, sizes: Sizes) -> None:
    ends = [end for _, end in segment.indexes.values()]
    for suffix, expected in ((LOG, segment.chunks.stored_bytes), (INDEXES, max(ends, default=0))):
        size = sizes.get(suffix, 0)
        if size < expected or (suffix == LOG and size != expected):  # `.indexes` may end with an unread index
            text = "an object of a remote segment does not have the size in its manifest: restore it from a copy"
            file = topic.file(segment.partition, segment.stem, suffix)
            raise CorruptMetadataError(text, file=file, size=size, expected=expected)


class LogSpan(NamedTuple):
    """A segment of a log. It is read up to `end_offset`, where the next segment starts."""

    segment: RemoteSegment
    end_offset: int


def log_spans(topic: RemoteTopic, uploaded: Iterable[RemoteSegment]) -> list[LogSpan]:
    """Return a partition's log in order, from all uploaded segments. Raises CorruptMetadataError."""
    # a restarted broker may upload a segment again: of segments with the same start offset, the longest is read, and
    # of equally long segments the last upload. After a leader change, segments may overlap, since each broker rolls
    # its own: as in Kafka, the segment with the higher start offset is read from its start
    spans: list[LogSpan] = []
    for segment in sorted(uploaded, key=lambda remote: (remote.start_offset, -remote.next_offset, -remote.event_ms)):
        end = spans[-1].end_offset if spans else segment.start_offset
        if spans and segment.next_offset <= end:
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
            spans[-1] = LogSpan(spans[-1].segment, segment.start_offset)
        spans.append(LogSpan(segment, segment.next_offset))
    return spans


def _cut_at(reader: SegmentReader, segment: SegmentInfo, end: int) -> SegmentInfo:
    """Cut the segment at the offset `end`. Raises CorruptMetadataError if a batch spans it."""
    if end == segment.next_offset:
        return segment
    # read from the batch with the last offset before the cut
    for chunk in reader.chunks(SegmentSlice(segment, end - 1, segment.next_offset, 0, segment.log_bytes)):
        # the batches that have the offset `end`, or later ones
        rows = np.flatnonzero(chunk.batches["base_offset"] + chunk.batches["last_offset_delta"] >= end)
        if len(rows) and chunk.batches["base_offset"][rows[0]] < end:
            break
        if len(rows):
            position = chunk.ranges[0].origin + int(chunk.batches["position"][rows[0]])  # in the log
            # without its indexes, whose entries continue after the cut
            return replace(segment, next_offset=end, log_bytes=position, offset_index_bytes=0, time_index_bytes=0)
    text = "two uploaded segments overlap, and no batch of the first ends where the second begins: restore the bucket"
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


def first_unstable_offsets(storage: TieredStorage, last_segments: Sequence[RemoteSegment]) -> list[int]:
    """Return the start of the earliest open transaction at the end of each segment, or NO_OFFSET."""
    with_producers = [segment for segment in last_segments if segment.index_bytes(SNAPSHOT)]
    ranges = [
        (f"{storage.topic.name}-{segment.partition}/{segment.stem}{SNAPSHOT}", 0, segment.index_bytes(SNAPSHOT))
        for segment in with_producers
    ]
    unstable = dict[int, int]()
    for segment, (name, *_), data in zip(with_producers, ranges, storage.read_ranges(ranges), strict=True):
        offsets = read_producer_snapshot(bytes(data), file=name)["transaction_first_offset"]
        if (offsets >= 0).any():
            unstable[segment.partition] = int(offsets[offsets >= 0].min())
    return [unstable.get(segment.partition, NO_OFFSET) for segment in last_segments]
