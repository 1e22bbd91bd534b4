"""Kafka's code for each of our errors: one table for all APIs."""

from __future__ import annotations

import logging

from kio.schema.errors import ErrorCode

from distlog.core import errors
from distlog.core.log.partition.appended import LostRecordsError


class UnknownTopicIdError(errors.TopicNotFoundError):
    """No topic of the root has this id."""


class UnsupportedRequestError(errors.InvalidConfigError):
    """A request that makes no sense, or that the gateway does not do."""


_log = logging.getLogger("distlog.gateway")

#: By kind of error; the first kind in an error's own order of resolution counts.
CODES: dict[type[BaseException], ErrorCode] = {
    errors.InvalidConfigError: ErrorCode.invalid_config,
    errors.InvalidPartitionsError: ErrorCode.invalid_partitions,
    errors.InvalidRecordError: ErrorCode.invalid_record,
    errors.RecordTooLargeError: ErrorCode.message_too_large,
    errors.RecordValidationError: ErrorCode.invalid_record,
    errors.InvalidTimestampError: ErrorCode.invalid_timestamp,
    errors.InvalidTopicError: ErrorCode.invalid_topic_exception,
    errors.TopicNotFoundError: ErrorCode.unknown_topic_or_partition,
    errors.TopicExistsError: ErrorCode.topic_already_exists,
    errors.ReadOnlyTopicError: ErrorCode.policy_violation,
    errors.OffsetOutOfRangeError: ErrorCode.offset_out_of_range,
    # the version that was read is too old: a client that asks again reads the newest
    errors.SnapshotTooOldError: ErrorCode.not_leader_or_follower,
    errors.CommitConflictError: ErrorCode.not_leader_or_follower,
    errors.ProducerFencedError: ErrorCode.invalid_producer_epoch,
    errors.OutOfOrderSequenceError: ErrorCode.out_of_order_sequence_number,
    # nobody knows whether it is there; an idempotent client sends it again
    errors.CommitStateUnknownError: ErrorCode.request_timed_out,
    errors.UnsupportedVersionError: ErrorCode.unsupported_for_message_format,
    errors.StorageError: ErrorCode.kafka_storage_error,
    UnknownTopicIdError: ErrorCode.unknown_topic_id,
    UnsupportedRequestError: ErrorCode.invalid_request,
    LostRecordsError: ErrorCode.kafka_storage_error,
    errors.CorruptionError: ErrorCode.kafka_storage_error,
    errors.CorruptRecordError: ErrorCode.corrupt_message,
}


def error_code(error: BaseException) -> ErrorCode:
    """Kafka's code for `error`; one that is not of distlog is logged, and is UNKNOWN_SERVER_ERROR."""
    for kind in type(error).__mro__:
        if kind in CODES:
            return CODES[kind]
    _log.error("a request failed", exc_info=error)
    return ErrorCode.unknown_server_error
