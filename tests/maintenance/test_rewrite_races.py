"""Merges and compactions beside appends, retention, drops, crashes and each other lose nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from topics import files

import distlog
from distlog.core.commits.actions import GcFloor
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import CommitConflictError, StorageError, TransactionTooOldError
from distlog.core.maintenance.cleaning_plan import Cleanable
from distlog.core.maintenance.compaction import DEDUPE_BUFFER_BYTES, CleaningPlan, clean_or_failure, compact
from distlog.core.maintenance.group_rewrite import RewriteFailure, RewrittenPartition
from distlog.core.maintenance.merge import merge
from distlog.core.segments.segment_writer import SegmentFile
from distlog.core.storage.storage import Storage
from distlog.core.topics.topic import Topic

Rewrite = Callable[[Topic, Callable[[], object]], Any]


def merged(topic: Topic, meanwhile: Callable[[], object]) -> Any:
    def run(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        done = list(map(work, items))
        meanwhile()
        return done

    return merge(topic.handle, topic.snapshot, run)


def compacted(topic: Topic, meanwhile: Callable[[], object]) -> Any:
    def clean(snapshot: Snapshot, due: Sequence[Cleanable]) -> list[RewrittenPartition | RewriteFailure]:
        plans = [CleaningPlan.of(snapshot, one) for one in due]
        done = [clean_or_failure(topic.handle, plan, DEDUPE_BUFFER_BYTES) for plan in plans]
        if rounds.pop():
            meanwhile()
        return done

    rounds = [False, False, True]
    return compact(topic.handle, topic.snapshot, clean)


@pytest.fixture(params=[merged, compacted])
def rewrite(request: pytest.FixtureRequest) -> Rewrite:
    """Rewrites the segments of a topic; something happens when the files are written, and before the commit."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def topic(tmp_path: Path, rewrite: Rewrite) -> Topic:
    """Three partitions of four segments, each of which would become one; a key has two records."""
    policy = "compact,delete" if rewrite is compacted else "delete"
    config = {"cleanup.policy": policy, "min.cleanable.dirty.ratio": 0, "retention.ms": -1, "file.delete.delay.ms": 0}
    made = distlog.create(f"{tmp_path}/log", 3, config)
    for number, key in enumerate((b"a", b"b", b"a", b"c")):
        append(made, key, number)
    return made


def append(topic: Topic, key: bytes, number: int) -> None:
    """A record in each partition."""
    topic.append([{"key": key, "value": b"%d" % number, "partition": partition} for partition in range(3)])


def newest(topic: Topic) -> dict[tuple[int, bytes], tuple[int, bytes]]:
    """The offset and the value of the last record of each key in each partition."""
    records = distlog.open(topic.url).scan().to_table().to_pylist()
    return {(row["partition"], row["key"]): (row["offset"], row["value"]) for row in records}


def segments(topic: Topic) -> list[int]:
    """How many segments each partition has."""
    return [len(state.segments) for state in distlog.open(topic.url).snapshot.partitions]


def test_records_that_are_appended_meanwhile_are_kept(topic: Topic, rewrite: Rewrite) -> None:
    other = distlog.open(topic.url)
    rewrite(topic, lambda: append(other, b"a", 4))
    assert segments(topic) == [2, 2, 2]
    assert newest(topic) == {
        (partition, key): value
        for partition in range(3)
        for key, value in {b"b": (1, b"1"), b"c": (3, b"3"), b"a": (4, b"4")}.items()
    }
    assert topic.refresh().verify().ok


def test_segments_that_retention_removed_meanwhile_do_not_come_back(topic: Topic, rewrite: Rewrite) -> None:
    other, before = distlog.open(topic.url), newest(topic)

    def retain() -> None:
        other.delete_records({0: 2})
        other.retention()

    rewrite(topic, retain)
    assert segments(topic)[1:] == [1, 1]
    assert distlog.open(topic.url).start_offsets() == {0: 2, 1: 0, 2: 0}
    assert newest(topic) == {place: value for place, value in before.items() if place != (0, b"b")}
    assert topic.refresh().verify().ok


def test_of_two_rewrites_at_once_the_second_changes_nothing(topic: Topic, rewrite: Rewrite) -> None:
    other, before = distlog.open(topic.url), newest(topic)
    rewrite(topic, lambda: rewrite(other, lambda: None))
    assert topic.refresh().version == topic.log.load().version == 5
    assert (segments(topic), newest(topic)) == ([1, 1, 1], before)


def test_a_topic_that_was_dropped_and_made_anew_is_not_written_to(topic: Topic, rewrite: Rewrite) -> None:
    def replace() -> None:
        distlog.open(topic.url).drop()
        append(distlog.create(topic.url, 3), b"new", 0)

    with pytest.raises(CommitConflictError):
        rewrite(topic, replace)
    assert newest(topic) == {(partition, b"new"): (0, b"0") for partition in range(3)}
    assert segments(topic) == [1, 1, 1]


def test_files_that_vacuum_may_have_deleted_are_not_committed(topic: Topic, rewrite: Rewrite) -> None:
    other, before = distlog.open(topic.url), newest(topic)

    def move_floor() -> None:
        append(other, b"new", 4)
        other.log.commit(other.snapshot, "gc", lambda _: [GcFloor(other.version)])

    with pytest.raises(TransactionTooOldError):
        rewrite(topic, move_floor)
    assert segments(topic) == [5, 5, 5]
    assert newest(topic).items() >= before.items()
    rewrite(topic.refresh(), lambda: None)
    assert segments(topic) == [1, 1, 1]


def test_a_crash_before_the_commit_leaves_files_for_vacuum(topic: Topic, rewrite: Rewrite) -> None:
    before, state = files(topic.storage), topic.snapshot

    def crash() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewrite(topic, crash)
    left = set(files(topic.storage)) - set(before)
    assert left
    assert topic.log.load() == state
    for number in (4, 5):
        append(topic, b"new", number)
        topic.vacuum()
    assert not left & set(files(topic.storage))
    assert segments(topic) == [6, 6, 6]


def test_a_rewrite_that_cannot_write_a_segment_commits_nothing(
    topic: Topic, rewrite: Rewrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, calls, seal = topic.snapshot, itertools.count(), SegmentFile.seal

    def failing(file: SegmentFile, now_ms: int) -> Any:
        if next(calls) == 1:
            raise StorageError("no space left")
        return seal(file, now_ms)

    def full(*_: Any) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(SegmentFile, "seal", failing)
    with monkeypatch.context() as patches:
        # a bundle
        patches.setattr(Storage, "put", full)
        with pytest.raises(StorageError, match="no space left"):
            rewrite(topic, lambda: None)
    assert topic.log.load() == state
    rewrite(topic, lambda: None)
    assert segments(topic) == [1, 1, 1]
