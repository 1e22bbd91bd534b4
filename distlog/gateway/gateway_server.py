"""The gateway: connects, starts and stops its components (Kafka's BrokerServer)."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, TimeoutError
from contextlib import closing
from functools import partial
from typing import Any, Literal

from distlog.core.arrays import MAX_LONG
from distlog.core.display import counted
from distlog.core.errors import DistlogError
from distlog.core.log.live_snapshot import with_tail
from distlog.core.log.partition_log import PartitionLog
from distlog.core.log_manager.broker_config import BrokerConfig
from distlog.core.log_manager.log_manager import Metric
from distlog.core.log_manager.log_tasks import Scheduler
from distlog.core.opening import create
from distlog.core.read.fetch import fetch_stored
from distlog.core.storage.calls import Task, begin
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.gateway.apis import APIS
from distlog.gateway.cluster import COMPACTION_PERIOD_MS, GatewayLease, advertised, this_machine
from distlog.gateway.config import GatewayConfig, with_settings
from distlog.gateway.groups.consumer_group import SubscribedTopics
from distlog.gateway.groups.coordinator import DroppedTopics, GroupServices
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.kafka_apis import Broker, KafkaApis
from distlog.gateway.root_records import DynamicConfigs, RootAcls, RootRecords, RootUsers
from distlog.gateway.security.authentication import Authentication
from distlog.gateway.security.tls import TlsContext, TlsFiles
from distlog.gateway.server.delayed_operations import DelayedAppends, DelayedFetches, FetchMemory
from distlog.gateway.server.fairness import CpuShares, Quotas
from distlog.gateway.server.socket_server import SocketServer
from distlog.gateway.topics.metadata_cache import MetadataCache
from distlog.gateway.transactions.transaction_coordinator import TransactionServices

_log = logging.getLogger("distlog.gateway")
STOP_TIMEOUT_S = 8.0
_CLOSING_FRACTION = 0.25  # the fraction of a stop's time that is reserved for its end: to sync and close files
_THREAD_END_S = 0.5  # how much longer than its timeout a stop may wait for the network thread
_PROCESSES_WAIT_S, _PROCESSES_PAUSE_S = 10.0, 0.02  # of a start, for this machine's other processes
_FLUSH_MS = 500  # how often logs are checked for records that are due by `flush.ms`
_LOG_MS = 5000  # how often denials and failures are logged
#: How often settings, users, ACLs, and dropped topics are read again: on a local disk (True), or elsewhere.
_REFRESH_MS = {True: 1000, False: 5000}
_CLOSE_MS = 600_000  # how often unused logs and topics are closed
_EXPIRY_MS = 600_000  # how often offsets are checked for expiry: Kafka's `offsets.retention.check.interval.ms`


class GatewayServer:
    """Serves the topics in `root` at `host` and `port` (0: a free one); `settings` are broker settings of Kafka."""

    def __init__(
        self,
        root: str,
        host: str = "127.0.0.1",
        port: int = 9092,
        *,
        config: GatewayConfig | None = None,
        settings: Mapping[str, object] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        tls: TlsFiles | None = None,
        authentication: Authentication | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        config = with_settings(config or GatewayConfig(), settings or {})
        self.host, self._requested_port = host, port
        defaults = BrokerConfig.parse(settings or {}).topic_defaults
        self._loop = asyncio.new_event_loop()
        shares, quotas = CpuShares(time.monotonic), Quotas(time.monotonic)
        self._apis = KafkaApis(APIS, shares, config.num_io_threads)
        self._sockets = SocketServer(
            config,
            self._loop,
            shares,
            quotas,
            self._apis.offer_new,
            self._apis.supports,
            authentication,
            TlsContext(tls) if tls else None,
        )
        metadata = MetadataCache(Storage(root, storage_options), defaults, clock, config)
        # on an object store, waiting fetches refresh their topics at this age, for the appends of other processes
        fetches = DelayedFetches(self._apis.offer, config.metadata_max_age_ms)
        appends = DelayedAppends(self._apis.offer)
        self._lease = GatewayLease(metadata.root, config.wanted_id, config.broker_session_timeout_ms / 1000)
        # appends within the linger share a commit; on a local disk, they go to active segments instead
        linger_ms = 0 if metadata.root.is_local_disk else config.linger_ms
        store = OffsetsTopic(metadata.root.url, linger_ms=linger_ms, storage_options=storage_options)
        topics = SubscribedTopics(lambda name: metadata.fresh_topic(name).summary, metadata.client_topic_names)
        retention_ms = config.offsets_retention_ms
        self._groups = GroupServices(store, self._lease, config.groups, topics, retention_ms=retention_ms)
        self._transactions = TransactionServices(metadata, fetches, self._groups, clock)
        configs = DynamicConfigs(metadata, quotas, self._groups.configs, clock)
        protocol = ("SASL_" if authentication else "") + ("SSL" if tls else "PLAINTEXT")
        acls = users = None
        if config.acls.authorizer:
            everyone_if_none, super_users = config.acls.everyone_if_none, config.acls.super_principals
            acls = RootAcls(metadata, clock, super_users, everyone_if_none=everyone_if_none)
            users = root_users = RootUsers(metadata, clock)
            if authentication is not None:
                # a function, since each change makes a new object. For type checkers, `root_users` is never None
                authentication.root_secrets = lambda: root_users.secrets
        self.broker = Broker(
            config=config,
            metadata=metadata,
            fetches=fetches,
            appends=appends,
            clock=clock,
            apis=APIS,
            fetch_memory=FetchMemory(config.fetch_memory_limit),
            cluster=self._lease,
            groups=self._groups,
            transactions=self._transactions,
            configs=configs,
            security_protocol=protocol,
            acls=acls,
            users=users,
            queue_password_check=self._apis.offer_password,
        )
        self._apis.broker = self.broker
        self._scheduler = Scheduler()
        self._schedule(store)
        self._thread = threading.Thread(target=self._run_loop, name="kafka-network-thread", daemon=True)

    def _schedule(self, store: OffsetsTopic) -> None:
        metadata, groups, scheduler = self.broker.metadata, self._groups, self._scheduler
        refresh_ms = _REFRESH_MS[metadata.root.is_local_disk]
        for records in self._root_records:
            scheduler.schedule(f"read {records.name}", records.try_refresh, delay_ms=0, period_ms=refresh_ms)
        dropped = DroppedTopics(groups.offsets, lambda name: metadata.fresh_topic(name).snapshot)
        tasks: list[tuple[str, Callable[[], None], int]] = [
            ("log-flusher", metadata.flush_due, _FLUSH_MS),
            ("event-logs", self._log_events, _LOG_MS),
            ("dropped-topics", dropped.check, refresh_ms),
            # the expired offsets of thousands of groups would delay the groups' timers, if this were in their thread
            ("expired-offsets", groups.expire_offsets, _EXPIRY_MS),
            ("close-unused", partial(metadata.close_unused, lambda: scheduler.is_stopping), _CLOSE_MS),
            ("group-topics", groups.consumers.refresh, refresh_ms),
        ]
        if not metadata.root.is_local_disk:  # on an object store, each commit adds segments
            tasks.append(("groups-compaction", store.compact, COMPACTION_PERIOD_MS))
            tasks.append(("transactions-compaction", self._transactions.compact, COMPACTION_PERIOD_MS))
        for name, work, period_ms in tasks:
            scheduler.schedule(name, work, delay_ms=period_ms, period_ms=period_ms)

    def _log_events(self, *, is_last: bool = False) -> None:
        """Log the counted events: unreadable files, denied accesses, failed logins and failed connections."""
        self._sockets.unreadable.log(is_last=is_last)
        if self.broker.acls is not None:
            self.broker.acls.denials.log(is_last=is_last)
        if self._sockets.authentication is not None:
            self._sockets.authentication.failures.log.log(is_last=is_last)
        self._sockets.failures.log(is_last=is_last)

    @property
    def _root_records(self) -> list[RootRecords[Any, Any]]:
        """The settings, ACLs and users, each read from a topic of the root."""
        broker = self.broker
        return [records for records in (broker.configs, broker.acls, broker.users) if records is not None]

    @property
    def port(self) -> int:
        return self._sockets.port

    @property
    def root(self) -> str:
        return self.broker.metadata.root.url

    @property
    def status(self) -> str:
        topics, requests = len(self.broker.metadata.loaded), self._apis.total
        connections = counted(self.connections, "connection")
        return f"{connections}, {counted(topics, 'topic')}, {counted(requests, 'request')}"

    @property
    def connections(self) -> int:
        return len(self._sockets.connections)

    def metrics(self) -> list[Metric]:
        waiting = sum(len(pool.channel) for pool in self._apis.pools.values())
        return [*_server_metrics(self._sockets, self.broker, waiting), *self._apis.metrics()]

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def start(
        self, on_joined: Callable[[], object] = lambda: None, should_stop: Callable[[], bool] = lambda: False
    ) -> GatewayServer:
        """Begin to answer. `on_joined` is called when the root's gateways include this one. Raises StorageError."""
        self._thread.start()
        try:
            self._run_in_loop(self._sockets.listen(self.host, self._requested_port)).result()
            host, port = self.broker.config.advertised or advertised(self.host, self.port)
            self._lease.set_address(host, port, this_machine())
            self._groups.join()
            if self.broker.acls is not None:
                # until the ACLs are read, only super users are served
                for records in self._root_records:
                    records.try_refresh()
            on_joined()
            self._wait_for_processes(should_stop)
        except BaseException:
            # stop even after an interrupt: other gateways must not send clients to a gateway that does not answer
            self._run_in_loop(self._sockets.stop(0)).result()
            ShutdownDeadline(STOP_TIMEOUT_S).run(self._groups.stop)
            self._end_loop(STOP_TIMEOUT_S)
            raise
        self._scheduler.start()
        self.broker.fetches.start()
        self.broker.appends.start()
        # start these first, so that records are served while groups and transactions are loaded, which may take long
        for pool in self._apis.pools.values():
            pool.start()
        transactions = begin(self._transactions.start)
        self._groups.start()
        transactions.wait()
        return self

    def _wait_for_processes(self, should_stop: Callable[[], bool]) -> None:
        """Wait until this machine's processes know each other: librdkafka drops requests to an unknown gateway."""
        end_s, lease = time.monotonic() + _PROCESSES_WAIT_S, self._lease
        while time.monotonic() < end_s and not should_stop():
            # `unknown_s` is 0 when all other gateways have this one in their views
            if lease.neighbours >= self.broker.config.processes and not lease.unknown_s:
                break
            time.sleep(_PROCESSES_PAUSE_S)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Answer the requests in flight, and sync all appends. Returns False if work was left after `timeout_s`."""
        if self._loop.is_closed():
            return True
        deadline, drain_deadline = ShutdownDeadline(timeout_s), ShutdownDeadline((1 - _CLOSING_FRACTION) * timeout_s)
        # the loop sends responses while this thread ends the waits of fetches, appends and members
        sockets_stop = self._run_in_loop(self._sockets.stop(drain_deadline.left_s))
        self.broker.fetches.stop()
        self.broker.appends.stop()
        self._groups.release_members()
        self.broker.metadata.commit_now()
        finished = deadline.result_of(sockets_stop)  # which got the drain deadline above
        for pool in self._apis.pools.values():
            finished = pool.stop(drain_deadline.left_s) and finished
        finished = self._scheduler.stop(drain_deadline.left_s) and finished
        self._log_events(is_last=True)
        finished = deadline.run(self._close) and finished
        return self._end_loop(deadline.left_s) and finished

    def _close(self) -> None:
        self._transactions.stop()
        self._groups.stop()
        self.broker.metadata.close()

    def __enter__(self) -> GatewayServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run_in_loop(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _end_loop(self, timeout_s: float) -> bool:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s + _THREAD_END_S)
        if not self._thread.is_alive():
            self._loop.close()
        return not self._thread.is_alive()


def warm_up() -> None:
    """Compile or load kernels before the first request: append to a small topic and read it, as the gateway does."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            # allow any time: if the clock is set back now, the batch that partition 0 gets below is from the future
            topic = create(f"{folder}/warm-up", 2, {"message.timestamp.after.max.ms": MAX_LONG})
            topic.append([{"key": b"k", "value": b"v", "partition": 1}])
            batch = bytes(topic.read(1, 0))  # partition 1, offset 0
            with closing(PartitionLog(topic.handle, 0, topic.current)) as log:
                # the second append finds an active segment, as most appends do
                for _ in range(2):
                    log.append_batches(batch)
            topic.refresh().read(0, 1)  # partition 0, offset 1
            partition = with_tail(topic.handle, topic.current.snapshot, 0)
            fetch_stored(topic.reader, partition, offset=0, end_offset=2, max_bytes=1)
    except (DistlogError, OSError) as error:
        _log.warning("the first requests may wait for kernels, since no temporary topic could be created: %s", error)


def _server_metrics(sockets: SocketServer, broker: Broker, waiting: int) -> list[Metric]:
    gauges = [
        ("connections", "open connections", len(sockets.connections)),
        ("request_queue_size", "requests that wait for a handler", waiting),
        ("request_memory_bytes", "bytes of requests that are received or handled", sockets.memory.used),
        ("fetch_memory_bytes", "bytes of records that clients have not received yet", broker.fetch_memory.used),
        ("node_id", "the id of this broker", broker.cluster.node.id),
        ("brokers", "live gateways of the root, in this gateway's view", len(broker.cluster.nodes)),
        ("coordinated_partitions", "partitions of this gateway's groups", len(broker.cluster.held_partitions)),
        ("delayed_fetches", "fetches that wait for records", len(broker.fetches)),
        ("delayed_appends", "produce requests that wait for a partition's lock", len(broker.appends)),
    ]
    counters = [
        ("connections_accepted", "connections that were accepted", sockets.accepted),
        ("connections_refused", "connections refused: too many, in all or from one address", sockets.refused),
        ("tls_handshakes_failed", "connections that failed in the TLS handshake", sockets.tls_failed),
        ("connections_hung_up", "connections closed as invalid, not allowed, too slow, or idle", sockets.hung_up),
        ("unreadable_files", "responses that end at an unreadable file: check the disk", sockets.unreadable.total),
    ]
    if broker.acls is not None:
        counters.append(("denials", "accesses that no ACL allows", broker.acls.denials.total))
    kinds: tuple[tuple[Literal["gauge", "counter"], list[tuple[str, str, int]]], ...]
    kinds = ("gauge", gauges), ("counter", counters)
    metrics = [
        Metric(f"distlog_gateway_{name}", kind, meaning, [({}, float(value))])
        for kind, rows in kinds
        for name, meaning, value in rows
    ]
    return [*metrics, *(sockets.authentication.metrics() if sockets.authentication else ())]


class ShutdownDeadline:
    def __init__(self, timeout_s: float) -> None:
        self._end_s = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        return max(self._end_s - time.monotonic(), 0)

    def result_of(self, work: Future[bool]) -> bool:
        """Return the result of `work`, False if it is late. Raises its errors."""
        try:
            return work.result(self.left_s)
        except TimeoutError:
            return False

    def run(self, work: Callable[[], None]) -> bool:
        """Run `work` in another thread; returns False if it is late. Raises its errors."""
        task = Task(work)
        thread = threading.Thread(target=task.run, name="gateway-close", daemon=True)
        thread.start()
        thread.join(self.left_s)
        if thread.is_alive():
            return False
        task.wait()
        return True
