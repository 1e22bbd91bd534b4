"""OffsetForLeaderEpoch: each epoch ends where the log ends, so no consumer takes its log for one that was cut."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from gateways import Wire, producing
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

from distlog.gateway.gateway_server import GatewayServer

OFFSET_FOR_LEADER_EPOCH = 23


def asked(wire: Wire, version: int, partition: int, epoch: int = 0, topic: str = "clicks") -> Any:
    """What a consumer is told that has read records of the epoch."""
    schema = import_module(f"kio.schema.offset_for_leader_epoch.v{version}.request")
    one = schema.OffsetForLeaderPartition(partition=partition, current_leader_epoch=-1, leader_epoch=epoch)
    topics = (schema.OffsetForLeaderTopic(topic=topic, partitions=(one,)),)
    fields = {"replica_id": -1} if version >= 3 else {}
    (told,) = wire.ask(OFFSET_FOR_LEADER_EPOCH, version, topics=topics, **fields).topics[0].partitions
    return told


@pytest.mark.parametrize("version", range(2, 5))
def test_an_epoch_ends_where_the_log_ends(gateway: GatewayServer, version: int) -> None:
    with Wire(gateway) as wire:
        for end, epoch in ((0, 0), (2, 0), (4, 3)):
            told = asked(wire, version, 0, epoch)
            assert (told.error_code, told.leader_epoch, told.end_offset) == (ErrorCode.none, epoch, end)
            producing(wire, batch([record(0), record(1)]))


def test_what_is_not_there_is_unknown(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        for partition, topic in ((2, "clicks"), (0, "none")):
            assert asked(wire, 4, partition, topic=topic).error_code is ErrorCode.unknown_topic_or_partition
