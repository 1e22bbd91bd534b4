"""distlog: a partitioned, offset-addressed log with Apache Kafka's file formats, and no broker.

>>> import distlog
>>> topic = distlog.create("/data/logs/clicks", partitions=4)
>>> topic.append([{"key": b"k", "value": b"v"}])
>>> topic.scan().to_table()
"""

from distlog.core import VERSION as __version__  # noqa: N811 - the name that Python has for it
from distlog.core.config import TopicConfig
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptIndexError,
    CorruptionError,
    CorruptMetadataError,
    CorruptRecordError,
    DistlogError,
    FencedMemberError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    ReadOnlyTopicError,
    RetentionWarning,
    SnapshotTooOldError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionAbortedError,
    TransactionTooOldError,
    UnsupportedVersionError,
)
from distlog.core.following.follower import Follower
from distlog.core.log_manager.log_manager import LogManager
from distlog.core.reading.time_lookup import EARLIEST, LATEST, MAX_TIMESTAMP
from distlog.core.tiered.tiered_topic import open_tiered
from distlog.core.topics.adopt_topics import AdoptReport, adopt
from distlog.core.topics.appending.append_commit import AppendResult
from distlog.core.topics.open_topic import create, open, open_or_create, topics
from distlog.core.topics.record import Record
from distlog.core.topics.topic import Topic
from distlog.core.topics.writing.delivery import Delivery
from distlog.core.warm_up import warm_up

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "AdoptReport",
    "AppendResult",
    "CommitConflictError",
    "CommitStateUnknownError",
    "CorruptIndexError",
    "CorruptMetadataError",
    "CorruptRecordError",
    "CorruptionError",
    "Delivery",
    "DistlogError",
    "FencedMemberError",
    "Follower",
    "InvalidConfigError",
    "InvalidPartitionsError",
    "InvalidRecordError",
    "InvalidTopicError",
    "LogManager",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "ProducerFencedError",
    "ReadOnlyTopicError",
    "Record",
    "RetentionWarning",
    "SnapshotTooOldError",
    "StorageDeniedError",
    "StorageError",
    "StorageFullError",
    "Topic",
    "TopicConfig",
    "TopicExistsError",
    "TopicNotFoundError",
    "TransactionAbortedError",
    "TransactionTooOldError",
    "UnsupportedVersionError",
    "__version__",
    "adopt",
    "create",
    "open",
    "open_or_create",
    "open_tiered",
    "topics",
    "warm_up",
]


def __dir__() -> list[str]:
    return __all__
