"""A merge of many groups at once equals the merges of single groups, and refuses the same damage."""

from __future__ import annotations

import dataclasses
import random
import struct
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adopted import adopt, with_indexes
from bundled import changed, rows
from commits import put_commit
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from raw_batches import batch, record
from searches import examples
from topics import NOW, contents, topic_on

import distlog
from distlog.core.commits.actions import SetLogStartOffset
from distlog.core.commits.segment_table import SegmentInfo, SegmentTable, with_numbers
from distlog.core.errors import StorageError
from distlog.core.format.record_batch import COMMIT, CONTROL, TRANSACTIONAL
from distlog.core.maintain import merge_job
from distlog.core.maintain.executor import LocalExecutor
from distlog.core.maintain.merge import job_bytes_of, merge, plan_merge
from distlog.core.maintain.merge_job import JOB_BYTES, LARGE_UPLOAD_BYTES, MergedJob, do_job, jobs, upload_bytes
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def do_groups(topic: Topic, job_bytes: int) -> list[MergedJob]:
    """Return each job of a merge, done but not committed; with a `job_bytes` of 0, group by group."""
    options = {"config": topic.config, "read_version": topic.version, "job_bytes": job_bytes}
    return [do_job(topic.handle, job, **options) for job in jobs(plan_merge(topic.snapshot))]


def described(topic: Topic, segment_info: SegmentInfo) -> tuple[Any, ...]:
    """Return the description of a segment without its position, and its bytes."""
    positions = {"log_position": 0, "offset_index_position": 0, "time_index_position": 0}
    parts = [topic.reader.part(segment_info, suffix) for suffix in (".log", ".index", ".timeindex")]
    data = [topic.storage.read(part.name, part.begin, part.begin + part.size) for part in parts if part.size]
    return dataclasses.replace(segment_info, stem="", created_ms=0, **positions), data


def check_the_same(topic: Topic) -> None:
    alone, together = do_groups(topic, 0), do_groups(topic, JOB_BYTES)
    assert [merged.counts.tolist() for merged in together] == [merged.counts.tolist() for merged in alone]
    for merged, other in zip(together, alone, strict=True):
        for mine, its in zip(merged.segments, other.segments, strict=True):
            assert described(topic, mine) == described(topic, its)


@examples(8)
@given(st.randoms(use_true_random=False), st.sampled_from([0, 60, 4096]), st.sampled_from([50, 400, 100_000]))
def test_groups_merged_together_equal_single_merges(source: random.Random, interval: int, batch_bytes: int) -> None:
    config = {"index.interval.bytes": interval, "batch.bytes": batch_bytes, "segment.ms": 2**62, "retention.ms": -1}
    topic = distlog.create(f"memory://columns/{uuid.uuid4().hex}/log", partitions=5, config=config)
    for _ in range(source.randrange(2, 7)):
        columns = [
            {
                "partition": source.randrange(5),
                "value": source.randbytes(source.randrange(80)),
                "timestamp": source.choice([-1, NOW + source.randrange(1000), 5]),
            }
            for _ in range(source.randrange(1, 60))
        ]
        topic.append(columns, compression=source.choice(CODECS))
    check_the_same(topic)


@pytest.mark.parametrize("url", ["memory", "disk"])
def test_the_times_of_appends_are_written_into_the_batches_of_all_groups(tmp_path: Path, url: str) -> None:
    root = str(tmp_path) if url == "disk" else f"memory://columns/{uuid.uuid4().hex}"
    config = {"message.timestamp.type": "LogAppendTime", "retention.ms": -1}
    topic = distlog.create(f"{root}/log", partitions=3, config=config)
    for number in range(4):
        topic.append([{"partition": index % 3, "value": b"%d" % number} for index in range(7)])
    check_the_same(topic)
    old_table = topic.scan().to_table()
    assert topic.compact().ok
    assert topic.scan().to_table() == old_table
    assert topic.verify().ok


def flipped(topic: Topic, position: int) -> None:
    hurt = topic.snapshot.partitions[3].segments[1]

    def change(data: bytearray) -> None:
        data[hurt.log_position + position] ^= 1

    changed(topic.storage, topic.reader.name(hurt), change)


def swapped(topic: Topic) -> None:
    """Replace a log by another one of the same size: only the checksums in the metadata differ."""
    first, second = (topic.snapshot.partitions[3].segments[number] for number in (0, 1))
    log = topic.reader.part(first)
    other = topic.storage.read(log.name, log.begin, log.begin + log.size)

    def change(data: bytearray) -> None:
        data[second.log_position : second.log_position + log.size] = other

    changed(topic.storage, topic.reader.name(second), change)


DAMAGE: dict[str, Callable[[Topic], None]] = {
    "an offset": lambda topic: flipped(topic, 7),
    "a size": lambda topic: flipped(topic, 10),
    "a leader epoch": lambda topic: flipped(topic, 12),
    "a format": lambda topic: flipped(topic, 16),
    "a value": lambda topic: flipped(topic, 70),
    "another log": swapped,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_stops_its_own_group_alone(kind: str) -> None:
    topic = topic_on(Storage(f"memory://columns/{uuid.uuid4().hex}"), 6)
    for first in range(3):
        topic.append(rows(6, 1, first))
    topic.append([{"partition": 3, "value": b"v"}])
    old_contents = contents(topic)
    DAMAGE[kind](topic)
    report = topic.compact()
    assert [(group.partition, group.offsets) for group in report.failed] == [(3, (0, 4))]
    assert [len(state.segments) for state in topic.snapshot.partitions] == [1, 1, 1, 4, 1, 1]
    sound = [0, 1, 2, 4, 5]
    assert topic.scan(partitions=sound).count() == sum(len(old_contents[number]) for number in sound)


def test_a_sound_job_is_never_merged_group_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_job, "_streamed", lambda *_: pytest.fail("by itself"))
    topic = topic_on(Storage(f"memory://columns/{uuid.uuid4().hex}"), 30, {"index.interval.bytes": 0})
    for first in range(5):
        topic.append(rows(30, 3, first, 500))
    assert topic.compact().ok
    assert topic.verify().ok
    assert topic.segments().num_rows == 30


@pytest.mark.long
def test_with_more_memory_fewer_requests_read_the_parts_of_many_partitions() -> None:
    counted = []
    for job_bytes in (1 << 20, 8 << 20):
        topic = topic_on(Storage(f"memory://columns/{uuid.uuid4().hex}"), 64)
        for first in range(6):
            topic.append(rows(64, 1, first, 20_000))
        old_contents, gets = contents(topic), topic.storage.counters.gets
        _, after = merge(topic.handle, topic.snapshot, job_bytes=job_bytes)
        counted.append(topic.storage.counters.gets - gets)
        topic.advance(after)
        assert contents(topic) == old_contents
    # and one request for a newer commit
    assert counted == [8 * 6 + 1, 1 * 6 + 1]


def test_a_storage_that_does_not_answer_stops_the_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_on(Storage(f"memory://columns/{uuid.uuid4().hex}"), 4)
    for first in range(3):
        topic.append(rows(4, 1, first))
    version = topic.version
    monkeypatch.setattr(Storage, "read_joined", lambda *_: (_ for _ in ()).throw(StorageError("no answer")))
    with pytest.raises(StorageError, match="no answer"):
        topic.compact()
    monkeypatch.undo()
    assert topic.refresh().version == version


def test_the_memory_that_the_caller_gives_is_shared_by_the_jobs_that_run_at_once() -> None:
    assert job_bytes_of(0, 1) == job_bytes_of(0, 8) == JOB_BYTES
    assert job_bytes_of(3 << 30, 1) == 1 << 30
    assert job_bytes_of(3 << 30, 8) == 128 << 20


def flip(data: bytearray, position: int) -> None:
    data[position] ^= 1


#: Wrong fields that were committed with their log, so that its checksum is right.
@pytest.mark.parametrize("position", [70, 7], ids=["a value", "an offset"])
def test_a_log_committed_with_a_wrong_batch_is_not_merged(position: int) -> None:
    topic = topic_on(Storage(f"memory://columns/{uuid.uuid4().hex}"), 2)
    for first in range(2):
        topic.append(rows(2, 1, first))
    (job,) = jobs(plan_merge(topic.snapshot))
    hurt = job.inputs[1]
    changed(topic.storage, topic.reader.name(hurt), lambda data: flip(data, hurt.log_position + position))
    logs, ends = merge_job.read_logs(topic.storage, topic.name, job.inputs), np.cumsum(job.inputs.log_bytes)
    checksums = [crc32c(logs[end - size : end]) for size, end in zip(job.inputs.log_bytes, ends, strict=True)]
    wrong_group = dataclasses.replace(
        job, inputs=SegmentTable(with_numbers(job.inputs.columns(), {"crc32c": np.array(checksums)}))
    )
    result = do_job(topic.handle, wrong_group, config=topic.config, read_version=topic.version)
    assert [failure.partition for failure in result.failed] == [0]


def test_batches_of_two_partitions_are_not_joined_where_one_begins_as_the_other_ends() -> None:
    topic = topic_on(Storage(f"memory://columns/{uuid.uuid4().hex}"), 2, {"retention.ms": -1})
    topic.append(rows(1, 2), partition=1)
    for first in range(2):
        topic.append(rows(2, 1, first))
    topic.delete_records({1: 2})
    topic.retention()
    old_contents = contents(topic)
    assert (topic.end_offsets()[0], topic.start_offsets()[1]) == (2, 2)
    assert topic.compact().ok
    assert [len(state.segments) for state in topic.snapshot.partitions] == [1, 1]
    assert contents(topic) == old_contents
    assert topic.verify().ok


def test_a_group_that_is_below_the_log_start_by_its_commit_is_left_out() -> None:
    topic = topic_on(Storage(f"memory://columns/{uuid.uuid4().hex}"), 2, {"retention.ms": -1})
    for first in range(3):
        topic.append(rows(2, 1, first))
    other = distlog.open(topic.url)

    class Late(LocalExecutor):
        def map(self, work: Any, items: Any, /) -> Any:
            results = list(map(work, items))
            put_commit(other.log, other.snapshot, "delete-records", lambda _: [SetLogStartOffset(1, 3)])
            return results

    report, after = merge(topic.handle, topic.snapshot, Late(topic.storage))
    assert [group.partition for group in report.groups] == [0]
    assert [len(state.segments) for state in after.partitions] == [1, 3]


def test_a_job_uploads_larger_parts_only_where_it_has_the_memory() -> None:
    assert upload_bytes(JOB_BYTES) is None
    assert upload_bytes(8 * LARGE_UPLOAD_BYTES - 1) is None
    assert upload_bytes(8 * LARGE_UPLOAD_BYTES) == LARGE_UPLOAD_BYTES


def test_an_end_marker_with_the_newest_time_names_no_record(tmp_path: Path) -> None:
    marker = record(0, 0, struct.pack(">hh", 0, COMMIT), struct.pack(">hi", 0, 0))

    def transaction(offset: int, sequence: int) -> bytes:
        of_producer = {"attributes": TRANSACTIONAL, "producer": (7, 0, sequence)}
        of_coordinator = {"attributes": CONTROL | TRANSACTIONAL, "producer": (7, 0, -1)}
        times = {"base_timestamp": 2000 + offset, "max_timestamp": 2000 + offset}
        data = batch([record(0, 0, b"k", b"v")], base_offset=offset, **of_producer)
        return data + batch([marker], base_offset=offset + 1, **of_coordinator, **times)

    segments = [(offset, with_indexes(transaction(offset, offset // 2), offset)) for offset in (0, 2)]
    topic = adopt(f"{tmp_path}/log", segments, 4, config={"retention.ms": -1})
    assert topic.verify().ok
    check_the_same(topic)
    assert topic.compact().ok
    (merged,) = topic.snapshot.partitions[0].segments
    assert (merged.max_timestamp, merged.offset_of_max_timestamp) == (2002, -1)
    assert topic.verify().ok
    assert topic.offsets_for_times(distlog.MAX_TIMESTAMP)[0] == (0, 1000)
