"""Names that a request has twice are one: the work is done once, and the response has the result once."""

from __future__ import annotations

import datetime
from importlib import import_module
from typing import Any

import pytest
from gateways import FETCH, LIST_OFFSETS, PRODUCE, Wire, fetch_fields, open_topic, produce_fields, producing
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.topics.partition import Partition

DATA = batch([record(0)])
NONE = ErrorCode.none


def schema(name: str) -> Any:
    """kio's module of a request."""
    return import_module(f"kio.schema.{name}.request")


def test_a_fetch_reads_a_partition_once_from_the_last_offset_that_it_names(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = list[int]()
    fetch = Partition.fetch
    monkeypatch.setattr(
        Partition, "fetch", lambda self, offset, *a, **k: reads.append(offset) or fetch(self, offset, *a, **k)
    )
    with Wire(gateway) as wire:
        for _ in range(3):
            producing(wire, DATA)
        partitions = [("clicks", 0, 0), ("clicks", 1, 0), ("clicks", 0, 2)]
        ((first, second),) = [
            response.partitions for response in wire.ask(FETCH, 12, **fetch_fields(12, partitions)).responses
        ]
    assert (first.partition_index, second.partition_index, reads) == (0, 1, [2, 0])
    assert len(first.records) == len(DATA)


def test_a_partition_with_two_batches_in_a_request_gets_none_of_them(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        batches = [("clicks", 0, DATA), ("clicks", 1, DATA), ("clicks", 0, DATA)]
        ((responses, other),) = [
            response.partition_responses for response in wire.ask(PRODUCE, 9, **produce_fields(9, batches)).responses
        ]
    assert (responses.error_code, responses.base_offset) == (ErrorCode.invalid_request, -1)
    assert (other.error_code, other.base_offset) == (NONE, 0)
    assert open_topic(gateway).end_offsets() == {0: 0, 1: 1}


def test_offsets_of_a_partition_are_searched_once(gateway: GatewayServer) -> None:
    module = schema("list_offsets.v1")
    with Wire(gateway) as wire:
        producing(wire, DATA)
        partitions = tuple(
            module.ListOffsetsPartition(partition_index=0, timestamp=timestamp) for timestamp in (-2, -1)
        )
        topics = (module.ListOffsetsTopic(name="clicks", partitions=partitions),) * 2
        ((responses,),) = [
            topic.partitions for topic in wire.ask(LIST_OFFSETS, 1, replica_id=-1, topics=topics).topics
        ]
    assert responses.offset == 1


def test_records_of_a_partition_are_deleted_once(gateway: GatewayServer) -> None:
    module = schema("delete_records.v1")
    with Wire(gateway) as wire:
        for _ in range(3):
            producing(wire, DATA)
        partitions = tuple(module.DeleteRecordsPartition(partition_index=0, offset=offset) for offset in (3, 2))
        topics = (module.DeleteRecordsTopic(name="clicks", partitions=partitions),)
        answer = wire.ask(21, 1, topics=topics, timeout=datetime.timedelta(seconds=1))
    assert [partition.low_watermark for topic in answer.topics for partition in topic.partitions] == [2]


def test_a_topic_that_is_created_or_enlarged_twice_in_a_request_is_refused(gateway: GatewayServer) -> None:
    module, second = schema("create_topics.v5"), datetime.timedelta(seconds=1)
    with Wire(gateway) as wire:
        topics = tuple(
            module.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
            for name in ("new", "other", "new")
        )
        created = wire.ask(19, 5, topics=topics, timeout=second, validate_only=False).topics
        assert {topic.name: topic.error_code for topic in created} == {
            "new": ErrorCode.invalid_request,
            "other": NONE,
        }
        module = schema("create_partitions.v1")
        more = tuple(module.CreatePartitionsTopic(name="clicks", count=count, assignments=None) for count in (3, 4))
        (raised,) = wire.ask(37, 1, topics=more, timeout=second, validate_only=False).results
        assert (raised.name, raised.error_code) == ("clicks", ErrorCode.invalid_request)
        (dropped,) = wire.ask(20, 5, topic_names=("other", "other"), timeout=second).responses
        assert (dropped.name, dropped.error_code) == ("other", NONE)


def test_settings_of_a_topic_are_described_once_with_all_names_that_are_asked_for(gateway: GatewayServer) -> None:
    module = schema("describe_configs.v1")
    with Wire(gateway) as wire:
        resources = tuple(
            module.DescribeConfigsResource(resource_type=2, resource_name="clicks", configuration_keys=(key,))
            for key in ("retention.ms", "cleanup.policy", "retention.ms")
        )
        (response,) = wire.ask(32, 1, resources=resources, include_synonyms=False).results
    assert {config.name for config in response.configs} == {"retention.ms", "cleanup.policy"}


def test_coordinators_are_answered_once_per_group(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        answer = wire.ask(10, 4, key_type=0, coordinator_keys=("a", "b", "a"))
    assert [coordinator.key for coordinator in answer.coordinators] == ["a", "b"]
