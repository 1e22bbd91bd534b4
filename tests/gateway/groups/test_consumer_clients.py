"""Clients with `group.protocol=consumer` (KIP-848) share partitions through the gateway, and continue later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from gateways import API_VERSIONS, Wire
from gateways import frequent_polls as frequent_polls

import distlog
from distlog.gateway.config import GatewayConfig, GroupSettings
from distlog.gateway.gateway_server import GatewayServer

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka_admin = pytest.importorskip("confluent_kafka.admin")
PARTITIONS, COUNT, DESCRIBE = 4, 100, 69
QUICK = GroupSettings(initial_rebalance_delay_ms=0, consumer_heartbeat_interval_ms=100)


@contextmanager
def serving(root: str, port: int = 0, **options: Any) -> Iterator[GatewayServer]:
    config = GatewayConfig(groups=QUICK, linger_ms=20)
    with GatewayServer(root, port=port, config=config, **options) as gateway:
        yield gateway


def filled(root: str) -> None:
    topic = distlog.create(f"{root}/clicks", partitions=PARTITIONS)
    topic.append([{"value": b"%d" % n, "partition": n % PARTITIONS} for n in range(COUNT)])


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayServer]:
    filled(str(tmp_path))
    with serving(str(tmp_path)) as served:
        yield served


class Member:
    """A consumer of librdkafka in the group `billing`; `assigned` counts its assignments."""

    def __init__(self, gateway: GatewayServer, topics: str = "clicks", **settings: Any) -> None:
        self.read, self.assigned, self.errors = list[int](), 0, list[Any]()
        self.client = confluent_kafka.Consumer(
            {
                "bootstrap.servers": gateway.address,
                "group.id": "billing",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **settings,
            }
        )
        self.client.subscribe([topics], on_assign=self._note)

    def _note(self, _: Any, partitions: list[Any]) -> None:
        self.assigned += bool(partitions)

    def poll(self) -> None:
        for record in self.client.consume(50, 0.05):
            if record.error() is None:
                self.read.append(int(record.value()))
            else:
                self.errors.append(record.error())

    @property
    def has(self) -> set[tuple[str, int]]:
        return {(partition.topic, partition.partition) for partition in self.client.assignment()}

    def close(self) -> None:
        self.client.close()


def polled(members: list[Member], condition: Callable[[], bool]) -> None:
    """Poll the members until the condition holds."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, [(member.has, member.read, member.errors) for member in members]
        for member in members:
            member.poll()


def partitions_of(name: str = "clicks") -> set[tuple[str, int]]:
    return {(name, number) for number in range(PARTITIONS)}


def test_members_share_partitions_and_continue_at_committed_offsets(gateway: GatewayServer) -> None:
    first = Member(gateway)
    polled([first], lambda: len(first.read) == COUNT)
    assert sorted(first.read) == [*range(COUNT)]
    first.client.commit(asynchronous=False)
    other = Member(gateway)
    polled([first, other], lambda: len(first.has) == len(other.has) == PARTITIONS // 2)
    assert first.has | other.has == partitions_of()
    topic = distlog.open(f"{gateway.root}/clicks")
    topic.append([{"value": b"%d" % (COUNT + n), "partition": n % PARTITIONS} for n in range(COUNT)])
    first.read.clear()
    polled([first, other], lambda: len(first.read) + len(other.read) == COUNT)
    assert sorted(first.read + other.read) == [*range(COUNT, 2 * COUNT)]
    first.close()
    polled([other], lambda: other.has == partitions_of())
    other.close()


def test_members_keep_their_partitions_when_the_gateway_begins_again(tmp_path: Path) -> None:
    filled(str(tmp_path))
    with serving(str(tmp_path)) as gateway:
        port, member = gateway.port, Member(gateway)
        polled([member], lambda: len(member.read) == COUNT)
    topic = distlog.open(f"{tmp_path}/clicks")
    with serving(str(tmp_path), port):
        topic.append([{"value": b"%d" % COUNT, "partition": 0}])
        polled([member], lambda: len(member.read) == COUNT + 1)
        assert member.assigned == 1
        member.close()


def test_members_on_an_object_store_share_partitions(memory_url: Address) -> None:
    filled(memory_url.url)
    with serving(memory_url.url, storage_options=memory_url.options) as gateway:
        members = [Member(gateway), Member(gateway)]
        polled(
            members, lambda: [len(member.has) for member in members] == [2, 2] and members[0].has != members[1].has
        )
        polled(members, lambda: len({*members[0].read, *members[1].read}) == COUNT)
        for member in members:
            member.close()


@pytest.mark.usefixtures("frequent_polls")
def test_a_pattern_matches_later_topics(gateway: GatewayServer) -> None:
    member = Member(gateway, "^cl.*")
    polled([member], lambda: member.has == partitions_of())
    distlog.create(f"{gateway.root}/clocks", partitions=PARTITIONS)
    polled([member], lambda: member.has == partitions_of() | partitions_of("clocks"))
    member.close()


def test_a_static_member_comes_back_to_its_partitions(gateway: GatewayServer) -> None:
    first, other = Member(gateway, **{"group.instance.id": "one"}), Member(gateway)
    polled([first, other], lambda: len(first.has) == len(other.has) == PARTITIONS // 2)
    had, expected = first.has, other.assigned
    first.close()
    first = Member(gateway, **{"group.instance.id": "one"})
    polled([first, other], lambda: first.has == had)
    assert other.assigned == expected
    first.close()
    other.close()


def test_a_group_with_members_of_one_protocol_takes_none_of_the_other(gateway: GatewayServer) -> None:
    classic = Member(gateway, **{"group.protocol": "classic"})
    polled([classic], lambda: classic.has == partitions_of())
    refused = Member(gateway)
    polled([refused, classic], lambda: bool(refused.errors))
    assert refused.has == set()
    refused.close()
    classic.close()
    new = Member(gateway)
    polled([new], lambda: new.has == partitions_of())
    refused = Member(gateway, **{"group.protocol": "classic"})
    polled([refused, new], lambda: bool(refused.errors))
    assert new.has == partitions_of()
    refused.close()
    new.close()


def test_administrators_see_the_members_and_the_kind_of_a_group(gateway: GatewayServer) -> None:
    member = Member(gateway, **{"client.id": "app"})
    polled([member], lambda: member.has == partitions_of())
    admin = kafka_admin.AdminClient({"bootstrap.servers": gateway.address})
    kinds = confluent_kafka.ConsumerGroupType
    actual = {
        kind: admin.list_consumer_groups(types={kind}).result().valid for kind in (kinds.CONSUMER, kinds.CLASSIC)
    }
    assert [(group.group_id, group.type) for group in actual[kinds.CONSUMER]] == [("billing", kinds.CONSUMER)]
    assert actual[kinds.CLASSIC] == []
    with Wire(gateway) as wire:
        requested = {"group_ids": ("billing", "none"), "include_authorized_operations": False}
        described, missing = wire.ask(DESCRIBE, 1, **requested).groups
        features = wire.ask(API_VERSIONS, 4, client_software_name="a", client_software_version="1")
    assert (described.group_state, described.group_epoch, described.assignor_name) == ("Stable", 1, "uniform")
    (first,) = described.members
    assert (first.client_id, first.subscribed_topic_names, first.member_epoch, first.member_type) == (
        "app",
        ("clicks",),
        1,
        1,
    )
    for shared in (first.assignment, first.target_assignment):
        assert [(partition.topic_name, partition.partitions) for partition in shared.topic_partitions] == [
            ("clicks", (0, 1, 2, 3))
        ]
    assert missing.error_code.name == "group_id_not_found"
    assert [(feature.name, feature.max_version_level) for feature in features.finalized_features] == [
        ("group.version", 1)
    ]
    member.close()
