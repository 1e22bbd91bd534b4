"""OffsetForLeaderEpoch: each epoch ends at the log end, so that consumers detect no truncation."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from gateways import Wire, producing, serving
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from left_transactions import left_log_dir
from raw_batches import batch, record

import distlog
from distlog.core.kafka.partition_folder import write_epochs
from distlog.gateway.gateway_server import GatewayServer

OFFSET_FOR_LEADER_EPOCH = 23


def epoch_end(wire: Wire, version: int, partition: int, epoch: int = 0, topic: str = "clicks") -> Any:
    schema = import_module(f"kio.schema.offset_for_leader_epoch.v{version}.request")
    first = schema.OffsetForLeaderPartition(partition=partition, current_leader_epoch=-1, leader_epoch=epoch)
    topics = (schema.OffsetForLeaderTopic(topic=topic, partitions=(first,)),)
    fields = {"replica_id": -1} if version >= 3 else {}
    (response,) = wire.ask(OFFSET_FOR_LEADER_EPOCH, version, topics=topics, **fields).topics[0].partitions
    return response


@pytest.mark.parametrize("version", range(2, 5))
def test_an_epoch_ends_where_the_log_ends(gateway: GatewayServer, version: int) -> None:
    with Wire(gateway) as wire:
        for end, epoch in ((0, 0), (2, 0), (4, 3)):
            reply = epoch_end(wire, version, 0, epoch)
            assert (reply.error_code, reply.leader_epoch, reply.end_offset) == (ErrorCode.none, epoch, end)
            producing(wire, batch([record(0), record(1)]))


def test_a_missing_partition_is_unknown(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        for partition, topic in ((2, "clicks"), (0, "none")):
            assert epoch_end(wire, 4, partition, topic=topic).error_code is ErrorCode.unknown_topic_or_partition


LIST_OFFSETS = 2


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An adopted log of the epochs 0, from offset 2 on 4, from 7 on 7."""
    root = str(tmp_path / "root") if request.param == "local" else f"memory://{tmp_path.name}/root"
    epochs = [0, 0, 4, 4, 4, 4, 4, 7, 7]
    times = [{"base_timestamp": 1000 + n, "max_timestamp": 1000 + n} for n in range(len(epochs))]
    log = b"".join(
        batch([record(0)], base_offset=offset, leader_epoch=epoch, **times[offset])
        for offset, epoch in enumerate(epochs)
    )
    log_dir = left_log_dir(tmp_path, {"clicks-0": log}, {})
    (log_dir / "clicks-0" / "leader-epoch-checkpoint").write_bytes(write_epochs([(0, 0), (4, 2), (7, 7)]))
    distlog.adopt(log_dir, root)
    return root


def test_an_adopted_epoch_ends_where_the_next_one_begins(root: str) -> None:
    """LeaderEpochFileCacheTest: endOffsetFor."""
    with serving(root, linger_ms=1) as gateway, Wire(gateway) as wire:
        assert producing(wire, batch([record(0)])).error_code is ErrorCode.none
        actual = {epoch: epoch_end(wire, 4, 0, epoch) for epoch in (-1, 0, 1, 4, 5, 7, 8)}
        ends = {epoch: (reply.leader_epoch, reply.end_offset) for epoch, reply in actual.items()}
        assert ends == {-1: (-1, -1), 0: (0, 2), 1: (0, 2), 4: (4, 7), 5: (4, 7), 7: (7, 10), 8: (-1, -1)}


def test_an_offset_comes_with_the_epoch_of_its_batch(root: str) -> None:
    """testFetchOffsetByTimestampIncludesLeaderEpoch."""
    schema = import_module("kio.schema.list_offsets.v7.request")

    def listed(wire: Wire, time: int) -> tuple[int, int]:
        first = schema.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=time)
        topics = (schema.ListOffsetsTopic(name="clicks", partitions=(first,)),)
        reply = wire.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        actual = reply.topics[0].partitions[0]
        assert actual.error_code is ErrorCode.none
        return actual.offset, actual.leader_epoch

    with serving(root, linger_ms=1) as gateway, Wire(gateway) as wire:
        late = {"base_timestamp": 5000, "max_timestamp": 5000}
        assert producing(wire, batch([record(0)], **late)).error_code is ErrorCode.none
        reply = {time: listed(wire, time) for time in (1001, 1002, 1007, 2000, 9000, -1, -2, -3, -4)}
    assert reply == {
        1001: (1, 0),
        1002: (2, 4),
        1007: (7, 7),
        2000: (9, -1),
        9000: (-1, -1),
        -1: (10, 7),
        -2: (0, 0),
        -3: (9, -1),
        -4: (0, 0),
    }
