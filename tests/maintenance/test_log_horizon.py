"""Old commits are deleted, and a stalled process never takes a deleted name as free."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from addresses import Address
from commits import put_commit
from histories import segment
from vacuuming import World

from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.commits.actions import (
    Action,
    Add,
    Drop,
    Remove,
    SetConfig,
    SetLogHorizon,
    SetLogStartOffset,
    SetVacuumHorizon,
)
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot, commits_kept_ms, least_retention_ms
from distlog.core.commits.snapshot_loader import SnapshotLoader
from distlog.core.config import COMMIT_RETENTION_MS, LEAST_COMMIT_RETENTION_MS, TopicConfig
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    StorageError,
    TopicExistsError,
)
from distlog.core.maintain.vacuum import VacuumReport, vacuum
from distlog.core.maintain.verify import verify_commits
from distlog.core.storage import local_files
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms

WEEK_MS = COMMIT_RETENTION_MS
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def few_versions_between_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlog.core.maintain.vacuum.KEPT_EVERY", 10)


#: For tests that depend on how a storage puts, lists or deletes; others use the two without requests.
ON_EVERY_STORAGE = pytest.mark.parametrize(
    "world", ["local", "memory", pytest.param("s3", marks=pytest.mark.s3)], indirect=True
)


@pytest.fixture(params=["local", "memory"])
def world(request: pytest.FixtureRequest, tmp_path: Any) -> World:
    if request.param == "local":
        return World(str(tmp_path / "clicks"))
    address: Address = request.getfixturevalue(f"{request.param}_url")
    return World(Storage(f"{address.url}/clicks", address.options))


def nothing(_: Snapshot) -> list[Action]:
    return [SetLogStartOffset(0, 0)]


def log_of(world: World) -> CommitLog:
    return world.log_on(world.storage, checkpoint_commits=5)


def commits(world: World, count: int, pause_ms: int = HOUR_MS) -> Snapshot:
    """Commit `count` times, one an hour, and return the newest snapshot."""
    log = log_of(world)
    snapshot = log.load()
    for _ in range(count):
        world.clock.now += pause_ms
        _, snapshot = put_commit(log, snapshot, "append", nothing)
    return snapshot


def old_topic(world: World, count: int = 40) -> Snapshot:
    """Return a topic with `count` commits older than a week, and one younger."""
    commits(world, count)
    world.clock.now += WEEK_MS
    return commits(world, 1)


def old_topic_without_checkpoints(world: World, log: CommitLog, count: int = 30) -> None:
    """As `old_topic`, with commits of a log that writes no checkpoint for them."""
    snapshot = log.load()
    for _ in range(count):
        world.clock.now += HOUR_MS
        _, snapshot = put_commit(log, snapshot, "append", nothing)
    world.clock.now += WEEK_MS
    put_commit(log, snapshot, "append", nothing)


def versions(world: World) -> list[int]:
    names = (file.name.rpartition("/")[2] for file in world.storage.list(paths.COMMITS_DIR))
    return sorted(version for name in names if (version := paths.parse_commit_file(name)) is not None)


def run(world: World, **options: Any) -> VacuumReport:
    return vacuum(world.storage, log_of(world), **options)


def requests(world: World, work: Callable[[], object]) -> tuple[int, int, int]:
    """Return the numbers of GETs, PUTs and listings during `work`."""
    counters = world.storage.counters
    initial = counters.gets, counters.puts, counters.lists
    work()
    gets, puts, lists = initial
    return counters.gets - gets, counters.puts - puts, counters.lists - lists


@ON_EVERY_STORAGE
def test_commits_older_than_a_week_are_deleted(world: World) -> None:
    initial = old_topic(world)
    report = run(world)
    after = log_of(world).load()
    assert report.log_floor == after.log_floor == 40
    assert versions(world) == list(range(40, after.version + 1))
    assert initial.version == 41
    assert after.partitions == initial.partitions
    assert [commit.version for commit in log_of(world).history()] == [42, 41, 40]
    assert list(verify_commits(world.storage, after)) == []
    assert log_of(world).load(version=40).version == 40
    assert run(world).files == ()


def test_a_dry_run_names_old_commits_and_deletes_nothing(world: World) -> None:
    old_topic(world)
    report = run(world, dry_run=True)
    named = [file.name for file in report.files if file.name.endswith(".json")]
    assert named == list(map(paths.commit_file, range(40)))
    assert versions(world) == list(range(42))


def test_an_older_version_or_time_is_refused_with_both_bounds(world: World) -> None:
    first_ms = world.log.load().timestamp_ms
    old_topic(world)
    run(world)
    log = log_of(world)
    for version in (0, 39):
        with pytest.raises(OffsetOutOfRangeError, match=r"starts at version 40.*version=\d+ log_floor=40 head=42"):
            log.load(version=version)
    with pytest.raises(OffsetOutOfRangeError, match="starts at version 40"):
        log.load(timestamp_ms=first_ms)
    assert log.load(timestamp_ms=log.load(version=41).timestamp_ms).version == 41
    with pytest.raises(OffsetOutOfRangeError, match="versions 40 to 42"):
        world.topic().restore(39)


def test_an_older_version_is_refused_if_vacuum_failed_to_delete_one_commit(world: World) -> None:
    old_topic(world)
    data = world.storage.read(paths.commit_file(20), 0, 1 << 20)
    run(world)
    # no checkpoint has the new horizon yet
    names = [file.name for file in world.storage.list(paths.COMMITS_DIR)]
    world.storage.delete([name for name in names if (paths.parse_checkpoint_file(name) or 0) > 40])
    world.storage.put(paths.commit_file(20), data)
    with pytest.raises(OffsetOutOfRangeError, match=r"starts at version 40.*version=30"):
        log_of(world).load(version=30)


def test_younger_commits_stay(world: World) -> None:
    commits(world, 40)
    world.clock.now += WEEK_MS - 20 * HOUR_MS
    commits(world, 1, 0)
    run(world)
    assert versions(world)[0] == 20
    world.clock.now += WEEK_MS
    commits(world, 20)
    run(world)
    assert versions(world)[0] == 40


def test_without_an_end_of_the_retention_all_commits_stay(world: World) -> None:
    _, _ = put_commit(
        world.log,
        world.log.load(),
        "config",
        lambda _: [SetConfig({"commit.retention.ms": "-1", "file.delete.delay.ms": "1"})],
    )
    old_topic(world)
    run(world)
    assert versions(world)[0] == 0


def test_a_lowered_retention_applies_after_the_former_one(world: World) -> None:
    commits(world, 40)
    short = {"commit.retention.ms": str(LEAST_COMMIT_RETENTION_MS), "file.delete.delay.ms": "1000"}
    _, lowered = put_commit(log_of(world), log_of(world).load(), "config", lambda _: [SetConfig(short)])
    assert (lowered.former_retention_ms, lowered.former_retention_version) == (WEEK_MS, 41)
    world.clock.now += WEEK_MS - 10 * HOUR_MS
    commits(world, 20)
    run(world)
    # a process without the change trusts its listings for half a week
    assert versions(world)[0] < 41
    world.clock.now += WEEK_MS
    commits(world, 20, 100)
    run(world)
    assert log_of(world).load().former_retention_ms == 0
    world.clock.now += 2 * LEAST_COMMIT_RETENTION_MS
    commits(world, 20, 100)
    run(world)
    assert versions(world)[0] >= 80


def test_a_retention_must_leave_room_for_the_delay_of_deletes() -> None:
    day = 86_400_000
    with pytest.raises(InvalidConfigError, match=r"at least 2 times file\.delete\.delay\.ms"):
        TopicConfig.parse({"commit.retention.ms": day})
    with pytest.raises(InvalidConfigError, match="at least 2 times"):
        TopicConfig.parse({"commit.retention.ms": 7 * day}).changed({"file.delete.delay.ms": 4 * day})
    with pytest.raises(InvalidConfigError, match="-1 or between 60000"):
        TopicConfig.parse({"commit.retention.ms": 1, "file.delete.delay.ms": 0})
    # a topic with only the delay set keeps its commits for longer
    assert commits_kept_ms(TopicConfig.parse({"file.delete.delay.ms": 30 * day})) == 60 * day
    assert commits_kept_ms(TopicConfig.parse({"commit.retention.ms": -1})) is None
    # other processes do not have the caller's default
    mine = TopicConfig().with_defaults({"commit.retention.ms": 30 * day})
    assert (least_retention_ms(mine), commits_kept_ms(mine)) == (7 * day, 30 * day)


def test_a_log_horizon_above_the_vacuum_horizon_is_refused(world: World) -> None:
    head = commits(world, 5)
    with pytest.raises(CommitConflictError, match="above the vacuum horizon"):
        put_commit(world.log, head, "gc", lambda _: [SetLogHorizon(3)])
    _, after = put_commit(world.log, head, "gc", lambda _: [SetVacuumHorizon(3), SetLogHorizon(3)])
    assert after.log_floor == 3


@ON_EVERY_STORAGE
def test_a_writer_that_stalled_in_its_put_commits_on_the_newest_head(world: World, monkeypatch: Any) -> None:
    stalled, log = commits(world, 12), log_of(world)
    real, puts = world.storage.put_if_absent, []

    def put(name: str, data: bytes, **options: Any) -> bytes:
        if not puts:
            monkeypatch.undo()
            monkeypatch.setattr("distlog.core.maintain.vacuum.KEPT_EVERY", 10)
            old_topic(world)
            run(world)
        puts.append(name)
        return real(name, data, **options)

    monkeypatch.setattr(world.storage, "put_if_absent", put)
    commit, after = put_commit(log, stalled, "append", nothing)
    assert commit is not None
    assert (puts[0], commit.version) == (paths.commit_file(13), 55)
    assert log_of(world).load() == after
    # the next vacuum deletes the file of the failed put
    assert 13 in versions(world)
    run(world)
    assert versions(world)[0] == 50


@ON_EVERY_STORAGE
def test_a_stalled_reader_reloads_the_topic(world: World) -> None:
    stalled = commits(world, 12)
    topic = world.topic()
    old_topic(world)
    run(world)
    assert log_of(world).refresh(stalled).version == 54
    assert topic.refresh().version == 54
    assert log_of(world).load(cached=stalled).version == 54


def test_a_hint_before_the_log_horizon_is_ignored(world: World) -> None:
    commits(world, 12)
    hint = world.storage.read(paths.LAST_CHECKPOINT)
    name = hint.decode()
    old, commit = (
        world.storage.read(name),
        world.storage.read(paths.commit_file(paths.parse_checkpoint_file(name) or 0)),
    )
    old_topic(world)
    run(world)
    for file, data in ((paths.LAST_CHECKPOINT, hint), (name, old)):
        world.storage.put(file, data)
    assert log_of(world).load().version == 54
    if not world.storage.is_local:
        world.storage.put(paths.commit_file(paths.parse_checkpoint_file(name) or 0), commit)
        assert log_of(world).load().version == 54


def test_creating_an_old_topic_fails(world: World, monkeypatch: Any) -> None:
    storage = world.storage.sibling("other")
    assert storage is not None
    other = World(storage)
    storage = other.storage
    storage.delete([file.name for file in storage.list(paths.COMMITS_DIR)])
    log, real = log_of(other), storage.put_if_absent

    def put(name: str, data: bytes, **options: Any) -> bytes:
        if name.endswith(".json"):
            monkeypatch.undo()
            monkeypatch.setattr("distlog.core.maintain.vacuum.KEPT_EVERY", 10)
            other.log.create(2, TopicConfig.parse({"file.delete.delay.ms": 1000}))
            old_topic(other)
            run(other)
        return real(name, data, **options)

    monkeypatch.setattr(storage, "put_if_absent", put)
    with pytest.raises(TopicExistsError, match="exists already"):
        log.create(1, TopicConfig())
    assert log_of(other).load().version == 42


def test_commits_and_refreshes_of_a_running_process_cost_no_more(memory_url: Address) -> None:
    world = World(Storage(f"{memory_url.url}/clicks"))
    log, snapshot = log_of(world), commits(world, 7)
    for _ in range(3):
        world.clock.now += WEEK_MS // 2 - 1
        assert requests(world, lambda: log.refresh(snapshot)) == (1, 0, 0)
    world.clock.now += WEEK_MS // 2 - 1
    assert requests(world, lambda: put_commit(log, snapshot, "append", nothing)) == (0, 1, 0)


def test_after_half_of_the_retention_a_refresh_costs_one_listing(memory_url: Address) -> None:
    world = World(Storage(f"{memory_url.url}/clicks"))
    log, snapshot = log_of(world), commits(world, 7)
    world.clock.now += WEEK_MS // 2
    assert requests(world, lambda: log.refresh(snapshot)) == (1, 0, 1)
    assert requests(world, lambda: log.refresh(snapshot)) == (1, 0, 0)
    world.clock.now += WEEK_MS // 2
    assert requests(world, lambda: put_commit(log, snapshot, "append", nothing)) == (0, 1, 1)


@pytest.mark.parametrize("error", [ValueError("too large"), StorageError("no reply")])
def test_without_a_sound_checkpoint_no_commit_is_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    old_topic(world, 15)

    def damaged(storage: Storage, snapshot: Snapshot, **_: Any) -> str:
        raise error

    monkeypatch.setattr(checkpoint, "write", damaged)
    for file in world.storage.list(paths.COMMITS_DIR):
        if paths.parse_checkpoint_file(file.name) is not None:
            world.storage.put(file.name, b"damaged")
    run(world)
    assert versions(world)[0] == 0
    assert log_of(world).load().log_floor == 0


def test_the_log_horizon_stays_below_a_damaged_checkpoint(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    log, put = world.log_on(world.storage, checkpoint_commits=1000), Storage.put
    old_topic_without_checkpoints(world, log)

    def damaged(self: Storage, name: str, data: bytes) -> None:
        end = len(data) // 2 if paths.parse_checkpoint_file(name) == 30 else len(data)
        put(self, name, data[:end] + bytes(byte ^ 1 for byte in data[end : end + 1]) + data[end + 1 :])

    monkeypatch.setattr(Storage, "put", damaged)
    vacuum(world.storage, log)
    assert log.load().log_floor == 0
    assert versions(world)[0] == 0


@ON_EVERY_STORAGE
def test_vacuum_writes_a_missing_checkpoint(world: World) -> None:
    old_topic_without_checkpoints(world, world.log)
    run(world)
    assert versions(world)[0] == log_of(world).load().log_floor == 30
    assert log_of(world).load(version=30).version == 30


def test_the_checkpoint_of_the_horizons_commit_is_written_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing is older than the checkpoint, and Google's store accepts one put of a name per second."""
    log = world.log_on(world.storage, checkpoint_commits=16)
    snapshot = log.load()
    for number in range(15):
        world.clock.now += HOUR_MS if number < 14 else WEEK_MS
        _, snapshot = put_commit(log, snapshot, "append", nothing)
    written, real = list[int](), checkpoint.write

    def write(storage: Storage, snapshot: Snapshot, **named: Any) -> str:
        written.append(snapshot.version)
        return real(storage, snapshot, **named)

    monkeypatch.setattr(checkpoint, "write", write)
    vacuum(world.storage, log)
    assert versions(world) == [14, 15, 16]
    assert written == [14, 16]


@ON_EVERY_STORAGE
def test_a_recreated_topic_continues_its_versions_and_horizon(world: World) -> None:
    old_topic(world)
    run(world)
    _, dropped = put_commit(log_of(world), log_of(world).load(), "drop", lambda _: [Drop()])
    world.clock.now += 2 * WEEK_MS
    run(world)
    created = log_of(world).create(2, TopicConfig.parse({"file.delete.delay.ms": 1000}))
    assert created.version > dropped.version
    assert created.log_floor == 40
    old_topic(world)
    run(world)
    after = log_of(world).load()
    assert after.log_floor > dropped.version
    assert versions(world)[0] == after.log_floor
    assert after.topic_id == created.topic_id


def test_the_log_horizon_avoids_checkpoints_that_another_run_may_delete(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stalled run deletes files by their listed names, also if they were written again."""
    if not world.storage.is_local:
        pytest.skip("one store is enough")
    monkeypatch.setattr("distlog.core.maintain.vacuum.MIN_STEP", 2)
    commits(world, 25)
    log = world.log_on(world.storage, checkpoint_commits=1000)
    old_topic_without_checkpoints(world, log, 20)
    # the first of ten versions is kept, and no run deletes it
    _, name = [checkpoint.write(world.storage, log.load(version), is_newest=False) for version in (41, 45)]
    run(world)
    assert log.load().log_floor == 44
    world.storage.delete([name])
    assert log.load(version=44).version == 44
    assert log.load(version=45).version == 45


def test_an_adopted_file_that_old_commits_removed_is_deleted(world: World) -> None:
    stem, log = "0" * 20, log_of(world)
    kafkas = segment(0, 0, stem=stem)
    snapshot = put_commit(log, log.load(), "import", lambda _: [Add(kafkas)])[1]
    put_commit(log, snapshot, "retention", lambda _: [SetLogStartOffset(0, kafkas.next_offset), Remove(0, stem)])
    name = paths.segment_file(snapshot.name, 0, stem, ".log")
    world.storage.put(name, b"a log")
    old_topic(world)
    assert run(world).log_floor > 2
    assert not any(file.name == name for file in world.storage.list(name.rpartition("/")[0]))


def test_on_a_network_disk_a_deleted_commit_is_not_written_again(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "known_local_disk", lambda root: False)
    storage = Storage(str(tmp_path / "clicks"))

    def a_log() -> CommitLog:
        return CommitLog(storage, clock=now_ms, random=Random(1), writer="a test")

    a_log().create(1, TopicConfig())
    stalled, plans = a_log(), list[int]()
    head, is_newest = stalled.load(), SnapshotLoader.is_newest

    def after_a_week(self: SnapshotLoader, base: Snapshot, version: int) -> bool:
        if not plans:
            plans.append(version)
            after = a_log().load()
            for _ in range(4):
                _, after = put_commit(a_log(), after, "append", nothing)
            raised = [SetVacuumHorizon(version + 3), SetLogHorizon(version + 3)]
            checkpoint.write(storage, put_commit(a_log(), after, "gc", lambda _: raised)[1])
            storage.delete([paths.commit_file(number) for number in range(version + 3)])
            monkeypatch.setattr(Storage, "now_ms", lambda self, folder: now_ms() + 2 * WEEK_MS)
        return is_newest(self, base, version)

    monkeypatch.setattr(SnapshotLoader, "is_newest", after_a_week)
    with pytest.raises(CommitStateUnknownError, match="was paused"):
        put_commit(stalled, head, "append", nothing)
