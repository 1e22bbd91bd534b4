"""Requests and responses as frames: heads, bodies, fields that APIs share, and Kafka's codes for our errors."""

from __future__ import annotations

import logging
import struct
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from distlog.core import errors
from distlog.core.log.segment_files import DamagedLogError
from distlog.gateway.event_log import FAILURES
from distlog.gateway.protocol.messages import (
    MAX_ITEMS,
    ChunkWriter,
    ErrorCode,
    InvalidRequestError,
    Items,
    MessageReader,
    MessageWriter,
    message_reader,
    message_writer,
    read_text,
    request_schema,
    response_fields,
    response_schema,
    skip_tags,
)
from distlog.gateway.protocol.messages import Fields as Fields
from distlog.gateway.protocol.messages import ResponseChunk as ResponseChunk


class UnknownTopicIdError(errors.TopicNotFoundError):
    """No topic of the root has this id."""


class UnsupportedRequestError(errors.InvalidConfigError):
    """A request that makes no sense, or that the gateway does not support."""


class InvalidAssignmentError(UnsupportedRequestError):
    """A manual assignment of replicas that Kafka refuses."""


class InvalidReplicationError(UnsupportedRequestError):
    """A number of replicas that Kafka refuses."""


class AccessDeniedError(errors.DistlogError):
    """The client may not do this with the topic, or no client may."""


class GroupAccessDeniedError(AccessDeniedError):
    """The client may not do this with the group."""


class ClusterAccessDeniedError(AccessDeniedError):
    """The client may not do this with the cluster."""


class TransactionalIdAccessDeniedError(AccessDeniedError):
    """The client may not do this with the transactional id."""


_log = logging.getLogger("distlog.gateway")

#: By class of error; the first class in an error's `__mro__` that is here counts.
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
    # the version is too old: a client that retries reads the newest
    errors.SnapshotTooOldError: ErrorCode.not_leader_or_follower,
    errors.CommitConflictError: ErrorCode.not_leader_or_follower,
    errors.ProducerFencedError: ErrorCode.invalid_producer_epoch,
    errors.OutOfOrderSequenceError: ErrorCode.out_of_order_sequence_number,
    # the outcome is unknown; an idempotent client sends the batch again
    errors.CommitStateUnknownError: ErrorCode.request_timed_out,
    errors.UnsupportedVersionError: ErrorCode.unsupported_for_message_format,
    errors.StorageError: ErrorCode.kafka_storage_error,
    UnknownTopicIdError: ErrorCode.unknown_topic_id,
    UnsupportedRequestError: ErrorCode.invalid_request,
    InvalidAssignmentError: ErrorCode.invalid_replica_assignment,
    InvalidReplicationError: ErrorCode.invalid_replication_factor,
    AccessDeniedError: ErrorCode.topic_authorization_failed,
    GroupAccessDeniedError: ErrorCode.group_authorization_failed,
    ClusterAccessDeniedError: ErrorCode.cluster_authorization_failed,
    TransactionalIdAccessDeniedError: ErrorCode.transactional_id_authorization_failed,
    DamagedLogError: ErrorCode.kafka_storage_error,
    errors.CorruptionError: ErrorCode.kafka_storage_error,
    errors.CorruptRecordError: ErrorCode.corrupt_message,
}


#: Errors about a request: the client gets their text. The text of all others goes to the log.
_ABOUT_REQUESTS = (
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
    AccessDeniedError,
)
#: Details of errors that show locations on the server. A batch of a client has no file.
_LOCATIONS = frozenset({"url", "file", "path", "directory", "root"})
_NO_TOPIC = "This server does not host this topic-partition."
_HIDDEN_TEXT = "the request failed in the gateway: see its log"


def error_code(error: BaseException, subject: str = "a request") -> ErrorCode:
    """Return Kafka's code for `error`; log an error that clients do not get, as a failure of `subject`."""
    if not _is_for_clients(error):
        FAILURES.note(subject, error)
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), ErrorCode.unknown_server_error)


def client_text(error: BaseException) -> str:
    """The text of `error` for clients: without the server's folders and unexpected errors."""
    if not isinstance(error, errors.DistlogError) or not _is_for_clients(error):
        return _HIDDEN_TEXT
    # the library's text is about an address, which clients do not have
    message = _NO_TOPIC if type(error) is errors.TopicNotFoundError else error.message
    return str(type(error)(message, **{n: detail for n, detail in error.details.items() if n not in _LOCATIONS}))


def _is_for_clients(error: BaseException) -> bool:
    if isinstance(error, errors.CorruptRecordError) and error.details.get("file") is not None:
        # a record on storage: one in a request has no file
        return False
    return isinstance(error, _ABOUT_REQUESTS)


Topic = TypeVar("Topic", bound=str | uuid.UUID)


def topic_key(topic: Any, field: str) -> str | uuid.UUID:
    """The name of a requested topic; from version 13 of Produce and Fetch on its id (KIP-516)."""
    name: str | None = getattr(topic, field, None)
    return name if name is not None else topic.topic_id or uuid.UUID(int=0)


def topic_error_code(error: BaseException, topic: str | uuid.UUID) -> ErrorCode:
    """The code of a partition's error; a topic that was requested by its id, and was dropped, has an unknown id."""
    is_missing = isinstance(error, errors.TopicNotFoundError) and "partition" not in error.details
    return ErrorCode.unknown_topic_id if is_missing and isinstance(topic, uuid.UUID) else error_code(error)


def attempted(work: Callable[[], Fields | None], **fields: Any) -> Fields:
    """Return `fields` with what `work` returns, or with the code and the text of its error."""
    try:
        result = work()
    except Exception as error:
        return {**fields, "error_code": error_code(error), "error_message": client_text(error)}
    return {**fields, "error_code": ErrorCode.none, "error_message": None, **(result or {})}


def by_topic(parts: Iterable[tuple[Topic, Fields]], field: str = "partitions", name: str = "name") -> list[Fields]:
    """The topics of a response, by name or id, each with its parts in `field`."""
    topics: dict[Topic, list[Fields]] = {}
    for topic, part in parts:
        topics.setdefault(topic, []).append(part)
    return [
        {name if isinstance(topic, str) else "topic_id": topic, field: fields} for topic, fields in topics.items()
    ]


def attempted_once(
    work: Callable[[Any], Fields | None],
    items: Iterable[Any],
    key: Callable[[Any], Any],
    fields_of: Callable[[Any], Fields],
) -> list[Fields]:
    """The results of `attempted` for each item; as in Kafka, an item whose `key` comes twice is refused."""

    def only(same: Sequence[Any]) -> Fields | None:
        if len(same) > 1:
            raise UnsupportedRequestError("a request names this item twice")
        return work(same[0])

    return [attempted(partial(only, same), **fields_of(same[0])) for same in grouped(items, key).values()]


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


# Received bytes go into a buffer that all connections share; only a larger or incomplete frame has its own memory,
# which is requested as the frame comes. So an idle connection has none, and a length without its bytes costs none.

_LENGTH = 4
#: The first request for memory; later ones double the frame's.
_STEP = 64 << 10
#: Other protocols that begin with these bytes instead of a length: the usual faults of a client's settings.
_OTHER_PROTOCOLS = {
    b"\x16\x03": ": it is TLS, and this listener has none",
    b"GE": ": it is HTTP",
    b"PO": ": it is HTTP",
    b"HE": ": it is HTTP",
}


class FrameReader:
    """The frames of one connection. `largest` bounds their length, and may change between frames."""

    def __init__(self, shared: memoryview, largest: int) -> None:
        self._shared, self.largest = shared, largest
        # received bytes; those from `_position` on are in no frame yet. Taking a frame out copies only that frame
        self._unread, self._position = b"", 0
        self._frame: memoryview | None = None
        self._filled = self._granted = 0

    @property
    def wanted_bytes(self) -> int:
        """The bytes of memory that the started frame needs now."""
        if self._frame is None or self._filled < self._granted:
            return 0
        return min(max(2 * self._filled, _STEP), len(self._frame)) - self._granted

    @property
    def missing(self) -> int:
        return 0 if self._frame is None else len(self._frame) - self._filled

    @property
    def is_started(self) -> bool:
        return self._frame is not None or self.unframed > 0

    @property
    def unframed(self) -> int:
        return len(self._unread) - self._position

    def room(self) -> memoryview:
        return self._shared if self._frame is None else self._frame[self._filled : self._granted]

    def grant(self, size: int) -> None:
        self._granted += size

    def received(self, count: int) -> None:
        if self._frame is None:
            self._unread, self._position = self._unread[self._position :] + self._shared[:count], 0
        else:
            self._filled += count

    def begin(self) -> int:
        """Start the next frame if its length was received; returns the length, or 0."""
        start = self._position + _LENGTH
        if self._frame is not None or len(self._unread) < start:
            return 0
        length = int.from_bytes(self._unread[self._position : start], "big", signed=True)
        if not 0 < length <= self.largest:
            hint = _OTHER_PROTOCOLS.get(self._unread[self._position : self._position + 2], "")
            raise InvalidRequestError(
                f"a request has an impossible length{hint}", length=length, largest=self.largest
            )
        part, self._position = self._unread[start : start + length], start + length
        if self.unframed < _LENGTH:
            self._unread, self._position = self._unread[self._position :], 0
        self._filled, self._granted = len(part), 0
        if self._filled == length:
            self._frame = memoryview(part)
        else:
            self._frame = np.empty(length, np.uint8).data
            self._frame[: self._filled] = part
        return length

    def next(self) -> memoryview | None:
        if self._frame is None or self._filled < len(self._frame):
            return None
        frame, self._frame, self._filled = self._frame.toreadonly(), None, 0
        return frame


_HEAD = struct.Struct(">hhi")
_PRODUCE = 0
#: The largest request that carries no records: many small fields cost thirty times their size, and seconds.
LARGEST_OTHER_BYTES = 4 << 20


class RequestHead(NamedTuple):
    """The start of every request's header; the response has the same correlation id."""

    api_key: int
    api_version: int
    correlation_id: int


class ParsedRequest(NamedTuple):
    """A request's client id, and its body: a named tuple of the fields of this version."""

    client_id: str
    body: Any


def read_head(frame: memoryview) -> RequestHead:
    if len(frame) < _HEAD.size:
        raise InvalidRequestError("a request is too short to have a header", size=len(frame))
    return RequestHead(*_HEAD.unpack_from(frame))


def read_client_id(frame: memoryview) -> str:
    return read_text(frame, _HEAD.size)[0] or ""


def read_request(frame: memoryview, head: RequestHead, most_items: int = MAX_ITEMS) -> ParsedRequest:
    """Parse a request; InvalidRequestError also for more items. As in Kafka, bytes after its end are ignored."""
    if len(frame) > LARGEST_OTHER_BYTES and head.api_key != _PRODUCE:
        raise InvalidRequestError("a request without records is too large", api_key=head.api_key, size=len(frame))
    is_head_flexible, read_body = _reader(head.api_key, head.api_version)
    items = Items(most_items)
    try:
        client_id, position = read_text(frame, _HEAD.size)
        if is_head_flexible:
            position = skip_tags(frame, position, items)
        body, _ = read_body(frame, position, items)
    except InvalidRequestError as error:
        error.details.update(api_key=head.api_key, version=head.api_version)
        raise
    return ParsedRequest(client_id or "", body)


@cache
def _reader(api_key: int, version: int) -> tuple[bool, MessageReader]:
    schema = request_schema(api_key, version)
    return schema.is_head_flexible, message_reader(schema.body)


# A field that the version does not have is left out; a missing one has its default. Bytes from a log are not copied.

_RESPONSE_HEAD = struct.Struct(">ii")
_CORRELATION_ID = struct.Struct(">i")


def write_response(api_key: int, version: int, correlation_id: int, fields: Fields) -> list[ResponseChunk]:
    header, write = _writer(api_key, version)
    writer = ChunkWriter()
    writer.small += bytes(_RESPONSE_HEAD.size) + header
    write(writer, fields)
    writer.end()
    size = sum(map(len, writer.chunks))
    first = (
        _RESPONSE_HEAD.pack(size - _RESPONSE_HEAD.size + _CORRELATION_ID.size, correlation_id)
        + bytes(writer.chunks[0])[_RESPONSE_HEAD.size :]
    )
    return [first, *writer.chunks[1:]]


@cache
def _writer(api_key: int, version: int) -> tuple[bytes, MessageWriter]:
    """The response's header after the correlation id, and the writer of the body."""
    schema = response_schema(api_key, version)
    # a response's header of version 1 ends with its tagged fields: none
    header = b"\0" if schema.is_head_flexible else b""
    return header, message_writer(schema.body, response_fields(api_key))
