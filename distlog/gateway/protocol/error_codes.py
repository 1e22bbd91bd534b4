"""Kafka's error codes for the errors of distlog, and the texts of errors that clients may get."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from distlog.core import errors
from distlog.core.log.partition_files import DamagedLogError
from distlog.gateway.event_log import FAILURES
from distlog.gateway.protocol.messages import ErrorCode, Fields


class CoordinatorError(Exception):
    """The coordinator of a group or of a transaction refuses a request, with Kafka's `code`."""

    def __init__(self, code: ErrorCode, member_id: str = "") -> None:
        super().__init__(code.name)
        #: `member_id` is the id that the member must send when it joins again (KIP-394).
        self.code, self.member_id = code, member_id


class UnknownTopicIdError(errors.TopicNotFoundError):
    """No topic of the root has this id."""


class RefusedError(errors.DistlogError):
    """The gateway refuses a request, with Kafka's `code`. The client gets the text."""

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.invalid_request, **details: Any) -> None:
        super().__init__(message, **details)
        self.code = code


class AccessDeniedError(RefusedError):
    """The client may not do this with the resource. For some resources, no client may."""


#: The codes by class of error. The first class in an error's `__mro__` with a code applies.
CODES: dict[type[BaseException], ErrorCode] = {
    errors.InvalidConfigError: ErrorCode.invalid_config,
    errors.InvalidPartitionsError: ErrorCode.invalid_partitions,
    errors.InvalidRecordError: ErrorCode.invalid_record,
    errors.RecordTooLargeError: ErrorCode.message_too_large,
    errors.InvalidTimestampError: ErrorCode.invalid_timestamp,
    errors.InvalidTopicError: ErrorCode.invalid_topic_exception,
    errors.TopicNotFoundError: ErrorCode.unknown_topic_or_partition,
    errors.TopicExistsError: ErrorCode.topic_already_exists,
    errors.ReadOnlyTopicError: ErrorCode.policy_violation,
    errors.OffsetOutOfRangeError: ErrorCode.offset_out_of_range,
    # clients retry after this code, and the retry reads the newest version
    errors.SnapshotTooOldError: ErrorCode.not_leader_or_follower,
    errors.CommitConflictError: ErrorCode.not_leader_or_follower,
    errors.ProducerFencedError: ErrorCode.invalid_producer_epoch,
    errors.OutOfOrderSequenceError: ErrorCode.out_of_order_sequence_number,
    # an idempotent client sends the batch again, since the outcome is unknown
    errors.CommitStateUnknownError: ErrorCode.request_timed_out,
    errors.UnsupportedVersionError: ErrorCode.unsupported_for_message_format,
    errors.StorageError: ErrorCode.kafka_storage_error,
    UnknownTopicIdError: ErrorCode.unknown_topic_id,
    DamagedLogError: ErrorCode.kafka_storage_error,
    errors.CorruptionError: ErrorCode.kafka_storage_error,
    errors.CorruptRecordError: ErrorCode.corrupt_message,
}

#: Errors about a request. The client gets their text, and the log gets the text of other errors.
_REQUEST_ERRORS = (
    errors.InvalidConfigError,
    errors.InvalidRecordError,
    errors.InvalidTopicError,
    errors.TopicNotFoundError,
    errors.TopicExistsError,
    errors.ReadOnlyTopicError,
    errors.OffsetOutOfRangeError,
    errors.ProducerFencedError,
    errors.OutOfOrderSequenceError,
    errors.CorruptRecordError,
    RefusedError,
)
#: Details that clients do not get, since they are locations on the server.
_SERVER_DETAILS = frozenset({"url", "file", "path", "directory", "root"})
_NO_TOPIC = "This server does not host this topic-partition."
_HIDDEN_TEXT = "the request failed in the gateway: see its log"


def error_code(error: BaseException, subject: str = "a request") -> ErrorCode:
    """Return Kafka's code for `error`. Log it as a failure of `subject` if clients do not get its text."""
    if isinstance(error, (CoordinatorError, RefusedError)):
        return error.code
    log_failure(error, subject)
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), ErrorCode.unknown_server_error)


def log_failure(error: BaseException, subject: str) -> None:
    """Log an error unless it is about the client's request."""
    if not _is_for_clients(error):
        FAILURES.note(subject, error)


def client_text(error: BaseException) -> str:
    """The text of `error` for clients, which hides the server's folders and unexpected errors."""
    if not isinstance(error, errors.DistlogError) or not _is_for_clients(error):
        return _HIDDEN_TEXT
    # the error's own text is about a URL, which clients do not have
    message = _NO_TOPIC if type(error) is errors.TopicNotFoundError else error.message
    details = {name: detail for name, detail in error.details.items() if name not in _SERVER_DETAILS}
    return str(errors.DistlogError(message, **details))


def _is_for_clients(error: BaseException) -> bool:
    if isinstance(error, errors.CorruptRecordError) and error.details.get("file") is not None:
        # the record is in the storage, since a record of a request has no file
        return False
    return isinstance(error, _REQUEST_ERRORS)


def topic_error_code(error: BaseException, topic: str | uuid.UUID) -> ErrorCode:
    """The code of a partition's error. It is UNKNOWN_TOPIC_ID if the topic was requested by an id, and is missing."""
    is_missing = isinstance(error, errors.TopicNotFoundError) and "partition" not in error.details
    return ErrorCode.unknown_topic_id if is_missing and isinstance(topic, uuid.UUID) else error_code(error)


def fields_or_error(work: Callable[..., Fields | None], *arguments: Any, **fields: Any) -> Fields:
    """Return `fields` with the result of `work(*arguments)`, or with the code and the text of its error."""
    try:
        result = work(*arguments)
    except Exception as error:
        return {**fields, "error_code": error_code(error), "error_message": client_text(error)}
    return {**fields, "error_code": ErrorCode.none, "error_message": None, **(result or {})}
