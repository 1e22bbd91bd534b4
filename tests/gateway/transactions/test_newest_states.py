"""The states that a gateway has of the transactions of other coordinators, after a long time without a read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from addresses import Address
from transaction_parts import ID, NOW, Parts

from distlog.core.config import DAY_MS, TopicConfig
from distlog.core.kafka.transactions import TRANSACTIONS_TOPIC, TransactionStatus, encode_key
from distlog.core.segments.segment_reader import topic_log
from distlog.core.storage.storage import Storage
from distlog.gateway.config import GatewayConfig
from distlog.gateway.topics.metadata_cache import MetadataCache
from distlog.gateway.transactions.transaction_coordinator import EXPIRATION_MS
from distlog.gateway.transactions.transaction_log import NewestStates


@pytest.fixture
def parts(memory_url: Address) -> Iterator[Parts]:
    compacted = TopicConfig.parse({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0})
    for name, config in {
        "clicks": TopicConfig(),
        "__consumer_offsets": TopicConfig(),
        TRANSACTIONS_TOPIC: compacted,
    }.items():
        # by the clock of the parts: a compaction does not trust a clock that is earlier than the topic's own commits
        topic_log(Storage(f"{memory_url.url}/{name}", memory_url.options), lambda: NOW).create(1, config)
    actual = Parts(memory_url)
    yield actual
    actual.close()


@pytest.fixture
def newest(parts: Parts, memory_url: Address) -> Iterator[NewestStates]:
    storage, config = Storage(memory_url.url, memory_url.options), GatewayConfig(metadata_max_age_ms=0)
    metadata = MetadataCache(storage, {}, lambda: 0, config)
    yield NewestStates(metadata.fresh_topic(TRANSACTIONS_TOPIC), 0)
    metadata.close()


def compact(parts: Parts) -> None:
    hosted = parts.broker.metadata.fresh_topic(TRANSACTIONS_TOPIC)
    hosted.topic.refresh().compact()


def test_an_id_that_was_forgotten_concurrently_is_forgotten_though_nothing_says_so_any_more(
    parts: Parts, newest: NewestStates
) -> None:
    producer = parts.begin()
    parts.coordinator.add_partitions(ID, producer, [("clicks", 0)])
    state = newest.get(ID)
    assert state is not None
    assert state.status is TransactionStatus.ONGOING
    parts.coordinator.end(ID, producer, is_committed=True)
    parts.now_ms += EXPIRATION_MS
    parts.coordinator.run_timers()
    for _ in range(3):
        parts.begin("another")
        compact(parts)
        parts.now_ms += DAY_MS
    assert encode_key(ID) not in parts.topic(TRANSACTIONS_TOPIC).scan().to_table().column("key").to_pylist()
    assert newest.get(ID) is None
    assert newest.get("another") is not None
