"""A gateway that is killed (kill -9) beneath the members of a group, while they commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from soak.gateway_process import GatewayProcess

import distlog

confluent_kafka = pytest.importorskip("confluent_kafka")

pytestmark = pytest.mark.long
COUNT, BETWEEN = 100, 2


class Worker:
    """A member that reads a few records, commits them, and notes what it was told."""

    def __init__(self, address: str, **more: object) -> None:
        settings = {
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 200,
            **more,
        }
        self.member = confluent_kafka.Consumer(
            {"bootstrap.servers": address, "group.id": "billing", "log_level": 0, **settings}
        )
        self.values: list[tuple[int, int]] = []
        self.acknowledged: dict[int, int] = {}
        self.lost = 0
        self.member.subscribe(["clicks"], on_revoke=self._on_revoked)

    def _on_revoked(self, *_: Any) -> None:
        self.lost += 1

    def work(self) -> None:
        """Read a few records if there are some, and commit them."""
        records = [record for record in self.member.consume(BETWEEN, 0.1) if record.error() is None]
        self.values += [(record.partition(), record.offset()) for record in records]
        if records:
            try:
                told = self.member.commit(asynchronous=False)
            except confluent_kafka.KafkaException:
                return
            self.acknowledged.update({each.partition: each.offset for each in told if each.error is None})


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway over a root with the topic `clicks`; it ends by SIGTERM."""
    topic = distlog.create(str(tmp_path / "clicks"), partitions=2)
    topic.append([{"value": b"v", "partition": n % 2} for n in range(2 * COUNT)])
    served = GatewayProcess(str(tmp_path), {})
    yield served
    served.end()


def until_all(workers: list[Worker], is_done: Any) -> None:
    end = time.monotonic() + 300
    while not all(is_done(worker) for worker in workers):
        assert time.monotonic() < end
        for worker in workers:
            worker.work()


def test_acknowledged_positions_are_there_and_the_members_go_on_without_a_rebalance(gateway: GatewayProcess) -> None:
    workers = [Worker(gateway.address) for _ in range(2)]
    until_all(workers, lambda worker: worker.acknowledged and len(worker.member.assignment()) == 1)
    shared = [worker.member.assignment() for worker in workers]
    for worker in workers:
        worker.values.clear()
        worker.lost = 0
    killing = threading.Thread(target=lambda: (gateway.kill(), gateway.begin()))
    killing.start()
    while killing.is_alive():
        for worker in workers:
            worker.work()
    before = [dict(worker.acknowledged) for worker in workers]
    places = [confluent_kafka.TopicPartition("clicks", number) for number in range(2)]
    asking = confluent_kafka.Consumer({"bootstrap.servers": gateway.address, "group.id": "billing"})
    told = {each.partition: each.offset for each in asking.committed(places, 60)}
    for noted in before:
        assert all(told[number] >= offset for number, offset in noted.items())
    asking.close()
    until_all(workers, lambda worker: COUNT in worker.acknowledged.values())
    assert [worker.member.assignment() for worker in workers] == shared
    # each record was read once, by the member that had its partition before
    for worker in workers:
        number, first = worker.values[0]
        assert worker.values == [(number, offset) for offset in range(first, COUNT)]
        assert worker.lost == 0
        worker.member.close()


def test_static_members_go_on_while_their_coordinator_is_killed_and_comes_back(tmp_path: Path) -> None:
    """The other gateway takes the group over, and gives it back: two moves, and no rebalance."""
    topic = distlog.create(str(tmp_path / "clicks"), partitions=2)
    gateways = [GatewayProcess(str(tmp_path), {}) for _ in range(2)]
    addresses = ",".join(each.address for each in gateways)
    names = [{"group.instance.id": name, "session.timeout.ms": 30_000} for name in ("one", "two")]
    workers = [Worker(addresses, **name) for name in names]

    def append_and_read(end: int) -> None:
        topic.append([{"value": b"v", "partition": n % 2} for n in range(20)])
        until_all(workers, lambda worker: end in worker.acknowledged.values())

    # a member that comes later would find all records read
    until_all(workers, lambda worker: len(worker.member.assignment()) == 1)
    append_and_read(10)
    for worker in workers:
        worker.lost = 0
    shared = [worker.member.assignment() for worker in workers]
    client = pytest.importorskip("confluent_kafka.admin").AdminClient({"bootstrap.servers": addresses})
    coordinator = client.describe_consumer_groups(["billing"])["billing"].result(60).coordinator
    (coordinating,) = (each for each in gateways if each.address == f"{coordinator.host}:{coordinator.port}")
    coordinating.kill()
    append_and_read(20)
    coordinating.begin()
    append_and_read(30)
    assert [worker.member.assignment() for worker in workers] == shared
    assert [len(each) for each in shared] == [1, 1]
    for worker in workers:
        number = worker.member.assignment()[0].partition
        own = [value for value in worker.values if value[0] == number]
        assert own == [(number, offset) for offset in range(30)]
        assert worker.lost == 0
        worker.member.close()
    for gateway in gateways:
        gateway.end()
