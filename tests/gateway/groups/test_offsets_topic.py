"""Groups in the topic `__consumer_offsets`: durable when told so, read again by the next gateway."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue

import pytest
from gateways import until
from kio.schema.errors import ErrorCode

import distlog
from distlog.gateway.groups.group_store import GroupChange
from distlog.gateway.groups.offsets_format import GroupKey, OffsetKey, Position, offsets_partition
from distlog.gateway.groups.offsets_topic import NAME, OffsetsTopic


def key(partition: int) -> OffsetKey:
    return OffsetKey("billing", "clicks", partition)


def stored(topic: OffsetsTopic, *changes: GroupChange) -> ErrorCode:
    told: SimpleQueue[ErrorCode] = SimpleQueue()
    topic.store("billing", changes, told.put)
    return told.get(timeout=60)


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}/root"


def test_what_was_stored_is_there_for_the_next_gateway(root: str) -> None:
    topic = OffsetsTopic(root, linger_ms=0)
    assert list(topic.load()) == []
    assert stored(topic, (key(0), Position(7)), (key(1), Position(8))) is ErrorCode.none
    assert stored(topic, (key(1), None), (GroupKey("billing"), None)) is ErrorCode.none
    changes = list(OffsetsTopic(root, linger_ms=0).load())
    assert changes == [
        (key(0), Position(7)),
        (key(1), Position(8)),
        (key(1), None),
        (GroupKey("billing"), None),
    ]
    topic.close()


def test_nothing_is_made_before_there_is_something_to_keep(tmp_path: Path) -> None:
    topic = OffsetsTopic(str(tmp_path), linger_ms=0)
    list(topic.load())
    topic.close()
    assert not list(tmp_path.iterdir())


def test_it_is_a_compacted_topic_with_kafkas_partitions(tmp_path: Path) -> None:
    topic = OffsetsTopic(str(tmp_path), linger_ms=0)
    stored(topic, (key(0), Position(7)))
    found = distlog.open(str(tmp_path / NAME))
    assert "compact" in found.config.cleanup_policy
    assert len(found.end_offsets()) == 50
    assert {n for n, end in found.end_offsets().items() if end} == {offsets_partition("billing", 50)}
    topic.close()


def test_a_record_that_is_no_group_is_left_out_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topic = OffsetsTopic(str(tmp_path), linger_ms=0)
    stored(topic, (key(0), Position(7)))
    topic.close()
    distlog.open(str(tmp_path / NAME)).append([{"key": b"\0\1\0\x09", "value": b"", "partition": 3}])
    assert list(OffsetsTopic(str(tmp_path), linger_ms=0).load()) == [(key(0), Position(7))]
    assert "partition=3 offset=0" in caplog.text


def test_a_topic_with_another_number_of_partitions_is_used_as_it_is(tmp_path: Path) -> None:
    distlog.create(str(tmp_path / NAME), 3, {"cleanup.policy": "compact"})
    topic = OffsetsTopic(str(tmp_path), linger_ms=0)
    list(topic.load())
    assert stored(topic, (key(0), Position(7))) is ErrorCode.none
    assert distlog.open(str(tmp_path / NAME)).end_offsets()[offsets_partition("billing", 3)] == 1
    topic.close()


def test_too_much_at_once_is_refused_before_it_is_taken(tmp_path: Path) -> None:
    topic = OffsetsTopic(str(tmp_path), linger_ms=0)
    text = "x" * 4096
    changes: list[GroupChange] = [(key(n), Position(1, metadata=text)) for n in range(2100)]
    assert stored(topic, *changes) is ErrorCode.coordinator_load_in_progress
    assert stored(topic, *changes[:100]) is ErrorCode.none
    topic.close()
    assert len(list(OffsetsTopic(str(tmp_path), linger_ms=0).load())) == 100


def test_after_a_failure_all_that_waited_are_told_and_the_next_change_is_stored(tmp_path: Path) -> None:
    topic = OffsetsTopic(str(tmp_path), linger_ms=0)
    assert stored(topic, (key(0), Position(7))) is ErrorCode.none
    distlog.open(str(tmp_path / NAME)).drop()
    assert stored(topic, (key(0), Position(8))) is ErrorCode.coordinator_not_available
    assert stored(topic, (key(0), Position(9))) is ErrorCode.none
    assert list(OffsetsTopic(str(tmp_path), linger_ms=0).load()) == [(key(0), Position(9))]
    topic.close()


def test_a_failed_store_answers_while_the_groups_lock_is_held_by_who_stores_next(tmp_path: Path) -> None:
    topic, lock, told = OffsetsTopic(str(tmp_path), linger_ms=0), threading.Lock(), SimpleQueue[ErrorCode]()
    assert stored(topic, (key(0), Position(7))) is ErrorCode.none
    is_held = threading.Event()

    def done(code: ErrorCode) -> None:
        is_held.wait(30)
        with lock:
            told.put(code)

    distlog.open(str(tmp_path / NAME)).drop()
    topic.store("billing", [(key(0), Position(8))], done)
    until(lambda: topic._batching is not None and topic._batching.has_failed)
    with lock:
        is_held.set()
        next_one = threading.Thread(
            target=topic.store, args=("billing", [(key(0), Position(9))], told.put), daemon=True
        )
        next_one.start()
        next_one.join(10)
        assert not next_one.is_alive()
    assert {told.get(timeout=30), told.get(timeout=30)} == {ErrorCode.coordinator_not_available, ErrorCode.none}
    topic.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "groups-stored"]


def test_maintenance_beside_a_gateway_keeps_the_newest_positions(root: str) -> None:
    topic = OffsetsTopic(root, linger_ms=0)
    for offset in range(6):
        assert stored(topic, (key(0), Position(offset)), (key(1), Position(offset))) is ErrorCode.none
        if offset % 2:
            kept = distlog.open(f"{root}/{NAME}")
            # a commit of others ends the segment that is written to, so that it is cleaned
            kept.append([{"key": b"\0\x63", "value": b"", "partition": offsets_partition("billing", 50)}])
            kept.compact()
    assert stored(topic, (key(1), None)) is ErrorCode.none
    distlog.open(f"{root}/{NAME}").compact()
    standing = dict(OffsetsTopic(root, linger_ms=0).load())
    assert (standing[key(0)], standing.get(key(1))) == (Position(5), None)
    # most of the fifteen records are gone
    assert distlog.open(f"{root}/{NAME}").scan().to_table().num_rows < 9
    topic.close()
