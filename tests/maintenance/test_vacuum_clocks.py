"""Vacuum uses the storage's clock: other clocks and commit times do not stop it or make it delete early."""

from __future__ import annotations

from pathlib import Path

import pytest
from commits import put_commit
from topics import NOW, Clock, contents, values
from two_clocks import TwoClocks, poison
from vacuuming import DELAY

from distlog.core import paths
from distlog.core.commits.actions import Action, Remove, SetLogStartOffset
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import DAY_MS
from distlog.core.maintain.vacuum import CommitsFolder
from distlog.core.storage.storage import FileInfo, Storage


@pytest.fixture
def world(tmp_path: Path) -> TwoClocks:
    return TwoClocks(Storage(tmp_path / "log"))


def test_a_vacuum_with_a_clock_ahead_waits_for_the_delay(tmp_path: Path) -> None:
    world = TwoClocks(Storage(tmp_path / "log"), retention_ms=0, file_delete_delay_ms=DELAY)
    world.good.append(values([1]))
    held = world.by(world.store)
    world.store.now_ms += 10
    world.good.retention()
    for clock in (world.bad, Clock(0)):
        world.by(clock).vacuum()
        assert contents(held) == {0: [b"v1"]}
    world.store.now_ms += DELAY
    assert world.by(Clock(0)).vacuum().files != (), "a late clock does not stop it"


def test_commits_ahead_in_the_log_do_not_stop_vacuum(world: TwoClocks, monkeypatch: pytest.MonkeyPatch) -> None:
    world.good.alter_config({"retention.ms": 0, "file.delete.delay.ms": DELAY})
    poison(world, monkeypatch)
    world.store.now_ms += 10
    world.by(world.store).append(values([2]))
    with_segments = world.by(world.store)
    removed = with_segments.snapshot
    put_commit(with_segments.log, removed, "retention", remove_everything)
    world.store.now_ms += DELAY
    report = world.by(world.store).vacuum()
    assert report.gc_floor == removed.version + 1
    assert report.files != ()


def remove_everything(current: Snapshot) -> list[Action]:
    state = current.partitions[0]
    removals = (Remove(0, segment.stem) for segment in state.segments)
    return [*removals, SetLogStartOffset(0, state.log_end_offset)]


def test_a_late_clock_does_not_make_vacuum_delete_early(tmp_path: Path) -> None:
    """A compaction whose clock is two days late, so that its commit looks old."""
    world = TwoClocks(Storage(tmp_path / "log"), file_delete_delay_ms=DELAY)
    for number in range(2):
        world.good.append(values([number]))
    held = world.by(world.store)
    world.store.now_ms += 2 * DAY_MS
    world.by(Clock(NOW)).compact()
    world.by(world.store).vacuum()
    assert contents(held) == {0: [b"v0", b"v1"]}


def commits(*times: int) -> list[FileInfo]:
    return [FileInfo(paths.commit_file(version), 1, time) for version, time in enumerate(times)]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((10, 20, 30), 1),
        ((10, 20, 21), 1),
        ((21, 30), None),
        ((), None),
        ((10, 99, 20, 30), 2),
        ((10, 99, 30), 0),
        ((10, 99), 0),
        ((99, 99), None),
        ((10, 30, 5), 0),
        ((10, 30, 99, 5, 40), 0),
    ],
)
def test_the_head_of_a_time_with_any_commit_times(times: tuple[int, ...], expected: int | None) -> None:
    """Commits ahead of the storage's time are ignored."""
    assert CommitsFolder.of(commits(*times)[::-1]).head_at(20, 50) == expected
