"""A topic in Kafka's tiered storage as users hold it: it is read like any other, and cannot be changed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, NoReturn

from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.commits.transaction_table import NO_TRANSACTIONS
from distlog.core.config import TopicConfig
from distlog.core.display import Listing
from distlog.core.errors import ReadOnlyTopicError
from distlog.core.indexes.index_cache import IndexCache
from distlog.core.maintenance.verify import VerifyReport
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.tiered.remote_log import (
    find_topic,
    first_unstable_offsets,
    list_segments,
    log_parts,
    partition_state,
    read_manifests,
)
from distlog.core.tiered.tiered_storage import RemoteSegment, RemoteTopic, TieredStorage
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.topic import Topic


def load(storage: TieredStorage, version: int = 0) -> Snapshot:
    """The topic as it is in the bucket now, called `version`; manifests that `storage` has are not read again."""
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
        transactions=NO_TRANSACTIONS,
    )


READ_ONLY = "Kafka's tiered storage is only read here, and its brokers alone add to it: refresh() sees what is new"


def open_tiered(
    url: str, topic: str, topic_id: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> TieredTopic:
    """Open the `topic` that Kafka's tiered storage (Aiven's plugin) keeps in a bucket; read-only, without a broker.

    `url` is the bucket with the plugin's `key.prefix`. `topic_id` is needed if several topics had that name. What the
    brokers have not uploaded yet is not there: the records of the active segments. Raises TopicNotFoundError,
    UnsupportedVersionError if segments are encrypted, CorruptMetadataError.
    """
    return TieredTopic(find_topic(url, topic, topic_id, storage_options))


class TieredTopic(Topic):
    """A topic in a bucket, as of its last `refresh`. What it cannot do raises ReadOnlyTopicError."""

    def __init__(self, topic: RemoteTopic) -> None:
        storage = TieredStorage(topic)
        super().__init__(TopicHandle.of(storage, topic.name), load(storage), pinned=True, why=READ_ONLY)

    @property
    def _bucket(self) -> TieredStorage:
        assert isinstance(self.storage, TieredStorage)
        return self.storage

    def refresh(self) -> TieredTopic:
        """Read the segments that were uploaded or deleted since; reads only new manifests."""
        self.advance(load(self._bucket, self.version + 1))
        return self

    def history(self, limit: int | None = None) -> Listing:
        """Not here: a bucket has no commits."""
        self._refuse("history")

    def groups(self) -> Listing:
        """Not here: Kafka's groups are in its brokers."""
        self._refuse("groups")

    def verify(self) -> VerifyReport:
        """Not here: the checksums that it compares are in commits. A scan checks every batch."""
        self._refuse("verify")

    def _refuse(self, what: str) -> NoReturn:
        raise ReadOnlyTopicError(f"a topic in Kafka's tiered storage has no {what}", url=self.url)

    def __reduce__(self) -> tuple[Any, ...]:
        return TieredTopic, (self._bucket.topic,)
