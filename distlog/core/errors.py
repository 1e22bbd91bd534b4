"""Every error that distlog raises on purpose, and its warnings: each says what happened, and what to do."""

from __future__ import annotations

from functools import partial
from typing import Any


class RetentionWarning(UserWarning):
    """Appended records are older than the topic's retention time, so the next retention run deletes them."""


class TimestampWarning(UserWarning):
    """Records were appended with times before 1990: most often numbers in a unit other than milliseconds."""


class TopicIdWarning(UserWarning):
    """Topics of one root have the same id, since one is a copy: see `Topic.assign_new_id`."""


class DistlogError(Exception):
    """The base of all distlog errors: a sentence with what to do, then values as `key=value`."""

    def __init__(self, message: str, **details: Any) -> None:
        self.message = message
        self.details = details
        super().__init__(message, details)

    def __str__(self) -> str:
        details = " ".join(f"{name}={value}" for name, value in self.details.items() if value is not None)
        return f"{self.message} ({details})" if details else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle passes no keyword arguments, so a partial holds them
        return partial(type(self), self.message, **self.details), ()


class InvalidConfigError(DistlogError, ValueError):
    """A setting is unknown, malformed or out of its range: correct it."""


class InvalidPartitionsError(InvalidConfigError):
    """A topic cannot have this number of partitions."""


class InvalidRecordError(DistlogError, ValueError):
    """A record, or a table of records, cannot be appended: correct the input."""


class RecordTooLargeError(InvalidRecordError):
    """A batch is above max.message.bytes, or the batches appended at once are above segment.bytes: append fewer."""


class RecordErrors(tuple[tuple[int, str], ...]):
    """The records of a batch that cannot be appended: the number in the batch and the fault of each record."""

    __slots__ = ()

    def __str__(self) -> str:
        return "; ".join(f"{number}: {fault}" for number, fault in self[:3]) + ("; ..." if len(self) > 3 else "")


class RecordValidationError(InvalidRecordError):
    """The topic refuses some records of a batch, so none was appended; `record_errors` names the records."""

    @property
    def record_errors(self) -> RecordErrors:
        """The numbers of the bad records, and the fault of each."""
        errors: RecordErrors = self.details["record_errors"]
        return errors


class InvalidTimestampError(RecordValidationError):
    """Records have times that are too old or too far ahead, or a batch has LogAppendTime, which only the log sets."""


class InvalidTopicError(DistlogError, ValueError):
    """A topic or a segment's file cannot have this name, or a folder cannot hold, or be imported as, a topic."""


class TopicNotFoundError(DistlogError, LookupError):
    """The address has no topic: check it, or create the topic."""


class GroupNotFoundError(DistlogError, LookupError):
    """The topic has no consumer group, or no committed offset of a group of Kafka clients, of this name."""


class SchemaNotFoundError(DistlogError, LookupError):
    """The schema registry does not have the schema: check the id, the subject and the registry."""


class TopicExistsError(DistlogError):
    """The address has a topic already: open it, or drop it first."""


class ReadOnlyTopicError(DistlogError):
    """The topic was opened at a version or a time, or lies in Kafka's tiered storage, so it cannot be changed."""


class OffsetOutOfRangeError(DistlogError, LookupError):
    """The requested offset is not in the log, or the commit log does not reach to the requested version or time."""


class SnapshotTooOldError(DistlogError, FileNotFoundError):
    """A file of the snapshot was deleted, or a recovery cut off records that were not durable: refresh the topic."""


class CommitConflictError(DistlogError):
    """The commit did not happen and will not: another commit came first, and this one no longer applies."""


class TransactionTooOldError(CommitConflictError):
    """The commit's data files are older than what vacuum preserves, and may have been deleted: write them again."""


class FencedMemberError(CommitConflictError):
    """The member is no longer in its group, so it cannot commit offsets: other members have its partitions now."""


class ProducerFencedError(CommitConflictError):
    """A newer epoch of the producer has started, so this producer can no longer append: close it."""


class LeaderFencedError(CommitConflictError):
    """Another process leads the partition now, so this process cannot append as its leader: use the new leader."""


class OutOfOrderSequenceError(DistlogError):
    """A producer's batch does not follow its last one in the log, so batches are missing: start a new producer."""


class CommitStateUnknownError(DistlogError):
    """The storage did not answer, so the commit may have happened: keep the data files, and check again later."""


class UnsupportedVersionError(DistlogError):
    """A newer distlog or Kafka wrote the bytes, in a format that this library does not know: upgrade."""


class StorageError(DistlogError, OSError):
    """The storage failed for longer than the deadline, or lacks a feature that a log needs; or its address is bad."""


class StorageFullError(StorageError):
    """There is no space left on the disk, or a quota is used up; nothing was written: vacuum, or make room."""


class LockHeldError(StorageError):
    """A process, or a thread of this one, holds a lock for longer than the caller waits; nothing was done."""


class StorageRefusedError(StorageError):
    """The storage refused a request, and would refuse it again: correct the address, options or permissions."""


class StorageDeniedError(StorageRefusedError, PermissionError):
    """This process lacks a permission of the storage."""


class CorruptionError(DistlogError):
    """Bytes read from storage are not the bytes that were written: verify, then rebuild or restore."""


class CorruptRecordError(CorruptionError):
    """A record batch fails its checksum, its bounds or its invariants."""


class CorruptIndexError(CorruptionError):
    """An index file fails its sanity check; it can be rebuilt from the log."""


class CorruptMetadataError(CorruptionError):
    """A commit or a checkpoint is missing, malformed or inconsistent."""
