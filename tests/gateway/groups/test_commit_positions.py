"""Offsets of consumers are committed to a group of Kafka clients, by a command and while no gateway runs."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from gateways import Wire, open_topic, serving
from kafka_commits import KafkaCommits
from kio.schema.errors import ErrorCode
from topics import TINY, topic_on, values
from transactional_clients import RawProducer, position

import distlog
from distlog.core.errors import CommitConflictError, CommitStateUnknownError, InvalidConfigError
from distlog.core.read.kafka_offsets import OffsetKey, Position, kafka_positions
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.gateway.cluster import GatewayLease
from distlog.gateway.groups.classic_group import GroupRecord, MemberRecord
from distlog.gateway.groups.committed_offsets import commit_positions
from distlog.gateway.groups.offsets_format import ClassicGroupKey
from distlog.gateway.groups.offsets_topic import OffsetsTopic


@pytest.fixture
def topic() -> Topic:
    topic = topic_on(Storage(f"memory://{uuid.uuid4().hex}/clicks"), 2, TINY)
    for partition in range(2):
        topic.append(values(range(10)), partition=partition)
    return topic


def root_of(topic: Topic) -> str:
    return topic.url.rpartition("/")[0]


def stored(topic: Topic, group: str, members: tuple[MemberRecord, ...]) -> None:
    store = OffsetsTopic(root_of(topic), linger_ms=0)
    store.open()
    store.begin([store.partition_of(group)])
    record = GroupRecord(group=group, protocol_type="consumer", generation=1, phase_since_ms=0, members=members)
    codes = list[ErrorCode]()
    store.store(group, [(ClassicGroupKey(group), record)], codes.append)
    store.close()
    assert codes == [ErrorCode.none]


def test_committed_offsets_are_read_by_the_next_gateway(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), partitions=2)
    with serving(tmp_path):
        pass
    commit_positions(topic.storage, "billing", {0: 7, 1: 3})
    assert kafka_positions(topic.handle, "billing") == {0: 7, 1: 3}
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        assert position(wire) == 7


def test_it_is_refused_while_a_gateway_runs(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    with serving(tmp_path) as gateway:
        with pytest.raises(CommitConflictError, match="kafka-consumer-groups --reset-offsets"):
            commit_positions(topic.storage, "billing", {0: 7})
        with Wire(gateway) as wire:
            assert position(wire) == -1
            producer = RawProducer(wire)
            producer.init()
            producer.add_offsets()
            assert producer.commit_offset(5) is ErrorCode.none
            assert producer.end(committed=True) is ErrorCode.none
            assert position(wire) == 5
        open_topic(gateway).reset_group("billing", 0)
        with Wire(gateway) as wire:
            assert position(wire) == 5


def test_a_gateway_that_comes_at_any_moment_has_the_positions_or_they_are_refused(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, load, store = OffsetsTopic.begin, OffsetsTopic.load, OffsetsTopic.store
    for step in range(4):
        other, loaded = OffsetsTopic(root_of(topic), linger_ms=0), list[object]()

        def comes(now: int, step: int = step, other: OffsetsTopic = other, loaded: list[object] = loaded) -> None:
            if now == step:
                lease = GatewayLease(Storage(root_of(topic)), None, 60.0)
                lease.set_address("a", 9092, "m")
                lease.sync(lambda: 50, ())
                other.open()
                number = other.partition_of("billing")
                begin(other, [number])
                loaded.extend(load(other, [number]))
                lease.leave()

        def begins(self: OffsetsTopic, *arguments: object) -> None:
            comes(0)
            begin(self, *arguments)  # type: ignore[arg-type]
            comes(1)

        def stores(self: OffsetsTopic, *arguments: object) -> None:
            comes(2)
            store(self, *arguments)  # type: ignore[arg-type]
            self.drain()
            comes(3)

        with monkeypatch.context() as patched:
            patched.setattr(OffsetsTopic, "begin", begins)
            patched.setattr(OffsetsTopic, "store", stores)
            try:
                commit_positions(topic.storage, "billing", {0: step + 1})
                refused = False
            except CommitStateUnknownError:
                refused = True
        # a gateway that led before is fenced: it loads the partition again
        is_known = bool(loaded) and loaded[-1][1].offset == step + 1  # type: ignore[index]
        assert refused == (step in (1, 2)), step
        assert is_known == (step == 3), step
        codes = list[ErrorCode]()
        other.store("billing", [(OffsetKey("billing", "clicks", 0), Position(9))], codes.append)
        other.close()
        assert codes == [ErrorCode.not_coordinator if step == 0 else ErrorCode.none]


def test_a_group_that_has_members_is_refused_and_one_that_had_some_is_not(topic: Topic) -> None:
    member = MemberRecord(
        id="m",
        instance_id=None,
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        subscription=b"",
        assignment=b"",
    )
    stored(topic, "billing", (member,))
    with pytest.raises(CommitConflictError, match="has members"):
        commit_positions(topic.storage, "billing", {0: 7})
    assert kafka_positions(topic.handle, "billing") == {}
    stored(topic, "billing", ())
    commit_positions(topic.storage, "billing", {0: 7})
    assert kafka_positions(topic.handle, "billing") == {0: 7}


def test_invalid_names_and_topics_without_a_root_are_refused(topic: Topic) -> None:
    for name in ("", "x" * 40_000):
        with pytest.raises(InvalidConfigError, match="cannot use this group name"):
            commit_positions(topic.storage, name, {0: 7})
    with pytest.raises(InvalidConfigError, match="needs a folder above it"):
        commit_positions(Storage("memory://alone"), "g", {0: 7})


def test_committed_offsets_round_trip(topic: Topic) -> None:
    kafka = KafkaCommits(topic)
    commit_positions(topic.storage, "g", topic.reset_group("jobs", {0: 4, 1: 8}))
    kafka({1: 9})
    assert topic.reset_group("back", kafka="g") == {0: 4, 1: 9}
