"""Vacuum with concurrent direct appends: files in use stay, and abandoned ones are deleted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from commits import put_commit
from dying_calls import before_call
from partition_logs import Process, append, new_topic, sealed

from distlog.core import opening as open_topic
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import SnapshotTooOldError, TopicNotFoundError
from distlog.core.maintain.vacuum import VacuumReport, vacuum
from distlog.core.read.scan import Scan
from distlog.core.topic import Topic

DAY_MS = 86_400_000


def clean(process: Process, *, dry_run: bool = False) -> VacuumReport:
    return vacuum(process.handle.storage, process.handle.log, dry_run=dry_run)


def present(folder: Path) -> set[str]:
    return set(os.listdir(folder / "events-0")) if (folder / "events-0").exists() else set()


def stems(folder: Path) -> int:
    return sum(name.endswith(".log") for name in present(folder))


def other_commits(process: Process, count: int = 3) -> None:
    """Commit by another process that does not append."""
    for _ in range(count):
        put_commit(process.handle.log, process.head(), "config", lambda _: [])


def test_the_files_of_an_active_segment_and_the_locks_stay(folder: Path) -> None:
    process, other = Process(folder), Process(folder)
    append(process[0], b"a")
    process[0].flush()
    old_present = present(folder)
    assert {".lock", ".flush"} < old_present
    assert stems(folder) == 1
    for _ in range(3):
        other_commits(process)
        assert clean(process).files == ()
    assert present(folder) == old_present
    append(process[0], b"b")
    assert other.values() == {0: [b"a", b"b"]}


def test_a_segment_that_was_sealed_and_not_removed_stays(folder: Path) -> None:
    process = Process(folder)
    for value in (b"a", b"b"):
        append(process[0], value)
        process[0].roll()
    other_commits(process)
    clean(process)
    assert stems(folder) == 3
    assert process.values() == {0: [b"a", b"b"]}
    assert process.anomalies() == ()


def test_a_segment_that_was_sealed_without_a_record_goes(folder: Path) -> None:
    process = Process(folder)
    append(process[0], b"a")
    process[0].roll()
    process.topic().append([{"value": b"b"}])
    other_commits(process)
    clean(process)
    assert stems(folder) == len(sealed(process.head())) == 2


Action = Callable[[Process], object]


def racing(process: Process, concurrent: Action, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `concurrent` right before the next commit of `process`, once."""
    other = Process(Path(process.handle.storage.url))
    before_call(monkeypatch, "link", lambda _, to: "/_commits/" in to, lambda: concurrent(other))


def test_the_files_of_a_segment_that_is_being_opened_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(folder)
    racing(process, clean, monkeypatch)
    assert append(process[0], b"a") == (0, 1)
    assert stems(folder) == 1
    assert Process(folder).values() == {0: [b"a"]}


def commit_and_clean(process: Process) -> None:
    other_commits(process)
    clean(process)
    assert stems(Path(process.handle.storage.url)) == len(sealed(process.head())) + bool(
        process.head().partitions[0].active
    )


@pytest.mark.parametrize("is_roll", [False, True])
def test_a_segment_is_created_again_after_a_vacuum_before_its_commit(
    folder: Path, is_roll: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(folder)
    if is_roll:
        append(process[0], b"a")
    racing(process, commit_and_clean, monkeypatch)
    if is_roll:
        process[0].roll()
    append(process[0], b"b")
    expected = [b"a", b"b"] if is_roll else [b"b"]
    assert Process(folder).values() == {0: expected}
    other_commits(process)
    clean(process)
    assert stems(folder) == len(expected)
    assert append(Process(folder)[0], b"c") == (len(expected), len(expected) + 1)
    assert process.anomalies() == ()


def test_the_locks_of_a_dropped_topic_go_with_its_segments(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", file_delete_delay_ms=DAY_MS)
    process = Process(folder)
    append(process[0], b"a")
    process[0].flush()
    later(folder)
    process.topic().drop()
    old_present = present(folder)
    assert clean(process).files == ()
    assert present(folder) == old_present
    later(folder)
    dry = clean(process, dry_run=True)
    assert {file.name.rpartition("/")[2] for file in dry.files} == old_present
    assert present(folder) == old_present
    assert set(clean(process).files) == set(dry.files)
    assert present(folder) == set()
    for change in (process[0].flush, process[0].roll):
        with pytest.raises(TopicNotFoundError):
            change()


def later(folder: Path) -> None:
    for path in folder.rglob("*"):
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 2 * DAY_MS * 1_000_000))


def test_a_lock_that_is_held_stays(folder: Path) -> None:
    process = Process(folder)
    append(process[0], b"a")
    process.topic().drop()
    with process.holding(0):
        clean(process)
        assert present(folder) == {".lock", ".lock.page"}
    clean(process)
    assert present(folder) == set()


def test_the_locks_of_a_topic_that_was_created_again_stay(folder: Path) -> None:
    process = Process(folder)
    append(process[0], b"old")
    process.topic().drop()
    open_topic.create(str(folder), 1, {"file.delete.delay.ms": 0})
    new = Process(folder)
    append(new[0], b"new")
    other_commits(new)
    clean(new)
    assert stems(folder) == 1
    assert ".lock" in present(folder)
    assert append(Process(folder)[0], b"newer") == (1, 2)


def test_writers_of_a_new_topic_share_a_lock_when_vacuum_deletes_the_old_one_under_them(folder: Path) -> None:
    process = Process(folder)
    append(process[0], b"old")
    process.topic().drop()
    open_topic.create(str(folder), 1)
    early, late = Process(folder), Process(folder)
    assert early[0].end().end_offset == 0
    os.unlink(folder / "events-0" / ".lock")
    assert append(late[0], b"a") == (0, 1)
    assert append(early[0], b"b") == (1, 2)
    assert append(late[0], b"c") == (2, 3)
    assert late.values() == {0: [b"a", b"b", b"c"]}
    assert late.anomalies() == ()


def test_a_planned_read_of_an_active_segment_outlives_its_merge(
    tmp_path: Path,
) -> None:
    process = Process(new_topic(tmp_path / "events", file_delete_delay_ms=DAY_MS))
    scan, reader = merged_under_a_scan(process)
    clean(process)
    assert scan.to_table()["value"].to_pylist() == [b"a"]
    assert reader.scan().count() == 1
    assert reader.refresh().scan().count() == 2


def test_a_planned_read_fails_after_a_vacuum(folder: Path) -> None:
    process = Process(folder)
    scan, reader = merged_under_a_scan(process)
    clean(process)
    with pytest.raises(SnapshotTooOldError, match="refresh"):
        scan.to_table()
    assert reader.refresh().scan().count() == 2


def merged_under_a_scan(process: Process) -> tuple[Scan, Topic]:
    """Return a scan that was planned on an active segment, which was sealed and merged later, and its topic."""
    append(process[0], b"a")
    reader = process.topic()
    scan = reader.scan(columns=["value"])
    assert [segment.is_active for segment in reader.live_snapshot.partitions[0].segments] == [True]
    merge_all(process)
    return scan, reader


def merge_all(process: Process) -> None:
    process[0].roll()
    append(process[0], b"b")
    process[0].roll()
    process.topic().compact()
    other_commits(process)
    assert sealed(process.head()) == [(0, 2)]


def test_a_reader_of_a_missing_active_segment_refreshes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment is sealed, merged and vacuumed between the reads of the commit log and of the files."""
    process = Process(folder)
    append(process[0], b"a")
    reader = process.topic()
    real = reader.current.refresh

    def refresh() -> Snapshot:
        monkeypatch.undo()
        names = real()
        merge_all(process)
        clean(process)
        return names

    monkeypatch.setattr(reader.current, "refresh", refresh)
    assert reader.refresh().end_offsets() == {0: 2}
