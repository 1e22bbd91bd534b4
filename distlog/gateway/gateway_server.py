"""The gateway: puts the parts together, starts and stops them. Kafka's BrokerServer."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal

from distlog.core.display.units import counted
from distlog.core.log_manager.metrics import Metric
from distlog.core.log_manager.scheduler import Scheduler
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.gateway.broker import Broker
from distlog.gateway.broker_settings import with_settings
from distlog.gateway.cluster.gateway_lease import GatewayLease
from distlog.gateway.cluster.node import advertised, this_machine
from distlog.gateway.config import GatewayConfig
from distlog.gateway.delayed_fetches import DelayedFetches
from distlog.gateway.fetch_memory import FetchMemory
from distlog.gateway.groups.dropped_topics import DroppedTopics
from distlog.gateway.groups.follow_groups import FollowGroups
from distlog.gateway.groups.of_broker import FOLLOW_PART, PART
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.groups.services import GroupServices
from distlog.gateway.kafka_apis import APIS, OF_MEMBERS, KafkaApis, supports
from distlog.gateway.metadata_cache import MetadataCache, topic_defaults
from distlog.gateway.request_metrics import RequestMetrics
from distlog.gateway.server.acceptor import Acceptor
from distlog.gateway.server.processor import Processor
from distlog.gateway.server.request import Request
from distlog.gateway.server.request_channel import RequestChannel
from distlog.gateway.server.request_handler_pool import KafkaRequestHandlerPool

#: How long the end waits for requests that are under way.
STOP_TIMEOUT_S = 8.0
ANONYMOUS = "ANONYMOUS"
#: Threads of their own for what members live by, so that nobody is thrown out while the storage is slow.
_MEMBERS_THREADS = 2
#: How often logs are looked at for which `flush.ms` may have passed.
_FLUSH_MS = 500
#: How often topics with positions are looked at whether others dropped them: by whether that is a look at a disk.
_LOOK_MS = {True: 1000, False: 5000}


class GatewayServer:
    """Kafka's protocol at `host` and `port` (0: a free one), for the topics below `root`. Use it in a `with` block.

    `settings` are Kafka's broker settings: those that a gateway knows, and those for topics that do not set theirs.
    """

    def __init__(
        self,
        root: str,
        host: str = "127.0.0.1",
        port: int = 9092,
        *,
        config: GatewayConfig | None = None,
        settings: Mapping[str, object] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        config = with_settings(config or GatewayConfig(), settings or {})
        self._host, self._asked_port, self._tls = host, port, tls
        self._loop = asyncio.new_event_loop()
        self._channel = RequestChannel(config.queued_max_requests, self._wake)
        self._members_channel = RequestChannel(config.queued_max_requests, self._wake)
        self._processor = Processor(config, self._loop, self._offer, supports, clock, ANONYMOUS)
        self._acceptor = Acceptor(self._processor)
        metadata = MetadataCache(Storage(root, storage_options), topic_defaults(settings or {}), clock, config)
        fetches = DelayedFetches(self._channel.again, config.metadata_max_age_ms)
        lease_s = config.broker_session_timeout_ms / 1000
        self._lease = GatewayLease(metadata.root, config.node_id, lease_s)
        memory = FetchMemory(config.fetch_memory_bytes)
        self.broker = Broker(config, metadata, fetches, clock, APIS, memory, self._lease)
        store = OffsetsTopic(
            self.root,
            linger_ms=0 if metadata.root.is_local_disk else config.linger_ms,
            storage_options=storage_options,
        )
        self._groups = GroupServices(store, self._lease, config.groups, retention_ms=config.offsets_retention_ms)
        self._followers = FollowGroups(metadata)
        self.broker.parts.update({PART: self._groups, FOLLOW_PART: self._followers})
        self._requests = RequestMetrics()
        apis = KafkaApis(self.broker, self._requests)
        self._handlers = [
            KafkaRequestHandlerPool(self._channel, apis.handle, config.num_io_threads, "kafka-request-handler"),
            KafkaRequestHandlerPool(self._members_channel, apis.handle, _MEMBERS_THREADS, "kafka-group-handler"),
        ]
        self._scheduler = Scheduler()
        self._scheduler.schedule("log-flusher", metadata.flush_due, delay_ms=_FLUSH_MS, period_ms=_FLUSH_MS)
        dropped = DroppedTopics(self._groups.offsets, lambda name: metadata.fresh_topic(name).snapshot.topic_id)
        look_ms = _LOOK_MS[metadata.root.is_local_disk]
        self._scheduler.schedule("dropped-topics", dropped.look, delay_ms=look_ms, period_ms=look_ms)
        self._thread = threading.Thread(target=self._run_loop, name="kafka-network-thread", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens to."""
        return self._acceptor.port

    @property
    def root(self) -> str:
        """The address of the root, without credentials."""
        return self.broker.metadata.root.url

    @property
    def status(self) -> str:
        """What goes on, in a line for people."""
        topics, requests = len(self.broker.metadata.loaded), self._requests.total
        connections = counted(self.connections, "connection")
        return f"{connections}, {counted(topics, 'topic')}, {counted(requests, 'request')}"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._processor.connections)

    def metrics(self) -> list[Metric]:
        """Counters of requests and connections, and what goes on now; no storage is asked."""
        processor, broker = self._processor, self.broker
        gauges = {
            "connections": ("open connections", self.connections),
            "request_queue_size": (
                "requests that wait for a handler",
                len(self._channel) + len(self._members_channel),
            ),
            "request_memory_bytes": ("bytes of requests that are received or handled", processor.memory.used),
            "fetch_memory_bytes": (
                "bytes of records in responses that clients have not taken",
                broker.fetch_memory.used,
            ),
            "node_id": ("the id of this broker", self._lease.node.id),
            "brokers": ("gateways of the root that live, as far as this one knows", len(self._lease.nodes)),
            "coordinated_partitions": (
                "partitions of __consumer_offsets whose groups it coordinates",
                len(self._groups.coordination.loaded),
            ),
            "delayed_fetches": ("fetches that wait for records", len(broker.fetches)),
        }
        counters = {
            "connections_accepted": ("connections that were accepted", processor.accepted),
            "connections_refused": ("connections that were refused: there were too many", processor.refused),
        }
        return [
            *(_metric(name, "gauge", *facts) for name, facts in gauges.items()),
            *(_metric(name, "counter", *facts) for name, facts in counters.items()),
            *self._requests.metrics(),
        ]

    @property
    def address(self) -> str:
        """What clients take for `bootstrap.servers`."""
        return f"{self._host}:{self.port}"

    def start(self) -> GatewayServer:
        """Begin to answer. Raises StorageError if it cannot listen."""
        self._thread.start()
        try:
            self._in_loop(self._acceptor.listen(self._host, self._asked_port, self._tls)).result()
        except BaseException:
            self._end_loop()
            raise
        host, port = self.broker.config.advertised or advertised(self._host, self.port)
        self._lease.be_at(host, port, this_machine())
        self._groups.start()
        for handlers in self._handlers:
            handlers.start()
        self._scheduler.start()
        self.broker.fetches.start()
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Answer what is under way, close all, and have all that was appended on the device.

        Returns False if a request was given up on.
        """
        if self._loop.is_closed():
            return True
        stopping = self._in_loop(self._acceptor.stop(timeout_s))
        self.broker.fetches.stop()
        self._groups.hurry()
        self.broker.metadata.hurry()
        finished = stopping.result()
        for handlers in self._handlers:
            finished = handlers.stop(timeout_s) and finished
        finished = self._scheduler.stop(timeout_s) and finished
        self._followers.stop()
        self._groups.stop()
        self.broker.metadata.close()
        self._end_loop()
        return finished

    def __enter__(self) -> GatewayServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _offer(self, request: Request) -> None:
        is_of_members = request.head.api_key in OF_MEMBERS
        (self._members_channel if is_of_members else self._channel).offer(request)

    def _wake(self, work: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(work)

    def _in_loop(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _metric(name: str, kind: Literal["gauge", "counter"], meaning: str, value: int) -> Metric:
    return Metric(f"distlog_gateway_{name}", kind, meaning, [({}, float(value))])
