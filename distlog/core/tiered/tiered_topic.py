"""The public topic in Kafka's tiered storage: it is read like any topic, and cannot be changed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, NoReturn

from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.commits.transaction_table import NO_TRANSACTIONS
from distlog.core.config import TopicConfig
from distlog.core.display import Listing
from distlog.core.errors import ReadOnlyTopicError
from distlog.core.format.index_cache import IndexCache
from distlog.core.maintain.executor import Executor
from distlog.core.maintain.verify import VerifyReport
from distlog.core.segments.segment_reader import SegmentReader
from distlog.core.segments.topic_handle import TopicHandle
from distlog.core.tiered.remote_log import (
    find_topic,
    first_unstable_offsets,
    list_segments,
    log_parts,
    partition_state,
    read_manifests,
)
from distlog.core.tiered.tiered_storage import RemoteSegment, RemoteTopic, TieredStorage
from distlog.core.topic import Topic


class TieredTopic(Topic):
    """A topic in a bucket, as of its last `refresh`. Unsupported methods raise ReadOnlyTopicError."""

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


def load(storage: TieredStorage, version: int = 0) -> Snapshot:
    """Load the topic in the bucket as `version`; manifests that `storage` has are not read again."""
    listed, cached = list_segments(storage.topic), storage.files.segments
    current = {segment.stem: cached[segment.stem] for segment in listed if segment.stem in cached}
    new = read_manifests(storage.topic, [segment for segment in listed if segment.stem not in cached])
    storage.files.segments = current | {segment.stem: segment for segment in new}
    return _snapshot(storage, list(storage.files.segments.values()), version)


def _snapshot(storage: TieredStorage, uploaded: list[RemoteSegment], version: int) -> Snapshot:
    by_partition = groupby(sorted(uploaded, key=_PARTITION), key=_PARTITION)
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


_PARTITION = attrgetter("partition")
READ_ONLY = "Kafka's tiered storage is read-only here, and only its brokers add to it: refresh() reads new segments"


def open_tiered(
    url: str, topic: str, topic_id: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> TieredTopic:
    """Open the `topic` of Kafka's tiered storage (Aiven's plugin) in a bucket, read-only and without a broker.

    Records that the brokers have not uploaded, in the active segments, are missing.

    Args:
        url: The bucket, with the plugin's `key.prefix`.
        topic: The name of the topic.
        topic_id: Needed if several topics had that name.
        storage_options: Options of the storage client.

    Raises:
        TopicNotFoundError: The topic is not in the bucket.
        UnsupportedVersionError: Segments are encrypted.
        CorruptMetadataError: A manifest is damaged, or offsets are missing.
    """
    return TieredTopic(find_topic(url, topic, topic_id, storage_options))
