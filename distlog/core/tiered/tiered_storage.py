"""Shows the objects of a topic in a bucket as the files of segments, so that all that reads a topic reads it too.

`<topic>-<partition>/<stem>.log` is put together from chunks; `.index`, `.timeindex`, `.txnindex` and `.snapshot` are
parts of one object. The stem is start offset and uuid, as in the objects' names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from distlog.core.errors import ReadOnlyTopicError, SnapshotTooOldError
from distlog.core.storage.backend import Entries, ObjectWriter, UnfinishedUpload
from distlog.core.storage.storage import Storage
from distlog.core.tiered.chunk_reader import ChunkedRange, ChunkReader
from distlog.core.tiered.manifest import MAX_MANIFEST_BYTES, RemotePartition, RemoteSegment

if TYPE_CHECKING:
    from typing_extensions import Buffer

LOG, INDEXES, MANIFEST = ".log", ".indexes", ".rsm-manifest"

_NAME = re.compile(r".*-(?P<partition>\d+)/(?P<stem>[0-9]{20}-[A-Za-z0-9_-]{22})(?P<suffix>\.[a-z]+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RemoteTopic:
    """A topic in a bucket: `folder` of `bucket` has a folder for each partition."""

    bucket: Storage
    folder: str
    name: str
    topic_id: str

    def file(self, partition: int, stem: str, suffix: str) -> str:
        """The name of one of a segment's objects in the bucket."""
        return f"{self.folder}/{partition}/{stem}{suffix}"

    def parse(self, partition: int, stem: str, manifest: bytes) -> RemoteSegment:
        """The segment of a manifest; see `RemotePartition.parse`."""
        file = f"{self.bucket.url.rstrip('/')}/{self.file(partition, stem, MANIFEST)}"
        return RemotePartition(self.name, self.topic_id, partition).parse(manifest, stem, file)


class TieredFiles:
    """The files of a remote topic: the kind of storage behind `TieredStorage`. Nothing can be written."""

    def __init__(self, topic: RemoteTopic, url: str) -> None:
        self._topic, self._prefix = topic, f"{url}/"
        self._chunks = ChunkReader(topic.bucket)
        #: By stem, those whose manifests were read; the manifests of others are read when they are wanted.
        self.segments: dict[str, RemoteSegment] = {}

    def read(self, path: str, start: int, end: int | None) -> bytes:
        """See `Storage.read`."""
        return bytes(self.read_ranges([(path, start, self.size(path) if end is None else end)])[0])

    def read_joined(self, ranges: Sequence[tuple[str, int, int]]) -> memoryview:
        """See `Storage.read_joined`."""
        found = self.read_ranges(ranges)
        return found[0] if len(found) == 1 else memoryview(b"".join(found))

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[memoryview]:
        """See `Storage.read_ranges`."""
        stored: dict[int, tuple[str, int, int]] = {}
        chunked: dict[int, ChunkedRange] = {}
        for number, (path, start, end) in enumerate(ranges):
            segment, suffix = self._located(path)
            if suffix == LOG and segment.chunks.ends is not None:
                cut = min(end, segment.chunks.log_bytes)
                chunked[number] = ChunkedRange(self._object(segment, LOG), segment.chunks, start, cut)
            else:
                stored[number] = self._stored(segment, suffix, start, end)
        try:
            found = dict(zip(stored, self._topic.bucket.read_ranges(list(stored.values())), strict=True))
            found |= dict(zip(chunked, self._chunks.read(list(chunked.values())), strict=True))
        except FileNotFoundError as error:
            if not any(path.endswith(LOG) for path, _, _ in ranges):
                # without an index the log is read from its start
                raise
            text = "a remote segment was deleted, as by the broker's retention: refresh the topic and read again"
            raise SnapshotTooOldError(text, file=error.filename or str(error)) from None
        return [found[number] for number in range(len(ranges))]

    def size(self, path: str) -> int:
        """See `Storage.size`."""
        segment, suffix = self._located(path)
        return segment.chunks.log_bytes if suffix == LOG else segment.index_bytes(suffix)

    def _stored(self, segment: RemoteSegment, suffix: str, start: int, end: int) -> tuple[str, int, int]:
        """The place of bytes that are stored as they are."""
        if suffix == LOG:
            return self._object(segment, LOG), start, min(end, segment.chunks.log_bytes)
        low, high = segment.indexes[suffix]
        return self._object(segment, INDEXES), low + start, min(low + end, high)

    def _object(self, segment: RemoteSegment, suffix: str) -> str:
        return self._topic.file(segment.partition, segment.stem, suffix)

    def _located(self, path: str) -> tuple[RemoteSegment, str]:
        found = _NAME.fullmatch(path.removeprefix(self._prefix))
        if found is None:
            raise FileNotFoundError(path)
        segment = self.segments.get(found["stem"]) or self._fetched(int(found["partition"]), found["stem"])
        if found["suffix"] != LOG and found["suffix"] not in segment.indexes:
            raise FileNotFoundError(path)
        return segment, found["suffix"]

    def _fetched(self, partition: int, stem: str) -> RemoteSegment:
        manifest = self._topic.bucket.read(self._topic.file(partition, stem, MANIFEST), 0, MAX_MANIFEST_BYTES)
        segment = self._topic.parse(partition, stem, manifest)
        self.segments[stem] = segment
        return segment

    def entries(self, folder: str) -> Entries:
        """See `Storage.list`: only the bucket is listed."""
        return []

    def uploads(self, folder: str) -> list[UnfinishedUpload]:
        """See `Storage.uploads`: those of Kafka are not ours."""
        return []

    def put_many(self, files: Mapping[str, Buffer]) -> None:
        """Refuse to write."""
        self._refuse()

    def put_if_absent(self, path: str, data: bytes, timeout_s: float) -> bytes:
        """Refuse to write."""
        self._refuse()

    def sync(self, folder: str) -> None:
        """Refuse to write."""
        self._refuse()

    def open_write(self, path: str) -> ObjectWriter:
        """Refuse to write."""
        self._refuse()

    def delete(self, paths: Sequence[str]) -> None:
        """Refuse to write."""
        self._refuse()

    def now_ms(self, folder: str) -> int:
        """Refuse to write: the store's time is that of a file that is written."""
        self._refuse()

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> None:
        """Refuse to write."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ReadOnlyTopicError("Kafka's tiered storage is only read here", url=self._prefix.rstrip("/"))


class TieredStorage(Storage):
    """A remote topic as a folder of segment files. A copy in another process reads the manifests that it needs."""

    def __init__(self, topic: RemoteTopic) -> None:
        self.topic = topic
        self.__dict__.update(topic.bucket.child(topic.folder).__dict__)
        self.files = TieredFiles(topic, self.url)
        self._backend = self.files

    def __reduce__(self) -> tuple[Any, ...]:
        return TieredStorage, (self.topic,)
