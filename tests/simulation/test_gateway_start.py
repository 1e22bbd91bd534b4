"""How long a gateway takes from its start to its first acknowledgement on an object store, in simulated time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from raw_batches import batch, record

import distlog
from distlog.core.commits.commit_log import CHECKPOINT_COMMITS
from distlog.core.times import now_ms
from distlog.gateway.protocol.messages import ErrorCode
from simulation.gateways import Gateway
from simulation.object_store import ObjectStore, connected
from simulation.world import Process, World

pytestmark = pytest.mark.long

URL, GET_S, PUT_S = "s3://bucket/clicks", 0.03, 0.08
#: Commits behind the newest checkpoint, and partitions of each commit.
BEHIND, WRITTEN = 40, 3
#: Of a start: the lease and the check of the store, three topics, and the commits behind the checkpoint.
MOST_REQUESTS = 110


class Stage:
    """A store, a topic in it, and gateways that come and go."""

    def __init__(self, partitions: int, commits: int) -> None:
        self.world = World(0)
        self.world.most_calls, self.world.switching = 1 << 60, 0.0
        self.store = ObjectStore(self.world, latency=lambda _, writes: PUT_S if writes else GET_S)
        self.partitions, self.commits = partitions, commits

    def did(self, name: str, work: Callable[[Process], Any]) -> Any:
        """What a new process has done; it lives on."""
        process = self.world.process(name)
        return self.did_in(process, lambda: work(process))

    def did_in(self, process: Process, work: Callable[[], Any]) -> Any:
        """What a process has done."""
        results = list[Any]()
        process.start(lambda: results.append(work()))
        while not results:
            self.world.run(self.world.now + 0.01)
            assert not self.world.errors, self.world.errors
        return results[0]

    def fill(self) -> None:
        """Create the topic, with so many commits of records."""

        def fills(_: Process) -> None:
            topic = distlog.create(URL, partitions=self.partitions)
            for number in range(self.commits - 1):
                rows = [{"partition": (number + more) % self.partitions, "value": b"v"} for more in range(WRITTEN)]
                topic.append(rows)

        self.did("writer", fills)

    def begun(self, port: int) -> tuple[Gateway, float, Counter[str]]:
        """A gateway that begins; the seconds to its first acknowledgement, and the requests meanwhile."""

        def begins(process: Process) -> tuple[Gateway, float, Counter[str]]:
            began_s = self.world.now
            self.store.requests.clear()
            gateway = Gateway(SimpleNamespace(url=URL), process, port)  # type: ignore[arg-type]
            gateway.broker.groups.join()
            # the other threads of a gateway, as its handlers may begin now
            process.start(gateway.broker.groups.start, "groups")
            self.acknowledges(gateway)
            return gateway, self.world.now - began_s, Counter(self.store.requests)

        found: tuple[Gateway, float, Counter[str]] = self.did(f"gateway-{port}", begins)
        return found

    def acknowledges(self, gateway: Gateway) -> None:
        """Append a batch through a gateway."""
        data = batch([record(0, 0, b"k", b"v")], base_timestamp=now_ms(), max_timestamp=now_ms())
        ((code, _),) = gateway.append("clicks", 1, [data], None)
        assert code is ErrorCode.none


#: A small topic, and one with an hour of unmerged commits if there is one a second; as many behind a checkpoint.
SIZES = [(10, CHECKPOINT_COMMITS + BEHIND), (1000, 3 * CHECKPOINT_COMMITS + BEHIND)]
IN_TIME_S = 1.0


def of_a_start_and_a_move(size: tuple[int, int]) -> tuple[int, int]:
    """The requests of a second gateway, with a topic of so many partitions and commits.

    Those from its start to its first acknowledgement, and those for the next batch, when the first one has died.
    """
    stage = Stage(*size)
    with stage.world, connected(stage.store):
        stage.fill()
        stage.begun(1)  # the first one of a root makes the topics of groups and transactions
        two, seconds, requests = stage.begun(2)
        assert seconds < IN_TIME_S
        stage.world.processes[-2].die()
        began_s = stage.world.now
        stage.store.requests.clear()
        stage.did_in(two.process, lambda: stage.acknowledges(two))
        assert stage.world.now - began_s < IN_TIME_S / 2
        return requests.total(), stage.store.requests.total()


@pytest.fixture(scope="module")
def counted() -> list[tuple[int, int]]:
    """Of each of SIZES."""
    return [of_a_start_and_a_move(size) for size in SIZES]


def test_a_gateway_acknowledges_soon_after_its_start_whatever_the_topic_has_seen(
    counted: list[tuple[int, int]],
) -> None:
    (few, _), (many, _) = counted
    assert few == many < MOST_REQUESTS


def test_a_partition_that_moves_to_another_gateway_takes_the_next_batch_soon(counted: list[tuple[int, int]]) -> None:
    (_, few), (_, many) = counted
    assert few == many <= 4
