"""A topic in Kafka's tiered storage as users hold it: it is read like any other, and cannot be changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from distlog.core.display.listing import Listing
from distlog.core.errors import ReadOnlyTopicError
from distlog.core.maintenance.integrity.verify import VerifyReport
from distlog.core.tiered.bucket import find_topic
from distlog.core.tiered.tiered_snapshot import load
from distlog.core.tiered.tiered_storage import RemoteTopic, TieredStorage
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.topic import Topic

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
    """A topic in a bucket, as it was when it was opened; `refresh` sees what was uploaded since.

    It reads as every `Topic`. What would change it raises ReadOnlyTopicError, and so do `follow`, `history`, `groups`
    and `verify`: a bucket has no commits.
    """

    def __init__(self, topic: RemoteTopic) -> None:
        storage = TieredStorage(topic)
        super().__init__(TopicHandle.of(storage, topic.name), load(storage), pinned=True, why=READ_ONLY)

    @property
    def _bucket(self) -> TieredStorage:
        assert isinstance(self.storage, TieredStorage)
        return self.storage

    def refresh(self) -> TieredTopic:
        """See the segments that were uploaded or deleted since; reads only manifests that are new."""
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
