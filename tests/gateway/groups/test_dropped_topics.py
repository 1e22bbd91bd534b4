"""Positions in topics that were dropped elsewhere are forgotten, and no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from consumer_groups import GROUP, Gateway
from kio.schema.errors import ErrorCode

from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import StorageError, TopicNotFoundError
from distlog.core.read.kafka_offsets import Position
from distlog.gateway.groups.committed_offsets import GroupChanges
from distlog.gateway.groups.coordinator import DroppedTopics
from distlog.gateway.groups.registry import GroupOffsets


class Topics:
    """Topic ids by name; reading one that is None fails, with an error that is not always distlog's."""

    def __init__(self) -> None:
        self.ids: dict[str, str | None] = {"clicks": "1", "views": "2"}
        self.replaced_ms = 0
        self.former_ids = tuple[str, ...]()
        self.failure: Exception = StorageError("no answer")
        self.gateway = Gateway()
        self.watch = DroppedTopics(self.gateway.offsets, self.find)
        for name in self.ids:
            self.commit(name)

    def commit(self, topic: str, partition: int = 0, at_ms: int = 0) -> None:
        codes: list[ErrorCode] = []
        position = Position(7, commit_ms=at_ms)
        self.gateway.offsets.commit(GROUP, {(topic, partition): position}, codes.append)
        assert codes == [ErrorCode.none]

    def find(self, name: str) -> Snapshot:
        if name not in self.ids:
            raise TopicNotFoundError("missing topic")
        actual = self.ids[name]
        if actual is None:
            raise self.failure
        return cast(
            "Snapshot", SimpleNamespace(topic_id=actual, replaced_ms=self.replaced_ms, former_ids=self.former_ids)
        )

    def topics_with_offsets(self) -> set[str]:
        self.watch.check()
        return {topic for topic, _ in self.gateway.offsets.fetch(GROUP, None)}


def test_a_topic_that_gets_a_new_id_keeps_its_positions() -> None:
    topics = Topics()
    topics.topics_with_offsets()
    topics.ids["clicks"], topics.former_ids = "3", ("0", "1")
    assert topics.topics_with_offsets() == {"clicks", "views"}


def test_a_topic_that_is_dropped_or_created_again_loses_its_positions() -> None:
    topics = Topics()
    assert topics.topics_with_offsets() == {"clicks", "views"}
    topics.ids["clicks"] = "3"
    assert topics.topics_with_offsets() == {"views"}
    topics.commit("clicks")
    assert topics.topics_with_offsets() == {"clicks", "views"}
    del topics.ids["views"]
    assert topics.topics_with_offsets() == {"clicks"}


def test_offsets_from_before_a_recreated_topic_are_forgotten() -> None:
    topics = Topics()
    topics.replaced_ms = 5
    topics.commit("clicks", 1, at_ms=4)
    topics.commit("clicks", 2, at_ms=5)
    topics.gateway.store.code = ErrorCode.not_enough_replicas
    assert topics.topics_with_offsets() == {"clicks", "views"}
    topics.gateway.store.code = ErrorCode.none
    assert topics.topics_with_offsets() == {"clicks"}
    assert topics.gateway.offsets.fetch(GROUP, None) == {("clicks", 2): Position(7, commit_ms=5)}


def test_offsets_committed_after_the_recreation_stay() -> None:
    topics = Topics()
    topics.topics_with_offsets()
    topics.ids["clicks"], topics.replaced_ms = "3", 5
    topics.commit("clicks", 1, at_ms=5)
    topics.topics_with_offsets()
    assert topics.gateway.offsets.fetch(GROUP, None) == {("clicks", 1): Position(7, commit_ms=5)}


def test_the_topics_of_a_group_follow_its_positions_however_these_come_and_go() -> None:
    positions = GroupOffsets(GROUP)
    positions.apply({("clicks", 0): Position(1), ("clicks", 1): Position(1), ("views", 0): Position(1)})
    assert positions.topics == {"clicks", "views"}
    positions.apply({("clicks", 0): None, ("views", 0): None})
    assert positions.topics == {"clicks"}
    positions.add_pending(7, {("orders", 0): Position(1)})
    assert positions.topics == {"clicks"}
    positions.end_transaction(7, is_committed=True)
    assert positions.topics == {"clicks", "orders"}
    ended_count = positions.begin_transactional_commit([("carts", 0)])
    positions.end_transaction(8, is_committed=True)
    positions.add_transactional(8, {("carts", 0): Position(1)}, ended_count)
    assert positions.topics == {"carts", "clicks", "orders"}


def test_concurrent_transactional_offsets_are_forgotten_later() -> None:
    topics = Topics()
    topics.topics_with_offsets()

    def check_before_it_is_stored(changes: GroupChanges) -> None:
        topics.ids["clicks"] = "3"
        assert topics.topics_with_offsets() == {"clicks", "views"}

    partition, offsets = ("clicks", 0), topics.gateway.offsets
    offsets.commit_in_transaction(GROUP, {partition: Position(9)}, 1, check_before_it_is_stored)
    assert topics.topics_with_offsets() == {"views"}


def test_a_topic_that_was_never_seen_keeps_its_positions() -> None:
    topics = Topics()
    del topics.ids["views"]
    assert topics.topics_with_offsets() == topics.topics_with_offsets() == {"clicks", "views"}


@pytest.mark.parametrize("failure", [StorageError("no answer"), FileNotFoundError("missing object")])
def test_a_failed_check_forgets_nothing(failure: Exception) -> None:
    topics = Topics()
    topics.failure = failure
    topics.topics_with_offsets()
    topics.ids["clicks"] = None
    assert topics.topics_with_offsets() == {"clicks", "views"}
    topics.ids["clicks"] = "3"
    assert topics.topics_with_offsets() == {"views"}
