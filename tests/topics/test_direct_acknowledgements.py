"""A writer on a local disk acknowledges durable records only, and each partition succeeds or fails alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gated_writer import NEVER_MS
from topics import contents
from vacuuming import World
from waiting import until
from writers_in_place import Syncs, append_both
from writers_in_place import clock as clock
from writers_in_place import syncs as syncs
from writers_in_place import topic as topic

from distlog.core.config import COMMIT_RETENTION_MS, DAY_MS
from distlog.core.errors import OffsetOutOfRangeError, StorageError
from distlog.core.log.active_partition import ActivePartition
from distlog.core.log.partition_log import PartitionLog
from distlog.core.topic import Topic
from distlog.core.write.writer import Delivery


def test_acknowledged_records_are_durable_with_one_sync_per_partition(topic: Topic, syncs: Syncs) -> None:
    counts: list[int] = []
    append_both(topic, [], range(3))
    syncs.count = 0
    with topic.writer(linger_ms=NEVER_MS, on_delivery=lambda delivery: counts.append(syncs.count)) as writer:
        for partition in (0, 1, 0, 1):
            writer.append(b"", partition=partition)
    assert counts == [2, 2]


def test_a_failed_sync_affects_only_its_partition(topic: Topic, syncs: Syncs) -> None:
    deliveries: list[Delivery] = []
    append_both(topic, deliveries, range(2))
    syncs.failing = 1
    with pytest.raises(StorageError, match=r"cannot sync.* records_in_doubt=3"):
        append_both(topic, deliveries, range(2, 5))
    assert deliveries[:3] == [Delivery(0, 0, 2, 2, None), Delivery(1, 0, 2, 2, None), Delivery(0, 2, 5, 3, None)]
    (failed,) = deliveries[3:]
    assert (failed.partition, failed.record_count, isinstance(failed.error, StorageError)) == (1, 3, True)
    syncs.failing = -1
    assert contents(topic.refresh()) == {0: [b"0", b"1", b"2", b"3", b"4"], 1: [b"0", b"1"]}
    append_both(topic, deliveries, range(5, 6))
    assert contents(topic.refresh())[1] == [b"0", b"1", b"5"]


def test_a_failed_append_affects_only_its_partition(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    recover, deliveries = ActivePartition.active_segment, list[Delivery]()

    def failing(active: ActivePartition) -> Any:
        if active.partition == 0:
            raise StorageError("cannot write: No space left on device")
        return recover(active)

    monkeypatch.setattr(ActivePartition, "active_segment", failing)
    with pytest.raises(StorageError, match=r"No space left .*records_not_committed=4"):
        append_both(topic, deliveries, range(4))
    assert [(delivery.partition, delivery.first_offset, delivery.record_count) for delivery in deliveries] == [
        (1, 0, 4),
        (0, None, 4),
    ]
    assert contents(topic) == {0: [], 1: [b"0", b"1", b"2", b"3"]}


def test_records_after_a_failed_partition_are_not_appended(topic: Topic, syncs: Syncs) -> None:
    append_both(topic, [], range(1))
    deliveries: list[Delivery] = []
    syncs.failing = 1
    writer = topic.writer(linger_ms=NEVER_MS, on_delivery=deliveries.append)
    writer.append(b"a", partition=0)
    writer.append(b"b", partition=1)
    with pytest.raises(StorageError, match="cannot sync"):
        writer.flush()
    for call in (lambda: writer.append(b"c", partition=0), writer.flush, writer.close):
        with pytest.raises(StorageError, match="records_in_doubt=1"):
            call()
    writer.close()
    assert contents(topic.refresh())[0] == [b"0", b"a"]


@pytest.mark.parametrize("close", [True, False])
def test_a_flush_policy_leaves_syncs_to_flush_and_close(close: bool, topic: Topic, syncs: Syncs) -> None:
    topic.alter_config({"flush.messages": "5"})
    deliveries: list[Delivery] = []
    append_both(topic, deliveries, range(3))
    synced = syncs.count
    assert synced == 2
    deliveries.clear()
    with topic.writer(linger_ms=0, on_delivery=deliveries.append) as writer:
        for number in range(4):
            writer.append(b"%d" % number, partition=0)
        until(lambda: sum(delivery.record_count for delivery in deliveries) == 4)
        assert syncs.count == synced
        (writer.close if close else writer.flush)()
        assert syncs.count == synced + 1
        if not close:
            for number in range(5):
                writer.append(b"%d" % number, partition=0)
            until(lambda: sum(delivery.record_count for delivery in deliveries) == 9)
            assert syncs.count == synced + 2


def test_a_failed_flush_affects_only_its_partition(topic: Topic, syncs: Syncs) -> None:
    topic.alter_config({"flush.messages": "1000"})
    for failing in (0, 1):
        syncs.failing = failing
        writer = topic.writer(linger_ms=NEVER_MS)
        for partition in (0, 1):
            writer.append(b"%d" % failing, partition=partition)
        with pytest.raises(StorageError, match="cannot sync"):
            writer.flush()
        # the loss was reported, and all other records are durable
        writer.close()
    assert contents(topic.refresh()) == {0: [b"1"], 1: [b"0"]}


def test_a_flush_after_weeks_needs_no_deleted_segment(tmp_path: Path) -> None:
    world = World(str(tmp_path / "clicks"))
    world.topic().alter_config({"flush.messages": "1000", "retention.ms": str(DAY_MS)})
    deliveries: list[Delivery] = []
    writer = world.topic().writer(linger_ms=0, on_delivery=deliveries.append)
    for day in range(1, 2 * COMMIT_RETENTION_MS // DAY_MS):
        writer.append(b"", partition=0, timestamp=world.clock())
        until(lambda day=day: len(deliveries) == day)  # type: ignore[misc]
        PartitionLog(world.topic().handle, 0, world.topic().current).roll()
        world.clock.now += DAY_MS
        world.expire()
        world.vacuum()
    writer.flush()
    writer.close()
    assert min(world.topic().start_offsets()[0], world.topic().snapshot.log_floor) > 0


def test_a_flush_reports_once_records_of_a_long_sealed_segment(tmp_path: Path) -> None:
    world = World(str(tmp_path / "clicks"))
    world.topic().alter_config({"flush.messages": "1000", "retention.ms": str(DAY_MS)})
    deliveries: list[Delivery] = []
    writer = world.topic().writer(linger_ms=0, on_delivery=deliveries.append)
    writer.append(b"", partition=0, timestamp=world.clock())
    until(lambda: len(deliveries) == 1)
    world.topic().alter_config({"retention.bytes": "1000"})
    for _ in range(2 * COMMIT_RETENTION_MS // DAY_MS):
        world.clock.now += DAY_MS
        world.append()
        world.expire()
        world.vacuum()
    assert world.topic().snapshot.log_floor > 3
    with pytest.raises(
        OffsetOutOfRangeError, match=r"whether the appended records are durable.*first_offset=0 end_offset=1"
    ):
        writer.flush()
    writer.append(b"", partition=0, timestamp=world.clock())
    writer.flush()
    writer.close()


def test_flush_ms_syncs_in_the_background(topic: Topic, syncs: Syncs) -> None:
    topic.alter_config({"flush.messages": "1000", "flush.ms": "20"})
    # the real clock: the sync must come without a call
    with topic.writer(linger_ms=0) as writer:
        writer.append(b"a", partition=0)
        log = PartitionLog(topic.handle, 0, topic.current)
        until(lambda: log.end() == (1, 1))
        assert syncs.count == 1
        log.close()


def test_a_failed_background_sync_is_raised_by_the_next_flush(topic: Topic, syncs: Syncs) -> None:
    topic.alter_config({"flush.messages": "1000", "flush.ms": "20"})
    writer = topic.writer(linger_ms=0)
    syncs.failing = 0
    writer.append(b"lost", partition=0)
    until(lambda: syncs.failed > 0)
    syncs.failing = -1
    with pytest.raises(StorageError, match="cannot sync"):
        writer.flush()
    writer.append(b"kept", partition=0)
    writer.close()
    assert contents(topic.refresh())[0] == [b"kept"]
