"""DescribeProducers: who has written to a partition, and whose transactions are open there (KIP-664)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gateways import Wire, producing, serving
from kio.schema.describe_producers.v0.request import TopicRequest
from kio.schema.errors import ErrorCode
from raw_batches import batch, record
from transactional_clients import RawProducer

import distlog
from distlog.core import paths
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import GatewayServer

NONE = ErrorCode.none


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    root = str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}/root"
    distlog.create(f"{root}/clicks", partitions=2)
    return root


def described(wire: Wire, *numbers: int, topic: str = "clicks") -> dict[int, Any]:
    response = wire.ask(61, 0, topics=(TopicRequest(name=topic, partition_indexes=numbers),))
    ((name, partitions),) = [(topic.name, topic.partitions) for topic in response.topics]
    assert name == topic
    return {partition.partition_index: partition for partition in partitions}


def rows(partition: Any) -> list[tuple[int, ...]]:
    """(id, epoch, last sequence, coordinator's epoch, begin of the open transaction) of each producer."""
    assert partition.error_code is NONE
    return [
        (
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.coordinator_epoch,
            producer.current_txn_start_offset,
        )
        for producer in partition.active_producers
    ]


def numbered(sequence: int, time_ms: int = 1000) -> bytes:
    times = {"base_timestamp": time_ms, "max_timestamp": time_ms}
    return batch([record(0, 0, b"k", b"v")], producer=(7, 3, sequence), **times)


def test_a_silent_producer_expires_after_the_configured_time(root: str) -> None:
    times, config = [now_ms()], GatewayConfig(linger_ms=1, producer_id_expiration_ms=1000)
    with GatewayServer(root, port=0, config=config, clock=lambda: times[0]) as gateway, Wire(gateway) as wire:
        codes = list[ErrorCode]()
        for later_ms, sequence in ((0, 0), (999, 5), (10, 5)):
            times[0] += later_ms
            codes.append(producing(wire, numbered(sequence, times[0] - later_ms)).error_code)
    assert codes == [NONE, ErrorCode.out_of_order_sequence_number, NONE]


def test_a_numbered_producer_is_named_with_its_last_sequence_and_time(root: str) -> None:
    with serving(root, linger_ms=1) as gateway, Wire(gateway) as wire:
        assert rows(described(wire, 0)[0]) == []
        for sequence in range(3):
            assert producing(wire, numbered(sequence)).error_code is NONE
        actual = described(wire, 0, 1)
        assert rows(actual[0]) == [(7, 3, 2, -1, -1)]
        assert rows(actual[1]) == []
    with serving(root, linger_ms=1) as gateway, Wire(gateway) as wire:
        response = described(wire, 0)[0]
        assert rows(response) == [(7, 3, 2, -1, -1)]
        assert [producer.last_timestamp for producer in response.active_producers] == [1000]


def test_an_open_transaction_has_its_first_offset_until_its_end(root: str) -> None:
    with serving(root, linger_ms=1) as gateway, Wire(gateway) as wire:
        assert producing(wire, numbered(0)).error_code is NONE
        producer = RawProducer(wire)
        assert producer.init() is NONE
        assert producer.add(("clicks", 0)) == [NONE]
        assert producer.send(b"v") is NONE
        identity = (producer.producer_id, producer.epoch)
        assert (*identity, 0, -1, 1) in rows(described(wire, 0)[0])
        assert producer.end() is NONE
        (ended,) = [row for row in rows(described(wire, 0)[0]) if row[0] == identity[0]]
        assert ended[-1] == -1


def test_a_sealed_partition_lists_its_producers_without_an_active_segment(tmp_path: Path) -> None:
    distlog.create(f"{tmp_path}/clicks")
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        # of records that are older than a day nobody knows the producer
        assert producing(wire, numbered(0, now_ms())).error_code is NONE
        # an append by commit seals the active segment
        distlog.open(f"{tmp_path}/clicks").append([{"value": b"v"}])
        version = distlog.open(f"{tmp_path}/clicks").version
        assert rows(described(wire, 0)[0]) == [(7, 3, 0, -1, -1)]
        assert distlog.open(f"{tmp_path}/clicks").version == version


def test_missing_partitions_get_kafkas_code(root: str) -> None:
    with serving(root) as gateway, Wire(gateway) as wire:
        unknown = ErrorCode.unknown_topic_or_partition
        assert described(wire, 5)[5].error_code is unknown
        assert described(wire, 0, topic="none")[0].error_code is unknown


def test_it_writes_nothing(root: str) -> None:
    with serving(root, linger_ms=1) as gateway, Wire(gateway) as wire:
        described(wire, 0, 1)
        previous = sorted(file.name for file in Storage(f"{root}/clicks").list("_commits"))
        described(wire, 0, 1)
        assert sorted(file.name for file in Storage(f"{root}/clicks").list("_commits")) == previous
        assert [name for name in previous if name.endswith(".json")] == [paths.commit_file(0)]
