"""Followers and Kafka's clients of one group: each goes on from the position that was committed last."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conftest import Address
from followers import drained, span
from gateways import Wire, opened, serving, until
from kio.schema.errors import ErrorCode
from transactional_clients import RawProducer, position

import distlog
from distlog.core.errors import StorageError
from distlog.core.groups.group_log import GroupLog
from distlog.core.topics.writing.delivery import Delivery
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.group_settings import GroupSettings
from distlog.gateway.groups.dropped_topics import DroppedTopics
from distlog.gateway.groups.offsets.offsets_batching import OffsetsBatching

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka_admin = pytest.importorskip("confluent_kafka.admin")
OFFSET_FETCH = 9


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayServer]:
    """A gateway over a topic that followers of `billing` have read up to offset 6 in partition 0, and 4 in 1."""
    topic = distlog.create(str(tmp_path / "clicks"), partitions=2)
    topic.append([{"value": b"%d" % n, "partition": n % 2} for n in range(20)])
    topic.reset_group("billing", {0: 6, 1: 4})
    with serving(tmp_path, groups=GroupSettings(initial_rebalance_delay_ms=0)) as served:
        yield served


def consumer(gateway: GatewayServer, group: str = "billing") -> Any:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": gateway.address,
            "group.id": group,
            "auto.offset.reset": "latest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def committed(client: Any) -> list[int]:
    places = [confluent_kafka.TopicPartition("clicks", number) for number in range(2)]
    return [each.offset for each in client.committed(places, 30)]


def consumed(gateway: GatewayServer) -> list[tuple[int, int]]:
    """The (partition, offset) of what one of Kafka's clients gets, from the group's positions to the end."""
    client = consumer(gateway)
    begun = committed(client)
    client.subscribe(["clicks"])
    found: list[tuple[int, int]] = []
    while len(found) < sum(10 - max(0, offset) for offset in begun):
        found += [(record.partition(), record.offset()) for record in client.consume(20, 1)]
    client.close()
    return sorted(found)


def kafka_commits(gateway: GatewayServer, positions: dict[int, int]) -> None:
    client = consumer(gateway)
    places = [confluent_kafka.TopicPartition("clicks", number, offset) for number, offset in positions.items()]
    client.commit(offsets=places, asynchronous=False)
    client.close()


def test_each_side_goes_on_where_the_other_was_in_turn(gateway: GatewayServer) -> None:
    topic = opened(gateway)
    assert consumed(gateway) == span(0, 6, 10) + span(1, 4, 10)
    kafka_commits(gateway, {0: 8})
    with topic.follow(group="billing", timeout=0) as follower:
        assert drained(follower) == span(0, 8, 10) + span(1, 4, 10)
        follower.commit({0: 9, 1: 5})
    assert topic.groups().column("position").to_pylist() == [9, 5]
    assert consumed(gateway) == span(0, 9, 10) + span(1, 5, 10)
    # back, as well as forth
    kafka_commits(gateway, {0: 7, 1: 6})
    assert topic.groups().column("position").to_pylist() == [7, 6]
    with topic.follow(group="billing", timeout=0) as follower:
        assert drained(follower) == span(0, 7, 10) + span(1, 6, 10)
    # it has committed all that it handed out
    topic.reset_group("billing", {1: 2})
    assert consumed(gateway) == span(1, 2, 10)


def test_what_followers_have_read_in_the_log_before_the_gateway_was_told_counts_as_seen(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, told, delivered = opened(gateway), threading.Event(), OffsetsBatching._delivered

    def late(batching: OffsetsBatching, delivery: Delivery) -> None:
        assert told.wait(60)
        delivered(batching, delivery)

    # before the first commit, which makes the writer that calls it
    monkeypatch.setattr(OffsetsBatching, "_delivered", late)
    told.set()
    kafka_commits(gateway, {0: 9})
    told.clear()
    thread = threading.Thread(target=kafka_commits, args=(gateway, {0: 2}))
    thread.start()
    try:
        until(lambda: topic.groups().column("position").to_pylist() == [2, 4])
        with topic.follow(group="billing", timeout=0) as follower:
            assert drained(follower) == span(0, 2, 10) + span(1, 4, 10)
            follower.commit({0: 5})
        with Wire(gateway) as wire:
            assert position(wire) == 5
    finally:
        told.set()
        thread.join()
    with Wire(gateway) as wire:
        assert position(wire) == 5


@pytest.mark.s3
def test_the_same_on_s3_and_when_another_gateway_answers(s3_url: Address) -> None:
    url, options = f"{s3_url.url}/clicks", s3_url.options
    topic = distlog.create(url, partitions=2, storage_options=options)
    topic.append([{"value": b"%d" % n, "partition": n % 2} for n in range(20)])
    config = GatewayConfig(linger_ms=5, groups=GroupSettings(initial_rebalance_delay_ms=0))
    none = confluent_kafka.OFFSET_INVALID
    for before, after in (((none, none), (3, 4)), ((5, 6), (2, 5))):
        with GatewayServer(s3_url.url, port=0, config=config, storage_options=options) as gateway:
            client = consumer(gateway)
            assert committed(client) == list(before)
            client.close()
            kafka_commits(gateway, dict(enumerate(after)))
        with topic.follow(group="billing", timeout=0) as follower:
            assert drained(follower) == span(0, after[0], 10) + span(1, after[1], 10)
            follower.commit({0: 5, 1: 6})


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_position_in_a_transaction_counts_for_followers_when_that_is_committed(
    gateway: GatewayServer, is_committed: bool
) -> None:
    topic = opened(gateway)
    with Wire(gateway) as wire:
        producer = RawProducer(wire)
        producer.init()
        producer.add_offsets()
        assert producer.commit_offset(7) is ErrorCode.none
        assert topic.groups().column("position").to_pylist() == [6, 4]
        assert producer.end(committed=is_committed) is ErrorCode.none
        expected = 7 if is_committed else 6
        assert position(wire) == expected
    assert topic.groups().column("position").to_pylist() == [expected, 4]
    with topic.follow(group="billing", timeout=0) as follower:
        assert drained(follower) == span(0, expected, 10) + span(1, 4, 10)


def test_a_group_is_deleted_on_both_sides_unless_a_follower_is_in_it(gateway: GatewayServer) -> None:
    topic, client = opened(gateway), kafka_admin.AdminClient({"bootstrap.servers": gateway.address, "log_level": 0})
    kafka_commits(gateway, {0: 8})
    with (
        topic.follow(group="billing", timeout=0),
        pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"),
    ):
        client.delete_consumer_groups(["billing"])["billing"].result(30)
    assert topic.groups().column("position").to_pylist() == [8, 4]
    client.delete_consumer_groups(["billing"])["billing"].result(30)
    assert topic.groups().num_rows == 0
    assert client.list_consumer_groups().result(30).valid == []
    with pytest.raises(confluent_kafka.KafkaException, match="GROUP_ID_NOT_FOUND"):
        client.delete_consumer_groups(["billing"])["billing"].result(30)


def test_a_group_that_a_person_deletes_beside_the_gateway_has_no_position(gateway: GatewayServer) -> None:
    kafka_commits(gateway, {0: 8, 1: 9})
    opened(gateway).delete_group("billing")
    client = consumer(gateway)
    assert committed(client) == [confluent_kafka.OFFSET_INVALID] * 2
    client.close()
    kafka_commits(gateway, {1: 9})
    assert opened(gateway).groups().column("position").to_pylist() == [None, 9]


@pytest.mark.parametrize("is_known", [True, False], ids=["both-have-one", "followers-alone"])
def test_positions_are_forgotten_on_both_sides_unless_a_follower_reads_the_topic(
    gateway: GatewayServer, is_known: bool
) -> None:
    if is_known:
        kafka_commits(gateway, {0: 8})
    topic = opened(gateway)
    with topic.follow(group="billing", timeout=0):
        assert forgotten(gateway, 0) is ErrorCode.group_subscribed_to_topic
    assert forgotten(gateway, 0) is ErrorCode.none
    assert topic.groups().column("position").to_pylist() == [None, 4]
    client = consumer(gateway)
    assert committed(client) == [confluent_kafka.OFFSET_INVALID, 4]
    client.close()
    with topic.follow(group="billing", timeout=0, start=9) as follower:
        assert drained(follower) == span(0, 9, 10) + span(1, 4, 10)


@pytest.mark.parametrize("is_ours", [True, False], ids=["through-the-gateway", "beside-it"])
def test_nobody_goes_on_in_a_new_topic_where_kafkas_clients_were_in_the_dropped_one(
    gateway: GatewayServer, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # it would forget them some seconds later
    monkeypatch.setattr(DroppedTopics, "look", lambda _: None)
    kafka_commits(gateway, {0: 8, 1: 9})
    opened(gateway).drop()
    if is_ours:
        client = kafka_admin.AdminClient({"bootstrap.servers": gateway.address, "log_level": 0})
        client.create_topics([kafka_admin.NewTopic("clicks", 2)])["clicks"].result(30)
    else:
        distlog.create(f"{gateway.root}/clicks", partitions=2)
    topic = opened(gateway)
    topic.append([{"value": b"%d" % n, "partition": n % 2} for n in range(20)])
    client = consumer(gateway)
    until(lambda: committed(client) == [confluent_kafka.OFFSET_INVALID] * 2)
    client.close()
    with topic.follow(group="billing", timeout=0) as follower:
        assert drained(follower) == span(0, 0, 10) + span(1, 0, 10)


def forgotten(gateway: GatewayServer, number: int) -> ErrorCode:
    """What OffsetDelete is told of the group's position in a partition."""
    schema = import_module("kio.schema.offset_delete.v0.request")
    partition = schema.OffsetDeleteRequestPartition(partition_index=number)
    topics = (schema.OffsetDeleteRequestTopic(name="clicks", partitions=(partition,)),)
    with Wire(gateway) as wire:
        told = wire.ask(47, 0, group_id="billing", topics=topics)
    assert told.error_code is ErrorCode.none
    return told.topics[0].partitions[0].error_code


def test_a_group_of_no_followers_has_no_position(gateway: GatewayServer) -> None:
    for group in ("shipping", "x" * 300):
        client = consumer(gateway, group)
        assert committed(client) == [confluent_kafka.OFFSET_INVALID] * 2
        client.close()


def test_groups_of_followers_are_listed_and_described_as_groups_without_members(gateway: GatewayServer) -> None:
    client = kafka_admin.AdminClient({"bootstrap.servers": gateway.address, "log_level": 0})
    listed = client.list_consumer_groups().result(30)
    assert [(each.group_id, each.state.name) for each in listed.valid] == [("billing", "EMPTY")]
    described = {name: each.result(30) for name, each in client.describe_consumer_groups(["billing", "no"]).items()}
    assert {name: each.state.name for name, each in described.items()} == {"billing": "EMPTY", "no": "DEAD"}
    asked = [confluent_kafka.ConsumerGroupTopicPartitions("billing")]
    (told,) = client.list_consumer_group_offsets(asked).values()
    places = [(each.topic, each.partition, each.offset) for each in told.result(30).topic_partitions]
    assert sorted(places) == [("clicks", 0, 6), ("clicks", 1, 4)]


def test_while_the_storage_does_not_answer_clients_ask_again_and_do_not_begin_anew(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: GroupLog) -> Any:
        raise StorageError("no answer")

    schema = import_module("kio.schema.offset_fetch.v7.request")
    topic = schema.OffsetFetchRequestTopic(name="clicks", partition_indexes=(0,))
    asked = {"group_id": "billing", "topics": (topic,), "require_stable": False}
    with monkeypatch.context() as patched, Wire(gateway) as wire:
        patched.setattr(GroupLog, "load", fails)
        told = wire.ask(OFFSET_FETCH, 7, **asked)
        assert told.error_code is ErrorCode.coordinator_load_in_progress
        assert told.topics[0].partitions[0].error_code is ErrorCode.coordinator_load_in_progress
    with Wire(gateway) as wire:
        assert wire.ask(OFFSET_FETCH, 7, **asked).topics[0].partitions[0].committed_offset == 6
