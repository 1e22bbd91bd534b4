"""Restore: records that retention, delete-records and compaction removed return while their files exist."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from histories import topic_storage
from hypothesis import given
from hypothesis import strategies as st
from searches import examples
from topics import NOW, Clock, contents, files, named_files, topic_on, values

from distlog.core.errors import CommitConflictError, OffsetOutOfRangeError, TopicNotFoundError
from distlog.core.maintain.retention import LOG_END
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

DAY = 86_400_000


def old_topic(storage: Storage, count: int = 5, **config: Any) -> Topic:
    """Return one partition with a segment per record, each a day older than retention.ms."""
    topic = topic_on(storage, 1, {"retention.ms": DAY, **config})
    for number in range(count):
        topic.append([{"key": "k", "value": b"v%d" % number, "timestamp": NOW - 2 * DAY}])
    return topic


def all_parts(count: int) -> dict[int, list[bytes]]:
    return {0: [b"v%d" % number for number in range(count)]}


def test_records_deleted_by_retention_return_in_one_commit(storage: Storage) -> None:
    topic = old_topic(storage)
    old_version = topic.version
    assert topic.retention().to_dict()["records"] == 5
    topic.append(values([5]))
    report = topic.restore(old_version)
    assert (topic.version, report.version) == (old_version + 3, old_version + 3)
    assert report.to_dict()["records"] == 5
    assert contents(topic) == contents(topic_on(storage)) == all_parts(6)
    assert topic.history(1)["operation"].to_pylist() == ["restore"]
    assert topic.verify().ok


def test_a_merged_segment_returns_as_the_parts_of_an_earlier_restore(storage: Storage) -> None:
    topic = topic_on(storage, 1, {"retention.ms": DAY})

    def append(size: int, timestamp: int = NOW - 2 * DAY) -> None:
        topic.append([{"value": b"v" * size, "timestamp": timestamp}])

    for size in (150, 150, 10):
        append(size)
    apart = topic.version
    topic.compact()
    merged, was = topic.version, contents(topic)
    topic.restore(apart)
    append(10)
    # the first two are too large to be merged with others
    topic.alter_config({"internal.segment.bytes": 250})
    topic.compact()
    append(10, NOW)
    assert topic.retention().to_dict()["segments"] == 3
    topic.restore(merged)
    assert contents(topic)[0][:3] == was[0]


@pytest.mark.long
def test_more_segments_than_a_commit_takes_come_back_by_several(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_on(storage, 3, {"retention.ms": -1})
    for _ in range(260):
        topic.append([{"value": b"v", "partition": number} for number in range(3)])
    old_version, was = topic.version, contents(topic)
    for number in range(3):
        topic.delete_records({number: 260})
        assert topic.retention().to_dict()["segments"] == 260
    monkeypatch.setattr("distlog.core.commits.actions.MAX_COMMIT_ROWS", 600)
    monkeypatch.setattr("distlog.core.maintain.restore.MAX_SEGMENTS", 600, raising=False)
    dry, report = topic.restore(old_version, dry_run=True), topic.restore(old_version)
    assert report.to_dict()["partitions"] == dry.to_dict()["partitions"]
    assert report.to_dict()["records"] == 780
    assert contents(topic) == contents(topic_on(storage)) == was
    assert topic.history(3)["operation"].to_pylist() == ["restore", "restore", "retention"]
    assert topic.restore(old_version).to_dict()["records"] == 0


def test_more_segments_of_a_partition_than_a_commit_takes_are_refused_with_advice(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = old_topic(storage)
    old_version = topic.version
    topic.retention()
    monkeypatch.setattr("distlog.core.maintain.restore.MAX_SEGMENTS", 4)
    for dry_run in (True, False):
        with pytest.raises(CommitConflictError, match="a commit takes 4 segments: restore a later version first"):
            topic.restore(old_version, dry_run=dry_run)
    assert topic.history(1)["operation"].to_pylist() == ["retention"]


def test_parts_of_a_bundle_return(storage: Storage) -> None:
    topic = topic_on(storage, 3, {"retention.ms": DAY})
    topic.append([{"value": b"v%d" % number, "timestamp": NOW - 2 * DAY, "partition": number} for number in range(3)])
    old_version, was = topic.version, contents(topic)
    assert all(state.segments[0].is_bundled for state in topic.snapshot.partitions)
    assert topic.retention().to_dict()["records"] == 3
    topic.restore(old_version)
    assert contents(topic) == contents(topic_on(storage)) == was
    assert topic.verify().ok


def test_the_report_warns_of_records_that_retention_will_delete(storage: Storage) -> None:
    topic = old_topic(storage)
    old_version = topic.version
    topic.retention()
    assert str(topic.restore(old_version, dry_run=True)).startswith("would restore 5 segments, 5 records")
    assert contents(topic) == {0: []}
    report, size = topic.restore(old_version), topic.snapshot.partitions[0].segments[0].log_bytes
    assert "the next retention deletes 5 segments: first set retention.ms" in str(report)
    assert report.to_table().to_pylist() == [
        {
            "partition": 0,
            "segments": 5,
            "records": 5,
            "bytes": 5 * size,
            "lost": 0,
            "offsets": 5,
            "log_start_offset": 0,
        }
    ]
    topic.retention()
    topic.alter_config({"retention.ms": -1})
    assert "deletes" not in str(topic.restore(old_version))
    assert contents(topic) == all_parts(5)


def test_deleted_records_return_if_their_segment_was_never_removed(storage: Storage) -> None:
    topic = topic_on(storage, 2)
    topic.append(values(range(4)), partition=1)
    topic.delete_records({1: 3})
    assert contents(topic) == {0: [], 1: [b"v3"]}
    report = topic.restore(1)
    assert contents(topic) == {0: [], 1: [b"v0", b"v1", b"v2", b"v3"]}
    assert [partition.partition for partition in report.partitions] == [1]


def test_a_key_stays_deleted_if_its_tombstone_stays_compacted(storage: Storage) -> None:
    """1. A key and its tombstone. 2. Compaction drops both, the tombstone among later records. 3. Restore."""
    clock = Clock()
    settings = {"min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0, "internal.segment.bytes": 400}
    topic = topic_on(storage, 1, {"cleanup.policy": "compact", **settings}, clock)
    topic.append([{"key": "k", "value": b"x" * 300}])
    topic.append([{"key": "k", "value": None}])
    old_version = topic.version
    topic.append([{"key": "z", "value": b"z"}])
    for _ in range(3):
        clock.now_ms += 1000
        topic.compact()
        topic.append([{"key": "e", "value": b"e"}])
    assert "k" not in {record.key.decode() for record in topic.records() if record.key}
    topic.restore(old_version)
    assert "k" not in {record.key.decode() for record in topic.records() if record.key}


def keyed_topic(storage: Storage, policy: str = "compact") -> tuple[Topic, Clock]:
    """Return a topic with the key k and another one; segments are never merged, and tombstones expire at once."""
    clock = Clock()
    settings = {"min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0, "internal.segment.bytes": 400}
    topic = topic_on(storage, 1, {"cleanup.policy": policy, "retention.ms": -1, **settings}, clock)
    topic.append([{"key": "k", "value": b"x" * 300}, {"key": "a", "value": b"a" * 300}])
    return topic, clock


def contents_of(topic: Topic) -> list[bytes | None]:
    return [record.value for record in topic.refresh().records()]


def compact_again(topic: Topic, clock: Clock, times: int) -> None:
    for _ in range(times):
        clock.now_ms += 1000
        topic.append([{"key": "e", "value": b"e" * 300}])
        topic.compact()


def keys_of(topic: Topic) -> set[bytes | None]:
    return {record.key for record in topic.refresh().records() if record.value is not None}


@pytest.mark.parametrize("later", [[], [{"key": "z", "value": b"z" * 300}]])
def test_a_key_stays_deleted_if_a_later_tombstone_was_dropped(later: list[dict[str, Any]], storage: Storage) -> None:
    """1. A key. 2. A version. 3. Its tombstone. 4. Compaction drops first the key, then the tombstone. 5. Restore."""
    topic, clock = keyed_topic(storage)
    old_version = topic.version
    topic.append([{"key": "k", "value": None}, *later])
    compact_again(topic, clock, 3)
    assert (had := keys_of(topic)) == {b"a", b"e", *([b"z"] if later else [])}
    report = topic.restore(old_version)
    assert keys_of(topic) == had
    assert report.to_dict()["lost"] == 1
    assert "some of their keys were deleted later, and compaction dropped the deletes" in str(report)


def test_a_key_returns_with_a_later_present_tombstone(storage: Storage) -> None:
    topic, clock = keyed_topic(storage)
    old_version = topic.version
    topic.append([{"key": "k", "value": None}, {"key": "z", "value": b"z" * 300}])
    compact_again(topic, clock, 1)
    assert topic.restore(old_version).to_dict()["segments"] == 1
    assert [record.value for record in topic.refresh().records() if record.key == b"k"] == [b"x" * 300, None]
    compact_again(topic, clock, 2)
    assert keys_of(topic) == {b"a", b"z", b"e"}


def test_the_log_start_stays_after_a_key_without_its_tombstone(storage: Storage) -> None:
    topic, clock = keyed_topic(storage, "compact,delete")
    old_version = topic.version
    topic.append([{"key": "k", "value": None}, {"key": "z", "value": b"z" * 300}])
    topic.delete_records({0: 2})
    compact_again(topic, clock, 3)
    assert keys_of(topic) == {b"z", b"e"}
    report = topic.restore(old_version)
    assert keys_of(topic) == {b"z", b"e"}
    assert (topic.start_offsets(), report.to_dict()["lost"]) == ({0: 2}, 2)


def test_a_gap_of_compaction_after_the_restored_log_start_is_not_a_loss(storage: Storage) -> None:
    """1. A version. 2. Compaction drops, twice, what came since; its files go. 3. All is deleted. 4. Restore."""
    topic, clock = keyed_topic(storage, "compact,delete")
    old_version = topic.version
    for _ in range(2):
        topic.append([{"key": "b", "value": b"b"}, {"key": "c", "value": b"c"}])
        topic.append([{"key": "c", "value": b"c"}])
        compact_again(topic, clock, 1)
    storage.delete(files(storage) - named_files(topic.refresh()))
    topic.delete_records({0: LOG_END})
    topic.restore(old_version)
    assert topic.refresh().start_offsets()[0] < topic.end_offsets()[0]
    assert topic.verify().ok


def test_a_segment_emptied_by_compaction_returns_between_others(storage: Storage) -> None:
    """1. Segments of one record each. 2. Compaction drops two whole ones in the middle. 3. Restore, twice."""
    topic, clock = keyed_topic(storage)
    for key in ("b", "c", "b", "c"):
        topic.append([{"key": key, "value": key.encode() * 300}])
    old_version, had = topic.version, [record.offset for record in topic.records()]
    compact_again(topic, clock, 1)
    assert [record.offset for record in topic.refresh().records()] == [0, 1, 4, 5, 6]
    report = topic.restore(old_version)
    assert [record.offset for record in topic.refresh().records()] == [*had, 6]
    assert (report.to_dict()["segments"], report.to_dict()["lost"]) == (2, 0)
    assert topic.verify().ok
    assert [record.offset for record in topic_on(storage).records()] == [*had, 6]
    compact_again(topic, clock, 1)
    assert [record.offset for record in topic.refresh().records()] == [0, 1, 4, 5, 7]


def test_a_segment_returns_after_a_first_one_below_the_log_start(storage: Storage) -> None:
    """1. Records are deleted, whose segment stays for now. 2. Compaction drops the next segment. 3. Restore."""
    topic, clock = keyed_topic(storage, "compact,delete")
    topic.append([{"key": "a", "value": b"A" * 300}])
    topic.delete_records({0: 1})
    old_version = topic.version
    compact_again(topic, clock, 1)
    assert [record.offset for record in topic.refresh().records()] == [2, 3]
    assert topic.restore(old_version).to_dict()["segments"] == 1
    assert [record.offset for record in topic.refresh().records()] == [1, 2, 3]
    assert topic.verify().ok


def test_later_segments_return_dirty_and_without_a_gap(storage: Storage) -> None:
    """1. A version. 2. More segments, of which compaction drops a whole one, and one of the version. 3. Restore."""
    topic, clock = keyed_topic(storage)
    topic.append([{"key": "a", "value": b"A" * 300}])
    old_version = topic.version
    for value in (b"1", b"2"):
        topic.append([{"key": "b", "value": value * 300}])
    compact_again(topic, clock, 1)
    assert [record.offset for record in topic.refresh().records()] == [0, 2, 4, 5]
    assert topic.restore(old_version).to_dict()["segments"] == 2
    assert [record.offset for record in topic.refresh().records()] == [0, 1, 2, 3, 4, 5]
    assert topic.verify().ok
    assert topic.restore(old_version).to_dict()["segments"] == 0
    compact_again(topic, clock, 1)
    assert [record.offset for record in topic.refresh().records()] == [0, 2, 4, 6]
    assert topic.restore(topic.version).to_dict()["segments"] == 0


def test_a_restored_tombstone_after_a_lost_segment_deletes_its_key(storage: Storage) -> None:
    """1. A key and its tombstone. 2. Compaction. 3. A segment ahead cannot come back. 4. Restore, and compaction."""
    topic, clock = keyed_topic(storage)
    topic.append([{"key": "a", "value": b"A" * 300}])
    topic.append([{"key": "d", "value": b"d" * 300}])
    topic.append([{"key": "d", "value": None}, {"key": "z", "value": b"z" * 300}])
    old_version, segment = topic.version, topic.snapshot.partitions[0].segments[1]
    compact_again(topic, clock, 1)
    storage.delete([f"{topic.name}-0/{segment.stem}.log"])
    report = topic.restore(old_version)
    assert (report.to_dict()["segments"], report.to_dict()["lost"]) == (2, 1)
    assert [record.value for record in topic.refresh().records() if record.key == b"d"] == [b"d" * 300, None]
    for _ in range(3):
        compact_again(topic, clock, 1)
        assert b"d" not in keys_of(topic)


def test_records_merged_with_later_ones_are_not_lost(storage: Storage) -> None:
    """1. Records. 2. One more, and a merge of all. 3. Restore of the first, twice. 4. Deletion, and once more."""
    topic = topic_on(storage, 1, {"retention.ms": -1})
    for value in range(4):
        topic.append([{"value": b"%d" % value}])
    old_version = topic.version
    topic.append([{"value": b"later"}])
    topic.compact()
    for _ in range(2):
        assert topic.restore(old_version).to_dict()["lost"] == 0
    assert contents_of(topic.refresh()) == [b"0", b"1", b"2", b"3", b"later"]
    topic.delete_records({0: 2})
    assert topic.restore(old_version).to_dict()["lost"] == 0
    assert contents_of(topic.refresh()) == [b"0", b"1", b"2", b"3", b"later"]


def test_restored_records_stay_after_a_merge(storage: Storage) -> None:
    """1. Records. 2. The first ones are let go. 3. They come back. 4. A merge of all. 5. Restore of the second."""
    topic = topic_on(storage, 1, {"retention.ms": -1})
    for value in range(4):
        topic.append([{"value": b"%d" % value}])
    old_version = topic.version
    topic.delete_records({0: 2})
    topic.retention()
    between = topic.version
    topic.restore(old_version)
    topic.compact()
    assert topic.restore(between).to_dict()["lost"] == 0
    assert contents_of(topic.refresh()) == [b"0", b"1", b"2", b"3"]
    assert topic.verify().ok


def test_records_dropped_by_compaction_are_reported_if_its_output_returns(storage: Storage) -> None:
    """1. Records. 2. More, and compaction of all into one segment. 3. It is let go. 4. Restore of the first ones."""
    settings = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": 0}
    topic = old_topic(storage, 2, **settings)
    old_version = topic.version
    topic.append([{"key": "k", "value": b"v2", "timestamp": NOW - 2 * DAY}])
    topic.compact()
    topic.retention()
    report = topic.restore(old_version)
    assert contents_of(topic) == [b"v2"]
    assert (report.to_dict()["segments"], report.to_dict()["lost"]) == (1, 2)


def test_a_compacted_segment_with_rebuilt_indexes_returns(storage: Storage) -> None:
    """1. A version. 2. Records, of which compaction drops one. 3. New indexes. 4. All is let go. 5. Restore."""
    topic, clock = keyed_topic(storage, "compact,delete")
    topic.alter_config({"batch.bytes": 60, "internal.segment.bytes": 600})
    old_version = topic.version
    topic.append([{"key": key, "value": key.encode() * 60} for key in "pyz"])
    topic.append([{"key": "y", "value": b"Y" * 300}])
    compact_again(topic, clock, 1)
    had = contents_of(topic)
    topic.alter_config({"index.interval.bytes": 1})
    topic.rebuild_indexes(force=True)
    topic.delete_records({0: topic.end_offsets()[0]})
    topic.retention()
    assert topic.restore(old_version).to_dict()["lost"] == 0
    assert contents_of(topic) == had


def test_a_restored_and_then_emptied_segment_leaves_no_gap(storage: Storage) -> None:
    """1. A version. 2. Segments. 3. They go, and come back. 4. Compaction drops one. 5. The first go. 6. Restore."""
    topic, clock = keyed_topic(storage, "compact,delete")
    old_version = topic.version
    for key in "bcdcf":
        topic.append([{"key": key, "value": key.encode() * 300}])
    all_there = topic.version
    topic.delete_records({0: topic.end_offsets()[0]})
    topic.retention()
    topic.restore(all_there)
    compact_again(topic, clock, 1)
    assert [record.offset for record in topic.refresh().records()] == [0, 1, 2, 4, 5, 6, 7]
    topic.delete_records({0: 2})
    topic.retention()
    topic.restore(old_version)
    assert [record.offset for record in topic.refresh().records()] == list(range(8))
    assert topic.verify().ok


def test_a_segment_that_is_read_from_its_middle_is_not_lost(storage: Storage) -> None:
    """1. A log start in a segment. 2. It is merged with a tombstone, which goes. 3. Restore to before that."""
    topic, clock = keyed_topic(storage, "compact,delete")
    topic.append([{"key": "q", "value": b"q" * 100}, {"key": "r", "value": b"r" * 100}])
    topic.delete_records({0: 3})
    old_version = topic.version
    topic.append([{"key": "key", "value": b"d" * 300}])
    topic.append([{"key": "key", "value": None}, {"key": "z", "value": b"z" * 300}])
    compact_again(topic, clock, 4)
    had, version = contents_of(topic), topic.version
    report = topic.restore(old_version)
    assert (report.to_dict()["lost"], report.to_dict()["segments"]) == (1, 0), "nothing older comes back"
    assert (contents_of(topic), topic.version) == (had, version)


def test_compaction_is_undone_and_later_records_stay(storage: Storage) -> None:
    topic = old_topic(storage, 4, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    old_version = topic.version
    topic.compact()
    assert topic.scan().count() == 1
    topic.append([{"key": "k", "value": b"v4"}])
    assert topic.restore(old_version).to_dict()["records"] == 3
    assert contents(topic) == all_parts(5)
    assert topic.verify().ok
    topic.compact()
    assert [record.value for record in topic.records()] == [b"v4"]


def test_a_segment_with_later_records_stays_unchanged(storage: Storage) -> None:
    topic = old_topic(storage, 4, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    topic.compact()
    report = topic.restore(2)
    assert (report.to_dict()["segments"], report.to_dict()["lost"]) == (0, 2)
    assert "or they were merged into segments that have later records" in str(report)
    assert topic.history(1)["operation"].to_pylist() == ["compact"]
    assert topic.verify().ok


def test_vacuumed_records_are_reported_as_lost(storage: Storage) -> None:
    """1. Retention. 2. Vacuum, without a delay. 3. More, and retention again. 4. Restore."""
    topic = old_topic(storage, 2, **{"file.delete.delay.ms": 0})
    topic.retention()
    assert len(topic.vacuum().files) >= 2
    topic.append([{"key": "k", "value": b"v2", "timestamp": NOW - 2 * DAY}])
    topic.retention()
    report = topic.restore(2)
    assert "2 segments cannot come back: their files were deleted" in str(report)
    assert contents(topic) == {0: [b"v2"]}


def test_a_segment_returns_with_its_rebuilt_indexes(storage: Storage) -> None:
    """1. The indexes are made again by another setting. 2. Retention. 3. Restore to before the rebuild."""
    topic = topic_on(storage, 1, {"retention.ms": DAY, "batch.bytes": 150, "index.interval.bytes": 4000})
    topic.append([{"value": b"v%d" % number * 20, "timestamp": NOW - 2 * DAY} for number in range(100)])
    old_version, was = topic.version, contents(topic)
    topic.alter_config({"index.interval.bytes": 100})
    topic.rebuild_indexes(force=True)
    rebuilt = topic.snapshot.partitions[0].segments[0]
    assert rebuilt.offset_index_bytes > 8
    topic.retention()
    topic.restore(old_version)
    assert topic.snapshot.partitions[0].segments[0] == rebuilt
    assert contents(topic) == was
    assert topic.verify().ok


def test_records_before_a_gap_do_not_return(storage: Storage) -> None:
    topic = old_topic(storage, 3)
    middle = topic.snapshot.partitions[0].segments[1]
    topic.retention()
    storage.delete([f"{topic.name}-0/{middle.stem}.log"])
    topic.restore(3)
    assert contents(topic) == {0: [b"v2"]}
    assert topic.verify().ok


def test_a_missing_version_is_refused(storage: Storage) -> None:
    topic = old_topic(storage, 1)
    for version in (-1, 2):
        with pytest.raises(OffsetOutOfRangeError, match="the log has the versions 0 to 1"):
            topic.restore(version)
    topic.drop()
    again = topic_on(storage, 1)
    with pytest.raises(TopicNotFoundError, match="of a dropped topic"):
        again.restore(1)


def test_an_empty_restore_commits_nothing(storage: Storage) -> None:
    topic = old_topic(storage, 2)
    report = topic.restore(1)
    said = "nothing to restore: version 1 had no record that is missing now"
    assert (topic.version, str(report).split(";")[0]) == (2, said)


def test_a_lowered_log_start_is_reported(storage: Storage) -> None:
    topic = topic_on(storage, 2, {"retention.ms": -1})
    for number in (0, 1):
        topic.append(values(range(5)), partition=number)
    topic.delete_records({0: 3, 1: 5})
    topic.retention()
    report = topic.restore(2)
    first, second = str(report).split("; ")
    assert first.startswith("restored 1 segment, 5 records, ")
    assert second == "3 offsets of 1 partition can be read again: only the log start had moved"
    assert [(row["partition"], row["offsets"]) for row in report.to_table().to_pylist()] == [(0, 3), (1, 5)]
    assert report.to_dict()["offsets"] == 8


def test_a_segment_returns_if_the_log_started_inside_it(storage: Storage) -> None:
    topic = topic_on(storage, 1, {"retention.ms": -1})
    topic.append(values(range(3)))
    version = topic.delete_records({0: 1}).version
    topic.append(values(range(3, 5)))
    topic.delete_records({0: 4})
    topic.retention()
    assert topic.restore(version).to_dict()["segments"] == 1
    assert (contents(topic), topic.start_offsets()) == ({0: [b"v1", b"v2", b"v3", b"v4"]}, {0: 1})
    topic.delete_records({0: 5})
    topic.retention()
    topic.restore(topic.version - 2)
    assert contents(topic.refresh()) == {0: [b"v1", b"v2", b"v3", b"v4"]}
    assert topic.verify().ok


def test_active_segments_continue_to_grow(tmp_path: Any) -> None:
    topic = topic_on(Storage(str(tmp_path / "clicks")), 1, {"retention.ms": -1})
    topic.append(values(range(3)))
    with topic.writer() as writer:
        writer.append(b"v3", timestamp=NOW)
        writer.flush()
        topic.refresh().delete_records({0: 2})
        topic.restore(1)
        writer.append(b"v4", timestamp=NOW)
    assert contents(topic.refresh()) == {0: [b"v%d" % number for number in range(5)]}


steps = st.lists(st.sampled_from(["append", "append", "compact", "delete", "restore"]), max_size=14)


@pytest.mark.long
@examples(30)
@given(steps, st.data())
def test_a_restore_has_the_records_of_the_version_and_later_ones(order: list[str], data: st.DataObject) -> None:
    """A model: a list of records, of which those before the log start are hidden."""
    topic = topic_on(topic_storage(f"memory://{uuid.uuid4().hex}"), 1, {"retention.ms": -1})
    start, end, starts = 0, 0, {0: 0}
    for step in order:
        if step == "append":
            count = data.draw(st.integers(1, 3))
            topic.append(values(range(end, end + count)))
            end += count
        elif step == "delete":
            start = data.draw(st.integers(start, end))
            topic.delete_records({0: start})
            topic.retention()
        elif step == "compact":
            topic.compact()
        else:
            version = data.draw(st.sampled_from(sorted(starts)))
            topic.restore(version)
            start = min(start, starts[version])
        starts[topic.version] = start
        assert contents(topic) == {0: [b"v%d" % number for number in range(start, end)]}
    assert topic.verify().ok
