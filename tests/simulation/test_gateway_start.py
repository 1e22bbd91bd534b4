"""The time and the requests from a gateway's start to its first acknowledgement on an object store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from raw_batches import batch, record

import distlog
from distlog.core.commits.checkpoint import CHECKPOINT_COMMITS
from distlog.core.times import now_ms
from distlog.gateway.protocol.messages import ErrorCode
from simulation.gateways import Gateway
from simulation.object_store import ObjectStore, connected
from simulation.world import Process, World

pytestmark = pytest.mark.long

URL, GET_S, PUT_S = "s3://bucket/clicks", 0.03, 0.08
#: Commits after the newest checkpoint, and partitions of each commit.
COMMITS_AFTER, WRITTEN = 40, 3
#: The lease and the check of the store, three topics, and the commits after the checkpoint.
MOST_REQUESTS = 110


class Stage:
    """A store, a topic in it, and gateways that come and go."""

    def __init__(self, partitions: int, commits: int) -> None:
        self.world = World(0)
        self.world.most_calls, self.world.switching = 1 << 60, 0.0
        self.store = ObjectStore(self.world, latency=lambda _, writes: PUT_S if writes else GET_S)
        self.partitions, self.commits = partitions, commits

    def run(self, name: str, work: Callable[[Process], Any]) -> Any:
        """Return what a new process returns; it lives on."""
        process = self.world.process(name)
        return self.run_in(process, lambda: work(process))

    def run_in(self, process: Process, work: Callable[[], Any]) -> Any:
        results = list[Any]()
        process.start(lambda: results.append(work()))
        while not results:
            self.world.run(self.world.now + 0.01)
            assert not self.world.errors, self.world.errors
        return results[0]

    def fill(self) -> None:
        def fill(_: Process) -> None:
            topic = distlog.create(URL, partitions=self.partitions)
            for number in range(self.commits - 1):
                rows = [{"partition": (number + more) % self.partitions, "value": b"v"} for more in range(WRITTEN)]
                topic.append(rows)

        self.run("writer", fill)

    def start_gateway(self, port: int) -> tuple[Gateway, float, Counter[str]]:
        """Start a gateway; returns the seconds and the requests until its first acknowledgement."""

        def start(process: Process) -> tuple[Gateway, float, Counter[str]]:
            start_s = self.world.now
            self.store.requests.clear()
            gateway = Gateway(SimpleNamespace(url=URL), process, port)  # type: ignore[arg-type]
            gateway.broker.groups.join()
            # the other threads of a gateway, whose handlers may start now
            process.start(gateway.broker.groups.start, "groups")
            self.append(gateway)
            return gateway, self.world.now - start_s, Counter(self.store.requests)

        result: tuple[Gateway, float, Counter[str]] = self.run(f"gateway-{port}", start)
        return result

    def append(self, gateway: Gateway) -> None:
        data = batch([record(0, 0, b"k", b"v")], base_timestamp=now_ms(), max_timestamp=now_ms())
        ((code, _),) = gateway.append("clicks", 1, [data], None)
        assert code is ErrorCode.none


#: A small topic, and one with an hour of unmerged commits at one commit a second.
SIZES = [(10, CHECKPOINT_COMMITS + COMMITS_AFTER), (1000, 3 * CHECKPOINT_COMMITS + COMMITS_AFTER)]
IN_TIME_S = 1.0


def requests_of(size: tuple[int, int]) -> tuple[int, int]:
    """The requests of a second gateway from its start to its first acknowledgement, and after the first one died."""
    stage = Stage(*size)
    with stage.world, connected(stage.store):
        stage.fill()
        stage.start_gateway(1)  # the first gateway of a root creates the topics of groups and transactions
        gateway, seconds, requests = stage.start_gateway(2)
        assert seconds < IN_TIME_S
        stage.world.processes[-2].die()
        start_s = stage.world.now
        stage.store.requests.clear()
        stage.run_in(gateway.process, lambda: stage.append(gateway))
        assert stage.world.now - start_s < IN_TIME_S / 2
        return requests.total(), stage.store.requests.total()


@pytest.fixture(scope="module")
def counted() -> list[tuple[int, int]]:
    return [requests_of(size) for size in SIZES]


def test_a_gateway_acknowledges_soon_after_its_start(counted: list[tuple[int, int]]) -> None:
    (few, _), (many, _) = counted
    assert few == many < MOST_REQUESTS


def test_a_partition_that_moves_to_another_gateway_takes_the_next_batch_soon(counted: list[tuple[int, int]]) -> None:
    (_, few), (_, many) = counted
    assert few == many <= 4
