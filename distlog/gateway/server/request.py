"""Requests, their rights, and the threads that handle them (Kafka's RequestChannel, KafkaRequestHandlerPool)."""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from distlog.gateway.event_log import EventLog
from distlog.gateway.protocol.frames import (
    AccessDeniedError,
    ClusterAccessDeniedError,
    Fields,
    GroupAccessDeniedError,
    RequestHead,
    ResponseChunk,
    TransactionalIdAccessDeniedError,
    UnknownTopicIdError,
    error_code,
    read_request,
    write_response,
)
from distlog.gateway.protocol.messages import MAX_ITEMS, ErrorCode, response_fields
from distlog.gateway.security.acls import CLUSTER_NAME, OPERATIONS, AccessLists, Operation, ResourceType
from distlog.gateway.security.authentication import SaslExchange
from distlog.gateway.server.fairness import REQUEST_PERCENTAGE, CpuUse, CpuUses, FairQueue, Quotas

if TYPE_CHECKING:
    from distlog.gateway.topics.metadata_cache import HostedTopic


@dataclass(slots=True, eq=False)
class Request:
    """A request; a handler answers it once, from any thread. `read` parses the bytes in `frame` into `body`."""

    head: RequestHead
    frame: memoryview | None
    session: ClientSession
    share: CpuUse
    quotas: Quotas
    client: ClientConnection
    client_id: str = ""
    body: Any = None
    #: Called when the client has received the response, or has disconnected.
    on_sent: list[Callable[[], None]] = field(default_factory=list)

    is_gone: bool = False
    #: How long its client's next request is not read, by the client's quotas.
    throttled_s: float = 0
    #: The handler's state of a request that it has put off.
    delayed: Any = None
    granted: Rights | None = None
    #: For the connection: the unsent chunks of the response, the memory, and whether the next request may be handled.
    unsent: list[ResponseChunk] | None = None
    memory: int = 0
    has_passed: bool = False

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

    def count(self, name: str, amount: float) -> None:
        self.quotas.note(self.user, self.client_id, name, amount)

    def get(self, name: str, default: Any = None) -> Any:
        """The field of the body with this name, or `default` if this version does not have it."""
        return getattr(self.body, name, default)

    def read(self, most_items: int = MAX_ITEMS) -> None:
        if self.frame is not None:
            (self.client_id, self.body), self.frame = read_request(self.frame, self.head, most_items), None

    def respond(self, fields: Fields) -> None:
        """Send the response; one that cannot be written closes the connection."""
        self.throttled_s = self.quotas.wait_s(self.user, self.client_id)
        if self.throttled_s and "throttle_time" in response_fields(self.head.api_key):
            fields = {**fields, "throttle_time": ceil(1000 * self.throttled_s)}
        chunks = self._chunks_of(fields)
        if chunks is not None:
            self._send(chunks)

    def refuse(self, fields: Fields, after_s: float) -> None:
        chunks = self._chunks_of(fields)
        if chunks is not None:
            self.client.send_last(self, chunks, after_s)

    def _send(self, chunks: Sequence[ResponseChunk]) -> None:
        # it has the request, too: without this circle there is next to nothing for the garbage collector to find
        self.delayed = None
        self.client.send(self, chunks)

    def hang_up(self, reason: str) -> None:
        self.client.fail(self, reason)

    def let_next(self) -> None:
        """Have its client's next request handled, if that may be before this one is answered."""
        self.client.let_next(self)

    def _chunks_of(self, fields: Fields) -> Sequence[ResponseChunk] | None:
        # an unknown version is answered in version 0
        version = self.head.api_version if self.body is not None else 0
        try:
            return write_response(self.head.api_key, version, self.head.correlation_id, fields)
        except Exception:
            # the caller has other requests to answer, too
            _log.exception("a response cannot be written (api_key=%d version=%d)", self.head.api_key, version)
            self.hang_up("the response cannot be written")
            return None

    def respond_nothing(self) -> None:
        self.throttled_s = self.quotas.wait_s(self.user, self.client_id)
        self._send(())


class ClientConnection(Protocol):
    """The connection of a request's client; any thread may call its methods."""

    def send(self, request: Request, chunks: Sequence[ResponseChunk]) -> None:
        """Send the response after the responses to earlier requests; without chunks, send nothing."""

    def send_last(self, request: Request, chunks: Sequence[ResponseChunk], after_s: float) -> None:
        """Send the response after some seconds, then close the connection."""

    def fail(self, request: Request, reason: str) -> None:
        """Close the connection without a response."""

    def let_next(self, request: Request) -> None:
        """Have the next request handled before this one is answered, if its API allows that."""


_log = logging.getLogger("distlog.gateway")


@dataclass(slots=True, eq=False)
class ClientSession:
    """The client of a connection; `principal` is the user's name, None until it has authenticated by `sasl`."""

    address: tuple[str, int]
    local: tuple[str, int]
    principal: str | None
    sasl: SaslExchange | None


#: Kafka's value for operations that were not asked for.
NO_OPERATIONS = -(2**31)
_DENIALS = {
    ResourceType.TOPIC: AccessDeniedError("Topic authorization failed."),
    ResourceType.GROUP: GroupAccessDeniedError("Group authorization failed."),
    ResourceType.CLUSTER: ClusterAccessDeniedError("Cluster authorization failed."),
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAccessDeniedError("Transactional Id authorization failed."),
}


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a client: everything without `lists`. `denials` logs and counts denials.

    A handler checks them before it opens the resource, so a client without rights does not learn what exists.
    """

    lists: AccessLists | None = None
    principal: str = ""
    host: str = ""
    denials: EventLog | None = None

    def might(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """True if the client may do this; nothing is logged, since it did not name the resource."""
        return self.lists is None or self.lists.may(self.principal, self.host, operation, kind, name)

    def might_with_any(self, operation: Operation, kind: ResourceType) -> bool:
        return self.lists is None or self.lists.may_any(self.principal, self.host, operation, kind)

    def describes(self, topic: str) -> bool:
        return self.might(Operation.DESCRIBE, ResourceType.TOPIC, topic)

    def check(self, operation: Operation, kind: ResourceType, name: str) -> None:
        if not self.might(operation, kind, name):
            if self.denials is not None:
                self.denials.note(f"{self.principal} at {self.host}", f"{operation.name} of {kind.name} {name!r}")
            raise type(_DENIALS[kind])(_DENIALS[kind].message)

    def check_topic(
        self, operation: Operation, topic: str | uuid.UUID, topic_of_id: Callable[[uuid.UUID], HostedTopic]
    ) -> None:
        """Check the rights to a topic by its name or id. Raises AccessDeniedError, UnknownTopicIdError."""
        if self.lists is None:
            return
        try:
            name = topic if isinstance(topic, str) else topic_of_id(topic).name
        except Exception:
            # a topic that cannot be found now is not for the client
            raise UnknownTopicIdError("there is no topic with this id", topic_id=topic) from None
        self.check(operation, ResourceType.TOPIC, name)

    def check_cluster(self, *operations: Operation) -> None:
        if not any(self.might(operation, ResourceType.CLUSTER, CLUSTER_NAME) for operation in operations):
            self.check(operations[-1], ResourceType.CLUSTER, CLUSTER_NAME)

    def denied(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> ErrorCode:
        try:
            self.check(operation, kind, name)
        except AccessDeniedError as error:
            return error_code(error)
        return ErrorCode.none

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The operations that the client may do with a resource, as bits (KIP-430)."""
        if self.lists is None:
            return NO_OPERATIONS
        return sum(1 << operation for operation in OPERATIONS[kind] if self.might(operation, kind, name))


#: The fields of a request as objects: this factor times the bytes, up to a limit for the most items of a request.
_OBJECTS, _MOST_OBJECT_BYTES = 16, 256 * MAX_ITEMS
PRODUCE_KEY = 0


def parsed_size(request: Request) -> int:
    """About the bytes that a request will have as objects; records take the place of their frame."""
    if request.frame is None or request.head.api_key == PRODUCE_KEY:
        return 0
    return min(_OBJECTS * len(request.frame), _MOST_OBJECT_BYTES)


class SaslToken(NamedTuple):
    """A client's token, with the field of SaslAuthenticate."""

    auth_bytes: bytes


#: A bare token has no correlation id.
TOKEN_HEAD = RequestHead(api_key=36, api_version=0, correlation_id=0)


class TokenRequest(Request):
    """A SASL token without Kafka's head, as after SaslHandshake 0; its response is a token, too."""

    def _chunks_of(self, fields: Fields) -> Sequence[ResponseChunk] | None:
        token: bytes = fields["auth_bytes"]
        # there is no place for an error: the connection ends without one
        return () if fields["error_code"] else (len(token).to_bytes(4, "big") + token,)


#: How often clients are looked at that have used their part of the time.
_PAUSE_S = 0.005


class RequestChannel:
    """The requests that wait for one of `handlers` threads, in fair order; for many threads."""

    def __init__(self, shares: CpuUses, handlers: int) -> None:
        self._shares, self._handlers = shares, handlers
        self._queue = FairQueue[Request](shares, handlers)
        # each has a thread look for a request that may be handled now, or end
        self._wakeups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._is_watched = False

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, request: Request) -> None:
        with self._shares.lock:
            self._queue.put(request.share, request)
        self._wake(1)

    def receive(self) -> Request | None:
        """The next request; waits for one. None ends a handler."""
        waits_for_time = False
        while True:
            is_running = self._poll_again() if waits_for_time else self._wakeups.get()
            with self._shares.lock:
                request = self._queue.next(limited=is_running)
                # one thread polls again after a pause, for all threads
                if waits_for_time:
                    self._is_watched, waits_for_time = False, False
                if request is None and is_running and len(self._queue) and not self._is_watched:
                    self._is_watched = waits_for_time = True
                is_left_alone = request is not None and len(self._queue) and not self._is_watched
            if not is_running and request is not None:
                self._wakeups.put(False)
            elif is_left_alone:
                self._wake(1)
            if request is not None or not is_running:
                return request

    def _poll_again(self) -> bool:
        # no `get` with a timeout: one waited forever while other threads removed items (CPython 3.11)
        time.sleep(_PAUSE_S)
        try:
            return self._wakeups.get_nowait()
        except queue.Empty:
            return True

    def used(self, share: CpuUse, used_s: float) -> None:
        with self._shares.lock:
            share.note(used_s, self._shares.clock_s())

    def finish(self, share: CpuUse, used_s: float) -> None:
        with self._shares.lock:
            self._queue.end(share, used_s)
            waiting = len(self._queue)
        # two, so that more threads work again when the other clients have ended
        self._wake(min(waiting, 2))

    def end(self) -> None:
        for _ in range(self._handlers):
            self._wakeups.put(False)

    def _wake(self, times: int) -> None:
        for _ in range(times):
            if self._wakeups.qsize() < self._handlers:
                self._wakeups.put(True)


Result = TypeVar("Result")

#: The time that the network's thread takes for a request and its response.
_NETWORK_S = 0.0006
#: How many times its time of the CPU a request may count, since its thread waited for its turn.
_MOST_WAITING = 3


class KafkaRequestHandlerPool:
    """`size` threads with a `name`, each of which calls `handle` with one request after the other."""

    def __init__(self, shares: CpuUses, handle: Callable[[Request], None], size: int, name: str) -> None:
        self.channel, self._shares, self._handle = RequestChannel(shares, size), shares, handle
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(size)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        self.channel.end()
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def handle_without_waiting(self, request: Request, work: Callable[[Request], bool]) -> bool:
        """Handle a request in the network's thread; False if others wait, or `work` would have to."""
        if len(self.channel) or not self._shares.leaves_room(request.share):
            return False
        started_s, started_cpu_s = time.monotonic(), time.thread_time()
        is_handled = _guarded(work, request, failed=True)
        # also for an attempt alone, which must cost its client something
        cpu_s, duration_s = time.thread_time() - started_cpu_s, time.monotonic() - started_s
        self.channel.used(request.share, min(_MOST_WAITING * cpu_s, duration_s) + _NETWORK_S * is_handled)
        request.count(REQUEST_PERCENTAGE, duration_s)
        return is_handled

    def _run(self) -> None:
        while (request := self.channel.receive()) is not None:
            # a request that is put off may be of another share in the next line
            share, started_s, started_cpu_s = request.share, time.monotonic(), time.thread_time()
            _guarded(self._handle, request, failed=None)
            cpu_s = time.thread_time() - started_cpu_s
            # a thread that waits for storage uses nothing; one that computes waits for the others that do
            used_s = min(_MOST_WAITING * cpu_s, time.monotonic() - started_s)
            self.channel.finish(share, used_s + _NETWORK_S)
            request.count(REQUEST_PERCENTAGE, time.monotonic() - started_s)


def _guarded(work: Callable[[Request], Result], request: Request, failed: Result) -> Result:
    try:
        return work(request)
    except Exception:
        # handlers answer with their own errors; after any other the connection ends
        _log.exception("a request failed (api_key=%d)", request.head.api_key)
        request.hang_up("the request failed")
        return failed
