"""Requests, the rights of their clients, and their frames on a connection (Kafka's RequestChannel.Request)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from distlog.gateway.event_log import EventLog
from distlog.gateway.protocol import messages
from distlog.gateway.protocol.error_codes import AccessDeniedError, RefusedError, UnknownTopicIdError, fields_or_error
from distlog.gateway.security.acls import CLUSTER_NAME, OPERATIONS, AccessLists, Operation, ResourceType
from distlog.gateway.security.authentication import SaslExchange
from distlog.gateway.server.fairness import CpuShare, Quotas
from distlog.gateway.topics.metadata_cache import MetadataCache


@dataclass(slots=True, eq=False)
class Request:
    """A request. Any thread may answer it, once. `read` parses the bytes of `frame` into `body`."""

    head: messages.RequestHead
    frame: memoryview | None
    session: ClientSession
    share: CpuShare
    quotas: Quotas
    client: ClientConnection
    client_id: str = ""
    body: Any = None
    #: Functions to call when the client has received the response, or has disconnected.
    on_sent: list[Callable[[], None]] = field(default_factory=list)
    #: Whether the client has disconnected, so that no response can be sent.
    is_gone: bool = False
    #: The pause before the client's next request is read, because of quotas.
    throttled_s: float = 0
    #: The handler's state between its calls for this request. None at the first call.
    handler_state: Any = None
    granted: Rights | None = None
    #: False in the network's thread, where a handler raises WouldWaitError instead of waiting.
    may_wait: bool = True
    #: Whether the next request, if it is a Produce request, may be handled before this one is answered.
    allows_next: bool = False
    #: The connection's own state of the request.
    unsent: list[messages.ResponseChunk] | None = None  # the chunks of the response that were not sent yet
    memory: int = 0  # the bytes that are reserved for it
    is_pipelined: bool = False  # whether the connection reads the next request before this one is answered

    @property
    def api_version(self) -> int:
        return self.head.api_version

    @property
    def rights(self) -> Rights:
        assert self.granted is not None
        return self.granted

    @property
    def user(self) -> str:
        return self.session.principal or ""

    def note_use(self, name: str, amount: float) -> None:
        self.quotas.note(self.user, self.client_id, name, amount)

    def get(self, name: str, default: Any = None) -> Any:
        """The field of the body with this name, or `default` if this version does not have it."""
        return getattr(self.body, name, default)

    def read(self, most_items: int = messages.MAX_ITEMS) -> None:
        if self.frame is not None:
            self.client_id, self.body = messages.read_request(self.frame, self.head, most_items)
            self.frame = None

    def respond(self, fields: messages.Fields | None) -> None:
        """Send the response, or nothing for None. A response that cannot be written closes the connection."""
        self.throttled_s = self.quotas.wait_s(self.user, self.client_id)
        if fields is not None and self.throttled_s and "throttle_time" in messages.response_fields(self.head.api_key):
            fields = {**fields, "throttle_time": ceil(1000 * self.throttled_s)}
        chunks = () if fields is None else self._chunks_of(fields)
        if chunks is not None:
            # the state refers to the request: without this, only garbage collection would free both
            self.handler_state = None
            self.client.send(self, chunks)

    def refuse(self, fields: messages.Fields, after_s: float) -> None:
        chunks = self._chunks_of(fields)
        if chunks is not None:
            self.client.send_last(self, chunks, after_s)

    def hang_up(self, reason: str) -> None:
        self.client.fail(self, reason)

    def allow_pipelining(self) -> None:
        self.allows_next = True
        self.client.read_next()

    def _chunks_of(self, fields: messages.Fields) -> Sequence[messages.ResponseChunk] | None:
        # only an ApiVersions request of an unknown version has no body; as in Kafka, it is answered in version 0
        version = self.head.api_version if self.body is not None else 0
        try:
            return messages.write_response(self.head.api_key, version, self.head.correlation_id, fields)
        except Exception:
            # do not raise, since the caller may have other requests to answer
            _log.exception("a response cannot be written (api_key=%d version=%d)", self.head.api_key, version)
            self.hang_up("the response cannot be written")
            return None


class ClientConnection(Protocol):
    """The connection of a request's client. Any thread may call its methods."""

    def send(self, request: Request, chunks: Sequence[messages.ResponseChunk]) -> None:
        """Send the response after the responses to earlier requests. Without chunks, nothing is sent."""

    def send_last(self, request: Request, chunks: Sequence[messages.ResponseChunk], after_s: float) -> None:
        """Send the response after some seconds, then close the connection."""

    def fail(self, request: Request, reason: str) -> None:
        """Close the connection without a response."""

    def read_next(self) -> None:
        """Read and handle the next request if it was received, and if the request before it allows this."""


_log = logging.getLogger("distlog.gateway")


@dataclass(slots=True, eq=False)
class ClientSession:
    """The client of a connection. `principal` is its user, None until it has authenticated with `sasl`."""

    address: tuple[str, int]
    local: tuple[str, int]
    principal: str | None
    sasl: SaslExchange | None


#: Kafka's value for authorized operations that a response leaves out, as when the client did not request them.
NO_OPERATIONS = -(2**31)
_DENIALS = {
    ResourceType.TOPIC: (messages.ErrorCode.topic_authorization_failed, "Topic authorization failed."),
    ResourceType.GROUP: (messages.ErrorCode.group_authorization_failed, "Group authorization failed."),
    ResourceType.CLUSTER: (messages.ErrorCode.cluster_authorization_failed, "Cluster authorization failed."),
    ResourceType.TRANSACTIONAL_ID: (
        messages.ErrorCode.transactional_id_authorization_failed,
        "Transactional Id authorization failed.",
    ),
}


@dataclass(frozen=True, slots=True)
class Rights:
    """A client's rights, all if `lists` is None. Handlers check them first, so clients cannot detect what exists."""

    lists: AccessLists | None = None
    principal: str = ""
    host: str = ""
    denials: EventLog | None = None

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the client may do this. Logs no denial: it also filters resources that the client did not name."""
        return self.lists is None or self.lists.may(self.principal, self.host, operation, kind, name)

    def allows_any(self, operation: Operation, kind: ResourceType) -> bool:
        return self.lists is None or self.lists.may_any(self.principal, self.host, operation, kind)

    def may_describe(self, topic: str) -> bool:
        return self.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)

    def check(self, operation: Operation, kind: ResourceType, name: str) -> None:
        if not self.allows(operation, kind, name):
            if self.denials is not None:
                self.denials.note(f"{self.principal} at {self.host}", f"{operation.name} of {kind.name} {name!r}")
            code, message = _DENIALS[kind]
            raise AccessDeniedError(message, code=code)

    def check_topic(self, operation: Operation, topic: str | uuid.UUID, metadata: MetadataCache) -> None:
        """Check the rights to a topic by its name or id. Raises AccessDeniedError, UnknownTopicIdError."""
        if self.lists is None:
            return
        try:
            name = topic if isinstance(topic, str) else metadata.topic_of_id(topic).name
        except Exception:
            # a client without rights must not learn why the topic cannot be found
            raise UnknownTopicIdError("there is no topic with this id", topic_id=topic) from None
        self.check(operation, ResourceType.TOPIC, name)

    def check_cluster(self, *operations: Operation) -> None:
        """Check that any operation is allowed. If not, log the denial of the last, and raise AccessDeniedError."""
        if not any(self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME) for operation in operations):
            self.check(operations[-1], ResourceType.CLUSTER, CLUSTER_NAME)

    def check_code(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> messages.ErrorCode:
        """Return the code of the error that `check` raises, or `ErrorCode.none`, which is false."""
        try:
            self.check(operation, kind, name)
        except AccessDeniedError as error:
            return error.code
        return messages.ErrorCode.none

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The operations that the client may do with a resource, a bit each (KIP-430); NO_OPERATIONS without ACLs."""
        if self.lists is None:
            return NO_OPERATIONS
        return sum(1 << operation for operation in OPERATIONS[kind] if self.allows(operation, kind, name))


#: A parsed request takes about 16 times the bytes of its frame, but at most MAX_ITEMS times 256 bytes.
_PARSED_FACTOR, _MAX_PARSED_BYTES = 16, 256 * messages.MAX_ITEMS


def parsed_size(request: Request) -> int:
    """Estimate the bytes that a parsed request takes besides its frame. Records take no more than the frame."""
    if request.frame is None or request.head.api_key == messages.PRODUCE_KEY:
        return 0
    return min(_PARSED_FACTOR * len(request.frame), _MAX_PARSED_BYTES)


class SaslToken(NamedTuple):
    auth_bytes: bytes


#: The head for a token that came without one: the token is handled as a SaslAuthenticate request.
TOKEN_HEAD = messages.RequestHead(api_key=36, api_version=0, correlation_id=0)


class TokenRequest(Request):
    """A SASL token without a request header, after version 0 of SaslHandshake. Its response has no header either."""

    def _chunks_of(self, fields: messages.Fields) -> Sequence[messages.ResponseChunk] | None:
        token: bytes = fields["auth_bytes"]
        # the response has no field for an error: close the connection without a response
        return () if fields["error_code"] else (len(token).to_bytes(4, "big") + token,)


# Received bytes go into a buffer that all connections share. Only a larger or incomplete frame has its own memory,
# which grows while the frame arrives. So an idle connection, or a frame whose bytes do not come, needs no memory.

_LENGTH_BYTES = 4
#: The first memory of a frame. It doubles while the frame arrives.
_FIRST_MEMORY = 64 << 10
#: The first bytes of other protocols that clients use by mistake.
_OTHER_PROTOCOLS = {
    b"\x16\x03": "it is TLS, which this listener does not have",
    b"GE": "it is HTTP",
    b"PO": "it is HTTP",
    b"HE": "it is HTTP",
}
_TOO_LARGE = (
    "a request is larger than socket.request.max.bytes (before authentication: sasl.server.max.receive.size): send "
    "less at once, or raise the setting"
)


class FrameReader:
    """The frames of one connection. `max_length` may change between frames.

    After bytes were received into `next_buffer`, call `received`. Then call `begin`, `grant` with `wanted_bytes` of
    reserved memory (unless 0) and `next`, and repeat these while `next` returns a frame.
    """

    def __init__(self, shared_buffer: memoryview, max_length: int) -> None:
        self._shared_buffer, self.max_length = shared_buffer, max_length
        # received bytes, of which those from `_position` on are not yet in a frame
        self._unread, self._position = b"", 0
        # the started frame: `_filled` of its bytes were received, some before memory was reserved for `_granted`
        self._frame: memoryview | None = None
        self._filled = self._granted = 0

    @property
    def wanted_bytes(self) -> int:
        """The bytes to reserve next, for twice the filled bytes of the frame, or for all; 0 while it has room."""
        if self._frame is None or self._filled < self._granted:
            return 0
        return min(max(2 * self._filled, _FIRST_MEMORY), len(self._frame)) - self._granted

    @property
    def missing(self) -> int:
        return 0 if self._frame is None else len(self._frame) - self._filled

    @property
    def is_started(self) -> bool:
        return self._frame is not None or self.unframed > 0

    @property
    def unframed(self) -> int:
        return len(self._unread) - self._position

    def next_buffer(self) -> memoryview:
        return self._shared_buffer if self._frame is None else self._frame[self._filled : self._granted]

    def grant(self, size: int) -> None:
        self._granted += size

    def received(self, count: int) -> None:
        if self._frame is None:
            self._unread, self._position = self._unread[self._position :] + self._shared_buffer[:count], 0
        else:
            self._filled += count

    def begin(self) -> int:
        """Start the next frame if its length was received. Returns the length, or 0 if no frame was started."""
        start = self._position + _LENGTH_BYTES
        if self._frame is not None or len(self._unread) < start:
            return 0
        length = int.from_bytes(self._unread[self._position : start], "big", signed=True)
        if not 0 < length <= self.max_length:
            protocol = _OTHER_PROTOCOLS.get(self._unread[self._position : self._position + 2])
            too_large = length > 0 and protocol is None
            text = _TOO_LARGE if too_large else f"a request has an invalid length: {protocol or messages.BAD_CLIENT}"
            raise messages.InvalidRequestError(text, length=length, largest=self.max_length)
        payload = self._unread[start : start + length]
        self._position = start + length
        if self.unframed < _LENGTH_BYTES:
            # `_unread` has no length of a next frame, or even ends within this frame (a negative `unframed`): free it
            self._unread, self._position = self._unread[self._position :], 0
        self._filled, self._granted = len(payload), 0
        if self._filled == length:
            self._frame = memoryview(payload)
        else:
            # a bytearray would be filled with zeros. Here, the system adds each page when its bytes arrive
            self._frame = np.empty(length, np.uint8).data
            self._frame[: self._filled] = payload
        return length

    def next(self) -> memoryview | None:
        if self._frame is None or self._filled < len(self._frame):
            return None
        frame = self._frame.toreadonly()
        self._frame, self._filled = None, 0
        return frame


Topic = TypeVar("Topic", bound=str | uuid.UUID)


def topic_key(topic: Any, field: str) -> str | uuid.UUID:
    """The name of a requested topic, or its id from version 13 of Produce and Fetch on (KIP-516)."""
    name: str | None = getattr(topic, field, None)
    return name if name is not None else topic.topic_id or uuid.UUID(int=0)


def by_topic(
    items: Iterable[tuple[Topic, Any]], field: str = "partitions", name: str = "name"
) -> list[messages.Fields]:
    """Group `items` by topic, as fields of a response: `name` or "topic_id" is the topic, and `field` its items."""
    topics: dict[Topic, list[Any]] = {}
    for topic, item in items:
        topics.setdefault(topic, []).append(item)
    return [{name if isinstance(topic, str) else "topic_id": topic, field: group} for topic, group in topics.items()]


def fields_or_errors_of_items(
    work: Callable[[Any], messages.Fields | None],
    items: Iterable[Any],
    key: Callable[[Any], Any],
    fields_of: Callable[[Any], messages.Fields],
) -> list[messages.Fields]:
    """For each item, return `fields_of` with the fields or error of `work`. As in Kafka, equal keys are refused."""

    def refuse_duplicates(equal_items: Sequence[Any]) -> messages.Fields | None:
        if len(equal_items) > 1:
            raise RefusedError("the request names this topic or resource more than once: name it once")
        return work(equal_items[0])

    groups = grouped(items, key).values()
    return [fields_or_error(refuse_duplicates, group, **fields_of(group[0])) for group in groups]


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
