"""The table of APIs and their functions: Kafka's KafkaApis. To add an API, add its module to the table."""

from __future__ import annotations

import threading
import time
from collections import Counter

from distlog.core.log_manager.log_manager import Metric
from distlog.gateway.apis import cluster, configs, fetch, groups, produce, security, topics, transactions
from distlog.gateway.broker import Api, Broker, Handlers
from distlog.gateway.protocol.frames import RequestHead
from distlog.gateway.protocol.messages import InvalidRequestError
from distlog.gateway.server.request import PRODUCE_KEY, ClientSession, Request, Rights


class KafkaApis:
    """Handles requests, from many threads, and counts them in `metrics`."""

    def __init__(self, broker: Broker, metrics: RequestMetrics) -> None:
        self._broker, self._metrics = broker, metrics

    def handle(self, request: Request) -> None:
        """Handle one request, and send its response unless its handler does that itself."""
        api, start_s = APIS[request.head.api_key], time.perf_counter()
        try:
            request.read()
            self._grant(request)
            fields = api.handle(request, self._broker)
            if fields is not None:
                request.respond(fields)
        except InvalidRequestError as error:
            request.hang_up(str(error))
        finally:
            self._metrics.note(api.name, time.perf_counter() - start_s)

    def handle_without_waiting(self, request: Request) -> bool:
        """Handle a small Produce request unless it must wait; then `handle` continues."""
        start_s = time.perf_counter()
        try:
            request.read(_FEW_PARTITIONS)
        except InvalidRequestError:
            # it is large, or no request: a handler reads it again, and says so
            return False
        self._grant(request)
        is_handled = produce.produce_without_waiting(request, self._broker)
        if is_handled:
            self._metrics.note(APIS[PRODUCE_KEY].name, time.perf_counter() - start_s)
        return is_handled

    def _grant(self, request: Request) -> None:
        """Give a request the rights of its client; one that was put off keeps those that it had."""
        lists, session = self._broker.acls, request.session
        if request.granted is None:
            user, host = session.principal or "", session.address[0]
            request.granted = Rights() if lists is None else lists.rights(user, host)


#: All APIs, by their keys.
APIS: dict[int, Api] = {
    api.key: api
    for module in (produce, fetch, topics, configs, cluster, groups, transactions, security)
    for api in module.APIS
}
_BEFORE_AUTHENTICATION = {cluster.KEY, *(key for key, api in APIS.items() if api.handlers is Handlers.SASL)}
#: The most topics and partitions of a request that the network's thread handles.
_FEW_PARTITIONS = 9


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


class RequestMetrics:
    """The number of requests, and the time that handlers worked on them; for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._seconds = Counter[str](), Counter[str]()

    @property
    def total(self) -> int:
        return sum(self._count.values())

    def note(self, api: str, seconds: float) -> None:
        """Count a request that a handler has worked on; one that was put off counts each time."""
        with self._lock:
            self._count[api] += 1
            self._seconds[api] += seconds  # type: ignore[assignment]

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
