"""The gateway: puts the parts together, starts and stops them. Kafka's BrokerServer."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from distlog.core.display.units import counted
from distlog.core.log_manager.metrics import Metric
from distlog.core.log_manager.scheduler import Scheduler
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.gateway.broker import Broker
from distlog.gateway.broker_parts import FOLLOW_GROUPS, GROUPS, TRANSACTIONS
from distlog.gateway.broker_settings import with_settings
from distlog.gateway.cluster.gateway_lease import GatewayLease
from distlog.gateway.cluster.node import advertised, this_machine
from distlog.gateway.config import GatewayConfig
from distlog.gateway.fetches.delayed_fetches import DelayedFetches
from distlog.gateway.fetches.fetch_memory import FetchMemory
from distlog.gateway.gateway_metrics import server_metrics
from distlog.gateway.groups.dropped_topics import DroppedTopics
from distlog.gateway.groups.follow_groups import FollowGroups
from distlog.gateway.groups.offsets.offsets_topic import OffsetsTopic
from distlog.gateway.groups.services import GroupServices
from distlog.gateway.kafka_apis import APIS, OF_MEMBERS, OF_SASL, OF_TRANSACTIONS, KafkaApis, supports
from distlog.gateway.request_metrics import RequestMetrics
from distlog.gateway.security.authentication import Authentication
from distlog.gateway.server.acceptor import Acceptor
from distlog.gateway.server.deadline import Deadline
from distlog.gateway.server.processor import Processor
from distlog.gateway.server.request import Request
from distlog.gateway.server.request_channel import RequestChannel
from distlog.gateway.server.request_handler_pool import KafkaRequestHandlerPool
from distlog.gateway.topics.metadata_cache import MetadataCache, topic_defaults
from distlog.gateway.topics.own_compaction import PERIOD_MS
from distlog.gateway.transactions.services import TransactionServices

#: How long the end may take, and how much of that is kept for the device: nothing that clients do takes it.
STOP_TIMEOUT_S = 8.0
_CLOSING_SHARE = 0.25
_LAST_S = 0.5
#: Threads of their own for what members live by, so that nobody is thrown out while the storage is slow.
_MEMBERS_THREADS = 2
#: A thread of its own for passwords, which take time on purpose: whoever guesses has no more than one core.
_SASL_THREADS = 1
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
        authentication: Authentication | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        config = with_settings(config or GatewayConfig(), settings or {})
        self._host, self._asked_port = host, port
        self._loop = asyncio.new_event_loop()
        self._channel, members_channel, transactions_channel, sasl_channel = (
            RequestChannel(config.queued_max_requests, self._wake) for _ in range(4)
        )
        self._channels = (
            dict.fromkeys(OF_MEMBERS, members_channel)
            | dict.fromkeys(OF_TRANSACTIONS, transactions_channel)
            | dict.fromkeys(OF_SASL, sasl_channel)
        )
        self._processor = Processor(config, self._loop, self._offer, supports, clock, authentication)
        self._acceptor = Acceptor(self._processor, tls)
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
        self._transactions = TransactionServices(self.broker, self._groups)
        self.broker.parts.update(
            {GROUPS: self._groups, FOLLOW_GROUPS: self._followers, TRANSACTIONS: self._transactions}
        )
        self._requests = RequestMetrics()
        apis = KafkaApis(self.broker, self._requests)
        self._handlers = [
            KafkaRequestHandlerPool(self._channel, apis.handle, config.num_io_threads, "kafka-request-handler"),
            KafkaRequestHandlerPool(members_channel, apis.handle, _MEMBERS_THREADS, "kafka-group-handler"),
            KafkaRequestHandlerPool(
                transactions_channel, apis.handle, config.num_io_threads, "kafka-transaction-handler"
            ),
            KafkaRequestHandlerPool(sasl_channel, apis.handle, _SASL_THREADS, "kafka-sasl-handler"),
        ]
        self._scheduler = Scheduler()
        self._schedule(store)
        self._thread = threading.Thread(target=self._run_loop, name="kafka-network-thread", daemon=True)

    def _schedule(self, store: OffsetsTopic) -> None:
        metadata, scheduler = self.broker.metadata, self._scheduler
        scheduler.schedule("log-flusher", metadata.flush_due, delay_ms=_FLUSH_MS, period_ms=_FLUSH_MS)
        dropped = DroppedTopics(self._groups.offsets, lambda name: metadata.fresh_topic(name).snapshot.topic_id)
        look_ms = _LOOK_MS[metadata.root.is_local_disk]
        scheduler.schedule("dropped-topics", dropped.look, delay_ms=look_ms, period_ms=look_ms)
        if not metadata.root.is_local_disk:
            for name, work in (("groups", store.compact), ("transactions", self._transactions.compact)):
                scheduler.schedule(f"{name}-compaction", work, delay_ms=PERIOD_MS, period_ms=PERIOD_MS)

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
        waiting = sum(map(len, {self._channel, *self._channels.values()}))
        return [*server_metrics(self._processor, self.broker, waiting), *self._requests.metrics()]

    @property
    def address(self) -> str:
        """What clients take for `bootstrap.servers`."""
        return f"{self._host}:{self.port}"

    def start(self) -> GatewayServer:
        """Begin to answer. Raises StorageError if it cannot listen."""
        self._thread.start()
        try:
            self._in_loop(self._acceptor.listen(self._host, self._asked_port)).result()
        except BaseException:
            self._end_loop(STOP_TIMEOUT_S)
            raise
        host, port = self.broker.config.advertised or advertised(self._host, self.port)
        self._lease.be_at(host, port, this_machine())
        self._groups.start()
        self._transactions.start()
        for handlers in self._handlers:
            handlers.start()
        self._scheduler.start()
        self.broker.fetches.start()
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Answer what is under way, close all, and have all that was appended on the device.

        Returns False if something was given up on after `timeout_s`, whatever clients or the storage do.
        """
        if self._loop.is_closed():
            return True
        end, drained = Deadline(timeout_s), Deadline((1 - _CLOSING_SHARE) * timeout_s)
        stopping = self._in_loop(self._acceptor.stop(drained.left_s))
        self.broker.fetches.stop()
        self._groups.hurry()
        self.broker.metadata.hurry()
        finished = end.result_of(stopping)
        for handlers in self._handlers:
            finished = handlers.stop(drained.left_s) and finished
        finished = self._scheduler.stop(drained.left_s) and finished
        finished = end.has_done(self._close) and finished
        return self._end_loop(end.left_s) and finished

    def _close(self) -> None:
        self._followers.stop()
        self._transactions.stop()
        self._groups.stop()
        self.broker.metadata.close()

    def __enter__(self) -> GatewayServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _offer(self, request: Request) -> None:
        self._channels.get(request.head.api_key, self._channel).offer(request)

    def _wake(self, work: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(work)

    def _in_loop(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _end_loop(self, timeout_s: float) -> bool:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s + _LAST_S)
        if not self._thread.is_alive():
            self._loop.close()
        return not self._thread.is_alive()
