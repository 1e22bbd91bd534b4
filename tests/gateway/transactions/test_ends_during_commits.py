"""A transaction that ends while its positions are on their way, or while groups are loaded, ends them too."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from transaction_parts import GROUP, ID, Parts

import distlog
from distlog.core.kafka.transactions import ProducerId
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC, Position
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.topics.metadata_cache import HostedTopic


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    for name in ("clicks", "__transaction_state", "__consumer_offsets"):
        distlog.create(str(tmp_path / name))
    created = Parts(tmp_path)
    yield created
    created.close()


def fetched(parts: Parts, number: int = 0) -> int | ErrorCode | None:
    actual = parts.groups.offsets.fetch(GROUP, [("clicks", number)], stable=True)["clicks", number]
    return actual.offset if isinstance(actual, Position) else actual


def ending_behind_the_append(
    parts: Parts, producer: ProducerId, monkeypatch: pytest.MonkeyPatch, *, is_committed: bool
) -> None:
    """Have the transaction ended, and a client fetch offsets, before the appender notes its offset."""
    append_run = HostedTopic.append_run

    def append(hosted: HostedTopic, *arguments: Any, **named: Any) -> Any:
        appended = append_run(hosted, *arguments, **named)
        if hosted.name == OFFSETS_TOPIC:
            monkeypatch.setattr(HostedTopic, "append_run", append_run)
            parts.coordinator.end(ID, producer, is_committed=is_committed)
            fetched(parts)
        return appended

    monkeypatch.setattr(HostedTopic, "append_run", append)


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_end_before_the_offset_is_known_applies_to_it(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    producer = parts.begin()
    ending_behind_the_append(parts, producer, monkeypatch, is_committed=is_committed)
    parts.commit_offset(producer, 7)
    expected = 7 if is_committed else None
    assert fetched(parts) == expected
    parts.commit_offset(producer, 9, 1)
    assert (fetched(parts), fetched(parts, 1)) == (expected, ErrorCode.unstable_offset_commit)
    parts.coordinator.end(ID, producer, is_committed=not is_committed)
    assert (fetched(parts), fetched(parts, 1)) == (expected, None if is_committed else 9)


def test_an_end_during_the_load_of_groups_is_applied_after_it(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    producer, load, refused = parts.begin(), OffsetsTopic.load, list[ErrorCode]()
    parts.commit_offset(producer, 7)

    def loading(store: OffsetsTopic, partitions: Collection[int]) -> Any:
        actual = list(load(store, partitions))
        gateway_parts = parts.together[-1]
        gateway_parts.load()
        gateway_parts.coordinator.end(ID, producer, is_committed=True)
        try:
            gateway_parts.groups.offsets.commit_in_transaction(
                GROUP, {("clicks", 1): Position(1)}, producer.id, never
            )
        except CoordinatorError as error:
            refused.append(error.code)
        return actual

    def never(_: object) -> None:
        raise AssertionError("nothing is appended while groups are loaded")

    monkeypatch.setattr(OffsetsTopic, "load", loading)
    after = parts.killed()
    assert refused[:1] == [ErrorCode.coordinator_load_in_progress]
    assert fetched(after) == 7
