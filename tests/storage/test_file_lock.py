"""The lock that processes share.

Crash stories:
1. A process is killed (kill -9) while it holds the lock: the next one gets it, and reads what was written last.
2. A process forks while it holds the lock, and is killed: its child does not hold it on.
3. A process that holds the lock is stopped (SIGSTOP): who waits gets an error that names it.
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

from distlog.core.errors import StorageError
from distlog.core.storage.local.file_lock import FileLock
from distlog.core.storage.local.shared_page import SharedPage, boot_id

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


def test_a_file_of_another_size_is_not_taken_for_a_lock(path: str) -> None:
    Path(path).write_bytes(b"something else")
    with pytest.raises(StorageError, match="wrong size"), FileLock(path).held():
        pass
    assert Path(path).read_bytes() == b"something else"


def test_a_boot_has_one_id() -> None:
    assert boot_id() == boot_id()
    assert len(boot_id()) == 16


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
