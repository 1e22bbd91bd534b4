"""distlog: a partitioned, offset-addressed log with Apache Kafka's file formats, and no broker.

>>> import distlog
>>> topic = distlog.create("/data/logs/clicks", partitions=4)
>>> topic.append([{"key": b"k", "value": b"v"}])
>>> topic.scan().to_table()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from distlog.core import VERSION as __version__  # noqa: N811 - Python's usual name

if TYPE_CHECKING:
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
        GroupNotFoundError,
        InvalidConfigError,
        InvalidPartitionsError,
        InvalidRecordError,
        InvalidTopicError,
        OffsetOutOfRangeError,
        OutOfOrderSequenceError,
        ProducerFencedError,
        ReadOnlyTopicError,
        RetentionWarning,
        SchemaNotFoundError,
        SnapshotTooOldError,
        StorageDeniedError,
        StorageError,
        StorageFullError,
        TimestampWarning,
        TopicExistsError,
        TopicIdWarning,
        TopicNotFoundError,
        TransactionTooOldError,
        UnsupportedVersionError,
    )
    from distlog.core.log_manager.log_manager import LogManager
    from distlog.core.opening import AdoptReport, adopt, create, open, open_or_create, open_tiered, topics
    from distlog.core.read.consumer import Consumer
    from distlog.core.read.lookup import EARLIEST, LATEST, MAX_TIMESTAMP, Record
    from distlog.core.schemas.registry import SchemaRegistry
    from distlog.core.sql import sql, sql_connection
    from distlog.core.topic import Topic
    from distlog.core.warm_up import warm_up
    from distlog.core.write.append import AppendResult
    from distlog.core.write.writer import Delivery

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "AdoptReport",
    "AppendResult",
    "CommitConflictError",
    "CommitStateUnknownError",
    "Consumer",
    "CorruptIndexError",
    "CorruptMetadataError",
    "CorruptRecordError",
    "CorruptionError",
    "Delivery",
    "DistlogError",
    "FencedMemberError",
    "GroupNotFoundError",
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
    "SchemaNotFoundError",
    "SchemaRegistry",
    "SnapshotTooOldError",
    "StorageDeniedError",
    "StorageError",
    "StorageFullError",
    "TimestampWarning",
    "Topic",
    "TopicConfig",
    "TopicExistsError",
    "TopicIdWarning",
    "TopicNotFoundError",
    "TransactionTooOldError",
    "UnsupportedVersionError",
    "__version__",
    "adopt",
    "create",
    "open",
    "open_or_create",
    "open_tiered",
    "sql",
    "sql_connection",
    "topics",
    "warm_up",
]

#: The public names by module. A module is imported when one of its names is first used: `import distlog` is fast.
_MODULES = {
    "config": ("TopicConfig",),
    "log_manager.log_manager": ("LogManager",),
    "opening": ("AdoptReport", "adopt", "create", "open", "open_or_create", "open_tiered", "topics"),
    "read.consumer": ("Consumer",),
    "read.lookup": ("EARLIEST", "LATEST", "MAX_TIMESTAMP", "Record"),
    "schemas.registry": ("SchemaRegistry",),
    "sql": ("sql", "sql_connection"),
    "topic": ("Topic",),
    "warm_up": ("warm_up",),
    "write.append": ("AppendResult",),
    "write.writer": ("Delivery",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # names that are not in `_MODULES` are errors and warnings
    value = getattr(import_module(f"distlog.core.{_MODULE_OF.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
