"""The transactions of a gateway without its network, and a gateway that is killed before any step of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from raw_batches import batch, record
from transacting import values_seen

import distlog
from distlog.core.errors import StorageError
from distlog.core.format.record_batch import TRANSACTIONAL
from distlog.core.kafka.transactions import ProducerId
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC, Position, encode_position
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write import engine
from distlog.gateway.cluster import GatewayLease
from distlog.gateway.config import GatewayConfig, GroupSettings
from distlog.gateway.groups.consumer_group import SubscribedTopics
from distlog.gateway.groups.coordinator import GroupServices
from distlog.gateway.groups.offsets_format import encode_key
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.kafka_apis import Broker
from distlog.gateway.root_records import DynamicConfigs
from distlog.gateway.server.delayed_operations import DelayedAppends, DelayedFetches, FetchMemory
from distlog.gateway.server.fairness import Quotas
from distlog.gateway.topics.metadata_cache import MetadataCache
from distlog.gateway.topics.partition import Partition
from distlog.gateway.transactions.transaction_coordinator import TransactionCoordinator, TransactionServices
from distlog.gateway.transactions.transaction_log import internal_batch

NOW, TIMEOUT_MS, GROUP, ID = 1_700_000_000_000, 60_000, "billing", "payments"
#: The steps of a gateway in a transaction, in order: direct appends, and commits.
DIRECT_APPENDS = [(Partition, name) for name in ("append", "append_run", "end_transaction", "sync")]
IN_COMMITS: list[tuple[Any, str]] = [(engine, name) for name in ("write_batches", "CommitRace")]


class Killed(BaseException):
    """The gateway is no more."""


class Parts:
    """The parts of a gateway over `root`; time is what `now_ms` says."""

    def __init__(
        self,
        root: Path | Address,
        together: list[Parts] | None = None,
        *,
        port: int = 9092,
        retention_ms: int = 1 << 40,
        **settings: Any,
    ) -> None:
        self.root, self.now_ms, self._port = root, NOW, port
        self.address = root if isinstance(root, Address) else Address(str(root), {})
        # those that were killed; in this process, their files would stay open
        self.together: list[Parts] = together if together is not None else []
        self.together.append(self)
        config = GatewayConfig(**{"linger_ms": 1, "metadata_max_age_ms": 0, **settings})
        metadata = MetadataCache(Storage(*self.address), {}, lambda: self.now_ms, config)
        fetches = DelayedFetches(lambda request: None, 1000)
        appends = DelayedAppends(lambda request: None)
        # it is at the place of the one that was killed before it
        # of a process that was stopped for long, the lease would be over
        lease = self.lease = GatewayLease(metadata.root, None, 9.0, clock=lambda: 0.0)
        lease.set_address("127.0.0.1", port, "a")
        self._store = OffsetsTopic(self.address.url, linger_ms=0, storage_options=self.address.options)
        topics = SubscribedTopics(lambda name: metadata.fresh_topic(name).summary, list)
        self.groups = GroupServices(self._store, lease, GroupSettings(), topics, retention_ms=retention_ms)
        self.services = TransactionServices(metadata, fetches, self.groups, lambda: self.now_ms)
        memory = FetchMemory(1 << 20)
        quotas = DynamicConfigs(metadata, Quotas(lambda: 0.0), self.groups.configs, lambda: self.now_ms)
        self.broker = Broker(
            config,
            metadata,
            fetches,
            appends,
            lambda: self.now_ms,
            {},
            memory,
            lease,
            self.groups,
            self.services,
            quotas,
        )
        self.groups.join()
        self.groups.start()
        self.load()
        self.sequences: dict[tuple[ProducerId, str, int], int] = {}

    def load(self) -> None:
        self.services.coordination.step(self.services.coordinator)

    @property
    def coordinator(self) -> TransactionCoordinator:
        return self.services.coordinator

    def begin(self, id: str = ID) -> ProducerId:
        return self.coordinator.begin_producer(id, TIMEOUT_MS)

    def send(self, producer: ProducerId, value: bytes, topic: str = "clicks", number: int = 0) -> None:
        key = producer, topic, number
        sequence = self.sequences[key] = self.sequences.get(key, -1) + 1
        numbers = (producer.id, producer.epoch, sequence)
        data = batch([record(0, 0, b"k", value)], attributes=TRANSACTIONAL, producer=numbers)
        fence = self.services.fence(ID, producer, (topic, number))
        hosted = self.broker.metadata.fresh_topic(topic)
        if not hosted.is_local:
            hosted.append_later({number: (data, fence)})[number].result()
            return
        info = hosted.partition(number).append(data, fence)
        if info.appended.flush_due:  # as Produce does
            hosted.partition(number).sync(info.appended)

    def commit_offset(self, producer: ProducerId, offset: int, number: int = 0) -> None:
        """Have a position of GROUP in `clicks` in the producer's transaction."""
        partition = OFFSETS_TOPIC, self.groups.partition_of(GROUP)
        self.coordinator.add_partitions(ID, producer, [partition])
        hosted, fence = self.broker.metadata.fresh_topic(OFFSETS_TOPIC), self.services.fence(ID, producer, partition)

        def append(changes: Any) -> None:
            records = [(encode_key(key), encode_position(change)) for key, change in changes]
            hosted.append_run(partition[1], internal_batch(records, self.now_ms, producer), fence)

        self.groups.offsets.commit_in_transaction(GROUP, {("clicks", number): Position(offset)}, producer.id, append)

    def values(self) -> tuple[list[bytes], list[bytes], int | None]:
        """The committed values of two topics, and the group's offset."""
        clicks, views = (values_seen(self.topic(name))[0] for name in ("clicks", "views"))
        position = self.groups.offsets.fetch(GROUP, [("clicks", 0)])["clicks", 0]
        return clicks, views, position.offset if isinstance(position, Position) else None

    def topic(self, name: str) -> Topic:
        return distlog.open(f"{self.address.url}/{name}", storage_options=self.address.options)

    def killed(self) -> Parts:
        """Another gateway, over what the first one left."""
        self.services.stop()
        self.lease.sync = _dead  # type: ignore[method-assign]
        after = Parts(self.root, self.together, port=self._port)
        after.now_ms = self.now_ms
        return after

    def close(self) -> None:
        for parts in self.together:
            parts.services.stop()
            parts.groups.stop()
            parts.broker.metadata.close()


def _dead(*_: object) -> bool:
    raise StorageError("this gateway is no more")


@contextmanager
def killed_before(
    step: int, monkeypatch: pytest.MonkeyPatch, *, is_local: bool = True
) -> Iterator[Callable[[], int]]:
    """Kill the gateway before a step in this block. The result returns the number of steps."""
    count = [0]

    def counted(owner: Any, name: str) -> Callable[..., Any]:
        work = getattr(owner, name)

        def counting(*arguments: Any, **named: Any) -> Any:
            if count[0] >= step:
                raise Killed
            count[0] += 1
            return work(*arguments, **named)

        return counting

    with monkeypatch.context() as patches:
        for owner, name in DIRECT_APPENDS if is_local else IN_COMMITS:
            patches.setattr(owner, name, counted(owner, name))
        yield lambda: count[0]
