"""The transactions of a gateway without its network, and a gateway that is killed before any step of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from raw_batches import batch, record
from transacting import seen

import distlog
from distlog.core.batches.record_batch import TRANSACTIONAL
from distlog.core.errors import StorageError
from distlog.core.storage.storage import Storage
from distlog.gateway.broker import Broker
from distlog.gateway.cluster.gateway_lease import GatewayLease
from distlog.gateway.config import GatewayConfig
from distlog.gateway.delayed_fetches import DelayedFetches
from distlog.gateway.fetch_memory import FetchMemory
from distlog.gateway.groups.classic_group import GroupSettings
from distlog.gateway.groups.offsets_format import Position, encode_key, encode_position
from distlog.gateway.groups.offsets_topic import NAME, OffsetsTopic
from distlog.gateway.groups.services import GroupServices
from distlog.gateway.metadata_cache import MetadataCache
from distlog.gateway.partition import Partition
from distlog.gateway.transactions.own_records import own_batch
from distlog.gateway.transactions.services import TransactionServices
from distlog.gateway.transactions.transaction_coordinator import TransactionCoordinator
from distlog.gateway.transactions.transaction_state import ProducerId

NOW, TIMEOUT_MS, GROUP, ID = 1_700_000_000_000, 60_000, "billing", "payments"
#: What a gateway does in logs, in the order of a transaction.
STEPS = ("append", "append_run", "end_transaction", "sync")


class Killed(BaseException):
    """The gateway is no more."""


class Parts:
    """The parts of a gateway over `root`; time is what `now_ms` says."""

    def __init__(self, root: Path, together: list[Parts] | None = None) -> None:
        self.root, self.now_ms = root, NOW
        # those that were killed; in this process, their files would stay open
        self._all: list[Parts] = together if together is not None else []
        self._all.append(self)
        metadata = MetadataCache(Storage(str(root)), {}, lambda: self.now_ms, GatewayConfig())
        fetches = DelayedFetches(lambda request: None, 1000)
        # it is at the place of the one that was killed before it
        lease = self._lease = GatewayLease(metadata.root, None, 9.0, shares=False)
        lease.be_at("127.0.0.1", 9092, "a")
        memory = FetchMemory(1 << 20)
        self.broker = Broker(GatewayConfig(), metadata, fetches, lambda: self.now_ms, {}, memory, lease)
        self._store = OffsetsTopic(str(root), linger_ms=0)
        self.groups = GroupServices(self._store, lease, GroupSettings(), retention_ms=1 << 40)
        self.groups.start()
        self.services = TransactionServices(self.broker, self.groups)
        self._sequences: dict[tuple[ProducerId, str, int], int] = {}

    @property
    def coordinator(self) -> TransactionCoordinator:
        return self.services.coordinator

    def begin(self, id: str = ID) -> ProducerId:
        return self.coordinator.begin_producer(id, TIMEOUT_MS)

    def send(self, producer: ProducerId, value: bytes, topic: str = "clicks", number: int = 0) -> None:
        """Append a record of the producer's transaction."""
        key = producer, topic, number
        sequence = self._sequences[key] = self._sequences.get(key, -1) + 1
        numbers = (producer.id, producer.epoch, sequence)
        data = batch([record(0, 0, b"k", value)], attributes=TRANSACTIONAL, producer=numbers)
        partition = self.broker.metadata.fresh_topic(topic).partition(number)
        with self.coordinator.appending(ID, producer, (topic, number)) as noted:
            appended = partition.append(data, in_transaction=True).appended
            noted(appended)
        partition.flush(appended)

    def commit_offset(self, producer: ProducerId, offset: int, number: int = 0) -> None:
        """Have a position of GROUP in `clicks` in the producer's transaction."""
        place = NAME, self.groups.partition_of(GROUP)
        self.coordinator.add_partitions(ID, producer, [place])
        partition = self.broker.metadata.fresh_topic(NAME).partition(place[1])
        with self.coordinator.appending(ID, producer, place) as noted:
            positions = {("clicks", number): Position(offset)}

            def append(changes: Any) -> None:
                records = [(encode_key(key), encode_position(each)) for key, each in changes]
                noted(partition.append_run(own_batch(records, self.now_ms, producer)))

            self.groups.offsets.commit_in_transaction(GROUP, positions, producer.id, append)
        partition.sync(None)

    def seen(self) -> tuple[list[bytes], list[bytes], int | None]:
        """What readers of committed records, and the group, see: values in two topics, and a position."""
        clicks, views = (seen(distlog.open(str(self.root / name)))[0] for name in ("clicks", "views"))
        position = self.groups.offsets.fetch(GROUP, [("clicks", 0)])["clicks", 0]
        return clicks, views, position.offset if isinstance(position, Position) else None

    def killed(self) -> Parts:
        """Another gateway, over what the first one left."""
        # of what a process has, the system gives back the lock alone
        self.services.stop()
        self._lease.sync = _dead  # type: ignore[method-assign]
        after = Parts(self.root, self._all)
        after.now_ms = self.now_ms
        return after

    def close(self) -> None:
        for parts in self._all:
            parts.groups.stop()
            parts.broker.metadata.close()
            parts.services.stop()


def _dead(*_: object) -> bool:
    raise StorageError("this gateway is no more")


@contextmanager
def killed_before(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Within the block, the gateway is killed before this step, from 0 on. Tells how many steps there were."""
    done = [0]

    def counted(name: str) -> Callable[..., Any]:
        work = getattr(Partition, name)

        def counting(*given: Any, **named: Any) -> Any:
            if done[0] >= step:
                raise Killed
            done[0] += 1
            return work(*given, **named)

        return counting

    with monkeypatch.context() as patches:
        for name in STEPS:
            patches.setattr(Partition, name, counted(name))
        yield lambda: done[0]
