"""Produce and Fetch by the ids of topics (KIP-516): a topic that is created again is another one."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from gateways import FETCH, PRODUCE, Wire, fetch_fields, fetching, produce_fields, producing, serving
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

import distlog
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.topics.metadata_cache import HostedTopic, MetadataCache

FETCHES = range(13, 18)


def data(value: bytes = b"v", *, producer: int = -1, sequence: int = -1) -> bytes:
    return batch([record(0, 0, b"k", value)], producer=(producer, 0 if producer >= 0 else -1, sequence))


def id_of(gateway: GatewayServer, name: str = "clicks") -> uuid.UUID:
    return uuid.UUID(distlog.open(f"{gateway.root}/{name}").snapshot.topic_id)


@pytest.mark.parametrize("version", FETCHES)
def test_records_are_written_and_read_by_the_id_of_their_topic(gateway: GatewayServer, version: int) -> None:
    topic = id_of(gateway)
    with Wire(gateway) as wire:
        response = wire.ask(PRODUCE, 13, **produce_fields(13, [(topic, 1, data())]))
        assert [of_topic.topic_id for of_topic in response.responses] == [topic]
        assert response.responses[0].partition_responses[0].error_code is ErrorCode.none
        read = wire.ask(FETCH, version, **fetch_fields(version, [(topic, 1, 0)]))
        assert [response.topic_id for response in read.responses] == [topic]
        assert read.responses[0].partitions[0].high_watermark == 1
        assert b"v" in bytes(read.responses[0].partitions[0].records)
        # a topic in each of its ways is the same one
        assert fetching(wire, 0, 1).records == read.responses[0].partitions[0].records


def test_a_topic_that_was_created_again_has_none_of_the_records_for_the_old_id(gateway: GatewayServer) -> None:
    old = id_of(gateway)
    with Wire(gateway) as wire:
        assert producing(wire, data(), topic=old, version=13).error_code is ErrorCode.none
        distlog.open(f"{gateway.root}/clicks").drop()
        distlog.create(f"{gateway.root}/clicks", partitions=2)
        assert producing(wire, data(), topic=old, version=13).error_code is ErrorCode.unknown_topic_id
        assert fetching(wire, 0, topic=old, version=17).error_code is ErrorCode.unknown_topic_id
        new = id_of(gateway)
        assert producing(wire, data(), topic=new, version=13).base_offset == 0
        assert fetching(wire, 0, topic=new, version=17).high_watermark == 1


@pytest.mark.parametrize("method", ["client_topic", "readable_topic"])
@pytest.mark.parametrize("by_id", [True, False])
def test_a_topic_that_ends_within_a_request_is_unknown_as_the_request_names_it(
    gateway: GatewayServer, by_id: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual, topic = getattr(MetadataCache, method), id_of(gateway) if by_id else "clicks"

    def ended(cache: MetadataCache, name: Any) -> HostedTopic:
        hosted: HostedTopic = actual(cache, name)
        distlog.open(f"{gateway.root}/clicks").drop()
        return hosted

    def code(partition: int) -> ErrorCode:
        if method == "client_topic":
            response = producing(wire, data(), partition, topic=topic, version=13 if by_id else 12)
        else:
            response = fetching(wire, 0, partition, topic=topic, version=17 if by_id else 12)
        return ErrorCode(response.error_code)

    with Wire(gateway) as wire:
        assert code(7) is ErrorCode.unknown_topic_or_partition
        monkeypatch.setattr(MetadataCache, method, ended)
        assert code(0) is (ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition)


def test_one_list_of_topics_serves_all_unknown_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, summaries_or_errors = list[int](), MetadataCache.summaries_or_errors

    def counted(self: MetadataCache) -> object:
        looks.append(1)
        return summaries_or_errors(self)

    monkeypatch.setattr(MetadataCache, "summaries_or_errors", counted)
    with serving(tmp_path, metadata_max_age_ms=3_600_000) as gateway, Wire(gateway) as wire:
        for unknown in (uuid.UUID(int=7), uuid.UUID(int=8), None):
            for _ in range(3):
                assert fetching(wire, 0, topic=unknown, version=13).error_code is ErrorCode.unknown_topic_id
    assert len(looks) == 1


def test_clients_do_not_write_to_the_gateways_own_topics_by_their_ids(gateway: GatewayServer) -> None:
    own_value = id_of(gateway, "__consumer_offsets")
    with Wire(gateway) as wire:
        assert producing(wire, data(), topic=own_value, version=13).error_code is ErrorCode.invalid_topic_exception
        assert fetching(wire, 0, topic=own_value, version=13).error_code is ErrorCode.none


def test_batches_after_a_failed_first_batch_wait_for_it_by_ids(tmp_path: Path) -> None:
    distlog.create(f"{tmp_path}/clicks")
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        topic = id_of(gateway)
        gateway.broker.metadata.failed_batches.add(topic, 0, data(producer=7, sequence=0))
        response = producing(wire, data(producer=7, sequence=1), topic=topic, version=13)
        assert response.error_code is ErrorCode.out_of_order_sequence_number
        for sequence in (0, 1):
            response = producing(wire, data(producer=7, sequence=sequence), topic=topic, version=13)
            assert (response.error_code, response.base_offset) == (ErrorCode.none, sequence)
