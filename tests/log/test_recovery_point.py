"""After a power loss the log is walked from its recovery point: what is below was synced, and its indexes too.

Held here, of Kafka's LogLoaderTest: of testProducerSnapshotsRecoveryAfterUncleanShutdownCurrentMessageFormat that
what lies below the recovery point is not read again, and of testLogRecoveryIsCalledUponBrokerCrash that a clean end
(there a marker file) needs no recovery.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from active_segments import FailingCalls
from partition_logs import Killer, Process, append, new_topic
from searches import stride
from topics import Clock

from distlog.core import paths
from distlog.core.log import flush
from distlog.core.log.live_snapshot import tail
from distlog.core.log.partition_lock import StateRecord
from distlog.core.log.segment_recovery import DamagedLogError
from distlog.core.segments.segment_state import SegmentState
from distlog.core.storage.locks_and_pages import PAGE_BYTES

SETTINGS = {"segment_index_bytes": 1200}


class NoSyncs:
    """The calls of `os`, without the time that syncs take."""

    def __getattr__(self, name: str) -> Any:
        return (lambda file: None) if name == "fsync" else getattr(os, name)


def page(folder: Path) -> Path:
    return folder / "events-0" / paths.LOCK_FILE


def log(folder: Path) -> Path:
    (found,) = (folder / "events-0").glob("*.log")
    return found


@pytest.fixture
def rebooted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Starts the machine again."""
    boots = iter(range(1, 1 << 30))

    def reboot() -> None:
        boot = next(boots).to_bytes(16, "big")
        monkeypatch.setattr("distlog.core.log.partition_lock.boot_id", lambda: boot)

    return reboot


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many bytes of the files with each suffix are read in place."""
    counted, real = Counter[str](), os.preadv

    def preadv(file: int, *arguments: Any) -> int:
        count = real(file, *arguments)
        counted[Path(os.readlink(f"/proc/self/fd/{file}")).suffix] += count
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    return counted


def filled(folder: Path, **settings: Any) -> tuple[Path, int]:
    """A topic of five batches, a recovery point, and three batches behind it; and where these begin."""
    process = Process(new_topic(folder, **{**SETTINGS, **settings}))
    for number in range(5):
        append(process[0], b"%d" % number)
    process[0].checkpoint()
    size = process[0]._active.lock.recovery_position
    for number in range(5, 8):
        append(process[0], b"%d" % number)
    process.close()
    return folder, size


def test_after_a_power_loss_only_what_lies_behind_the_recovery_point_is_read(
    tmp_path: Path, rebooted: Callable[[], None], read_bytes: Counter[str]
) -> None:
    folder, size = filled(tmp_path / "events")
    rebooted()
    process = Process(folder)
    assert process[0].end() == (8, 8)
    assert read_bytes[".log"] == log(folder).stat().st_size - size
    assert 0 < read_bytes[".index"] + read_bytes[".timeindex"] < 200


def test_a_reader_after_a_power_loss_reads_as_little(
    tmp_path: Path, rebooted: Callable[[], None], read_bytes: Counter[str]
) -> None:
    folder, size = filled(tmp_path / "events")
    process = Process(folder)
    expected = tail(process.handle, process.head(), 0)
    rebooted()
    assert read_bytes[".log"] == 0
    assert tail(process.handle, process.head(), 0) == expected
    assert read_bytes[".log"] == log(folder).stat().st_size - size
    assert process.seen()[0] == [b"%d" % number for number in range(8)]


def test_after_a_power_loss_records_without_a_time_age_from_the_sync_that_covered_them(
    tmp_path: Path, rebooted: Callable[[], None]
) -> None:
    """Not from the sync before it: that may be long before their append."""
    clock = Clock()
    process = Process(new_topic(tmp_path / "events", **SETTINGS), clock=clock)
    append(process[0], b"a")
    process[0].checkpoint()
    clock.now_ms += 1000
    append(process[0], b"b")
    process[0].checkpoint()
    process.close()
    rebooted()
    process = Process(tmp_path / "events", clock=clock)
    found = tail(process.handle, process.head(), 0)
    assert found is not None
    assert (found.next_offset, found.created_ms) == (2, clock.now_ms)


@pytest.mark.parametrize("preallocate", [False, True])
def test_after_a_clean_end_nothing_of_the_log_is_read(
    tmp_path: Path, rebooted: Callable[[], None], read_bytes: Counter[str], preallocate: bool
) -> None:
    folder, _ = filled(tmp_path / "events", preallocate=preallocate, internal_segment_bytes=1 << 20)
    process = Process(folder)
    process[0].checkpoint()
    process.close()
    rebooted()
    read_bytes.clear()
    process = Process(folder)
    # of a preallocated log, the first bytes that may be a batch, and the rest of the page that was written
    room = 2 * 4096 + 12 if preallocate else 0
    assert tail(process.handle, process.head(), 0)
    assert read_bytes[".log"] <= ((1 << 20) + 2 * 4096 if preallocate else 0)
    read_bytes.clear()
    assert process[0].end() == (8, 8)
    assert read_bytes[".log"] <= room
    assert process.seen()[0] == [b"%d" % number for number in range(8)]


def test_a_clean_end_is_noted_once(tmp_path: Path) -> None:
    folder, calls = new_topic(tmp_path / "events", **SETTINGS), FailingCalls()
    process = Process(folder, calls=calls)
    process[0].checkpoint()
    assert calls.made == []
    append(process[0], b"a")
    del calls.made[:]
    process[0].checkpoint()
    # the log, two indexes, the page
    assert calls.made == ["fsync"] * 4
    process[0].checkpoint()
    Process(folder, calls=calls)[0].checkpoint()
    assert calls.made == ["fsync"] * 4
    append(process[0], b"b")
    process[0].flush()
    del calls.made[:]
    process[0].checkpoint()
    # not the log again
    assert calls.made == ["fsync"] * 3


def test_a_flush_takes_the_indexes_along_when_the_log_grew_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "_SPAN_BYTES", 200)
    calls = FailingCalls()
    process, syncs, points = Process(new_topic(tmp_path / "events", **SETTINGS), calls=calls), [], []
    for number in range(6):
        append(process[0], b"%d" % number)
        del calls.made[:]
        process[0].flush()
        syncs.append(calls.made.count("fsync"))
        points.append(process[0]._active.lock.recovery_position)
    size = log(tmp_path / "events").stat().st_size // 6
    assert syncs == [1, 1, 4, 1, 1, 4]
    assert points == [0, 0, 3 * size, 3 * size, 3 * size, 6 * size]
    process[0].roll()
    assert process[0]._active.lock.recovery_position == 0


def test_the_recovery_point_is_written_after_the_syncs_that_it_speaks_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(new_topic(tmp_path / "events", **SETTINGS))
    append(process[0], b"a")
    process[0].flush()
    append(process[0], b"b")
    killer = Killer(monkeypatch)
    with killer.killing(None):
        process[0].checkpoint()
    # the flush lock's page says that a sync begins and ends
    assert killer.steps == ["page", *3 * ["fsync"], *2 * ["page"], "fsync"]


def test_the_recovery_point_stays_while_other_processes_append(tmp_path: Path) -> None:
    folder, size = filled(tmp_path / "events")
    for number in range(3):
        append(Process(folder)[0], b"%d" % number)
    process = Process(folder)
    process[0].end()
    assert process[0]._active.lock.recovery_position == size > 0


def torn(data: bytes) -> bytes:
    """The page, of which the power loss tore the newest slot."""
    at = max((1024, 2048), key=lambda slot: int.from_bytes(data[slot : slot + 8], "little"))
    return data[: at + 300] + os.urandom(300) + data[at + 600 :]


PAGES: dict[str, Callable[[list[bytes]], bytes]] = {
    **{f"{age} writes old": (lambda pages, age=age: pages[-1 - age]) for age in (0, 1, 2, 3, 4, 6, 9)},
    "one slot torn": lambda pages: torn(pages[-1]),
    "half an old one": lambda pages: pages[-1][:2048] + pages[3][2048:],
    "zeros": lambda pages: bytes(PAGE_BYTES),
    "noise": lambda pages: os.urandom(PAGE_BYTES),
    "none": lambda pages: b"",
}
LOGS: dict[str, Callable[[bytes, int], bytes]] = {
    "whole": lambda data, size: data,
    "up to the recovery point": lambda data, size: data[:size],
    "with one batch behind it": lambda data, size: data[: size + size // 5],
    "torn behind it": lambda data, size: data[: size + size // 5 + 10],
    "torn before it": lambda data, size: data[: size - 10],
    "gone": lambda data, size: b"",
    "with zeros behind": lambda data, size: data + bytes(5000),
    "with noise behind": lambda data, size: data + os.urandom(5000),
    "with a hole": lambda data, size: data[:size] + bytes(100) + data[size + 100 :],
}
#: By log: the batches before the first bad one. By page: the batches that it says are on the device.
SOUND = {
    **dict.fromkeys(LOGS, 10),
    **dict.fromkeys(("up to the recovery point", "with a hole"), 5),
    **dict.fromkeys(("with one batch behind it", "torn behind it"), 6),
    "torn before it": 4,
    "gone": 0,
}
FLUSHED = {
    **dict.fromkeys(PAGES, 0),
    **dict.fromkeys(("0 writes old", "1 writes old", "2 writes old", "one slot torn", "half an old one"), 8),
    **dict.fromkeys(("3 writes old", "4 writes old", "6 writes old"), 5),
}
INDEXES: dict[str, Callable[[Path], object]] = {
    "whole": lambda path: None,
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "zeros": lambda path: path.write_bytes(bytes(1200)),
    "noise": lambda path: path.write_bytes(os.urandom(1200)),
    "noise at its end": lambda path: path.write_bytes(path.read_bytes()[:-500] + os.urandom(700)),
}


class Story:
    """What a machine had when the power went, and what is recovered from what is left of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = new_topic(folder / "events", **SETTINGS)
        process, self.pages = Process(self.folder), list[bytes]()
        for number in range(10):
            append(process[0], b"%d" % number)
            self.pages.append(page(self.folder).read_bytes())
            if number == 4:
                process[0].checkpoint()
                self.pages.append(page(self.folder).read_bytes())
            if number == 7:
                process[0].flush()
        process.close()
        self.pages.append(page(self.folder).read_bytes())
        self.size = log(self.folder).stat().st_size // 2

    def left(self, target: Path, page_is: str, log_is: str, index: str, suffix: str) -> Path:
        """A copy of the folder after the power loss."""
        shutil.copytree(self.folder, target)
        page(target).write_bytes(PAGES[page_is](self.pages))
        path = log(target)
        path.write_bytes(LOGS[log_is](path.read_bytes(), self.size))
        INDEXES[index](path.with_suffix(suffix))
        return target


def recovered(folder: Path) -> tuple[dict[str, bytes], SegmentState, list[bytes | None]]:
    """The files, the state and what readers saw before, when a process has recovered the partition."""
    process = Process(folder, calls=NoSyncs())
    seen = process.seen()[0]
    process[0].end()
    record = StateRecord.unpack(process[0]._active.lock.value())
    assert record
    assert record.state
    process.close()
    files = {path.suffix: path.read_bytes() for path in (folder / "events-0").iterdir() if path.suffix}
    return files, record.state, seen


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story"))


@pytest.fixture
def urandom(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same noise for each."""
    monkeypatch.setattr(os, "urandom", lambda count: (b"noise!" * (count // 6 + 1))[:count])
    return iter([None])


@pytest.mark.long
@pytest.mark.parametrize("log_is", LOGS)
def test_whatever_a_power_loss_leaves_recovery_comes_to_what_a_walk_of_all_comes_to(
    log_is: str, story: Story, tmp_path: Path, rebooted: Callable[[], None], urandom: None
) -> None:
    rebooted()
    for index in INDEXES:
        for suffix in (".index", ".timeindex") if index in ("missing", "noise at its end") else (".index",):
            expected = recovered(story.left(tmp_path / f"{index}{suffix}" / "events", "none", log_is, index, suffix))
            # in the suite every other page of each index
            for page_is in list(PAGES)[list(INDEXES).index(index) % stride(2) :: stride(2)]:
                left = story.left(tmp_path / f"{index}{suffix}{page_is}" / "events", page_is, log_is, index, suffix)
                if SOUND[log_is] < FLUSHED[page_is]:
                    check_refused(left, SOUND[log_is])
                    continue
                files, state, seen = recovered(left)
                where = page_is, index, suffix
                assert (where, files, seen) == (where, expected[0], expected[2])
                same = {"created_ms", "flushed_ms"}
                assert {name: getattr(state, name) for name in SegmentState.__slots__ if name not in same} == {
                    name: getattr(expected[1], name) for name in SegmentState.__slots__ if name not in same
                }
                assert Process(left).anomalies() == ()
    assert expected[2] == [b"%d" % number for number in range(SOUND[log_is])]


def check_refused(folder: Path, sound: int) -> None:
    """What was on the device is gone: nothing is appended or changed, and it is said where the loss begins."""
    before = {path: path.read_bytes() for path in sorted((folder / "events-0").iterdir()) if path.suffix}
    for _ in range(2):
        with pytest.raises(DamagedLogError, match="lacks records that were acknowledged") as raised:
            append(Process(folder, calls=NoSyncs())[0], b"new")
        assert raised.value.details["offset"] == sound
    assert {path: path.read_bytes() for path in sorted((folder / "events-0").iterdir()) if path.suffix} == before
