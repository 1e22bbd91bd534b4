"""Checkpoints of the commit log: when they are written, and damaged or missing ones."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import pytest
from addresses import Address
from commits import put_commit
from histories import (
    CONFIG,
    append,
    checkpoint_files,
    checkpoints,
    commit_log,
    raise_,
    requests,
    segment,
)

from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.commits.actions import Action, Add, SetTransaction
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import StorageError
from distlog.core.storage.storage import Storage


def test_any_writer_writes_a_checkpoint_after_a_number_of_commits(storage: Storage) -> None:
    logs = [commit_log(storage, checkpoint_commits=5) for _ in range(3)]
    snapshot = logs[0].create(1, CONFIG)
    for log in itertools.islice(itertools.cycle(logs), 14):
        snapshot = append(log, log.refresh(snapshot))
    assert checkpoints(storage) == [5, 10]


def test_a_checkpoint_is_written_after_a_number_of_bytes(
    storage: Storage, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = log.create(1, CONFIG)
    most = snapshot.commit_bytes + 3000
    monkeypatch.setattr(checkpoint, "CHECKPOINT_BYTES", most)
    expected: list[int] = []
    while len(expected) < 3:
        previous, snapshot = snapshot, append(log, snapshot)
        if previous.commit_bytes // most < snapshot.commit_bytes // most:
            expected.append(snapshot.version)
        assert checkpoints(storage) == expected
    assert 2 <= expected[0] <= 6
    assert log.load() == snapshot


def test_a_checkpoint_that_fails_does_not_fail_the_commit(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    log = commit_log(storage, checkpoint_commits=2)
    monkeypatch.setattr(storage, "put", lambda *_: raise_(StorageError("full")))
    snapshot = append(log, log.create(1, CONFIG), 5)
    assert checkpoints(storage) == []
    assert log.load() == snapshot


def test_more_batch_ids_than_a_checkpoint_holds_make_an_open_read_commits(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint, "MAX_FILE_BYTES", 2000)
    log = commit_log(storage, checkpoint_commits=5)
    snapshot = log.create(1, CONFIG)
    for number in range(60):
        batch = SetTransaction("job", hashlib.sha256(b"%d" % number).hexdigest(), {})
        _, snapshot = put_commit(log, snapshot, "append", lambda _, batch=batch: [batch])
    assert 5 in checkpoints(storage)
    assert checkpoints(storage)[-1] < 40
    assert "too large for a checkpoint" in caplog.text
    assert log.load() == snapshot
    assert len(snapshot.transactions) == 60


@pytest.mark.parametrize("hint", [b"", b"garbage", b"../x", paths.checkpoint_file(20, "0" * 32).encode()])
def test_a_useless_hint_is_replaced_by_a_listing(storage: Storage, old: Snapshot, hint: bytes) -> None:
    storage.put(paths.LAST_CHECKPOINT, hint)
    assert commit_log(storage).load() == old
    reads, _, lists = requests(storage, commit_log(storage).load)
    assert lists == 1
    assert reads < 13, "the newest checkpoint was used"


def test_an_old_hint_only_costs_time(storage: Storage, old: Snapshot) -> None:
    storage.put(paths.LAST_CHECKPOINT, checkpoint_files(storage)[0].encode())
    assert commit_log(storage).load() == old


def test_the_previous_checkpoint_or_the_commits_replace_a_missing_checkpoint(storage: Storage, old: Snapshot) -> None:
    for name in reversed(checkpoint_files(storage)):
        storage.delete([name])
        assert commit_log(storage).load() == old


def test_the_checkpoint_before_a_damaged_one_is_used(storage: Storage, old: Snapshot) -> None:
    storage.put(checkpoint_files(storage)[-1], b"PAR1")
    reads, _, _ = requests(storage, commit_log(storage).load)
    assert reads < 25


def test_commits_replace_damaged_checkpoints(storage: Storage, old: Snapshot) -> None:
    for name in checkpoint_files(storage):
        storage.put(name, b"PAR1")
    assert commit_log(storage).load() == old


def test_a_valid_checkpoint_of_another_topic_is_ignored(storage: Storage, old: Snapshot, memory_url: Address) -> None:
    other = commit_log(Storage(f"{memory_url.url}/other/clicks"))
    foreign = append(other, other.create(2, CONFIG), 22)
    assert checkpoint.write(storage, foreign)
    assert commit_log(storage).load() == old
    assert checkpoint.write(storage, append(other, foreign, 3)), "of the same version as the head"
    assert commit_log(storage).load() == old


def test_opening_a_large_topic_creates_no_object_per_segment(
    storage: Storage, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_many(snapshot: Snapshot) -> list[Action]:
        return [Add(segment(0, base, 1)) for base in range(2_000)]

    _, snapshot = put_commit(log, log.create(1, CONFIG), "append", add_many)
    snapshot = append(commit_log(storage, checkpoint_commits=1), snapshot)
    created = 0
    make = SegmentInfo.__init__

    def counted(*args: Any, **fields: Any) -> None:
        nonlocal created
        created += 1
        make(*args, **fields)

    monkeypatch.setattr(SegmentInfo, "__init__", counted)
    loaded = log.load()
    assert created == 1, "the checkpoint's own commit is read, to see that it belongs here"
    append(log, loaded)
    assert created < 10
    monkeypatch.undo()
    assert len(loaded.partitions[0].segments) == 2_001
