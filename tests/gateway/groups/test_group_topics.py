"""The offsets topic belongs to the gateway, and a dropped topic loses its committed offsets."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from gateways import Wire, open_topic, producing, serving, until
from gateways import frequent_polls as frequent_polls
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v1.request import OffsetFetchRequestTopic
from raw_batches import batch, record
from transactional_clients import position

import distlog
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC
from distlog.core.times import now_ms
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.groups.committed_offsets import commit_positions

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka_admin = pytest.importorskip("confluent_kafka.admin")
OFFSET_FETCH = 9
OFFSETS = [confluent_kafka.TopicPartition("clicks", 0, 7)]


@pytest.fixture
def member(gateway: GatewayServer) -> Any:
    client = confluent_kafka.Consumer({"bootstrap.servers": gateway.address, "group.id": "billing"})
    client.commit(offsets=OFFSETS, asynchronous=False)
    yield client
    client.close()


@pytest.mark.usefixtures("frequent_polls")
def test_a_topic_that_is_dropped_takes_the_positions_in_it_with_it(gateway: GatewayServer, member: Any) -> None:
    admin = kafka_admin.AdminClient({"bootstrap.servers": gateway.address})
    assert [committed.offset for committed in member.committed(OFFSETS, 30)] == [7]
    admin.delete_topics(["clicks"])["clicks"].result(30)
    distlog.create(f"{gateway.root}/clicks", 2)
    # at position 7 of a topic that was created again, a group would skip records that it never read
    until(
        lambda: [committed.offset for committed in member.committed(OFFSETS, 30)] == [confluent_kafka.OFFSET_INVALID]
    )


@pytest.mark.usefixtures("frequent_polls")
def test_a_topic_that_was_created_again_while_no_gateway_ran_has_no_positions(tmp_path: Path) -> None:
    topic = distlog.create(f"{tmp_path}/clicks")
    commit_positions(topic.handle.storage, "billing", {0: 7})
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        assert position(wire) == 7
    topic.drop()
    distlog.create(topic.url)
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        assert position(wire) == -1
        until(lambda: not gateway.broker.groups.offsets.topics())
    commit_positions(topic.handle.storage, "billing", {0: 3})
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        assert position(wire) == 3


def test_a_commit_by_a_clock_earlier_than_the_new_topic_is_kept(tmp_path: Path) -> None:
    distlog.create(f"{tmp_path}/clicks").drop()
    distlog.create(f"{tmp_path}/clicks")
    server = GatewayServer(str(tmp_path), port=0, clock=lambda: now_ms() - 60_000)
    with server as gateway, Wire(gateway) as wire:
        commit = import_module("kio.schema.offset_commit.v8.request")
        partition = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata="")
        topics = (commit.OffsetCommitRequestTopic(name="clicks", partitions=(partition,)),)
        wire.ask(8, 8, group_id="billing", generation_id_or_member_epoch=-1, member_id="", topics=topics)
        assert position(wire) == 3


def test_clients_neither_write_nor_change_the_topic_of_groups(gateway: GatewayServer, member: Any) -> None:
    admin = kafka_admin.AdminClient({"bootstrap.servers": gateway.address})
    with Wire(gateway) as wire:
        response = producing(wire, batch([record(0, 0, b"k", b"v")]), topic=OFFSETS_TOPIC)
    assert response.error_code is ErrorCode.invalid_topic_exception
    requested = [
        admin.delete_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC],
        admin.create_partitions([kafka_admin.NewPartitions(OFFSETS_TOPIC, 60)])[OFFSETS_TOPIC],
        admin.create_topics([kafka_admin.NewTopic(OFFSETS_TOPIC, 3, 1)])[OFFSETS_TOPIC],
        *admin.delete_records([confluent_kafka.TopicPartition(OFFSETS_TOPIC, 0, -1)]).values(),
    ]
    for future in requested:
        with pytest.raises(confluent_kafka.KafkaException, match=r"the gateway alone|TOPIC_EXCEPTION"):
            future.result(30)
    assert open_topic(gateway, OFFSETS_TOPIC).partitions == 50
    assert [committed.offset for committed in member.committed(OFFSETS, 30)] == [7]


def test_the_oldest_offset_fetch_has_errors_per_partition(gateway: GatewayServer) -> None:
    gateway.broker.groups.release_members()
    topics = (OffsetFetchRequestTopic(name="clicks", partition_indexes=(0,)),)
    with Wire(gateway) as wire:
        (topic,) = wire.ask(OFFSET_FETCH, 1, group_id="billing", topics=topics).topics
    assert [partition.error_code for partition in topic.partitions] == [ErrorCode.not_coordinator]
    assert [partition.committed_offset for partition in topic.partitions] == [-1]
