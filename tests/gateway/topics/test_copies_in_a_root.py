"""A topic's folder was copied in the root: clients get the records of each topic under its own name and id."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from addresses import Address
from copied_topics import copy_folder, move_folder, topic_at
from gateways import METADATA, TOPIC_IDS, Wire, fetching, producing
from kio.schema.errors import ErrorCode
from raw_batches import batch, record
from waiting import until

import distlog
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.topics.metadata_cache import INTERNAL_TOPICS


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Any, memory_url: Address) -> Address:
    """A root with `clicks`, and its copy `backup`, which has other records since."""
    address = Address(str(tmp_path), {}) if request.param == "local" else memory_url
    distlog.create(f"{address.url}/clicks", storage_options=address.options)
    copy_folder(address, "clicks", "backup")
    for name in ("clicks", "backup"):
        topic_at(address, name).append([{"value": name.encode()}])
    return address


@pytest.fixture
def gateway(root: Address) -> Iterator[GatewayServer]:
    with GatewayServer(root.url, port=0, config=GatewayConfig(linger_ms=1, metadata_max_age_ms=0)) as served:
        yield served


def ids(wire: Wire) -> dict[str, uuid.UUID]:
    topics = wire.ask(METADATA, 12, topics=None, include_topic_authorized_operations=False).topics
    assert {topic.error_code for topic in topics} == {ErrorCode.none}
    return {topic.name: topic.topic_id for topic in topics if topic.name not in INTERNAL_TOPICS}


def test_a_client_that_lists_the_topics_reads_each_one_by_its_id(root: Address, gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        actual = ids(wire)
        assert actual.keys() == {"backup", "clicks"}
        assert actual["clicks"] == uuid.UUID(topic_at(root, "clicks").snapshot.topic_id)
        for _ in range(2):
            for name, topic_id in actual.items():
                assert name.encode() in fetching(wire, 0, topic=topic_id, version=TOPIC_IDS).records
                assert name.encode() in fetching(wire, 0, topic=name).records


def test_produced_records_go_to_the_topic_of_the_id(root: Address, gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        for name, topic_id in ids(wire).items():
            response = producing(wire, batch([record(0, 0, b"k", b"more")]), topic=topic_id, version=TOPIC_IDS)
            assert (response.error_code, response.base_offset) == (ErrorCode.none, 1)
            values = topic_at(root, name).scan(columns=["value"]).to_table()["value"].to_pylist()
            assert values == [name.encode(), b"more"]


def test_the_log_names_the_copy(root: Address, gateway: GatewayServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "distlog.gateway")
    with Wire(gateway) as wire:
        fetching(wire, 0, topic="backup")
    (line,) = [text for text in caplog.messages if "backup" in text]
    assert line.startswith("the topic backup has the topic id of clicks, since one is a copy of the other")
    assert "'distlog alter URL --new-id'" in line


def test_a_new_id_is_a_new_topic_for_clients_of_ids_alone(root: Address, gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        previous = ids(wire)
        fetching(wire, 0, topic=previous["backup"], version=TOPIC_IDS)
        topic_at(root, "backup").assign_new_id()
        # a list shows changes of others within some ms for each topic
        until(lambda: ids(wire)["backup"] != previous["backup"])
        after = ids(wire)
        assert after["clicks"] == previous["clicks"]
        old, new = (
            fetching(wire, 0, topic=topic_ids["backup"], version=TOPIC_IDS) for topic_ids in (previous, after)
        )
        assert old.error_code is ErrorCode.unknown_topic_id
        assert b"backup" in new.records
        assert b"backup" in fetching(wire, 0, topic="backup").records


def test_a_folder_that_is_moved_below_the_gateway_is_another_topic(root: Address, gateway: GatewayServer) -> None:
    topic_at(root, "backup").drop()
    with Wire(gateway) as wire:
        previous = ids(wire)
        move_folder(root, "clicks", "views")
        copy_folder(root, "views", "clicks")
        until(lambda: "views" in ids(wire))
        after = ids(wire)
        assert (after.keys(), after["clicks"]) == ({"clicks", "views"}, previous["clicks"])
        topic_at(root, "views").append([{"value": b"views alone"}])
        assert b"views alone" in fetching(wire, 1, topic=after["views"], version=TOPIC_IDS).records
        assert fetching(wire, 1, topic=after["clicks"], version=TOPIC_IDS).high_watermark == 1
