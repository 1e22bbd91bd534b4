"""A merge reads neighbouring parts at once, and writes the small segments of many partitions as one bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
from addresses import Address
from bundled import bundles, changed, rows, segments
from dying_calls import before_call
from full_disk import fail_writes
from histories import segment
from topics import contents, topic_on

from distlog.core.commits import actions
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.errors import StorageError
from distlog.core.maintain import merge, merge_job
from distlog.core.maintain.group_rewrite import SegmentGroup
from distlog.core.maintain.merge_job import JOB_BYTES, JOB_SEGMENTS, jobs
from distlog.core.segments.segment_writer import LARGEST_PART
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

PARTITIONS = 20


def bundled_topic(storage: Storage, appends: int, size: int = 1, partitions: int = PARTITIONS) -> Topic:
    topic = topic_on(storage, partitions)
    for first in range(appends):
        topic.append(rows(partitions, 1, first, size))
    return topic


def group(partition: int, log_bytes: int, count: int = 2) -> SegmentGroup:
    sizes = [log_bytes // count] * (count - 1)
    sizes.append(log_bytes - sum(sizes))
    infos = [segment(partition, 10 * number, log_bytes=size) for number, size in enumerate(sizes)]
    return SegmentGroup(SegmentTable.of(infos))


def packed(*groups: SegmentGroup) -> list[list[int]]:
    return [[info.partition for info in job.groups] for job in jobs(groups)]


def test_small_groups_share_a_job_and_large_ones_do_not() -> None:
    assert packed(group(0, 10), group(1, JOB_BYTES + 1), group(2, LARGEST_PART)) == [[1], [0, 2]]


def test_a_job_has_no_more_bytes_than_a_put_takes_and_no_more_segments_than_memory_does() -> None:
    third = JOB_BYTES // 3
    assert packed(*(group(number, third) for number in range(7))) == [[0, 1, 2], [3, 4, 5], [6]]
    many = group(0, JOB_SEGMENTS, JOB_SEGMENTS - 2)
    assert packed(many, group(1, 10), group(2, 10)) == [[0, 1], [2]]


def test_the_groups_of_one_partition_are_in_different_jobs() -> None:
    assert packed(group(0, 10), group(0, 10), group(1, 10), group(1, 10), group(2, 10)) == [[0, 1, 2], [0, 1]]


@pytest.mark.s3
def test_a_merge_takes_a_get_for_each_bundle_and_a_put_for_all_partitions(s3_url: Address) -> None:
    topic = bundled_topic(Storage(*s3_url).child("t"), 5)
    old_contents, gets, puts = contents(topic), topic.storage.counters.gets, topic.storage.counters.puts
    topic.compact()
    # two requests for a newer commit
    assert (topic.storage.counters.gets - gets, topic.storage.counters.puts - puts) == (5 + 2, 1 + 1)
    assert len({info.stem for info in segments(topic)}) == 1
    assert len(segments(topic)) == PARTITIONS
    assert contents(topic) == old_contents
    assert topic.verify().ok


def test_more_segments_than_a_commit_takes_are_merged_by_several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = bundled_topic(Storage("memory://merged-by-several-runs/t"), 3, partitions=300)
    old_contents = contents(topic)
    monkeypatch.setattr(actions, "MAX_COMMIT_ROWS", 1000)
    monkeypatch.setattr(merge, "MAX_SEGMENTS", 500)
    assert len(topic.compact(dry_run=True).groups) == 166
    reports = [topic.compact() for _ in range(3)]
    assert [(len(report.groups), report.backlog) for report in reports] == [(166, 402), (134, 0), (0, 0)]
    assert len(segments(topic)) == 300
    assert contents(topic) == old_contents
    assert topic.verify().ok


def test_a_group_of_more_segments_than_a_commit_takes_is_merged_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = bundled_topic(Storage("memory://merged-bit-by-bit/t"), 40, partitions=1)
    old_contents = contents(topic)
    monkeypatch.setattr(merge, "MAX_SEGMENTS", 16)
    counts = [len(segments(topic))]
    while topic.compact().groups:
        counts.append(len(segments(topic)))
    assert counts[:2] == [40, 25]
    assert counts[-1] == 1
    assert contents(topic) == old_contents
    assert topic.verify().ok


@pytest.mark.long
def test_merged_bundles_are_merged_again_until_their_parts_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_job, "LARGEST_PART", 8000)
    monkeypatch.setattr(merge, "LARGEST_PART", 8000)
    topic = bundled_topic(Storage(str(tmp_path / "t")), 0, partitions=3)
    are_bundled = []
    for round_ in range(16):
        for first in range(3):
            topic.append(rows(3, 1, 3 * round_ + first, size=900))
        topic.compact()
        assert topic.verify().ok
        are_bundled.append({info.is_bundled for info in segments(topic)})
    # 48 records of 900 bytes exceed a part, and are eight times as large as a full part
    assert are_bundled[0] == {True}
    assert are_bundled[-1] >= {False}
    assert len(segments(topic)) <= 3 * 10
    assert {len(content) for content in contents(topic).values()} == {48}


def flip(data: bytearray, position: int) -> None:
    data[position] ^= 1


#: A byte of a value, and one of the leader epoch, which only the checksum of the whole log covers.
@pytest.mark.parametrize("position", [70, 12])
def test_a_damaged_part_stops_its_own_partition_and_others_share_bundles(tmp_path: Path, position: int) -> None:
    topic = bundled_topic(Storage(str(tmp_path / "t")), 3)
    hurt, old_contents = topic.snapshot.partitions[7].segments[1], contents(topic)
    changed(topic.storage, topic.reader.name(hurt), lambda data: flip(data, hurt.log_position + position))
    report = topic.compact()
    assert [info.partition for info in report.failed] == [7]
    assert len({info.stem for info in segments(topic) if info.partition != 7}) == 4
    scanned = topic.scan(partitions=[number for number in range(PARTITIONS) if number != 7])
    assert scanned.count() == sum(map(len, old_contents.values())) - 3


def test_a_merge_that_cannot_write_its_bundle_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = bundled_topic(Storage(str(tmp_path / "t")), 3)
    old_contents, version = contents(topic), topic.version
    with monkeypatch.context() as patches:
        fail_writes(patches)
        with pytest.raises(StorageError, match="No space left"):
            topic.compact()
    assert topic.refresh().version == version
    assert contents(topic) == old_contents
    assert len(bundles(topic.storage)) == 3


def test_groups_larger_than_a_part_become_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = bundled_topic(Storage(str(tmp_path / "t")), 3)
    monkeypatch.setattr(merge_job, "LARGEST_PART", 10)
    topic.compact()
    assert {info.is_bundled for info in segments(topic)} == {False}
    assert {len(content) for content in contents(topic).values()} == {3}


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_merge_that_ends_before_its_commit_leaves_a_bundle_for_vacuum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = bundled_topic(Storage(str(tmp_path / "t")), 3)
    topic.alter_config({"file.delete.delay.ms": 0})
    old_contents, old_bundles = contents(topic), set(bundles(topic.storage))
    with monkeypatch.context() as patches:
        before_call(patches, "link", lambda _, to: "/_commits/" in to, interrupt)
        with pytest.raises(KeyboardInterrupt):
            topic.compact()
    assert len(set(bundles(topic.storage)) - old_bundles) == 1
    topic.append(rows(PARTITIONS, 1, 3))
    topic.vacuum()
    topic.append(rows(PARTITIONS, 1, 4))
    topic.vacuum()
    assert set(bundles(topic.storage)) >= old_bundles
    assert len(bundles(topic.storage)) == len(old_bundles) + 2
    assert {len(content) for content in contents(topic).values()} == {5}
    assert {number: content[:3] for number, content in contents(topic).items()} == old_contents
    assert topic.verify().ok
