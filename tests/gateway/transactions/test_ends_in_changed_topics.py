"""A transaction ends where it wrote, also if others changed the topic and the coordinator has not seen it yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from addresses import Address
from transacting import values_seen
from transaction_parts import ID, Parts

import distlog


@pytest.fixture
def two(memory_url: Address) -> Iterator[tuple[Parts, Parts]]:
    for name in ("clicks", "__transaction_state", "__consumer_offsets"):
        distlog.create(f"{memory_url.url}/{name}")
    parts = Parts(memory_url, metadata_max_age_ms=3_600_000), Parts(memory_url, port=9093)
    assert parts[0].broker.metadata.fresh_topic("clicks").topic.partitions == 1
    yield parts
    for part in parts:
        part.close()


def test_a_transaction_ends_in_an_added_partition(two: tuple[Parts, Parts]) -> None:
    coordinator, other = two
    producer = coordinator.begin()
    coordinator.topic("clicks").create_partitions(2)
    coordinator.coordinator.add_partitions(ID, producer, [("clicks", 1)])
    other.send(producer, b"a", number=1)
    coordinator.coordinator.end(ID, producer, is_committed=True)
    assert values_seen(coordinator.topic("clicks"))[1] == [b"a"]


def test_a_transaction_ends_in_a_recreated_topic(two: tuple[Parts, Parts]) -> None:
    coordinator, other = two
    producer = coordinator.begin()
    coordinator.coordinator.add_partitions(ID, producer, [("clicks", 0)])
    coordinator.topic("clicks").drop()
    distlog.create(f"{coordinator.address.url}/clicks")
    other.send(producer, b"a")
    coordinator.coordinator.end(ID, producer, is_committed=True)
    assert values_seen(coordinator.topic("clicks"))[0] == [b"a"]
