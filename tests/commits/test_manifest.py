"""A commit that is larger than a conditional put: its actions are in a file, and nobody sees a difference."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Address
from crc32c import crc32c
from faulty_storage import FaultyStorage
from histories import (
    CONFIG,
    RunsFirst,
    append,
    checkpoint_files,
    commit_log,
    forged,
    requests,
    segment,
    topic_storage,
)
from store_clock import TimedStorage
from topics import NOW, Clock, topic_on, values

from distlog.core import paths
from distlog.core.commits.actions import (
    KNOWN,
    MANIFEST,
    Action,
    Add,
    GcFloor,
    Remove,
    Requires,
    SetConfig,
    SetTransaction,
)
from distlog.core.commits.commit_json import Commit, CommitWriter
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptMetadataError,
    StorageError,
    UnsupportedVersionError,
)
from distlog.core.maintenance.vacuum import unreferenced_manifests
from distlog.core.maintenance.verify import verify_commits
from distlog.core.storage.storage import Storage
from distlog.core.topics import topic as metadata_tables

#: So that ten segments are too many for a commit.
LIMIT = 3_000
MANY = 10


def log_of(storage: Any, **options: Any) -> CommitLog:
    return commit_log(storage, commit_limit=LIMIT, **options)


def adding(count: int = MANY, batch: int | None = None) -> Callable[[Snapshot], list[Action] | None]:
    """A plan that adds so many segments, once for a batch."""

    def plan(snapshot: Snapshot) -> list[Action] | None:
        if batch is not None and snapshot.transaction("app", batch):
            return None
        end = snapshot.partitions[0].log_end_offset
        added: list[Action] = [
            Add(segment(0, end + number, 1, read_version=snapshot.version)) for number in range(count)
        ]
        return added if batch is None else [*added, SetTransaction("app", batch, {0: (end, end + count)})]

    return plan


def manifests(storage: Storage) -> list[str]:
    found = (file.name for file in storage.list(paths.COMMITS_DIR))
    return sorted(name for name in found if paths.manifest_read_version(name) is not None)


@pytest.fixture
def topic(storage_url: Address) -> Storage:
    return topic_storage_of(storage_url)


def topic_storage_of(address: Address) -> Storage:
    return Storage(f"{address.url}/clicks", address.options)


def test_whoever_reads_a_commit_with_a_manifest_sees_its_actions(topic: Storage) -> None:
    log = log_of(topic)
    created = log.create(1, CONFIG)
    commit, after = log.commit(created, "append", adding())
    assert commit is not None
    assert len(manifests(topic)) == 1
    assert len(topic.read(paths.commit_file(1))) < LIMIT
    assert sum(isinstance(action, Add) for action in commit.actions) == MANY
    assert log.load() == log.refresh(created) == after
    assert after.partitions[0].log_end_offset == MANY
    assert log.history()[0] == commit
    assert metadata_tables.history(log.history(1))["segments_added"].to_pylist() == [MANY]
    assert list(verify_commits(topic, after)) == []
    assert append(commit_log(topic), after).version == 2


def test_a_commit_that_fits_gets_no_manifest(storage: Storage) -> None:
    log = log_of(storage)
    commit, _ = log.commit(log.create(1, CONFIG), "append", adding(3))
    assert manifests(storage) == []
    assert commit is not None
    assert commit.requires == Requires()
    settings = {f"x.{number}": "y" * 100 for number in range(LIMIT // 100)}
    log.commit(log.load(), "config", lambda snapshot: [SetConfig(settings)])
    assert len(manifests(storage)) == 1, "one large action is too large as well"


def test_the_manifest_is_durable_before_its_commit(storage: Storage) -> None:
    log = log_of(storage)
    created = log.create(1, CONFIG)
    seen: list[int] = []
    racing = RunsFirst(storage, "put_if_absent", lambda: seen.append(len(manifests(storage))))
    log_of(racing).commit(created, "append", adding())
    assert seen == [1]


def test_after_a_lost_race_a_new_manifest_is_written_if_the_actions_changed(storage: Storage) -> None:
    log = log_of(storage)
    created = log.create(1, CONFIG)
    racing = RunsFirst(storage, "put_if_absent", lambda: append(log, created))
    log_of(racing).commit(created, "append", adding())
    assert len(manifests(storage)) == 2
    assert log.load().partitions[0].log_end_offset == 10 + MANY


def removing(stems: list[str]) -> Callable[[Snapshot], list[Action]]:
    return lambda snapshot: [Remove(0, stem) for stem in stems]


def test_after_a_lost_race_the_manifest_is_used_again_if_the_actions_are_the_same(storage: Storage) -> None:
    log = log_of(storage)
    snapshot = append(log, log.create(1, CONFIG), 40)
    stems = [info.stem for info in snapshot.partitions[0].segments]
    racing = RunsFirst(storage, "put_if_absent", lambda: append(log, snapshot))
    log_of(racing).commit(snapshot, "retention", removing(stems))
    assert [paths.manifest_read_version(name) for name in manifests(storage)] == [40]
    assert len(log.load().partitions[0].segments) == 1


def test_a_manifest_that_vacuum_may_delete_is_not_used_again(storage: Storage) -> None:
    log = log_of(storage)
    snapshot = append(log, log.create(1, CONFIG), 40)
    stems = [info.stem for info in snapshot.partitions[0].segments]
    floor = [GcFloor(41)]
    racing = RunsFirst(storage, "put_if_absent", lambda: log.commit(snapshot, "gc", lambda head: floor))
    log_of(racing).commit(snapshot, "retention", removing(stems))
    assert [paths.manifest_read_version(name) for name in manifests(storage)] == [40, 41]
    unreferenced = unreferenced_manifests(storage, storage.list(paths.COMMITS_DIR), 41, log.load().version)
    assert [file.name for file in unreferenced] == manifests(storage)[:1]


def test_of_manifests_below_the_gc_floor_those_that_no_commit_names_are_unreferenced(storage: Storage) -> None:
    log = log_of(storage)
    created = log.create(1, CONFIG)
    racing = RunsFirst(storage, "put_if_absent", lambda: append(log, created))
    _, after = log_of(racing).commit(created, "append", adding())
    torn = paths.manifest_file(1, "0" * 32)
    storage.put(torn, b"torn")
    found = storage.list(paths.COMMITS_DIR)
    lost, named = (name for name in manifests(storage) if name != torn)
    if lost in storage.read(paths.commit_file(2)).decode():
        lost, named = named, lost
    unreferenced = [
        {file.name for file in unreferenced_manifests(storage, found, floor, after.version)} for floor in range(3)
    ]
    assert unreferenced == [set(), {lost}, {lost, torn}]
    assert log.load() == after


def test_what_names_a_manifest_is_looked_for_until_the_gc_floor_passed_it(storage: Storage) -> None:
    log = log_of(storage)
    snapshot = append(log, log.create(1, CONFIG), 3)
    _, snapshot = log.commit(snapshot, "gc", lambda head: [GcFloor(3)])
    snapshot = append(commit_log(storage), snapshot, 0)
    for number in range(5):
        _, snapshot = log.commit(snapshot, "append", adding(1, batch=number))
    for digit in "0123":
        storage.put(paths.manifest_file(2, digit * 32), b"torn")
    found = storage.list(paths.COMMITS_DIR)
    reads, _, _ = requests(storage, lambda: unreferenced_manifests(storage, found, 3, snapshot.version))
    assert reads == 2, "versions 3 and 4, once for all of them"


def test_vacuum_keeps_what_commits_name_and_deletes_the_rest(storage: Storage) -> None:
    clock = Clock()
    topic = topic_on(TimedStorage(storage, clock), 1, {"file.delete.delay.ms": 1000}, clock, commit_limit=1_800)
    topic.append(values(range(6)), partition=0, app_id="a" * 1_000, batch_id=1)
    assert len(manifests(storage)) == 1
    storage.put(paths.manifest_file(0, "0" * 32), b"torn")
    for number in range(3):
        clock.now_ms = NOW + 10_000 * (number + 1)
        topic.append(values([number]), partition=0)
        topic.vacuum()
    assert len(manifests(storage)) == 1
    assert paths.manifest_file(0, "0" * 32) not in manifests(storage)
    assert topic_on(storage).snapshot == topic.snapshot
    storage.delete(checkpoint_files(storage))
    assert topic_on(storage).snapshot == topic.snapshot


def test_a_checkpoint_is_due_by_the_manifests_bytes_and_spares_its_reader_the_manifest(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distlog.core.commits.checkpoint.CHECKPOINT_BYTES", 5_000)
    log = log_of(storage)
    commit, after = log.commit(log.create(1, CONFIG), "append", adding(20))
    assert commit is not None
    (name,) = manifests(storage)
    assert commit.size == len(storage.read(name)) + len(storage.read(paths.commit_file(1)))
    assert len(checkpoint_files(storage)) == 1
    storage.delete(manifests(storage))
    assert log.load() == after
    assert log.load(timestamp_ms=after.timestamp_ms).version == 1


def damages() -> dict[str, Callable[[bytes], bytes | None]]:
    def flipped(data: bytes) -> bytes:
        return data[:50] + bytes([data[50] ^ 1]) + data[51:]

    return {
        "missing": lambda data: None,
        "cut": lambda data: data[:-1],
        "longer": lambda data: data + b"\n",
        "flipped": flipped,
        "empty": lambda data: b"",
    }


@pytest.mark.parametrize("damage", damages())
def test_a_manifest_that_is_damaged_is_told_with_its_name(storage: Storage, damage: str) -> None:
    log = log_of(storage)
    created = log.create(1, CONFIG)
    _, after = log.commit(created, "append", adding())
    (name,) = manifests(storage)
    data = damages()[damage](storage.read(name))
    storage.delete([name])
    if data is not None:
        storage.put(name, data)
    for call in (log.load, log.history, lambda: log.refresh(created), lambda: append(log, created)):
        with pytest.raises(CorruptMetadataError, match=name):
            call()
    (anomaly,) = verify_commits(storage, after)
    assert (anomaly.word, anomaly.file) == ("corrupt_commit", name)


def naming(storage: Storage, data: bytes, **changes: Any) -> dict[str, Any]:
    """An action that names a manifest that holds `data`."""
    name = paths.manifest_file(0, "1" * 32)
    storage.put(name, data)
    return {"manifest": {"file": name, "size": len(data), "crc32c": crc32c(data), **changes}}


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        (b"x", {"file": "../../etc/passwd"}),
        (b"x", {"file": paths.commit_file(0)}),
        (b"x", {"size": 1 << 40}),
        (b"x", {"size": 0}),
        (b"not JSON\n", {}),
        (b"[]\n", {}),
        (b'{"add":{}}\n', {}),
        (b"[" * 100_000, {}),
        (b'{"drop":{}}\n' * 1_000_000, {}),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(storage: Storage, data: bytes, changes: dict[str, Any]) -> None:
    created = log_of(storage).create(1, CONFIG)
    forged(storage, created, actions=[naming(storage, data, **changes)])
    with pytest.raises(CorruptMetadataError, match="not a"):
        log_of(storage).load()


def test_a_manifest_that_names_a_manifest_is_refused(storage: Storage) -> None:
    created = log_of(storage).create(1, CONFIG)
    inner = json.dumps(naming(storage, b"x")).encode()
    forged(storage, created, actions=[naming(storage, inner)])
    with pytest.raises(CorruptMetadataError, match="names no manifest"):
        log_of(storage).load()


def test_a_library_without_manifests_stops_and_names_the_feature(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(storage)
    log.commit(log.create(1, CONFIG), "append", adding())
    monkeypatch.setattr("distlog.core.commits.actions.KNOWN", KNOWN - {MANIFEST})
    with pytest.raises(UnsupportedVersionError, match=MANIFEST):
        log.load()


def test_a_commit_that_is_too_large_even_for_a_manifest_is_not_made(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distlog.core.commits.commit_json.MAX_MANIFEST_BYTES", LIMIT)
    log = log_of(storage)
    created = log.create(1, CONFIG)
    with pytest.raises(CommitConflictError, match="do it in several"):
        log.commit(created, "append", adding())
    assert log.load() == created
    assert manifests(storage) == []


def run(storage: Any) -> None:
    """A topic with two large batches, by callers that ask again after each error."""
    log = log_of(storage, checkpoint_commits=2)

    def again(call: Callable[[], object]) -> None:
        try:
            call()
        except (CommitStateUnknownError, StorageError):
            again(call)

    for number in range(2):
        again(lambda number=number: log.commit(log.load(), "append", adding(batch=number)))


@pytest.mark.long
@pytest.mark.parametrize("before", [False, True], ids=["the operation was done", "the operation was not done"])
def test_a_lost_reply_at_any_step_changes_nothing(memory_url: Address, before: bool) -> None:
    probe = FaultyStorage(topic_storage(f"{memory_url.url}/probe"))
    log_of(probe).create(1, CONFIG)
    del probe.operations[:]
    run(probe)
    for step in range(len(probe.operations)):
        storage = topic_storage(f"{memory_url.url}/{step}")
        log_of(storage).create(1, CONFIG)
        run(FaultyStorage(storage, step, before=before))
        snapshot = log_of(storage).load()
        assert snapshot.partitions[0].log_end_offset == 2 * MANY, f"after a fault in {probe.operations[step]} {step}"
        assert [commit.operation for commit in log_of(storage).history()] == ["append", "append", "create"]
        assert list(verify_commits(storage, snapshot)) == []


def test_a_writer_makes_the_same_bytes_of_the_same_commit(storage: Storage) -> None:
    log = log_of(storage)
    created = log.create(1, CONFIG)
    commit, _ = log.commit(created, "append", adding())
    assert commit is not None
    writer = CommitWriter(storage, LIMIT)
    assert writer.encode(commit, 0, 0) == writer.encode(commit, 5, 0)
    assert writer.encode(commit, 5, 0) != writer.encode(commit, 5, 1)
    assert isinstance(writer.decode(writer.encode(commit, 5, 1), "a file"), Commit)
