"""Compaction with concurrent appends, retention, crashes and compactions: no record is lost or returns."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import uuid
from pathlib import Path

import pytest
from commits import put_commit
from compacting import DAY, CompactedTopic
from producers import Producers

from distlog.core import paths
from distlog.core.commits.actions import Add, Remove
from distlog.core.commits.snapshot import Snapshot
from distlog.core.maintain.compaction import CleaningPlan, clean_partition, compact, plan_compaction
from distlog.core.maintain.group_rewrite import RewrittenPartition, commit_rewrite
from distlog.core.maintain.retention import retention
from distlog.core.segments.producer_states import last_stable_offset

#: The size of two of the segments in `log`.
SEGMENT_BYTES = 170


@pytest.fixture
def log(tmp_path: Path) -> CompactedTopic:
    return CompactedTopic(f"{tmp_path}/log", internal_segment_bytes=SEGMENT_BYTES)


class Running:
    def __init__(self, log: CompactedTopic) -> None:
        self.log, self.initial = log, log.topic().snapshot
        (due,) = plan_compaction(self.initial, log.clock())
        self.handle = log.topic().handle
        self.rewritten: RewrittenPartition = clean_partition(self.handle, CleaningPlan.of(self.initial, due))

    def commit(self) -> tuple[int, Snapshot]:
        skipped_groups, after = commit_rewrite(self.handle, self.initial, [self.rewritten])
        return skipped_groups[0], after


def fill(log: CompactedTopic, *keys: bytes) -> None:
    for key in keys:
        log.append((key, b"x"))


def test_groups_after_a_skipped_one_keep_all_offsets(log: CompactedTopic) -> None:
    log.topic().alter_config({"cleanup.policy": "compact,delete", "retention.ms": DAY})
    fill(log, b"a")
    log.clock.now += DAY + 1
    fill(log, b"b", b"c", b"d", b"c", b"d")
    running = Running(log)
    assert [len(group.outputs) for group in running.rewritten.groups] == [1, 0, 1]
    retention(log.topic().handle, log.topic().snapshot)
    assert running.commit()[0] == 2
    assert (log.offsets(), log.first_dirty_offset) == ([1, 2, 3, 4, 5], 0)
    assert log.topic().verify().ok
    log.compact()
    assert (log.offsets(), log.first_dirty_offset) == ([1, 4, 5], 6)
    assert log.topic().verify().ok


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_restored_key_keeps_its_tombstone(log: CompactedTopic, policy: str) -> None:
    """Compaction drops the tombstone, and a restore of an earlier version brings back the key."""
    log.topic().alter_config({"cleanup.policy": policy})
    log.append((b"k", b"x" * 60), (b"a", b"x"))
    old_version = log.topic().version
    log.append((b"k", None), (b"b", b"x" * 60))
    if policy == "compact":
        log.compact()
    else:
        topic = log.topic()
        log.compact_range(2, 4)
        topic.delete_records({0: 2})
        retention(topic.handle, topic.refresh().snapshot)
    log.clock.now += 2 * DAY
    log.append((b"c", b"x"))
    running = Running(log)
    log.topic().restore(old_version)
    running.commit()
    for _ in range(2):
        assert [record.value for record in log.topic().records() if record.key == b"k"][-1:] in ([], [None])
        assert log.topic().verify().ok
        log.compact()
    assert log.values().keys() == {b"a", b"b", b"c"}


def test_a_changed_clean_group_keeps_the_dirty_range(log: CompactedTopic) -> None:
    fill(log, b"a", b"b", b"c", b"d")
    log.compact()
    fill(log, b"a", b"b", b"c", b"d")
    running = Running(log)
    stale = dataclasses.replace(running.rewritten, end_offset=0, groups=Running(log).rewritten.groups[1:2])
    commit_rewrite(running.handle, running.initial, [stale])
    assert running.commit()[0] == 1
    assert log.first_dirty_offset == 4
    log.compact()
    assert (log.offsets(), log.first_dirty_offset) == ([4, 5, 6, 7], 8)


def copy_first_segment(log: CompactedTopic) -> None:
    """Rewrite the first segment without a loss of records."""
    topic = log.topic()
    first = topic.snapshot.partitions[0].segments[0]
    copied = dataclasses.replace(first, stem=paths.new_stem(topic.version, uuid.uuid4().hex))
    for suffix in (".log", ".timeindex"):
        old, new = (paths.segment_file(topic.name, 0, info.stem, suffix) for info in (first, copied))
        log.storage.put(new, log.storage.read(old))
    put_commit(log.log, topic.snapshot, "compact", lambda _: [Remove(0, first.stem), Add(copied)])


def test_a_removed_marker_does_not_reopen_its_transaction(
    log: CompactedTopic,
) -> None:
    """Producer 2's segment is never rewritten, and records the transaction of producer 1 as open."""
    log.append((b"a", b"x"), (b"b", b"x"), (b"c", b"x"))
    producers = Producers(log, offset=3)
    producers.send(1, 1).plain(7).roll()
    producers.send(2, 9).commit(2).roll()
    producers.commit(1).plain(1).roll()
    for _ in range(4):
        running = Running(log)
        copy_first_segment(log)
        assert running.commit()[0] > 0
        log.clock.now += 2 * DAY
        topic = log.topic()
        assert last_stable_offset(topic.reader, topic.snapshot.partitions[0]) == 9
    while log.compact():
        pass
    assert (log.offsets(), log.first_dirty_offset) == ([0, 1, 2, 4, 5, 8], 9)


def test_a_compaction_without_progress_ends(log: CompactedTopic) -> None:
    fill(log, b"a", b"a")
    topic = log.topic()

    calls = itertools.count()

    def clock() -> int:
        if next(calls) == 1:
            log.topic().alter_config({"cleanup.policy": "delete"})
        return log.clock()

    report, _ = compact(dataclasses.replace(topic.handle, clock=clock), topic.snapshot)
    assert (report.partitions[0].skipped_groups, report.partitions[0].rounds) == (1, 1)


def test_a_plan_runs_elsewhere_without_reading_a_commit(log: CompactedTopic, tmp_path: Path) -> None:
    fill(log, b"a", b"b", b"a")
    topic = log.topic()
    (due,) = plan_compaction(topic.snapshot, log.clock())
    planned = pickle.dumps((topic.handle, CleaningPlan.of(topic.snapshot, due)))
    for commit in tmp_path.rglob("_commits/*"):
        commit.unlink()
    rewritten = clean_partition(*pickle.loads(planned))
    assert (
        rewritten.end_offset,
        sum(output.record_count for group in rewritten.groups for output in group.outputs),
    ) == (3, 2)
