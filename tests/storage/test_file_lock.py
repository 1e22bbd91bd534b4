"""The lock that processes share, and the page of state in its file.

Crash stories:
1. A process is killed (kill -9) while it holds the lock: the next one gets it, and reads what was written last.
2. A process is killed in the middle of a write to the page, at every byte: the value before it is read.
3. A process forks while it holds the lock, and is killed: its child does not hold it on.
4. A process that holds the lock is stopped (SIGSTOP): who waits gets an error that names it.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.errors import StorageError, StorageFullError
from distlog.core.storage.local.file_lock import FileLock
from distlog.core.storage.local.shared_page import (
    MAX_VALUE_BYTES,
    PAGE_BYTES,
    SharedPage,
    boot_id,
    read_newest,
)

HOLDING = """
import os, sys, time
from distlog.core.storage.local.file_lock import FileLock

lock = FileLock(sys.argv[1])
with lock.held() as page:
    page.write(b"mine")
    child = os.fork() if sys.argv[2] == "fork" else 0
    if child or sys.argv[2] == "alone":
        print(child, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / ".lock")


@contextmanager
def holder(path: str, how: str = "alone") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process that holds the lock, and the id of its child."""
    process = subprocess.Popen([sys.executable, "-c", HOLDING, path, how], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def monotonic(self) -> float:
        return self.now_s


def test_a_killed_holder_leaves_the_lock_free_and_what_it_wrote(path: str) -> None:
    with holder(path) as (process, _):
        process.kill()
        process.wait()
        with FileLock(path).held(timeout_s=30) as page:
            assert page.read() == b"mine"


def test_who_waits_too_long_is_told_which_process_holds_the_lock(path: str) -> None:
    clock = Time()
    with holder(path) as (process, _):
        process.send_signal(signal.SIGSTOP)
        lock = FileLock(path, sleep=clock.sleep, monotonic=clock.monotonic)
        with (
            pytest.raises(StorageError, match=f"process {process.pid} has held the lock for more than 5 s"),
            lock.held(5),
        ):
            raise AssertionError("nobody else may hold it")
        assert 5 <= clock.now_s < 5.1
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        with lock.held():
            pass


def test_a_child_of_a_killed_holder_does_not_hold_the_lock_on(path: str) -> None:
    with holder(path, "fork") as (process, child):
        try:
            process.kill()
            process.wait()
            with FileLock(path).held(timeout_s=30):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_neither_holds_nor_frees_the_lock_of_its_parent(path: str) -> None:
    clock = Time()
    lock = FileLock(path, sleep=clock.sleep, monotonic=clock.monotonic)
    child = -1
    with lock.held():
        child = os.fork()
        if child == 0:
            try:
                with lock.held(1):
                    os._exit(1)
            except StorageError as error:
                os._exit(0 if error.details["pid"] == os.getppid() else 2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pytest.raises(StorageError), FileLock(path, sleep=clock.sleep, monotonic=clock.monotonic).held(1):
            pass
    with lock.held():
        pass


def test_threads_of_one_process_exclude_each_other(path: str) -> None:
    lock, seen = FileLock(path), list[int]()

    def count() -> None:
        for _ in range(200):
            with lock.held() as page:
                number = int(page.read() or b"0")
                page.write(b"%d" % (number + 1))
                seen.append(number)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == list(range(800))


def test_processes_exclude_each_other(path: str) -> None:
    program = """
import sys
from distlog.core.storage.local.file_lock import FileLock
lock = FileLock(sys.argv[1])
for _ in range(500):
    with lock.held() as page:
        page.write(b"%d" % (int(page.read() or b"0") + 1))
"""
    running = [subprocess.Popen([sys.executable, "-c", program, path]) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    with FileLock(path).held() as page:
        assert page.read() == b"1500"


def test_a_closed_lock_opens_its_file_anew(path: str) -> None:
    lock = FileLock(path)
    with lock.held() as page:
        page.write(b"kept")
    lock.close()
    with lock.held() as page:
        assert page.read() == b"kept"


def test_a_folder_that_is_not_there_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot open the lock"), FileLock(str(tmp_path / "no" / ".lock")).held():
        pass


def test_a_lock_may_make_its_folder_also_when_that_was_removed(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    lock = FileLock(str(folder / ".lock"), makes_folder=True)
    for value in (b"first", b"second"):
        with lock.held() as page:
            assert page.read() is None
            page.write(value)
        shutil.rmtree(folder.parent)


def test_an_error_while_a_lock_is_taken_leaves_it_free(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SharedPage, "tell_holder", interrupted)
        with pytest.raises(KeyboardInterrupt), FileLock(path).held():
            pass
    with FileLock(path).held(0):
        pass


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@given(st.lists(st.binary(max_size=MAX_VALUE_BYTES), max_size=6))
def test_the_last_value_is_read_with_and_without_the_lock(values: list[bytes]) -> None:
    with page_in_memory() as (page, file):
        for value in values:
            page.write(value)
        expected = values[-1] if values else None
        assert page.read() == newest_value(os.pread(file, PAGE_BYTES, 0)) == expected


@given(st.binary(min_size=1, max_size=60), st.binary(min_size=1, max_size=60), st.data())
def test_a_write_that_ends_at_any_byte_leaves_the_value_before_it_or_is_whole(
    first: bytes, second: bytes, data: st.DataObject
) -> None:
    with page_in_memory() as (page, file):
        page.write(first)
        before = os.pread(file, PAGE_BYTES, 0)
        page.write(second)
        after = os.pread(file, PAGE_BYTES, 0)
    changed = [at for at in range(PAGE_BYTES) if before[at] != after[at]]
    for count in range(len(changed) + 1):
        torn = bytearray(before)
        for at in changed[:count]:
            torn[at] = after[at]
        assert newest_value(bytes(torn)) == (second if count == len(changed) else first)
    kept = data.draw(st.sets(st.sampled_from(changed)))
    torn = bytearray(before)
    for at in kept:
        torn[at] = after[at]
    assert newest_value(bytes(torn)) in (first, second)


def test_a_read_during_which_others_write_twice_gives_no_value_that_was_old_before() -> None:
    pages = []
    with page_in_memory() as (page, file):
        for number in range(4):
            page.write(b"value %d" % number)
            pages.append(os.pread(file, PAGE_BYTES, 0))
    # values 0 and 1 are there: the first slot is read as it is, the other one in the middle of the write of value 3
    torn = pages[1][:2048] + pages[3][2048:2060] + pages[1][2060:]
    assert newest_value(torn) == b"value 0"
    reads = [torn, pages[3]]
    assert read_newest(lambda: reads.pop(0)) == b"value 3"
    # whoever died in the middle of a write left it so
    torn = pages[2][:2048] + pages[3][2048:2060] + pages[2][2060:]
    assert read_newest(lambda: torn) == b"value 2"


@given(
    st.lists(
        st.tuples(st.sampled_from(["one", "other"]), st.binary(max_size=20))
        | st.tuples(st.integers(1020, 3 * 1024), st.binary(min_size=1, max_size=12)),
        max_size=8,
    )
)
def test_who_knows_a_value_sees_what_others_did_to_the_page(steps: list[tuple[str | int, bytes]]) -> None:
    with page_in_memory() as (page, file):
        pages = {"one": page, "other": SharedPage(file, "page")}
        for who, value in steps:
            if isinstance(who, str):
                pages[who].write(value)
                assert page.read() == value
            else:
                # as a process that is killed while it writes leaves it, or worse
                os.pwrite(file, value, who)
            expected = newest_value(os.pread(file, PAGE_BYTES, 0))
            assert [each.read() for each in pages.values()] == [expected, expected]


def test_a_page_without_its_mark_has_no_value_for_who_knew_it_either() -> None:
    with page_in_memory() as (page, file):
        page.write(b"old")
        page.write(b"value")
        os.pwrite(file, b"?", 0)
        assert page.read() is None


@given(st.binary(max_size=PAGE_BYTES))
def test_bytes_of_anybody_are_no_value(junk: bytes) -> None:
    assert newest_value(junk) is None
    assert newest_value(b"DLGPAGE1" + junk.ljust(PAGE_BYTES, b"\0")[8:]) is None


def test_a_value_that_does_not_fit_is_refused() -> None:
    with page_in_memory() as (page, _), pytest.raises(ValueError, match="does not fit"):
        page.write(bytes(MAX_VALUE_BYTES + 1))


def test_a_file_of_another_size_is_not_taken_for_a_lock(path: str) -> None:
    Path(path).write_bytes(b"something else")
    with pytest.raises(StorageError, match="wrong size"), FileLock(path).held():
        pass
    assert Path(path).read_bytes() == b"something else"


@pytest.mark.parametrize("left", [b"", bytes(PAGE_BYTES), b"\xa5" * PAGE_BYTES])
def test_whatever_a_power_loss_left_of_the_page_it_holds_the_next_value(path: str, left: bytes) -> None:
    Path(path).write_bytes(left)
    with FileLock(path).held() as page:
        page.write(b"new")
        assert page.read() == newest_value(Path(path).read_bytes()) == b"new"


def test_a_page_has_its_block_so_that_no_write_to_it_needs_space(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who died, or met a full disk, may have left a hole: a write to its map on a full disk is a SIGBUS."""
    allocate, allocated = os.posix_fallocate, []

    def noted(descriptor: int, start: int, size: int) -> None:
        allocated.append((start, size))
        allocate(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", noted)
    Path(path).touch()
    os.truncate(path, PAGE_BYTES)
    for _ in range(2):
        with FileLock(path).held():
            pass
    assert allocated == [(0, PAGE_BYTES)]


def test_a_lock_whose_file_cannot_be_allocated_is_a_full_disk_and_leaks_nothing(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    lock, before = FileLock(path), len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StorageFullError), lock.held():
            pass
    assert len(os.listdir("/proc/self/fd")) == before
    with lock.held() as page:
        page.write(b"value")
    assert newest_value(Path(path).read_bytes()) == b"value"


def test_a_boot_has_one_id() -> None:
    assert boot_id() == boot_id()
    assert len(boot_id()) == 16


def newest_value(page: bytes) -> bytes | None:
    """The newest value of a page that does not change."""
    return read_newest(lambda: page)


@contextmanager
def page_in_memory() -> Iterator[tuple[SharedPage, int]]:
    """An empty page, and the descriptor of its file."""
    file = os.memfd_create("page")
    try:
        yield SharedPage(file, "page"), file
    finally:
        os.close(file)


def test_a_lock_whose_file_was_removed_is_that_of_the_new_file(path: str) -> None:
    mine, other, third = FileLock(path), FileLock(path), FileLock(path)
    with mine.held() as page:
        page.write(b"old")
        assert other.page.read() == b"old"
        os.unlink(path)
    with other.held() as page:
        assert page.read() is None
        page.write(b"new")
        with pytest.raises(StorageError, match="has held the lock"), third.held(0):
            pass
        with pytest.raises(StorageError, match="has held the lock"), mine.held(0):
            pass
    with mine.held() as page:
        assert page.read() == b"new"


def test_a_lock_that_is_held_takes_one_descriptor(path: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with FileLock(path).held():
        assert len(os.listdir("/proc/self/fd")) == before + 1


def test_too_many_open_files_is_an_error_that_says_what_to_do(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(StorageError, match=r"Too many open files: raise the limit of the process \(ulimit -n\)"):
        FileLock(path).acquire(1.0)
