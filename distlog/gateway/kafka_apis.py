"""Finds the handler of a request, and runs it in a thread (Kafka's KafkaApis and RequestChannel)."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from distlog.core.log.partition_log import WouldWaitError
from distlog.core.log_manager.log_manager import Metric
from distlog.gateway.cluster import GatewayLease, Node
from distlog.gateway.config import GatewayConfig
from distlog.gateway.groups.coordinator import GroupServices
from distlog.gateway.protocol import messages
from distlog.gateway.root_records import DynamicConfigs, RootAcls, RootUsers
from distlog.gateway.server.delayed_operations import DelayedAppends, DelayedFetches, FetchMemory
from distlog.gateway.server.fairness import REQUEST_PERCENTAGE, CpuShare, CpuShares, FairQueue, owner_name
from distlog.gateway.server.request import ClientSession, Request, Rights
from distlog.gateway.topics.metadata_cache import MetadataCache
from distlog.gateway.transactions.transaction_coordinator import TransactionServices

_log = logging.getLogger("distlog.gateway")
#: The most bytes, and the most topics and partitions, of a Produce request that the network's thread may handle.
_SMALL_BYTES, _FEW_PARTITIONS = 128 << 10, 9


class KafkaApis:
    """Handles requests from many threads, and counts them. `broker` is set before the first request."""

    broker: Broker

    def __init__(self, apis: Mapping[int, Api], shares: CpuShares, io_threads: int) -> None:
        self._apis, self._shares, self._lock = apis, shares, threading.Lock()
        self._count, self._seconds = Counter[str](), Counter[str]()
        sizes = {**_THREADS, Handlers.RECORDS: io_threads, Handlers.TRANSACTIONS: io_threads}
        self.pools = {
            handlers: KafkaRequestHandlerPool(shares, self._handle, size, f"kafka-{handlers.value}-handler")
            for handlers, size in sizes.items()
        }

    def supports(self, head: messages.RequestHead, session: ClientSession) -> bool:
        """Return whether the body can be read. Raises InvalidRequestError if this client may not send the request."""
        api = self._apis.get(head.api_key)
        is_login = head.api_key == messages.API_VERSIONS_KEY or (api is not None and api.handlers is Handlers.SASL)
        if session.principal is None and not is_login:
            raise messages.InvalidRequestError("the client has not authenticated", api_key=head.api_key)
        if api is not None and api.oldest <= head.api_version <= api.newest:
            return True
        if head.api_key == messages.API_VERSIONS_KEY:
            return False
        text = "the gateway does not support this API or version"
        raise messages.InvalidRequestError(text, api_key=head.api_key, version=head.api_version)

    def offer_new(self, request: Request, has_time: Callable[[], bool]) -> bool:
        """Handle a small Produce request if the network's thread `has_time`, and return True; queue all others."""
        is_small = request.head.api_key == messages.PRODUCE_KEY and len(request.frame or b"") <= _SMALL_BYTES
        if is_small and has_time() and self.pools[Handlers.RECORDS].handle_at_once(request):
            return True
        self.offer(request)
        return False

    def offer(self, request: Request) -> None:
        self.pools[self._apis[request.head.api_key].handlers].channel.offer(request)

    def offer_password(self, request: Request) -> None:
        """Queue a password check, fairly among addresses, then among users. `handler_state` is the claimed user."""
        owner = owner_name(None, request.session.address[0])
        request.share = self._shares.share(owner, f"password of {request.handler_state}")
        self.pools[Handlers.PASSWORDS].channel.offer(request)

    def _handle(self, request: Request) -> bool:
        """Handle a request, and send its handler's response, if any. Returns False if a pool must handle it."""
        api, start_s = self._apis[request.head.api_key], time.perf_counter()
        try:
            request.read(messages.MAX_ITEMS if request.may_wait else _FEW_PARTITIONS)
            if request.granted is None:
                # a request that is handled again after a wait keeps its rights
                acls, session = self.broker.acls, request.session
                request.granted = Rights() if acls is None else acls.rights(request.user, session.address[0])
            fields = api.handle(request, self.broker)
            if fields is not None:
                request.respond(fields)
        except (WouldWaitError, messages.InvalidRequestError) as error:
            if not request.may_wait:
                # a thread of the pool handles the request again, and refuses it if it is too large or invalid
                return False
            request.hang_up(str(error))
        except Exception:  # handlers answer expected errors themselves
            _log.exception("a request failed (api_key=%d)", request.head.api_key)
            request.hang_up("the request failed")
        with self._lock:
            self._count[api.name] += 1
            self._seconds[api.name] += time.perf_counter() - start_s  # type: ignore[assignment]
        return True

    @property
    def total(self) -> int:
        return sum(self._count.values())

    def metrics(self) -> list[Metric]:
        with self._lock:
            count, seconds = sorted(self._count.items()), sorted(self._seconds.items())
        about_count = "requests that handlers worked on; a fetch that waited counts again"
        rows = ("requests", about_count, count), ("request_seconds", "how long handlers worked on requests", seconds)
        return [
            Metric(f"distlog_gateway_{name}", "counter", meaning, [({"api": api}, float(n)) for api, n in values])
            for name, meaning, values in rows
        ]


class Handlers(Enum):
    """Pools of threads that handle APIs: work of one pool never waits for work of another pool."""

    RECORDS = "request"
    #: For members of groups. They use only the storage of groups.
    MEMBERS = "group"
    #: For steps of transactions, which wait for the storage.
    TRANSACTIONS = "transaction"
    #: For deletions and changes of topics: they wait for locks, which a stopped process may hold.
    TOPICS = "topics"
    SASL = "sasl"
    #: For checks of passwords, which take time on purpose.
    PASSWORDS = "password"


#: The threads of each pool. MEMBERS has its own, so that heartbeats do not wait for slow storage of records.
#: PASSWORDS has one, so that clients that guess passwords use at most one core.
_THREADS = {Handlers.MEMBERS: 2, Handlers.TOPICS: 4, Handlers.SASL: 1, Handlers.PASSWORDS: 1}


class Api(NamedTuple):
    """An API in versions `oldest` to `newest`. `handle` returns the response, or None if it responds itself."""

    key: int
    name: str
    oldest: int
    newest: int
    handle: Callable[[Request, Broker], messages.Fields | None]
    #: The rights that the handler checks, as the documentation lists them.
    rights: str
    handlers: Handlers = Handlers.RECORDS


@dataclass(frozen=True, slots=True)
class Broker:
    """The components that handlers use. Without `acls`, clients may do everything but change `users`."""

    config: GatewayConfig
    metadata: MetadataCache
    fetches: DelayedFetches
    appends: DelayedAppends
    clock: Callable[[], int]
    apis: Mapping[int, Api]
    fetch_memory: FetchMemory
    cluster: GatewayLease
    groups: GroupServices
    transactions: TransactionServices
    configs: DynamicConfigs
    security_protocol: str = "PLAINTEXT"
    acls: RootAcls | None = None
    users: RootUsers | None = None
    queue_password_check: Callable[[Request], None] | None = None

    @property
    def cluster_id(self) -> str:
        """An id of the root, the same for all its gateways."""
        digest = hashlib.sha256(self.metadata.root.url.encode()).digest()
        return urlsafe_b64encode(digest[:16]).decode().rstrip("=")

    def address(self, request: Request, node: Node) -> tuple[str, int]:
        """The host and port at which the client of a request finds a gateway."""
        if node.id == self.cluster.node.id:
            return self.config.advertised or request.session.local
        return node.host, node.port


#: The pause before the queue is checked again if all its clients have used their fractions of the time.
_PAUSE_S = 0.005


class RequestChannel:
    """The requests that wait for one of `handlers` threads, in fair order; for many threads."""

    def __init__(self, shares: CpuShares, handlers: int) -> None:
        self._shares, self._handlers = shares, handlers
        self._queue = FairQueue[Request](shares, handlers)
        # True wakes a thread to take a request, False ends a thread
        self._wakeups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        # True while one thread polls the queue, because no queued request may run yet
        self._is_polled = False

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, request: Request) -> None:
        with self._shares.lock:
            self._queue.put(request.share, request)
        self._wake(1)

    def receive(self) -> Request | None:
        """Wait for the next request, and return it. Returns None if the calling thread must end."""
        is_poller = False
        while True:
            is_running = self._poll_again() if is_poller else self._wakeups.get()
            with self._shares.lock:
                # when the pool stops, queued requests are handled without limits
                request = self._queue.next(limited=is_running)
                if is_poller:
                    self._is_polled = is_poller = False
                # if no queued request may run yet, one thread becomes the poller: it checks again after a pause
                if request is None and is_running and len(self._queue) and not self._is_polled:
                    self._is_polled = is_poller = True
                # the poller, if any, wakes the thread for the next request itself
                wakes_thread = request is not None and len(self._queue) and not self._is_polled
            # this thread handles a queued request before it ends: put back the wakeup that ends a thread
            if not is_running and request is not None:
                self._wakeups.put(False)
            elif wakes_thread:
                self._wake(1)
            if request is not None or not is_running:
                return request

    def _poll_again(self) -> bool:
        # sleep, since `get` with a timeout waited forever in CPython 3.11 while other threads removed items
        time.sleep(_PAUSE_S)
        try:
            return self._wakeups.get_nowait()
        except queue.Empty:
            return True

    def add_use(self, share: CpuShare, used_s: float) -> None:
        with self._shares.lock:
            share.add_use(used_s, self._shares.clock_s())

    def finish(self, share: CpuShare, used_s: float) -> None:
        with self._shares.lock:
            self._queue.end(share, used_s)
            waiting = len(self._queue)
        # wake this thread and another, so that the number of working threads grows again after a client was limited
        self._wake(min(waiting, 2))

    def end(self) -> None:
        for _ in range(self._handlers):
            self._wakeups.put(False)

    def _wake(self, times: int) -> None:
        for _ in range(times):
            if self._wakeups.qsize() < self._handlers:
                self._wakeups.put(True)


#: An estimate of the network thread's time for a request and its response.
_NETWORK_S = 0.0006
#: A request's use is its duration, but at most this multiple of its CPU time: its thread may wait for other threads.
_MAX_DURATION_PER_CPU = 3


class KafkaRequestHandlerPool:
    """`size` threads that call `handle` with requests of the channel."""

    def __init__(self, shares: CpuShares, handle: Callable[[Request], bool], size: int, name: str) -> None:
        self.channel, self._shares, self._handle = RequestChannel(shares, size), shares, handle
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{n}", daemon=True) for n in range(size)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        self.channel.end()
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def handle_at_once(self, request: Request) -> bool:
        """Handle a request in the network's thread. Returns False if it must wait, or if others are queued."""
        if len(self.channel) or not self._shares.leaves_room(request.share):
            return False
        started_s, started_cpu_s = time.monotonic(), time.thread_time()
        request.may_wait = False
        is_handled = self._handle(request)
        request.may_wait = True
        cpu_s, duration_s = time.thread_time() - started_cpu_s, time.monotonic() - started_s
        used_s = min(_MAX_DURATION_PER_CPU * cpu_s, duration_s)
        # do not add _NETWORK_S if the request must wait: the thread that handles it again adds this time
        self.channel.add_use(request.share, used_s + (_NETWORK_S if is_handled else 0))
        request.note_use(REQUEST_PERCENTAGE, duration_s)
        return is_handled

    def _run(self) -> None:
        while (request := self.channel.receive()) is not None:
            # read this first, since `offer_password` may give the request another share in the call
            share = request.share
            started_s, started_cpu_s = time.monotonic(), time.thread_time()
            self._handle(request)
            cpu_s = time.thread_time() - started_cpu_s
            used_s = min(_MAX_DURATION_PER_CPU * cpu_s, time.monotonic() - started_s)
            self.channel.finish(share, used_s + _NETWORK_S)
            request.note_use(REQUEST_PERCENTAGE, time.monotonic() - started_s)
