"""Replies that are lost, at each step in turn: nothing is lost with them, and nothing happens twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import memory_files
import pytest
from conftest import Address
from faulty_storage import OPERATIONS, FaultyStorage
from fsspec.implementations.memory import MemoryFileSystem
from histories import appending, commit_log, topic_storage
from searches import stride

from distlog.core.commits.actions import Drop
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CommitStateUnknownError, StorageError, TopicExistsError, TopicNotFoundError
from distlog.core.storage.storage import Storage

pytestmark = pytest.mark.long

T = TypeVar("T")

BATCHES = 2


def again(call: Callable[[], T]) -> T:
    """What a careful caller does: look again, and ask for the same thing."""
    try:
        return call()
    except (CommitStateUnknownError, StorageError):
        return again(call)


def created(log: CommitLog) -> Snapshot:
    try:
        return log.create(2, TopicConfig())
    except TopicExistsError:
        return log.load()


def dropped(log: CommitLog) -> None:
    try:
        log.commit(log.load(), "drop", lambda snapshot: [Drop()])
    except TopicNotFoundError:
        return


def run(storage: Any) -> None:
    """A life of a topic: created, filled with batches, some of them checkpointed, dropped, and all of it again."""
    log = commit_log(storage, checkpoint_commits=2)
    for life in range(2):
        again(lambda: created(log))
        for number in range(BATCHES):
            plan = appending(number % 2, number + 1, batch=("app", number))
            again(lambda plan=plan: log.commit(log.load(), "append", plan))
        if life == 0:
            again(lambda: dropped(log))


def outcome(storage: Storage) -> list[list[tuple[int, int]]]:
    """The offsets in each partition, after a check that all batches are there once."""
    log = commit_log(storage)
    snapshot = log.load()
    assert all(snapshot.transaction("app", number) for number in range(BATCHES))
    history = [commit.operation for commit in reversed(log.history())]
    life = ["create", *["append"] * BATCHES]
    assert history == [*life, "drop", *life]
    return [[(info.base_offset, info.next_offset) for info in state.segments] for state in snapshot.partitions]


EXPECTED = [[(0, 1)], [(0, 2)]]


@pytest.mark.parametrize("before", [False, True], ids=["the operation was done", "the operation was not done"])
def test_a_lost_reply_at_any_step_changes_nothing(memory_url: Address, before: bool) -> None:
    """In the suite at every other step, and at the others the operation was not done."""
    probe = FaultyStorage(topic_storage(f"{memory_url.url}/probe"))
    run(probe)
    assert outcome(probe) == EXPECTED
    assert set(probe.operations) == set(OPERATIONS)
    for step in range(before % stride(2), len(probe.operations), stride(2)):
        storage = topic_storage(f"{memory_url.url}/{step}")
        run(FaultyStorage(storage, step, before=before))
        assert outcome(storage) == EXPECTED, f"after a fault in operation {step}, {probe.operations[step]}"
        memory_files.hold()


def test_a_commit_whose_reply_is_lost_below_the_storage_is_found_by_its_id(
    memory_url: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = commit_log(topic_storage(memory_url.url))
    snapshot = log.create(2, TopicConfig())
    put = MemoryFileSystem.pipe_file

    def put_and_lose_the_reply(self: Any, *args: Any, **options: Any) -> None:
        put(self, *args, **options)
        monkeypatch.setattr(MemoryFileSystem, "pipe_file", put)
        raise FileExistsError("an echo of our own write")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", put_and_lose_the_reply)
    commit, after = log.commit(snapshot, "append", appending())
    assert commit is not None
    assert commit.version == 1
    assert log.load() == after
