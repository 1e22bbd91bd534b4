"""A process ends before each step of each story, or the machine does: what was promised is there, once, in order.

The steps are all calls that change a file, a folder or the page of the lock. After each end three processes go on: a
new one, one that was there all the time and knows less, and a reader. The suite leaves out some of the steps, and
`make soak` none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from partition_logs import Killed, Killer, Process, append, commit_sealed, encoded, new_topic
from power_loss import Disk
from power_loss import Killed as DiskKilled
from searches import stride
from topics import NOW

from distlog.core import paths
from distlog.core.errors import StorageError
from distlog.core.storage import durable_files

pytestmark = pytest.mark.long

FULL = 200


def opening(process: Process) -> None:
    append(process[0], b"new")


def rolling(process: Process) -> None:
    # two batches of these are a full segment
    append(process[0], b"new")


def sealing(process: Process) -> None:
    commit_sealed(process)


def flushing(process: Process) -> None:
    append(process[0], b"new")
    process[0].flush()


def giving_up(process: Process) -> None:
    append(process[0], b"new")
    give_up(process)


def give_up(process: Process) -> None:
    with process.holding(0) as active:
        active.recover()
        active.give_up()


#: By name: how many records are there before, and what is done then.
STORIES: dict[str, tuple[int, Callable[[Process], None]]] = {
    "open": (0, opening),
    "append": (1, opening),
    "roll": (2, rolling),
    "append behind a roll": (3, opening),
    "seal": (1, sealing),
    "seal a full one": (4, sealing),
    "flush": (1, flushing),
    "a sync that failed": (1, giving_up),
}


def prepared(folder: Path, count: int) -> tuple[Process, list[bytes]]:
    """A topic with as many records, all flushed, and the process that appended them."""
    process = Process(new_topic(folder, internal_segment_bytes=FULL))
    values = [b"%d" % number for number in range(count)]
    for value in values:
        append(process[0], value)
    process[0].flush()
    return process, values


def check(seen: list[bytes | None], before: list[bytes], *after: bytes) -> None:
    """Everything that was there before, the new record or not, and what came after."""
    assert seen in ([*before, *after], [*before, b"new", *after])


def end_before(killer: Killer, folder: Path, story: Callable[[Process], None], step: int) -> bool:
    """Whether the process ended before that step, rather than finish."""
    process = Process(folder)
    try:
        with killer.killing(step):
            story(process)
    except Killed:
        return True
    finally:
        process.close()
    return False


@pytest.mark.parametrize("name", STORIES)
def test_a_process_that_ends_before_any_step_leaves_what_others_go_on_with(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (count, story), killer, step = STORIES[name], Killer(monkeypatch), 0
    while True:
        folder = tmp_path / str(step) / "events"
        living, before = prepared(folder, count)
        if not end_before(killer, folder, story, step):
            break
        check(Process(folder).seen()[0], before)
        other = Process(folder)
        append(other[0], b"after")
        check(other.seen()[0], before, b"after")
        append(living[0], b"at last")
        check(living.seen()[0], before, b"after", b"at last")
        other[0].roll()
        check(living.seen()[0], before, b"after", b"at last")
        assert living.anomalies() == ()
        step += stride(2)
    assert {"pwrite", "page"} <= set(killer.steps) or name.startswith("seal")
    assert step > 2


def test_who_waits_for_what_a_failed_sync_lost_is_told_wherever_the_process_that_synced_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer, step, is_over = Killer(monkeypatch), 0, False
    while not is_over:
        folder = tmp_path / str(step) / "events"
        waiting, before = prepared(folder, 1)
        appended = waiting[0].append(*encoded(b"new"))
        is_over = not end_before(killer, folder, give_up, step)
        append(Process(folder)[0], b"after")
        if waiting.seen()[0] == [*before, b"after"]:
            with pytest.raises(StorageError, match="lost"):
                waiting[0].flush(appended)
        else:
            # it ended before it could say that its sync had failed
            waiting[0].flush(appended)
            check(waiting.seen()[0], before, b"after")
        step += 1
    assert step > 8


@pytest.mark.parametrize("name", ["append", "roll", "seal"])
def test_who_appended_last_goes_on_behind_what_another_process_left(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (count, story), killer, step = STORIES[name], Killer(monkeypatch), 0
    is_over = False
    while not is_over:
        folder = tmp_path / str(step) / "events"
        living, before = prepared(folder, count)
        is_over = not end_before(killer, folder, story, step)
        append(living[0], b"after")
        check(Process(folder).seen()[0], before, b"after")
        living[0].roll()
        assert living.anomalies() == ()
        step += 1


def test_whole_batches_that_no_page_counts_are_kept_by_who_appended_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer, folder = Killer(monkeypatch), tmp_path / "events"
    living = Process(new_topic(folder))
    append(living[0], b"0", time=NOW + 1)
    living[0].flush()
    probe = Process(folder)
    with killer.killing(None):
        append(probe[0], b"1", time=NOW + 2)
    assert killer.steps[-2:] == ["pwrite", "page"]
    steps = len(killer.steps)
    append(living[0], b"2", time=NOW + 3)
    living[0].flush()
    assert end_before(killer, folder, lambda process: append(process[0], b"3", time=NOW + 4), steps - 1)
    assert living.seen()[0] == [b"0", b"1", b"2"]
    assert append(living[0], b"4") == (4, 5)
    assert living.seen()[0] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("name", STORIES)
def test_who_goes_on_may_end_before_any_step_too(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, story = STORIES[name]
    killer, first = Killer(monkeypatch), 0
    while True:
        second = 0
        while True:
            folder = tmp_path / f"{first}-{second}" / "events"
            _, before = prepared(folder, count)
            if not end_before(killer, folder, story, first):
                return
            if not end_before(killer, folder, lambda process: append(process[0], b"new"), second):
                break
            process = Process(folder)
            append(process[0], b"after")
            seen = process.seen()[0]
            assert (seen[:count], seen[-1]) == (before, b"after")
            assert seen[count:-1] in ([], [b"new"], [b"new", b"new"])
            second += stride(4)
        first += stride(3)


def garbled(page: bytes) -> bytes:
    return os.urandom(len(page))


def lost(page: bytes) -> bytes:
    return b""


def of_another_boot(page: bytes) -> bytes:
    return page


#: What becomes of the page, in turn.
DAMAGES = (lost, of_another_boot, garbled)


def power_losses(
    story_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damages: Sequence[Callable[[bytes], bytes]] = DAMAGES,
    meanwhile: Callable[[Path], None] = lambda folder: None,
) -> Iterator[tuple[list[bytes], Path]]:
    """Lose the power where a process ends before each step of the story, and last where it comes to its end.

    `meanwhile` is what others do in the topic's folder between the process and the power loss. Each time come out the
    values that were flushed before the story, and the folder that is left.
    """
    (count, story), step, is_over = STORIES[story_name], 0, False
    while not is_over:
        root = tmp_path / str(step)
        root.mkdir()
        monkeypatch.setattr(durable_files, "DURABLE_FOLDERS", {})
        with monkeypatch.context() as patches:
            disk = Disk(patches, root)
            _, before = prepared(root / "events", count)
            is_over = not end_on(disk, root / "events", story, step)
            meanwhile(root / "events")
            left = disk.after_power_loss(tmp_path / f"left {step}") / "events"
        start_anew(root / "events", left, damages[step % len(damages)], monkeypatch, step)
        yield before, left
        step += stride(2)


def end_on(disk: Disk, folder: Path, story: Callable[[Process], None], step: int) -> bool:
    """Whether a process on that disk ended before that step, rather than finish."""
    disk.new_process(step)
    try:
        story(Process(folder))
    except DiskKilled:
        return True
    finally:
        disk.new_process()
    return False


def start_anew(
    before: Path, left: Path, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch, boot: int
) -> None:
    """Start the machine anew, with what became of the page."""
    page = Path("events-0") / paths.LOCK_FILE
    if (left / page).exists():
        (left / page).write_bytes(damage((before / page).read_bytes()))
    monkeypatch.setattr("distlog.core.log.partition_lock.boot_id", lambda: boot.to_bytes(16, "big"))


@pytest.mark.parametrize("name", STORIES)
def test_a_power_loss_before_any_step_keeps_what_was_flushed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = 0
    for before, left in power_losses(name, tmp_path, monkeypatch):
        process = Process(left)
        check(process.seen()[0], before)
        append(process[0], b"after")
        process[0].roll()
        check(process.seen()[0], before, b"after")
        assert process.anomalies() == ()
        losses += 1
    assert losses > 2


@pytest.mark.parametrize("name", ["open", "roll", "seal"])
def test_what_is_flushed_after_a_process_ended_in_a_commit_outlives_a_power_loss(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of who died may be seen and not durable: who appends behind it makes it so."""

    def append_behind(folder: Path) -> None:
        other = Process(folder)
        append(other[0], b"after")
        other[0].flush()

    for before, left in power_losses(name, tmp_path, monkeypatch, [lost], append_behind):
        check(Process(left).seen()[0], before, b"after")


def test_what_was_not_flushed_may_be_cut_anywhere_by_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(new_topic(tmp_path / "events"))
    append(process[0], b"a")
    process[0].flush()
    (log,) = (tmp_path / "events" / "events-0").glob("*.log")
    flushed = log.stat().st_size
    append(process[0], b"b")
    whole = log.read_bytes()
    process.close()
    for size in range(flushed, len(whole) + 1):
        log.write_bytes(whole[:size])
        monkeypatch.setattr("distlog.core.log.partition_lock.boot_id", lambda size=size: size.to_bytes(16, "big"))
        process = Process(tmp_path / "events")
        expected = [b"a", b"b"] if size == len(whole) else [b"a"]
        assert process.seen()[0] == expected
        assert process[0].end().end_offset == len(expected)
        process.close()
