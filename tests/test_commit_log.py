"""The commit log: what it finds, what it adds, and what it refuses."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Address
from crc32c import crc32c
from histories import Clock, appending, commit_log, segment, topic_storage

from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.commits import commit_log as commit_log_module
from distlog.core.commits.actions import Action, Add, Drop, GcFloor, Remove, SetConfig, SetLogStartOffset, Transaction
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptMetadataError,
    InvalidConfigError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    StorageError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionTooOldError,
    UnsupportedVersionError,
)
from distlog.core.storage.storage import Storage

CONFIG = TopicConfig.parse({"retention.ms": "5000"})


@pytest.fixture
def storage(memory_url: Address) -> Storage:
    return topic_storage(memory_url.url)


@pytest.fixture
def log(storage: Storage) -> CommitLog:
    return commit_log(storage)


def append(log: CommitLog, snapshot: Snapshot, times: int = 1, **options: Any) -> Snapshot:
    """The snapshot after so many appends."""
    for _ in range(times):
        _, snapshot = log.commit(snapshot, "append", appending(**options))
    return snapshot


def requests(storage: Storage, call: Callable[[], object]) -> tuple[int, int, int]:
    """How many reads, writes and listings `call` needs."""
    before = storage.counters.gets, storage.counters.puts, storage.counters.lists
    call()
    after = storage.counters.gets, storage.counters.puts, storage.counters.lists
    return tuple(end - start for start, end in zip(before, after, strict=True))


def forged(storage: Storage, snapshot: Snapshot, **changes: Any) -> bytes:
    """A commit that follows `snapshot`, as only another library would write it."""
    body = {
        "format": 1,
        "version": snapshot.version + 1,
        "id": "12345678-1234-1234-1234-123456789abc",
        "prev": snapshot.commit_id,
        "topic_id": snapshot.topic_id,
        "timestamp_ms": snapshot.timestamp_ms + 1,
        "operation": "append",
        "writer": "another library",
        "actions": [],
        **changes,
    }
    text = json.dumps(body, separators=(",", ":"))[:-1].encode()
    data = text + b',"crc32c":%d}\n' % crc32c(text)
    storage.put(paths.commit_file(snapshot.version + 1), data)
    return data


# Creating and loading


def test_a_created_topic_is_what_is_loaded(storage: Storage, log: CommitLog) -> None:
    created = log.create(3, CONFIG)
    assert (created.version, created.name, len(created.partitions), created.config) == (0, "clicks", 3, CONFIG)
    assert commit_log(storage).load() == created


def test_where_there_is_no_topic_none_is_found(storage: Storage, log: CommitLog) -> None:
    for call in (log.load, log.history, lambda: log.load(version=0), lambda: log.load(timestamp_ms=0)):
        with pytest.raises(TopicNotFoundError, match="clicks"):
            call()


def test_a_topic_is_created_once(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    with pytest.raises(TopicExistsError):
        commit_log(storage).create(2, CONFIG)
    assert log.load() == created


def test_of_two_that_create_at_once_one_is_told(storage: Storage) -> None:
    first, second = commit_log(storage), commit_log(storage)
    first._storage = RunsFirst(storage, "put_if_absent", lambda: second.create(2, CONFIG))
    with pytest.raises(TopicExistsError):
        first.create(1, CONFIG)
    assert len(first.load().partitions) == 2


def test_a_topic_is_named_as_its_folder(memory_url: Address) -> None:
    with pytest.raises(InvalidTopicError):
        commit_log(Storage(f"{memory_url.url}/not a topic")).create(1, CONFIG)


@pytest.mark.parametrize("partitions", [0, -1, 10**9])
def test_a_number_of_partitions_out_of_range_creates_nothing(log: CommitLog, partitions: int) -> None:
    with pytest.raises(InvalidConfigError, match="partitions"):
        log.create(partitions, CONFIG)
    with pytest.raises(TopicNotFoundError):
        log.load()


def test_a_storage_that_ignores_the_condition_is_refused(storage: Storage) -> None:
    def overwrite(name: str, data: bytes, **_: Any) -> bytes:
        storage.put(name, data)
        return data

    storage.put_if_absent = overwrite
    with pytest.raises(StorageError, match="condition"):
        commit_log(storage).create(1, CONFIG)
    assert not storage.list(paths.COMMITS_DIR)


# Requests


def test_a_refresh_with_nothing_new_is_one_request(storage: Storage, log: CommitLog) -> None:
    snapshot = append(log, log.create(1, CONFIG), 5)
    assert requests(storage, lambda: log.refresh(snapshot)) == (1, 0, 0)


def test_a_commit_on_a_fresh_snapshot_is_one_put(storage: Storage, log: CommitLog) -> None:
    snapshot = log.create(1, CONFIG)
    assert requests(storage, lambda: append(log, snapshot)) == (0, 1, 0)


def test_a_lost_race_costs_one_put_and_the_winner_is_read_once(storage: Storage, log: CommitLog) -> None:
    snapshot = log.create(1, CONFIG)
    append(commit_log(storage), snapshot)
    # The winner's bytes by put_if_absent, the next version to see that there is none.
    assert requests(storage, lambda: append(log, snapshot)) == (2, 2, 0)


def test_opening_reads_the_hint_the_checkpoint_and_one_group_of_commits(storage: Storage) -> None:
    log = commit_log(storage, checkpoint_commits=10)
    append(log, log.create(1, CONFIG), 11)
    assert requests(storage, log.load) == (2 + 4, 0, 0)


def test_a_young_topic_is_opened_with_one_listing(storage: Storage, log: CommitLog) -> None:
    append(log, log.create(1, CONFIG), 2)
    assert requests(storage, log.load) == (1 + 5, 0, 1)


def test_groups_grow_when_there_is_much_to_catch_up(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    head = append(log, created, 90)
    assert requests(storage, lambda: log.refresh(created)) == (1 + 4 + 16 + 64 + 64, 0, 0)
    assert log.refresh(created) == head == log.load()


# Checkpoints


def checkpoints(storage: Storage) -> list[int]:
    versions = (checkpoint.version_of(file.name) for file in storage.list(paths.COMMITS_DIR))
    return sorted(version for version in versions if version is not None)


def names(storage: Storage) -> list[str]:
    found = (file.name for file in storage.list(paths.COMMITS_DIR))
    return sorted(name for name in found if checkpoint.version_of(name) is not None)


@pytest.fixture
def old(storage: Storage) -> Snapshot:
    """The head of a topic with 25 commits and checkpoints at 10 and 20."""
    log = commit_log(storage, checkpoint_commits=10)
    snapshot = append(log, log.create(2, CONFIG), 25, batch=None)
    assert checkpoints(storage) == [10, 20]
    return snapshot


def test_a_checkpoint_is_written_every_so_many_commits_by_whoever_is_there(storage: Storage) -> None:
    logs = [commit_log(storage, checkpoint_commits=5) for _ in range(3)]
    snapshot = logs[0].create(1, CONFIG)
    for log in itertools.islice(itertools.cycle(logs), 14):
        snapshot = append(log, log.refresh(snapshot))
    assert checkpoints(storage) == [5, 10]


def test_a_checkpoint_is_written_after_so_many_bytes(
    storage: Storage, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = log.create(1, CONFIG)
    monkeypatch.setattr(commit_log_module, "CHECKPOINT_BYTES", snapshot.commit_bytes + 3000)
    while not checkpoints(storage):
        snapshot = append(log, snapshot)
    assert snapshot.commit_bytes // (snapshot.commit_bytes - 1) >= 1
    assert 2 <= snapshot.version <= 6
    assert log.load() == snapshot


def test_a_checkpoint_that_fails_does_not_fail_the_commit(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    log = commit_log(storage, checkpoint_commits=2)
    monkeypatch.setattr(storage, "put", lambda *_: raise_(StorageError("full")))
    snapshot = append(log, log.create(1, CONFIG), 5)
    assert checkpoints(storage) == []
    assert log.load() == snapshot


def test_without_any_checkpoint_the_commits_tell(storage: Storage, old: Snapshot) -> None:
    storage.delete([*names(storage), paths.LAST_CHECKPOINT])
    assert commit_log(storage).load() == old


@pytest.mark.parametrize("hint", [b"", b"garbage", b"../x", paths.checkpoint_file(20, "0" * 32).encode()])
def test_a_hint_that_helps_nobody_is_replaced_by_a_listing(storage: Storage, old: Snapshot, hint: bytes) -> None:
    storage.put(paths.LAST_CHECKPOINT, hint)
    assert commit_log(storage).load() == old
    reads, _, lists = requests(storage, commit_log(storage).load)
    assert lists == 1
    assert reads < 12, "the newest checkpoint was used"


def test_an_old_hint_only_costs_time(storage: Storage, old: Snapshot) -> None:
    storage.put(paths.LAST_CHECKPOINT, names(storage)[0].encode())
    assert commit_log(storage).load() == old


def test_a_missing_checkpoint_is_replaced_by_the_one_before_or_by_the_commits(
    storage: Storage, old: Snapshot
) -> None:
    for name in reversed(names(storage)):
        storage.delete([name])
        assert commit_log(storage).load() == old


def test_whichever_byte_of_a_checkpoint_flips_the_state_is_the_same(storage: Storage, old: Snapshot) -> None:
    newest = names(storage)[-1]
    data = storage.read(newest)
    for position in range(0, len(data), 131):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        storage.put(newest, bytes(flipped))
        assert commit_log(storage).load() == old


def test_the_checkpoint_before_a_wrong_one_saves_reading_all_commits(storage: Storage, old: Snapshot) -> None:
    storage.put(names(storage)[-1], b"PAR1")
    reads, _, _ = requests(storage, commit_log(storage).load)
    assert reads < 25


def test_all_checkpoints_wrong_is_no_harm(storage: Storage, old: Snapshot) -> None:
    for name in names(storage):
        storage.put(name, b"PAR1")
    assert commit_log(storage).load() == old


def test_a_sound_checkpoint_of_another_topic_is_not_believed(
    storage: Storage, old: Snapshot, memory_url: Address
) -> None:
    other = commit_log(Storage(f"{memory_url.url}/other/clicks"))
    foreign = append(other, other.create(2, CONFIG), 22)
    assert checkpoint.write(storage, foreign)
    assert commit_log(storage).load() == old
    assert checkpoint.write(storage, append(other, foreign, 3)), "of the same version as the head"
    assert commit_log(storage).load() == old


def test_opening_a_large_topic_makes_no_object_per_segment(
    storage: Storage, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_many(snapshot: Snapshot) -> list[Action]:
        return [Add(segment(0, base, 1)) for base in range(2_000)]

    _, snapshot = log.commit(log.create(1, CONFIG), "append", add_many)
    snapshot = append(commit_log(storage, checkpoint_commits=1), snapshot)
    made = 0
    make = SegmentInfo.__init__

    def counted(*args: Any, **facts: Any) -> None:
        nonlocal made
        made += 1
        make(*args, **facts)

    monkeypatch.setattr(SegmentInfo, "__init__", counted)
    loaded = log.load()
    assert made == 1, "the checkpoint's own commit is read, to see that it belongs here"
    append(log, loaded)
    assert made < 10
    monkeypatch.undo()
    assert len(loaded.partitions[0].segments) == 2_001


# Holes and strangers


def test_a_hole_is_an_error_wherever_it_is(storage: Storage, log: CommitLog) -> None:
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
def test_a_hole_after_the_checkpoint_is_an_error(storage: Storage, old: Snapshot, version: int) -> None:
    storage.delete([paths.commit_file(version)])
    with pytest.raises(CorruptMetadataError, match=f"{version:020d}"):
        commit_log(storage).load()


def test_commits_that_are_gone_at_the_end_are_missed_if_a_checkpoint_saw_them(
    storage: Storage, old: Snapshot
) -> None:
    storage.delete([paths.commit_file(version) for version in range(20, 26)])
    with pytest.raises(CorruptMetadataError, match=f"{20:020d}"):
        commit_log(storage).load()


def test_a_wide_hole_at_the_beginning_is_an_error(storage: Storage, log: CommitLog) -> None:
    append(log, log.create(1, CONFIG), 9)
    storage.delete([paths.commit_file(version) for version in range(7)])
    with pytest.raises(CorruptMetadataError, match=f"{0:020d}"):
        log.load()


def test_files_that_are_no_commits_are_no_topic(storage: Storage, log: CommitLog) -> None:
    for name in (".0123.tmp", ".probe-0123", "7.json", "0" * 21 + ".json", "x"):
        storage.put(f"{paths.COMMITS_DIR}/{name}", b"x")
    with pytest.raises(TopicNotFoundError):
        log.load()
    assert log.create(1, CONFIG) == log.load()


def test_a_hole_below_the_checkpoint_is_no_harm_to_readers(storage: Storage, old: Snapshot) -> None:
    storage.delete([paths.commit_file(3)])
    assert commit_log(storage).load() == old


def test_a_commit_that_is_written_while_the_head_is_looked_for_is_no_hole(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    head = append(log, created, 4)
    missed = paths.commit_file(3)
    late = MissesOnce(storage, missed)
    assert commit_log(late).refresh(created) == head
    assert late.missed
    assert commit_log(MissesOnce(storage, missed)).load() == head


def test_a_commit_that_cannot_be_read_stops_readers_and_writers(storage: Storage, log: CommitLog) -> None:
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


def test_a_newer_format_stops_everybody(storage: Storage, log: CommitLog) -> None:
    snapshot = log.create(1, CONFIG)
    storage.put(paths.commit_file(1), b'{"format":2,"everything":"else"}')
    for call in (log.load, lambda: log.refresh(snapshot), lambda: append(log, snapshot)):
        with pytest.raises(UnsupportedVersionError, match="upgrade"):
            call()


def test_an_unknown_action_stops_everybody(storage: Storage, log: CommitLog) -> None:
    snapshot = log.create(1, CONFIG)
    forged(storage, snapshot, actions=[{"shuffle": {}}])
    for call in (log.load, lambda: log.refresh(snapshot), lambda: append(log, snapshot)):
        with pytest.raises(UnsupportedVersionError, match="shuffle"):
            call()


def test_an_unknown_action_that_is_safe_for_readers_stops_writers_only(storage: Storage, log: CommitLog) -> None:
    snapshot = log.create(1, CONFIG)
    forged(storage, snapshot, actions=[{"bloom_filter": {"reader_safe": True}}])
    loaded = log.load()
    assert loaded.version == 1
    assert log.refresh(snapshot) == loaded
    for stale in (loaded, snapshot):
        with pytest.raises(UnsupportedVersionError, match="bloom_filter"):
            append(log, stale)
    assert log.load() == loaded


# Committing


def test_a_commit_says_what_was_done_by_whom_and_when(storage: Storage) -> None:
    log = commit_log(storage, Clock(5_000), writer="distlog 1.0 somewhere")
    commit, snapshot = log.commit(log.create(1, CONFIG), "append", appending())
    assert commit is not None
    assert (commit.version, commit.operation, commit.writer) == (1, "append", "distlog 1.0 somewhere")
    assert (snapshot.version, snapshot.commit_id, snapshot.timestamp_ms) == (1, commit.id, 5_001)
    assert log.load() == snapshot


def test_a_plan_with_nothing_to_do_commits_nothing(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    assert requests(storage, lambda: log.commit(created, "append", lambda snapshot: None)) == (0, 0, 0)
    assert log.commit(created, "append", lambda snapshot: None) == (None, created)


def test_who_loses_a_race_plans_again_on_what_won(storage: Storage, log: CommitLog) -> None:
    created = log.create(2, CONFIG)
    append(commit_log(storage), created, 3, count=7)
    seen = []

    def plan(snapshot: Snapshot) -> list[Action] | None:
        seen.append(snapshot.version)
        return appending(0, 5)(snapshot)

    commit, snapshot = log.commit(created, "append", plan)
    assert seen == [0, 3]
    assert commit is not None
    assert commit.version == 4
    assert [(info.base_offset, info.next_offset) for info in snapshot.partitions[0].segments] == [
        (0, 7), (7, 14), (14, 21), (21, 26),
    ]  # fmt: skip
    assert log.load() == snapshot


def test_a_plan_that_is_no_longer_applicable_says_so_after_a_lost_race(storage: Storage, log: CommitLog) -> None:
    snapshot = append(log, log.create(1, CONFIG), 2)
    oldest = snapshot.partitions[0].segments[0]

    def compact(current: Snapshot) -> list[Action]:
        if not current.partitions[0].segments.live([oldest.stem]):
            raise CommitConflictError("an input was removed")
        return [Remove(0, oldest.stem), Add(segment(0, 0, 10))]

    commit_log(storage).commit(
        snapshot, "retention", lambda current: [Remove(0, oldest.stem), SetLogStartOffset(0, 10)]
    )
    with pytest.raises(CommitConflictError, match="an input was removed"):
        log.commit(snapshot, "compact", compact)
    assert log.load().version == 3


def test_a_plan_that_breaks_an_invariant_is_never_written(storage: Storage, log: CommitLog) -> None:
    snapshot = log.create(1, CONFIG)
    wrong: list[Action]
    for wrong in (
        [Add(segment(0, 5))],
        [Remove(0, segment().stem)],
        [SetConfig({"x": "y"})],
        [Transaction("", 1, {})],
    ):
        with pytest.raises(CommitConflictError, match="nothing was committed"):
            log.commit(snapshot, "append", lambda current, wrong=wrong: wrong)
    assert log.load() == snapshot


def test_a_batch_is_committed_once_however_often_it_is_tried(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    first, snapshot = log.commit(created, "append", appending(batch=("app", 7)))
    assert first is not None
    for stale in (created, snapshot):
        again, head = commit_log(storage).commit(stale, "append", appending(batch=("app", 7)))
        assert again is None
        found = head.transaction("app", 7)
        assert found is not None
        assert (found.version, found.offsets) == (first.version, {0: (0, 10)})
    assert log.load() == snapshot


def test_settings_that_two_change_at_once_are_both_kept(storage: Storage, log: CommitLog) -> None:
    def setting(**settings: str) -> Callable[[Snapshot], list[Action]]:
        changes = {name.replace("_", "."): value for name, value in settings.items()}
        return lambda snapshot: [SetConfig(snapshot.config.changed(changes).overrides())]

    created = log.create(1, TopicConfig())
    log.commit(created, "config", setting(retention_ms="1"))
    commit_log(storage).commit(created, "config", setting(segment_ms="2"))
    assert log.load().config.overrides() == {"retention.ms": "1", "segment.ms": "2"}


def test_files_begun_below_the_gc_floor_must_be_written_again(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    _, floor = log.commit(append(log, created, 2), "gc", lambda snapshot: [GcFloor(2)])
    for stale in (created, floor):
        with pytest.raises(TransactionTooOldError, match=r"write them again.*begin=0 gc_floor=2"):
            log.commit(stale, "append", appending())
        with pytest.raises(TransactionTooOldError):
            log.commit(stale, "append", lambda snapshot: [], begin=1)
    assert log.load() == floor
    log.commit(floor, "append", lambda snapshot: [Add(segment(0, 20, begin=2))], begin=2)


def test_a_segment_may_be_replaced_in_place_below_the_gc_floor(log: CommitLog) -> None:
    _, floor = log.commit(append(log, log.create(1, CONFIG), 2), "gc", lambda snapshot: [GcFloor(2)])
    info = floor.partitions[0].segments[0]
    commit, _ = log.commit(floor, "rebuild", lambda snapshot: [Remove(0, info.stem), Add(info)])
    assert commit is not None


def test_an_unknown_outcome_is_passed_on(storage: Storage, log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    created = log.create(1, CONFIG)
    monkeypatch.setattr(storage, "put_if_absent", lambda *_, **__: raise_(CommitStateUnknownError("who knows")))
    with pytest.raises(CommitStateUnknownError):
        append(log, created)


def test_the_deadline_ends_a_race_that_is_never_won(storage: Storage) -> None:
    now = itertools.count(0.0, 10.0)
    pauses: list[float] = []
    log = commit_log(storage, monotonic=lambda: next(now), sleep=pauses.append)
    rival = commit_log(storage)
    created = rival.create(1, CONFIG)

    def plan(snapshot: Snapshot) -> list[Action] | None:
        append(rival, snapshot)
        return appending()(snapshot)

    with pytest.raises(CommitConflictError, match="deadline"):
        log.commit(created, "append", plan, timeout_s=100)
    assert log.load().version == len(pauses) + 1
    assert 2 <= len(pauses) <= 10
    assert all(0 <= pause <= 0.05 for pause in pauses)
    assert len(set(pauses)) > 1


def test_maintenance_lets_appends_go_first(storage: Storage) -> None:
    pauses: list[float] = []
    log = commit_log(storage, sleep=pauses.append)
    created = log.create(1, CONFIG)
    for rival in range(20):
        append(commit_log(storage), created)
        log.commit(created, "compact", lambda snapshot: [])
        assert len(pauses) == rival + 1
    assert max(pauses) > 0.3


def test_time_goes_forward_though_the_clock_goes_back(storage: Storage) -> None:
    clock = Clock(10_000)
    log = commit_log(storage, clock)
    snapshot = log.create(1, CONFIG)
    times = [snapshot.timestamp_ms]
    for now_ms in (10_500, 10_500, 3_000, 10_501, 20_000):
        clock.now_ms = now_ms
        snapshot = append(log, snapshot)
        times.append(snapshot.timestamp_ms)
    assert times == [10_000, 10_500, 10_501, 10_502, 10_503, 20_000]


# Time travel and history


def test_every_version_can_be_loaded(storage: Storage, old: Snapshot) -> None:
    log = commit_log(storage)
    for version in range(26):
        assert log.load(version=version).version == version
        assert len(log.load(version=version).partitions[0].segments) == version
    assert log.load(version=25) == old


@pytest.mark.parametrize("version", [-1, 26, 10**12])
def test_a_version_that_does_not_exist_is_out_of_range(storage: Storage, old: Snapshot, version: int) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=rf"version={version}"):
        commit_log(storage).load(version=version)


def test_a_time_gives_the_newest_commit_that_is_not_after_it(storage: Storage) -> None:
    clock = Clock(1_000)
    log = commit_log(storage, clock, checkpoint_commits=3)
    snapshot = log.create(1, CONFIG)
    for clock.now_ms in range(2_000, 9_000, 1_000):
        snapshot = append(log, snapshot)
    for timestamp_ms, version in [(1_000, 0), (1_999, 0), (2_000, 1), (7_999, 6), (8_000, 7), (10**15, 7)]:
        assert log.load(timestamp_ms=timestamp_ms).version == version
    with pytest.raises(OffsetOutOfRangeError, match="timestamp_ms=999"):
        log.load(timestamp_ms=999)


def test_history_is_newest_first(storage: Storage, old: Snapshot) -> None:
    log = commit_log(storage)
    assert [commit.version for commit in log.history()] == list(range(25, -1, -1))
    assert [commit.version for commit in log.history(limit=3)] == [25, 24, 23]
    assert [commit.version for commit in log.history(limit=100)] == list(range(25, -1, -1))
    assert log.history(limit=1)[0].id == old.commit_id


def test_history_does_not_hide_that_a_commit_was_replaced(storage: Storage, old: Snapshot) -> None:
    before = commit_log(storage).load(version=2)
    forged(storage, before)
    log = commit_log(storage)
    assert log.load() == old
    assert len(log.history(limit=20)) == 20
    with pytest.raises(CorruptMetadataError, match="version=4"):
        log.history()


# Drop and create again


def drop(log: CommitLog, snapshot: Snapshot) -> Snapshot:
    return log.commit(snapshot, "drop", lambda current: [Drop()])[1]


def test_a_dropped_topic_is_not_found(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    dropped = drop(log, append(log, created))
    with pytest.raises(TopicNotFoundError):
        log.load()
    with pytest.raises(TopicNotFoundError):
        log.refresh(created)
    assert log.load(include_dropped=True) == dropped
    assert log.load(version=1).version == 1
    assert [commit.operation for commit in log.history()] == ["drop", "append", "create"]


def test_a_topic_that_is_created_again_goes_on_counting_versions(storage: Storage, log: CommitLog) -> None:
    first = log.create(2, CONFIG)
    drop(log, append(log, first))
    second = log.create(1, TopicConfig())
    assert second.version == 3
    assert second.topic_id != first.topic_id
    assert (len(second.partitions), second.partitions[0].log_end_offset) == (1, 0)
    assert log.load() == second
    assert log.load(version=1).topic_id == first.topic_id


def test_an_old_writer_cannot_write_into_the_new_topic(storage: Storage, log: CommitLog) -> None:
    old_writer = commit_log(storage)
    old_snapshot = append(old_writer, log.create(1, CONFIG))
    drop(log, log.load())
    with pytest.raises(CommitConflictError, match="dropped"):
        append(old_writer, old_snapshot)
    created = log.create(1, CONFIG)
    with pytest.raises(CommitConflictError, match="dropped"):
        append(old_writer, old_snapshot)
    with pytest.raises(TopicNotFoundError, match="dropped"):
        old_writer.refresh(old_snapshot)
    assert log.load() == created


def test_two_drops_are_one(storage: Storage, log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    drop(commit_log(storage), created)
    with pytest.raises(CommitConflictError, match="dropped"):
        drop(log, created)


def test_the_files_of_a_dropped_topic_can_be_collected(storage: Storage, log: CommitLog) -> None:
    dropped = drop(log, append(log, log.create(1, CONFIG)))
    _, collected = log.commit(dropped, "gc", lambda snapshot: [GcFloor(2)])
    assert (collected.gc_floor, collected.dropped) == (2, True)
    with pytest.raises(CommitConflictError, match="dropped"):
        log.commit(collected, "append", lambda snapshot: [Add(segment(0, 0, begin=3))])


# Storages that misbehave


class RunsFirst:
    """A storage where something else happens before the first call of one method."""

    def __init__(self, storage: Storage, method: str, event: Callable[[], object]) -> None:
        self._storage, self._method, self._event = storage, method, event

    def __getattr__(self, name: str) -> Any:
        if name == self._method and self._event:
            event, self._event = self._event, None
            event()
        return getattr(self._storage, name)


class MissesOnce:
    """A storage that does not have one file at the first look, as if it was written right after."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self.missed = False

    def read(self, name: str) -> bytes:
        if name == self._name and not self.missed:
            self.missed = True
            raise FileNotFoundError(name)
        return self._storage.read(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


def raise_(error: Exception) -> None:
    raise error
