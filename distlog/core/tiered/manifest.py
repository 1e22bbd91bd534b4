"""The manifest of a remote segment, `<stem>.rsm-manifest`: what it holds, and where it lies in its objects.

A segment is three objects: `.log`, its chunks one after the other; `.indexes`, the files beside the log one after the
other; and the manifest, JSON, which is put last. Nothing in it is trusted.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distlog.core.commits.format import json_text
from distlog.core.commits.format.fields import LONG, Integer
from distlog.core.config import MAX_INT, MAX_LONG
from distlog.core.errors import CorruptMetadataError, UnsupportedVersionError
from distlog.core.tiered.chunk_index import ChunkIndex

#: The most bytes that a manifest may have: the sizes of many chunks make it large.
MAX_MANIFEST_BYTES = 32 << 20
SNAPSHOT = ".snapshot"
#: The names of the indexes in the manifest, by the suffixes of their files.
_INDEXES = {
    ".index": "offset",
    ".timeindex": "timestamp",
    ".txnindex": "transaction",
    SNAPSHOT: "producerSnapshot",
}
_VERSION = "1"
_TIMESTAMP = Integer(-1, MAX_LONG)
_EPOCH = Integer(0, MAX_INT)
_SIZE = Integer(0, MAX_INT)


@dataclass(frozen=True, slots=True, eq=False)
class RemoteSegment:
    """One uploaded segment: the offsets `start_offset` (in) to `next_offset` (out), and the places of its files.

    `indexes` has by suffix (start, end) in the object `.indexes`; files of 0 bytes are left out. `event_ms` is when
    the upload was begun.
    """

    stem: str
    partition: int
    start_offset: int
    next_offset: int
    max_timestamp: int
    event_ms: int
    leader_epoch: int
    chunks: ChunkIndex
    indexes: Mapping[str, tuple[int, int]]

    def index_bytes(self, suffix: str) -> int:
        """The size of the file beside the log that has this suffix; 0 if there is none."""
        start, end = self.indexes.get(suffix, (0, 0))
        return end - start


@dataclass(frozen=True, slots=True)
class RemotePartition:
    """The partition of a topic whose segments are read; each manifest must name it."""

    topic: str
    topic_id: str
    number: int

    def parse(self, data: bytes, stem: str, file: str) -> RemoteSegment:
        """The segment `stem` (start offset and uuid) that the manifest `data` describes.

        Raises CorruptMetadataError for a manifest that is malformed or another segment's, and UnsupportedVersionError
        for one of another version or of an encrypted segment.
        """
        try:
            value = json_text.parse(data)
            if not isinstance(value, dict):
                raise ValueError("it must be an object")
            _check_readable(value, file)
            return self._segment(value, stem)
        except (ValueError, RecursionError) as error:
            text = f"the manifest of a remote segment is not what Kafka's tiered storage writes: {error}"
            raise CorruptMetadataError(text, file=file) from None

    def _segment(self, value: dict[str, Any], stem: str) -> RemoteSegment:
        metadata = _member(value, "remoteLogSegmentMetadata")
        self._check_identity(metadata, stem)
        start, end = LONG(metadata.get("startOffset")), LONG(metadata.get("endOffset"))
        if start != int(stem[:20]) or not start <= end < MAX_LONG:
            raise ValueError(f"it has the offsets {start} to {end}")
        compressed = value.get("compression")
        if not isinstance(compressed, bool):
            raise ValueError("compression must be true or false")
        return RemoteSegment(
            stem=stem,
            partition=self.number,
            start_offset=start,
            next_offset=end + 1,
            max_timestamp=_TIMESTAMP(metadata.get("maxTimestampMs")),
            event_ms=LONG(metadata.get("eventTimestampMs")),
            leader_epoch=_first_epoch(_member(metadata, "segmentLeaderEpochs")),
            chunks=ChunkIndex.parse(value.get("chunkIndex"), compressed=compressed),
            indexes=_places(_member(value, "segmentIndexes")),
        )

    def _check_identity(self, metadata: dict[str, Any], stem: str) -> None:
        segment = _member(metadata, "remoteLogSegmentId")
        owner = _member(segment, "topicIdPartition")
        place = _member(owner, "topicPartition")
        found = (segment.get("id"), owner.get("topicId"), place.get("topic"), place.get("partition"))
        if found != (stem[21:], self.topic_id, self.topic, self.number):
            raise ValueError(f"it is the manifest of another segment: {found}")


def _check_readable(value: dict[str, Any], file: str) -> None:
    if value.get("version") != _VERSION:
        text = "a remote segment has a manifest of an unknown version: upgrade"
        raise UnsupportedVersionError(text, file=file, version=repr(value.get("version"))[:40])
    if value.get("encryption") is not None:
        raise UnsupportedVersionError(
            "a remote segment is encrypted; its key is wrapped by a key pair of the Kafka cluster, so only its "
            "brokers can read it: let them serve the topic",
            file=file,
        )


def _member(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be an object")
    return found


def _first_epoch(epochs: dict[str, Any]) -> int:
    if not epochs or not all(name.isdecimal() and len(name) <= len(str(MAX_INT)) for name in epochs):
        raise ValueError("segmentLeaderEpochs must be an object of start offsets by epoch")
    return _EPOCH(min(map(int, epochs)))


def _places(indexes: dict[str, Any]) -> dict[str, tuple[int, int]]:
    found = {}
    for suffix, name in _INDEXES.items():
        place = indexes.get(name)
        if place is None and suffix == ".txnindex":
            continue
        if not isinstance(place, dict):
            raise ValueError(f"segmentIndexes must have a place for {name}")
        start, size = _SIZE(place.get("position")), _SIZE(place.get("size"))
        if size:
            found[suffix] = start, start + size
    if any(start < end for (_, end), (start, _) in itertools.pairwise(sorted(found.values()))):
        # the bytes of one would be taken for another, and an index of transactions hides records
        raise ValueError("segmentIndexes has places that overlap")
    return found
