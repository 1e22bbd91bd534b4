"""Finds a topic in a bucket, and the segments of its partitions, by the names of the objects."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from distlog.core import paths
from distlog.core.commits.format.actions import MAX_PARTITIONS
from distlog.core.errors import CorruptMetadataError, InvalidConfigError, TopicNotFoundError
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import Storage
from distlog.core.tiered.manifest import MAX_MANIFEST_BYTES, RemoteSegment
from distlog.core.tiered.tiered_storage import INDEXES, LOG, MANIFEST, RemoteTopic

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
    """The topic in a bucket. `url` is the bucket with the plugin's `key.prefix`, which need not end in a slash.

    Raises TopicNotFoundError if there is none, and InvalidConfigError if several topics had that name and no
    `topic_id` says which one.
    """
    paths.check_topic_name(topic)
    if topic_id is not None and not _TOPIC_ID.fullmatch(topic_id):
        raise InvalidConfigError("a topic id has 22 of the characters A-Z a-z 0-9 _ -", topic_id=repr(topic_id))
    found = list(_named(Storage(url, storage_options), "", topic))
    if not found and not url.endswith("/"):
        parent, _, prefix = url.rpartition("/")
        if parent and not parent.endswith(("/", ":")):
            found = list(_named(Storage(parent, storage_options), prefix, topic))
    chosen = [each for each in found if topic_id in (None, each.topic_id)]
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
    """A segment whose upload was completed: it has a manifest."""

    partition: int
    stem: str
    sizes: Sizes


def list_segments(topic: RemoteTopic) -> list[ListedSegment]:
    """The segments that were uploaded, by the names of their objects: one listing for each partition, and one more.

    Objects without a manifest are what an upload left that failed, or what a deletion has not come to: they do not
    count. Nor does a manifest whose log is deleted already.
    """
    names = (folder.rpartition("/")[2] for folder in topic.bucket.list_folders(topic.folder))
    numbers = sorted(int(name) for name in names if _PARTITION.fullmatch(name) and int(name) < MAX_PARTITIONS)
    found = in_parallel(lambda number: list(_listed(topic, number)), numbers)
    return [segment for segments in found for segment in segments]


def _listed(topic: RemoteTopic, partition: int) -> Iterator[ListedSegment]:
    objects: dict[str, dict[str, int]] = {}
    for file in topic.bucket.list(f"{topic.folder}/{partition}"):
        if match := _OBJECT.fullmatch(file.name.rpartition("/")[2]):
            objects.setdefault(match["stem"], {})[match["suffix"]] = file.size
    for stem, sizes in sorted(objects.items()):
        if MANIFEST in sizes and LOG in sizes:
            yield ListedSegment(partition, stem, sizes)
        elif MANIFEST in sizes:
            file_name = topic.file(partition, stem, MANIFEST)
            _log.warning("a remote segment is being deleted, so it is left out (file=%s)", file_name)


def read_manifests(topic: RemoteTopic, listed: Iterable[ListedSegment]) -> list[RemoteSegment]:
    """What the manifests say; raises CorruptMetadataError, also where an object's size is not what its manifest says.

    Raises UnsupportedVersionError for an encrypted segment.
    """
    wanted, found = list(listed), []
    for start in range(0, len(wanted), MANIFESTS_AT_ONCE):
        group = wanted[start : start + MANIFESTS_AT_ONCE]
        places = [_place(topic, segment) for segment in group]
        for segment, data in zip(group, topic.bucket.read_ranges(places), strict=True):
            parsed = topic.parse(segment.partition, segment.stem, bytes(data))
            _check_sizes(topic, parsed, segment.sizes)
            found.append(parsed)
    return found


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
                "an object of a remote segment has not the size that its manifest says: restore it from a copy",
                file=topic.file(segment.partition, segment.stem, suffix),
                size=size,
                expected=least,
            )
