"""Commits that need sealed ends of partitions, with concurrent direct appends."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commits import put_commit, put_sealed
from histories import segment
from partition_logs import Process, append, commit_sealed, new_topic, sealed

from distlog.core.commits.actions import Action, Add, SetConfig, SetLogStartOffset
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
)
from distlog.core.log.partition_files import PageStatus


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return new_topic(tmp_path / "events", partitions=3)


def status(process: Process, partition: int = 0) -> PageStatus | None:
    record = process.record(partition)
    return record.status if record else None


def every(process: Process, plan: object) -> Snapshot:
    head = process.head()
    return put_sealed(process.handle, head, plan, range(len(head.partitions)))  # type: ignore[arg-type]


def test_the_caller_s_actions_and_the_seal_are_one_commit(folder: Path) -> None:
    process = Process(folder)
    append(process[1], b"a", b"b")
    after = commit_sealed(process, SetLogStartOffset(1, 1), partitions=[1])
    assert (after.version, sealed(after, 1)) == (2, [(0, 2)])
    assert (after.partitions[1].log_start_offset, after.partitions[1].active) == (1, None)
    assert status(process, 1) == PageStatus.NONE
    assert append(process[1], b"c") == (2, 3)


def test_only_needed_partitions_are_sealed(folder: Path) -> None:
    process = Process(folder)
    for partition in range(3):
        append(process[partition], b"a")
    after = commit_sealed(process, partitions=[2, 0])
    assert [bool(state.active) for state in after.partitions] == [False, True, False]


def test_a_plan_sees_the_partitions_as_if_they_were_sealed(folder: Path) -> None:
    process, ranges = Process(folder), list[tuple[int, int]]()
    append(process[0], b"a", b"b")

    def plan(snapshot: Snapshot) -> Sequence[Action]:
        ranges.append((snapshot.partitions[0].log_end_offset, len(snapshot.partitions[0].segments)))
        return [SetConfig({})]

    every(process, plan)
    assert ranges == [(2, 1)]


def test_an_empty_active_segment_is_sealed_to_nothing(folder: Path) -> None:
    process = Process(folder)
    append(process[0], b"a")
    process[0].roll()
    after = commit_sealed(process)
    assert (sealed(after), after.partitions[0].active) == ([(0, 1)], None)
    assert append(process[0], b"b") == (1, 2)


@pytest.mark.parametrize("error", [None, KeyError("the plan's own"), CommitConflictError("no")])
def test_without_a_commit_the_segments_stay_active(folder: Path, error: Exception | None) -> None:
    process = Process(folder)
    append(process[0], b"a")
    old_head = process.head()

    def plan(snapshot: Snapshot) -> None:
        if error:
            raise error

    if error:
        with pytest.raises(type(error)):
            every(process, plan)
    else:
        every(process, plan)
    assert process.head().version == old_head.version
    assert status(process) == PageStatus.ACTIVE
    assert append(process[0], b"b") == (1, 2)
    process[0].roll()
    assert process.anomalies() == ()


def test_a_refused_commit_leaves_the_segments_active(folder: Path) -> None:
    process = Process(folder)
    append(process[0], b"a")
    with pytest.raises(CommitConflictError, match="log start"):
        commit_sealed(process, SetLogStartOffset(1, 5), SetLogStartOffset(0, 5))
    assert status(process) == PageStatus.ACTIVE
    assert append(process[0], b"b") == (1, 2)


@pytest.mark.parametrize("landed", [False, True])
def test_after_a_commit_of_unknown_outcome_the_commit_log_is_asked(
    folder: Path, landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, other = Process(folder), Process(folder)
    append(process[0], b"a")
    real = process.handle.storage.put_if_absent

    def put(name: str, data: bytes, **options: float) -> bytes:
        if landed:
            real(name, data, **options)
        raise CommitStateUnknownError("the reply was lost")

    with monkeypatch.context() as patches:
        patches.setattr(process.handle.storage, "put_if_absent", put)
        with pytest.raises(CommitStateUnknownError):
            commit_sealed(process)
    assert status(process) == PageStatus.CHANGING
    assert append(other[0], b"b") == (1, 2)
    assert sealed(other.head()) == ([(0, 1)] if landed else [])
    assert append(process[0], b"c") == (2, 3)
    assert process.values()[0] == [b"a", b"b", b"c"]


def test_a_partial_seal_is_undone_by_the_next_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, other = Process(folder), Process(folder)
    append(process[0], b"a")

    def files() -> dict[str, bytes]:
        return {path.suffix: path.read_bytes() for path in (folder / "events-0").glob("v*")}

    def put(name: str, data: bytes, **options: float) -> bytes:
        raise CommitStateUnknownError("the reply was lost")

    old_files = files()
    with monkeypatch.context() as patches:
        patches.setattr(process.handle.storage, "put_if_absent", put)
        with pytest.raises(CommitStateUnknownError):
            commit_sealed(process)
    assert files() != old_files
    assert other[0].end().end_offset == 1
    assert files() == old_files


def test_a_segment_that_became_active_is_sealed_too(folder: Path) -> None:
    process, other, calls = Process(folder), Process(folder), list[int]()
    append(process[2], b"a")

    def plan(snapshot: Snapshot) -> Sequence[Action]:
        if not calls:
            append(other[0], b"b")
        calls.append(snapshot.version)
        return [SetConfig({})]

    after = every(process, plan)
    assert [bool(state.active) for state in after.partitions] == [False] * 3
    assert (sealed(after, 0), sealed(after, 2)) == ([(0, 1)], [(0, 1)])
    assert process.anomalies() == ()


def test_a_stale_snapshot_can_seal(folder: Path) -> None:
    process, other = Process(folder), Process(folder)
    stale = other.head()
    append(process[0], b"a")
    commit_sealed(process)
    append(process[0], b"b")
    after = put_sealed(other.handle, stale, lambda _: [SetConfig({})], range(len(stale.partitions)))
    assert sealed(after) == [(0, 1), (1, 2)]


def test_no_lock_is_held_where_another_process_sealed_all(folder: Path) -> None:
    """The commit can take ten minutes, and writers wait for a lock for one."""
    process, other = Process(folder), Process(folder, timeout_s=0.05)
    append(process[0], b"a")
    stale = process.head()
    commit_sealed(process)
    locked: list[int] = []

    def plan(_: Snapshot) -> list[Action]:
        with other.holding(0):
            locked.append(0)
        return [SetConfig({})]

    put_sealed(process.handle, stale, plan, [0])
    assert locked == [0]


def test_a_segment_after_an_active_one_needs_its_lock(folder: Path) -> None:
    process = Process(folder)
    append(process[0], b"a")
    head = process.head()
    next_segment = segment(partition=0, base_offset=0)
    with pytest.raises(CommitConflictError, match="sealed first"):
        put_commit(process.handle.log, head, "append", lambda _: [Add(next_segment)])


def test_partitions_are_sealed_side_by_side(folder: Path) -> None:
    process, together = Process(folder), threading.Barrier(3)
    for number in range(3):
        append(process[number], b"a")

    class Meeting:
        """Calls of `os` in which each sync of a log waits for the syncs of the other partitions."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def fsync(self, file: int) -> None:
            if os.readlink(f"/proc/self/fd/{file}").endswith(".log"):
                together.wait(timeout=60)
            os.fsync(file)

    after = commit_sealed(process, partitions=range(3), calls=Meeting())
    assert [sealed(after, number) for number in range(3)] == [[(0, 1)]] * 3
