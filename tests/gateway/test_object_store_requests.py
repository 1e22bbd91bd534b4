"""The number of a gateway's requests to an object store: concurrent readers share one request."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from addresses import Address
from raw_batches import batch, record

import distlog
from distlog.core.commits.commit_log import CommitLog
from distlog.core.errors import TopicNotFoundError
from distlog.core.format.record_batch import TRANSACTIONAL
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC, OffsetKey, Position, encode_position
from distlog.core.storage.object_store import ObjectStore
from distlog.core.storage.storage import Storage
from distlog.gateway.config import GatewayConfig
from distlog.gateway.groups.offsets_format import encode_key
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.topics import metadata_cache
from distlog.gateway.topics.metadata_cache import MetadataCache

THREADS, COMMITS, PARTITIONS = 6, 5, 20


def cache(address: Address, linger_ms: int = 1) -> MetadataCache:
    config = GatewayConfig(linger_ms=linger_ms)
    return MetadataCache(Storage(*address), {}, lambda: 1_700_000_000_000, config)


@pytest.fixture
def gets(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    read, actual, lock = ObjectStore.read, Counter[str](), threading.Lock()

    def counted(self: ObjectStore, path: str, *bounds: Any) -> bytes:
        with lock:
            actual[path] += 1
        return read(self, path, *bounds)

    monkeypatch.setattr(ObjectStore, "read", counted)
    return actual


def test_many_names_without_a_topic_cost_one_listing(memory_url: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    distlog.create(f"{memory_url.url}/clicks")
    now_ms, loads, load = [0], list[str](), CommitLog.load
    monkeypatch.setattr(metadata_cache, "monotonic_ms", lambda: now_ms[0])
    monkeypatch.setattr(CommitLog, "load", lambda log, *a, **b: loads.append("") or load(log, *a, **b))
    metadata = cache(memory_url)

    def missing(count: int) -> int:
        loads.clear()
        for number in range(count):
            with pytest.raises(TopicNotFoundError):
                metadata.topic(f"no-{number}")
        return len(loads)

    assert missing(3000) == 10
    assert metadata.topic("clicks").name == "clicks"
    distlog.create(f"{memory_url.url}/later")
    now_ms[0] = 1000
    assert metadata.topic("later").name == "later"
    assert missing(3000) == 10


def position(number: int, offset: int) -> tuple[bytes, bytes | None]:
    return encode_key(OffsetKey(f"group-{number}", "clicks", 0)), encode_position(Position(offset))


def commit_plain(address: Address) -> None:
    topic = distlog.create(f"{address.url}/{OFFSETS_TOPIC}", PARTITIONS, {"cleanup.policy": "compact"})
    for offset in range(COMMITS):
        records = [(number, *position(number, offset)) for number in range(PARTITIONS)]
        topic.append([{"partition": number, "key": key, "value": value} for number, key, value in records])


def commit_in_transactions(address: Address) -> None:
    distlog.create(f"{address.url}/{OFFSETS_TOPIC}", PARTITIONS, {"cleanup.policy": "compact"})
    hosted = cache(address, linger_ms=50).topic(OFFSETS_TOPIC)
    for offset in range(COMMITS):
        data = [
            batch([record(0, 0, *position(number, offset))], attributes=TRANSACTIONAL, producer=(7, 0, offset))
            for number in range(PARTITIONS)
        ]
        fenced = {number: (records, lambda _: None) for number, records in enumerate(data)}
        for result in hosted.append_later(fenced).values():
            result.result()


@pytest.mark.parametrize("commit", [commit_plain, commit_in_transactions])
def test_a_takeover_reads_each_object_once_for_all_partitions(
    memory_url: Address, gets: Counter[str], commit: Any
) -> None:
    commit(memory_url)
    topic = OffsetsTopic(memory_url.url, linger_ms=0)
    topic.begin(range(topic.open()))
    gets.clear()
    assert len(list(topic.load(range(PARTITIONS)))) == PARTITIONS
    objects = {path: count for path, count in gets.items() if "/_commits/" not in path}
    assert set(objects.values()) == {1}
    assert gets.total() == len(objects) + 1
    assert len(objects) < PARTITIONS


def numbered(producer: int, sequence: int) -> bytes:
    return batch([record(0, 0, b"k", b"v")], producer=(producer, 0, sequence))


@pytest.mark.parametrize("commits", [2, 40])
def test_a_gateway_that_begins_reads_nothing_of_what_was_appended_before(
    memory_url: Address, gets: Counter[str], commits: int
) -> None:
    distlog.create(f"{memory_url.url}/clicks", PARTITIONS)

    def appended(hosted: Any, sequence: int) -> list[int]:
        results = hosted.append_later({number: (numbered(number, sequence), None) for number in range(PARTITIONS)})
        hosted.commit_now()
        return [result.result().appended.first_offset for result in results.values()]

    hosted = cache(memory_url, linger_ms=3_600_000).topic("clicks")
    for sequence in range(commits):
        assert appended(hosted, sequence) == [sequence] * PARTITIONS
    hosted.close()
    later = cache(memory_url, linger_ms=3_600_000).topic("clicks")
    assert later.snapshot.version >= commits
    gets.clear()
    puts = later.topic.storage.counters.puts
    assert appended(later, commits) == [commits] * PARTITIONS
    # a request for newer commits, and one for the next commit's name; a bundle and a commit
    assert [path for path in gets if "/_commits/" not in path] == []
    assert gets.total() <= 2
    assert later.topic.storage.counters.puts - puts <= 3
    assert appended(later, commits - 1) == [commits - 1] * PARTITIONS
    later.close()
