"""Groups in the topic `__consumer_offsets`: durable when acknowledged, read again by the next gateway."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from open_files import open_below

import distlog
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC, OffsetKey, Position, decode_position, offsets_partition
from distlog.gateway.groups.classic_group import GroupRecord, MemberRecord
from distlog.gateway.groups.offsets_format import ClassicGroupKey, GroupChange, decode_key
from distlog.gateway.groups.offsets_topic import OffsetsTopic


def key(partition: int) -> OffsetKey:
    return OffsetKey("billing", "clicks", partition)


def stored(topic: OffsetsTopic, *changes: GroupChange) -> ErrorCode:
    reply: SimpleQueue[ErrorCode] = SimpleQueue()
    topic.store("billing", changes, reply.put)
    return reply.get(timeout=60)


def leading(root: object, linger_ms: int = 0) -> OffsetsTopic:
    topic = OffsetsTopic(str(root), linger_ms=linger_ms)
    topic.begin(range(topic.open()))
    return topic


def loaded(topic: OffsetsTopic) -> list[GroupChange]:
    return list(topic.load(range(topic.open())))


def written(root: str) -> list[tuple[Any, Position | None]]:
    rows = distlog.open(f"{root}/{OFFSETS_TOPIC}").scan(columns=["key", "value"]).to_table().to_pylist()
    return [(decode_key(row["key"]), row["value"] and decode_position(row["value"])) for row in rows]


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}/root"


def test_stored_groups_are_read_by_the_next_gateway(root: str) -> None:
    topic = leading(root)
    assert loaded(topic) == []
    assert stored(topic, (key(0), Position(7)), (key(1), Position(8))) is ErrorCode.none
    assert stored(topic, (key(1), None), (ClassicGroupKey("billing"), None)) is ErrorCode.none
    assert written(root) == [
        (key(0), Position(7)),
        (key(1), Position(8)),
        (key(1), None),
        (ClassicGroupKey("billing"), None),
    ]
    changes = loaded(leading(root))
    assert changes == [(key(0), Position(7)), (key(1), None), (ClassicGroupKey("billing"), None)]
    topic.close()


def test_it_is_a_compacted_topic_with_kafkas_partitions(tmp_path: Path) -> None:
    topic = leading(tmp_path)
    stored(topic, (key(0), Position(7)))
    actual = distlog.open(str(tmp_path / OFFSETS_TOPIC))
    assert "compact" in actual.config.cleanup_policy
    assert len(actual.end_offsets()) == 50
    assert {n for n, end in actual.end_offsets().items() if end} == {offsets_partition("billing", 50)}
    topic.close()


def test_an_invalid_record_is_logged_and_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topic = leading(tmp_path)
    stored(topic, (key(0), Position(7)))
    topic.close()
    distlog.open(str(tmp_path / OFFSETS_TOPIC)).append([{"key": b"\0\1\0\x09", "value": b"", "partition": 3}])
    assert loaded(leading(tmp_path)) == [(key(0), Position(7))]
    assert "partition=3 offset=0" in caplog.text


def test_a_topic_with_another_number_of_partitions_is_used_as_it_is(tmp_path: Path) -> None:
    distlog.create(str(tmp_path / OFFSETS_TOPIC), 3, {"cleanup.policy": "compact"})
    topic = leading(tmp_path)
    assert stored(topic, (key(0), Position(7))) is ErrorCode.none
    assert distlog.open(str(tmp_path / OFFSETS_TOPIC)).end_offsets()[offsets_partition("billing", 3)] == 1
    topic.close()


def test_too_many_offsets_for_a_batch_are_refused_permanently(tmp_path: Path) -> None:
    topic = leading(tmp_path)
    text = "x" * 4096
    changes: list[GroupChange] = [(key(n), Position(1, metadata=text)) for n in range(2100)]
    assert stored(topic, *changes) is ErrorCode.invalid_commit_offset_size
    assert stored(topic, *changes[:100]) is ErrorCode.none
    topic.close()
    assert len(loaded(leading(tmp_path))) == 100


def test_a_too_large_group_is_refused_permanently(tmp_path: Path) -> None:
    # a topic that somebody made with Kafka's default of 1 MiB
    distlog.create(str(tmp_path / OFFSETS_TOPIC), 3, {"cleanup.policy": "compact"})
    topic, reply = leading(tmp_path), SimpleQueue[ErrorCode]()
    topic.store("billing", [(key(0), Position(7))], reply.put)
    assert stored(topic, (ClassicGroupKey("billing"), large_group(1 << 21))) is ErrorCode.unknown_server_error
    assert stored(topic, (ClassicGroupKey("billing"), large_group(9 << 20))) is ErrorCode.unknown_server_error
    assert reply.get(timeout=60) is ErrorCode.none
    assert stored(topic, (key(0), Position(8))) is ErrorCode.none
    topic.close()


def large_group(size: int) -> GroupRecord:
    member = MemberRecord(
        id="a",
        instance_id=None,
        client_id="a",
        client_host="/",
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        subscription=b"x" * size,
        assignment=b"",
    )
    return GroupRecord(group="billing", protocol_type="consumer", generation=1, phase_since_ms=0, members=(member,))


def test_too_many_bytes_in_flight_are_refused(tmp_path: Path) -> None:
    topic, reply = leading(tmp_path, 3_600_000), SimpleQueue[ErrorCode]()
    changes: list[GroupChange] = [(key(n), Position(1, metadata="x" * 4096)) for n in range(1500)]
    for _ in range(2):
        topic.store("billing", changes, reply.put)
    assert reply.get(timeout=60) is ErrorCode.coordinator_load_in_progress
    topic.close()
    assert reply.get(timeout=60) is ErrorCode.none


def test_a_failure_is_reported_to_waiting_changes_and_the_next_one_is_stored(tmp_path: Path) -> None:
    topic = leading(tmp_path)
    assert stored(topic, (key(0), Position(7))) is ErrorCode.none
    distlog.open(str(tmp_path / OFFSETS_TOPIC)).drop()
    assert stored(topic, (key(0), Position(8))) is ErrorCode.coordinator_not_available
    # a gateway that lost its topic leads no partition of the next one before it has started
    assert set(topic.lost_partitions()) == set(range(50))
    assert stored(topic, (key(0), Position(8))) is ErrorCode.not_coordinator
    topic.begin(range(50))
    assert stored(topic, (key(0), Position(9))) is ErrorCode.none
    assert loaded(leading(tmp_path)) == [(key(0), Position(9))]
    topic.close()


def test_maintenance_concurrent_with_a_gateway_keeps_the_newest_offsets(root: str) -> None:
    topic = leading(root)
    for offset in range(6):
        assert stored(topic, (key(0), Position(offset)), (key(1), Position(offset))) is ErrorCode.none
        if offset % 2:
            retained = distlog.open(f"{root}/{OFFSETS_TOPIC}")
            # a commit of others ends the segment that is written to, so that it is cleaned
            retained.append([{"key": b"\0\x63", "value": b"", "partition": offsets_partition("billing", 50)}])
            retained.compact()
    assert stored(topic, (key(1), None)) is ErrorCode.none
    distlog.open(f"{root}/{OFFSETS_TOPIC}").compact()
    standing = dict(loaded(leading(root)))
    assert (standing[key(0)], standing.get(key(1))) == (Position(5), None)
    assert distlog.open(f"{root}/{OFFSETS_TOPIC}").scan().to_table().num_rows < 9
    topic.close()


def test_a_gateway_that_lost_a_partition_stores_nothing_more_in_it(root: str) -> None:
    previous = leading(root)
    assert stored(previous, (key(0), Position(7))) is ErrorCode.none
    after = leading(root)
    assert stored(after, (key(0), Position(9))) is ErrorCode.none
    assert stored(previous, (key(0), Position(8))) is ErrorCode.not_coordinator
    assert offsets_partition("billing", 50) in previous.lost_partitions()
    assert written(root) == [(key(0), Position(7)), (key(0), Position(9))]
    assert loaded(after) == [(key(0), Position(9))]
    previous.close()
    after.close()


def test_a_gateway_that_lost_a_partition_closes_its_files(tmp_path: Path) -> None:
    topic, number = leading(tmp_path), offsets_partition("billing", 50)
    folder = tmp_path / OFFSETS_TOPIC / f"{OFFSETS_TOPIC}-{number}"
    for offset in range(2):
        assert stored(topic, (key(0), Position(offset))) is ErrorCode.none
        assert open_below(folder)
        topic.drain()
        topic.end([number])
        assert open_below(folder) == []
        topic.begin([number])
    assert written(str(tmp_path)) == [(key(0), Position(0)), (key(0), Position(1))]
    topic.close()


def test_two_gateways_store_in_their_own_partitions(root: str) -> None:
    first, other = OffsetsTopic(root, linger_ms=0), OffsetsTopic(root, linger_ms=0)
    mine = offsets_partition("billing", first.open())
    first.begin([mine])
    other.begin(set(range(50)) - {mine})
    for offset in range(3):
        assert stored(first, (key(0), Position(offset))) is ErrorCode.none
        reply: SimpleQueue[ErrorCode] = SimpleQueue()
        other.store("shipping", [(OffsetKey("shipping", "clicks", 0), Position(offset))], reply.put)
        assert reply.get(timeout=60) is ErrorCode.none
    assert [key_of_record for key_of_record, _ in written(root)].count(key(0)) == 3
    assert list(first.load([mine])) == [(key(0), Position(2))]
    assert dict(loaded(first)) == {key(0): Position(2), OffsetKey("shipping", "clicks", 0): Position(2)}
    first.close()
    other.close()


def test_two_gateways_that_begin_at_once_make_one_topic(root: str) -> None:
    counts: SimpleQueue[int] = SimpleQueue()
    threads = [threading.Thread(target=lambda: counts.put(leading(root).open())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [counts.get(timeout=1) for _ in threads] == [50] * 4
