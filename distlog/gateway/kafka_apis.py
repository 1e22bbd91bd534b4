"""The table of APIs, and the threads that handle their requests: Kafka's KafkaApis. To add an API, add its module."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from distlog.core.log_manager.log_manager import Metric
from distlog.gateway.apis import cluster, configs, fetch, groups, produce, security, topics, transactions
from distlog.gateway.broker import Api, Broker, Handlers
from distlog.gateway.protocol.frames import RequestHead
from distlog.gateway.protocol.messages import InvalidRequestError
from distlog.gateway.server.fairness import CpuUses, owner_of
from distlog.gateway.server.request import PRODUCE_KEY, ClientSession, KafkaRequestHandlerPool, Request, Rights


class KafkaApis:
    """Handles requests, from many threads, and counts them. The `broker` is set before the first one."""

    broker: Broker

    def __init__(self, shares: CpuUses, io_threads: int) -> None:
        self._shares, self._lock = shares, threading.Lock()
        self._count, self._seconds = Counter[str](), Counter[str]()
        sizes = {**_THREADS, Handlers.RECORDS: io_threads, Handlers.TRANSACTIONS: io_threads}
        self.pools = {
            handlers: KafkaRequestHandlerPool(shares, self._handle, size, f"kafka-{handlers.value}-handler")
            for handlers, size in sizes.items()
        }

    def offer_new(self, request: Request, has_time: Callable[[], bool]) -> bool:
        """Have a received request handled; True if that was done here, as for small ones while there is time."""
        is_handled = (
            request.head.api_key == PRODUCE_KEY
            and len(request.frame or b"") <= _SMALL_BYTES
            and has_time()
            and self.pools[Handlers.RECORDS].handle_without_waiting(request, self._handle_without_waiting)
        )
        if not is_handled:
            self.offer(request)
        return is_handled

    def offer(self, request: Request) -> None:
        self.pools[APIS[request.head.api_key].handlers].channel.offer(request)

    def offer_password(self, request: Request) -> None:
        """Queue a password check: addresses take turns, and at each address the names of users."""
        owner = owner_of(None, request.session.address[0])
        request.share = self._shares.share(owner, f"password of {request.delayed}")
        self.pools[Handlers.PASSWORDS].channel.offer(request)

    def _handle(self, request: Request) -> None:
        """Handle one request, and send its response unless its handler does that itself."""
        api, start_s = APIS[request.head.api_key], time.perf_counter()
        try:
            request.read()
            self._grant(request)
            fields = api.handle(request, self.broker)
            if fields is not None:
                request.respond(fields)
        except InvalidRequestError as error:
            request.hang_up(str(error))
        finally:
            self._note(api.name, time.perf_counter() - start_s)

    def _handle_without_waiting(self, request: Request) -> bool:
        """Handle a small Produce request unless it must wait; then `_handle` continues."""
        start_s = time.perf_counter()
        try:
            request.read(_FEW_PARTITIONS)
        except InvalidRequestError:
            # it is large, or no request: a handler reads it again, and says so
            return False
        self._grant(request)
        is_handled = produce.produce_without_waiting(request, self.broker)
        if is_handled:
            self._note(APIS[PRODUCE_KEY].name, time.perf_counter() - start_s)
        return is_handled

    def _grant(self, request: Request) -> None:
        """Give a request the rights of its client; one that was put off keeps those that it had."""
        lists, session = self.broker.acls, request.session
        if request.granted is None:
            user, host = session.principal or "", session.address[0]
            request.granted = Rights() if lists is None else lists.rights(user, host)

    def _note(self, api: str, seconds: float) -> None:
        with self._lock:
            self._count[api] += 1
            self._seconds[api] += seconds  # type: ignore[assignment]

    @property
    def total(self) -> int:
        return sum(self._count.values())

    def metrics(self) -> list[Metric]:
        with self._lock:
            count, seconds = sorted(self._count.items()), sorted(self._seconds.items())
        counted = "requests that handlers worked on; a fetch that waited counts again"
        tables = (("requests", counted, count), ("request_seconds", "how long handlers worked on requests", seconds))
        return [
            Metric(
                f"distlog_gateway_{name}", "counter", meaning, [({"api": api}, float(value)) for api, value in values]
            )
            for name, meaning, values in tables
        ]


#: All APIs, by their keys.
APIS: dict[int, Api] = {
    api.key: api
    for module in (produce, fetch, topics, configs, cluster, groups, transactions, security)
    for api in module.APIS
}
_BEFORE_AUTHENTICATION = {cluster.KEY, *(key for key, api in APIS.items() if api.handlers is Handlers.SASL)}
#: The largest Produce request that the network's thread may handle itself, and its most topics and partitions.
_SMALL_BYTES, _FEW_PARTITIONS = 128 << 10, 9
#: Two threads for members, so that none loses its session while the storage is slow. A thread of topics may wait for
#: a lock that a stopped process holds. Guessing clients get one core at most.
_THREADS = {Handlers.MEMBERS: 2, Handlers.TOPICS: 4, Handlers.SASL: 1, Handlers.PASSWORDS: 1}


def supports(head: RequestHead, session: ClientSession) -> bool:
    """True if a request's body can be read; False for an unknown version of ApiVersions."""
    if session.principal is None and head.api_key not in _BEFORE_AUTHENTICATION:
        raise InvalidRequestError("the client has not authenticated", api_key=head.api_key)
    api = APIS.get(head.api_key)
    if api is not None and api.oldest <= head.api_version <= api.newest:
        return True
    if head.api_key == cluster.KEY:
        return False
    raise InvalidRequestError(
        "the gateway does not support this API or version", api_key=head.api_key, version=head.api_version
    )
