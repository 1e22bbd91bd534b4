"""A list of all topics on an object store: its number of requests, and when it shows changes of other programs."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import memory_files
import pytest
from addresses import Address
from memory_files import after_write

import distlog
from distlog.core import paths
from distlog.core.storage.storage import Storage
from distlog.gateway.config import GatewayConfig
from distlog.gateway.topics import topic_index
from distlog.gateway.topics.metadata_cache import MetadataCache
from distlog.gateway.topics.topic_index import CHECKS_PER_EXCHANGE, MAX_AGE_PER_TOPIC_MS, TopicIndex, TopicSummary

TOPICS = CHECKS_PER_EXCHANGE + 20
NAMES = [f"topic-{number:03}" for number in range(TOPICS)]
AGE_MS = 1000


class Listing:
    def __init__(self, address: Address, now_ms: int = 1_000_000) -> None:
        self.root, self.now_ms = Storage(*address), now_ms
        self.index = TopicIndex(self.root, lambda: self.now_ms)

    def summaries(self, names: list[str] = NAMES) -> dict[str, TopicSummary | Exception]:
        return self.index.summaries(names, AGE_MS)

    @contextmanager
    def asks(self, gets: int, puts: int = 0) -> Iterator[None]:
        counted = self.root.counters
        previous = counted.gets, counted.puts, counted.lists
        yield
        assert (counted.gets - previous[0], counted.puts - previous[1], counted.lists - previous[2]) == (
            gets,
            puts,
            0,
        )


@pytest.fixture(scope="module")
def address_and_files() -> tuple[Address, dict[str, Any]]:
    root = Address(f"memory://{uuid.uuid4().hex}", {})
    for number, name in enumerate(NAMES):
        distlog.create(f"{root.url}/{name}", number % 5 + 1, storage_options=root.options)
    return root, memory_files.held()


@pytest.fixture
def address(address_and_files: tuple[Address, dict[str, Any]]) -> Address:
    root, files = address_and_files
    memory_files.hold(files)
    return root


def test_unused_topics_are_refreshed_by_a_request_each(address: Address) -> None:
    listing = Listing(address)
    first = listing.summaries()
    assert [summary.partitions for summary in first.values() if isinstance(summary, TopicSummary)] == [
        number % 5 + 1 for number in range(TOPICS)
    ]
    with listing.asks(gets=0):
        assert listing.summaries() == first
    listing.now_ms += AGE_MS
    # what other gateways saw, and the next version of each topic; then everything is stored for other gateways
    with listing.asks(gets=1 + TOPICS, puts=1):
        assert listing.summaries() == first


def test_a_new_gateway_reads_the_index_in_one_request(address: Address) -> None:
    actual = Listing(address).summaries()
    later = Listing(address)
    with later.asks(gets=1):
        assert later.index.summaries(NAMES, 600_000) == actual


def test_changes_by_other_programs_are_visible_after_the_maximum_age(address: Address) -> None:
    listing = Listing(address)
    previous = listing.summaries()
    dropped, changed = (distlog.open(f"{address.url}/{name}") for name in NAMES[:2])
    dropped.drop()
    changed.create_partitions(7)
    distlog.create(f"{address.url}/new", 2)
    names = [*NAMES, "new"]
    at_once = listing.summaries(names)
    assert at_once == {**previous, "new": at_once["new"]}
    listing.now_ms += AGE_MS
    after = listing.summaries(names)
    assert after.keys() == set(names) - {NAMES[0]}
    assert isinstance(after["new"], TopicSummary)
    assert after[NAMES[1]] == TopicSummary(NAMES[1], changed.snapshot.topic_id, 7)
    distlog.create(f"{address.url}/{NAMES[0]}", 4)
    listing.now_ms += AGE_MS
    again = listing.summaries(names)[NAMES[0]]
    assert isinstance(again, TopicSummary)
    assert again.partitions == 4
    assert again != previous[NAMES[0]]


@pytest.mark.parametrize("damaged", [b"{", b"[]", b'{"topics": {"topic-000": ["x", 1, 2, 3, 4]}}', b'{"topics": 5}'])
def test_a_damaged_index_is_ignored_and_written_again(
    address: Address, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    actual = Listing(address).summaries()
    Storage(*address).put(paths.TOPIC_INDEX, damaged)
    with caplog.at_level(logging.WARNING):
        assert Listing(address).summaries() == actual
    assert "stored index of topics is unreadable" in caplog.text
    later = Listing(address)
    with later.asks(gets=1):
        assert later.index.summaries(NAMES, 600_000) == actual


def made_again(address: Address, name: str, commits: int) -> str:
    """Delete a topic's folder by hand and create it with three partitions and `commits`; returns its id."""
    root = Storage(*address).child(name)
    root.delete([file.name for file in root.list(paths.COMMITS_DIR)])
    topic = distlog.create(f"{address.url}/{name}", 3, storage_options=address.options)
    for _ in range(commits - 1):
        topic.append([{"value": b"v"}])
    return topic.snapshot.topic_id


@pytest.mark.parametrize("commits", [1, 2])
@pytest.mark.parametrize("begins", ["anew", "an hour ago"])
def test_a_topic_that_the_index_calls_dropped_is_found_if_its_folder_is_another(
    address: Address, commits: int, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = Listing(address)
    distlog.open(f"{address.url}/{NAMES[7]}").drop()
    assert NAMES[7] not in listing.summaries()
    topic_id = made_again(address, NAMES[7], commits)
    if begins == "anew":
        listing = Listing(address)
        hidden = listing.index.summaries(NAMES, 600_000)
        assert NAMES[7] not in hidden, "what another gateway just saw is not looked at"
    else:
        replied_ms = Storage.replied_ms
        monkeypatch.setattr(Storage, "replied_ms", lambda storage: replied_ms(storage) + topic_index.PROOF_MS)
    listing.now_ms += AGE_MS
    assert listing.summaries()[NAMES[7]] == TopicSummary(NAMES[7], topic_id, 3)


def test_folders_without_a_topic_are_left_out_and_damaged_topics_have_their_error(address: Address) -> None:
    listing = Listing(address)
    listing.root.put("other/file", b"x")
    listing.root.put(f"{NAMES[0]}/{paths.commit_file(0)}", b"damaged")
    actual = listing.summaries([*NAMES[:2], "other"])
    assert actual.keys() == set(NAMES[:2])
    assert isinstance(actual[NAMES[0]], Exception)
    assert isinstance(actual[NAMES[1]], TopicSummary)


def test_topics_in_use_and_dropped_ones_are_right_in_the_list_at_once(address: Address) -> None:
    metadata = MetadataCache(Storage(*address), {}, lambda: 1_700_000_000_000, GatewayConfig())
    assert MAX_AGE_PER_TOPIC_MS * TOPICS > 1000
    previous = metadata.summaries_or_errors()
    assert [*previous] == NAMES
    metadata.drop(NAMES[3])
    used = metadata.topic(NAMES[5])
    used.topic.create_partitions(11)
    counted = metadata.root.counters
    gets = counted.gets
    after = metadata.summaries_or_errors()
    assert after.keys() == previous.keys() - {NAMES[3]}
    assert after[NAMES[5]] == used.summary == TopicSummary(NAMES[5], used.snapshot.topic_id, 11)
    assert counted.gets - gets <= 6


def test_a_topic_dropped_during_a_list_of_all_is_skipped(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = Listing(address)
    # another thread, which does not wait for looks, learns that the topic was dropped
    after_write(monkeypatch, lambda path: True, lambda: listing.index.forget(NAMES[3]))
    assert sorted(listing.summaries()) == [*NAMES[:3], *NAMES[4:]]
    assert sorted(listing.summaries()) == NAMES
