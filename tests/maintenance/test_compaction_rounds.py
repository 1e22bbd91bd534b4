"""Compaction with a full map of keys: it cleans up to a record, and continues in another round."""

from __future__ import annotations

from pathlib import Path

import pytest
from compacting import SECRET, CompactedTopic
from compacting import log as log
from keyed_batches import keyed, last_offsets

import distlog
from distlog.core.commits import actions
from distlog.core.errors import InvalidConfigError
from distlog.core.maintain import compaction, group_rewrite
from distlog.core.maintain.survivors import SLOT_BYTES, OffsetMap, Verdicts, build_map
from distlog.core.segments.segment_parts import part_of


def test_a_full_map_makes_another_round(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log")
    for number in range(30):
        log.append((b"%d" % (number % 10), b"%d" % number))
    report = log.compact(dedupe_buffer_bytes=5 * SLOT_BYTES)
    assert report is not None
    assert report.rounds > 3
    assert log.offsets() == list(range(20, 30))
    assert log.first_dirty_offset == 30


def test_a_map_without_memory_for_a_key_fails(log: CompactedTopic) -> None:
    log.append((b"a", b"1"))
    with pytest.raises(InvalidConfigError, match="raise dedupe_buffer_bytes"):
        log.compact(dedupe_buffer_bytes=SLOT_BYTES)


def test_a_map_of_one_key_cleans_up_to_the_next_key(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log")
    log.add(b"".join(keyed(offset, offset % 2) for offset in range(5)))
    for start, end, values in ((2, 3, [1, 2, 3, 4]), (3, 4, [2, 3, 4]), (4, 5, [3, 4])):
        assert log.compact_range(start, 5, 2 * SLOT_BYTES) == end
        assert log.offsets() == values


def mapped(log: CompactedTopic, start: int, end: int, slots: int = 100) -> OffsetMap:
    topic, keys = log.topic(), OffsetMap(slots)
    segments = [segment for segment in log.segments() if segment.next_offset > start and segment.base_offset < end]
    build_map(topic.reader, segments, start, end, Verdicts(), keys, SECRET)
    return keys


def test_the_map_holds_the_dirty_range(log: CompactedTopic) -> None:
    log.add(keyed(0, 1, 2, 3))
    log.add(keyed(3, 4, 5, None))
    log.add(keyed(6, 1, 4))
    assert (mapped(log, 0, 3).size, mapped(log, 0, 3).latest_offset) == (3, 2)
    assert (mapped(log, 3, 6).size, mapped(log, 3, 6).latest_offset) == (2, 5)
    assert (mapped(log, 0, 8).size, mapped(log, 0, 8).latest_offset) == (5, 7)
    assert mapped(log, 1, 3).size == 2


def test_a_map_without_room_stops_at_a_record(log: CompactedTopic) -> None:
    log.add(keyed(0, 1, 2) + keyed(2, None) + keyed(3, 3, 4, 5))
    assert mapped(log, 0, 6, slots=3).latest_offset == 2
    assert mapped(log, 0, 6, slots=4).latest_offset == 3
    log.add(keyed(6, 1), next_offset=20)
    assert mapped(log, 0, 20, slots=6).latest_offset == 5
    log.add(keyed(20, 6))
    assert mapped(log, 0, 21, slots=7).latest_offset == 20
    assert mapped(log, 1, 21, slots=6).latest_offset == 19


def test_missing_offsets_are_skipped(log: CompactedTopic) -> None:
    log.add(keyed(0, 1) + keyed(7206178, 2), next_offset=7206200)
    assert (mapped(log, 0, 7206200).latest_offset, mapped(log, 0, 7206200).size) == (7206199, 2)
    log.compact()
    assert (log.first_dirty_offset, log.offsets()) == (7206200, [0, 7206178])
    assert last_offsets(log) == [0, 7206178]


def _clicks(folder: Path, partitions: int) -> distlog.Topic:
    topic = distlog.create(str(folder / "clicks"), partitions, {"cleanup.policy": "compact"})
    for value in (b"old", b"new"):
        topic.append([{"partition": number, "key": b"k", "value": value} for number in range(partitions)])
    return topic


def test_small_partitions_are_cleaned_in_one_commit(tmp_path: Path) -> None:
    topic = _clicks(tmp_path, 5)
    old_version = topic.version
    report = topic.compact()
    assert topic.version == old_version + 1
    assert [(partition.rounds, partition.records_after) for partition in report.partitions] == [(1, 1)] * 5


@pytest.mark.parametrize(("partitions_a_round", "commits"), [(0.5, 5), (2, 3), (4.9, 2)])
def test_a_round_ends_before_the_partition_that_makes_it_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions_a_round: float, commits: int
) -> None:
    topic = _clicks(tmp_path, 5)
    old_version, size = topic.version, int(topic.snapshot.partitions[0].segments.log_bytes.sum())
    monkeypatch.setattr(compaction, "ROUND_BYTES", int(partitions_a_round * size))
    topic.compact()
    assert topic.version == old_version + commits
    assert sum(len(batch) for batch in topic.scan()) == 5


@pytest.mark.parametrize(("partitions", "appends", "most", "commits"), [(300, 2, 500, 2), (1, 60, 25, 3)])
def test_more_segments_than_a_commit_takes_are_cleaned_by_several(
    partitions: int, appends: int, most: int, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = distlog.create(f"memory://cleaned-by-{commits}-commits/t", partitions, {"cleanup.policy": "compact"})
    for number in range(appends):
        topic.append([{"partition": index, "key": b"k", "value": b"%d" % number} for index in range(partitions)])
    monkeypatch.setattr(actions, "MAX_COMMIT_ROWS", 2 * most)
    for module in (compaction, group_rewrite):
        monkeypatch.setattr(module, "MAX_SEGMENTS", most)
    old_version = topic.version
    report = topic.compact()
    assert report.ok
    assert topic.version == old_version + commits
    table = topic.scan(columns=["partition", "offset"]).to_table()
    assert table["offset"].to_pylist() == [appends - 1] * partitions
    assert topic.verify().ok


def test_a_damaged_partition_is_named_and_the_others_of_its_round_are_cleaned(tmp_path: Path) -> None:
    topic = _clicks(tmp_path, 3)
    log = part_of(topic.name, topic.snapshot.partitions[1].segments[0])
    with open(topic.storage.local_path(log.name), "r+b") as file:
        file.seek(log.begin + log.size - 1)
        file.write(b"?")
    report = topic.compact()
    assert [partition.error is None for partition in report.partitions] == [True, False, True]
    assert [partition.records_after for partition in report.partitions] == [1, 2, 1]
