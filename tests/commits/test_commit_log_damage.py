"""Commits that are missing, malformed, or of another library."""

from __future__ import annotations

from pathlib import Path

import pytest
from histories import (
    CONFIG,
    MissesOnce,
    append,
    commit_log,
    forged,
)

import distlog
from distlog.core import paths
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.commits.snapshot_loader import BelowHorizonError, SnapshotLoader
from distlog.core.errors import (
    CorruptionError,
    CorruptMetadataError,
    StorageError,
    TopicNotFoundError,
)
from distlog.core.storage.storage import Storage


def test_a_missing_commit_fails(storage: Storage, log: CommitLog) -> None:
    append(log, log.create(1, CONFIG), 9)
    for version in range(9):
        data = storage.read(paths.commit_file(version))
        storage.delete([paths.commit_file(version)])
        with pytest.raises(CorruptMetadataError, match=f"{version:020d}.*restore|restore.*{version:020d}"):
            log.load()
        with pytest.raises(CorruptMetadataError):
            log.history()
        storage.put(paths.commit_file(version), data)
    assert log.load().version == 9


@pytest.mark.parametrize("version", [20, 21, 22, 23, 24])
def test_a_missing_commit_after_the_checkpoint_fails(storage: Storage, old: Snapshot, version: int) -> None:
    storage.delete([paths.commit_file(version)])
    with pytest.raises(CorruptMetadataError, match=f"{version:020d}"):
        commit_log(storage).load()


def test_missing_last_commits_are_detected_with_a_later_checkpoint(storage: Storage, old: Snapshot) -> None:
    storage.delete([paths.commit_file(version) for version in range(20, 26)])
    with pytest.raises(CorruptMetadataError, match=f"{20:020d}"):
        commit_log(storage).load()


def test_many_missing_first_commits_fail(storage: Storage, log: CommitLog) -> None:
    append(log, log.create(1, CONFIG), 9)
    storage.delete([paths.commit_file(version) for version in range(7)])
    with pytest.raises(CorruptMetadataError, match=f"{0:020d}"):
        log.load()


def test_foreign_files_are_not_a_topic(storage: Storage, log: CommitLog) -> None:
    for name in (".0123.tmp", ".probe-0123", "7.json", "0" * 21 + ".json", "x"):
        storage.put(f"{paths.COMMITS_DIR}/{name}", b"x")
    with pytest.raises(TopicNotFoundError):
        log.load()
    assert log.create(1, CONFIG) == log.load()


def test_readers_accept_missing_commits_before_the_checkpoint(storage: Storage, old: Snapshot) -> None:
    storage.delete([paths.commit_file(3)])
    assert commit_log(storage).load() == old


def test_a_concurrent_commit_during_a_load_is_not_a_hole(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    head = append(log, created, 4)
    missed = paths.commit_file(3)
    late = MissesOnce(storage, missed)
    assert commit_log(late).refresh(created) == head
    assert late.missed
    assert commit_log(MissesOnce(storage, missed)).load() == head


def test_an_unreadable_commit_stops_readers_and_writers(storage: Storage, log: CommitLog) -> None:
    snapshot = log.create(1, CONFIG)
    storage.put(paths.commit_file(1), b"")
    for call in (log.load, lambda: log.refresh(snapshot), lambda: append(log, snapshot)):
        with pytest.raises(CorruptMetadataError, match=f"{1:020d}"):
            call()


def test_a_commit_under_the_name_of_another_is_refused(storage: Storage, log: CommitLog) -> None:
    snapshot = append(log, log.create(1, CONFIG))
    storage.put(paths.commit_file(2), storage.read(paths.commit_file(1)))
    with pytest.raises(CorruptMetadataError, match=f"{2:020d}"):
        log.refresh(snapshot)


def test_a_broken_chain_is_refused(storage: Storage, log: CommitLog) -> None:
    snapshot = append(log, log.create(1, CONFIG))
    forged(storage, snapshot, prev="12345678-1234-1234-1234-123456789abc")
    for call in (log.load, log.history, lambda: log.refresh(snapshot)):
        with pytest.raises(CorruptMetadataError, match="follow"):
            call()


def test_a_slow_store_during_vacuum_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(tmp_path / "t")
    distlog.create(str(tmp_path / "t"))

    def from_listing(self: SnapshotLoader, end: int, *, only_listed: bool) -> None:
        raise BelowHorizonError

    monkeypatch.setattr(SnapshotLoader, "_from_hint", lambda self, end: None)
    monkeypatch.setattr(SnapshotLoader, "_from_listing", from_listing)
    with pytest.raises(StorageError, match=r"vacuum deletes commits faster.*try again") as raised:
        SnapshotLoader(storage).load()
    assert not isinstance(raised.value, CorruptionError)
