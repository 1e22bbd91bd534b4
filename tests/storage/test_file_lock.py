"""The lock that processes share, when they are killed, stopped, or fork while they hold it."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from dying_calls import before_call
from forked_programs import Program

from distlog.core.errors import LockHeldError, StorageError
from distlog.core.storage.locks_and_pages import FileLock, boot_id, copy_path

HOLDING = """
import os, sys, time
from distlog.core.storage.locks_and_pages import FileLock

lock = FileLock(sys.argv[1])
with lock.held() as page:
    page.write(b"mine")
    child = os.fork() if sys.argv[2] == "fork" else 0
    if child or sys.argv[2] == "alone":
        print(child, flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(path: str, how: str = "alone") -> Iterator[tuple[Program, int]]:
    """Start another process that holds the lock, and yield it and the id of its child."""
    process = Program(HOLDING, path, how, stdout=subprocess.PIPE)
    assert process.stdout
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Time:
    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def monotonic(self) -> float:
        return self.now_s


def test_a_killed_holder_leaves_the_lock_free_and_its_writes(path: str) -> None:
    with holder(path) as (process, _):
        process.kill()
        process.wait()
        with FileLock(path).held(timeout_s=30) as page:
            assert page.read() == b"mine"


def test_a_timeout_names_the_process_that_holds_the_lock(path: str) -> None:
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


def test_a_child_of_a_killed_holder_does_not_keep_the_lock(path: str) -> None:
    with holder(path, "fork") as (process, child):
        try:
            process.kill()
            process.wait()
            with FileLock(path).held(timeout_s=30):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_does_not_hold_or_free_the_lock_of_its_parent(path: str) -> None:
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
    lock, values = FileLock(path), list[int]()

    def count() -> None:
        for _ in range(200):
            with lock.held() as page:
                number = int(page.read() or b"0")
                page.write(b"%d" % (number + 1))
                values.append(number)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == list(range(800))


def test_processes_exclude_each_other(path: str) -> None:
    program = """
import sys
from distlog.core.storage.locks_and_pages import FileLock
lock = FileLock(sys.argv[1])
for _ in range(500):
    with lock.held() as page:
        page.write(b"%d" % (int(page.read() or b"0") + 1))
"""
    running = [Program(program, path) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    with FileLock(path).held() as page:
        assert page.read() == b"1500"


def test_a_closed_lock_reopens_its_file(path: str) -> None:
    lock = FileLock(path)
    with lock.held() as page:
        page.write(b"kept")
    lock.close()
    with lock.held() as page:
        assert page.read() == b"kept"


def test_a_folder_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "no").touch()
    with pytest.raises(StorageError, match="cannot open the lock"), FileLock(str(tmp_path / "no" / ".lock")).held():
        pass


def test_a_lock_creates_its_removed_folder_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    lock = FileLock(str(folder / ".lock"))
    for value in (b"first", b"second"):
        with lock.held() as page:
            assert page.read() is None
            page.write(value)
        shutil.rmtree(folder.parent)


def test_an_interrupt_during_acquisition_leaves_the_lock_free(path: str) -> None:
    lock, random = FileLock(path), Random(1)
    lock.page.record_holder(0)
    old_signal = signal.signal(signal.SIGALRM, interrupted)
    try:
        for _ in range(3000):
            is_taken = False
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 3e-5))
                lock.acquire(60)
                is_taken = True
                while True:
                    pass
            except KeyboardInterrupt:
                pass
            if is_taken:
                lock.release()
            assert lock.is_free()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_signal)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_file_of_another_size_is_not_a_lock(path: str) -> None:
    Path(path).write_bytes(b"something else")
    with pytest.raises(StorageError, match="wrong size"), FileLock(path).held():
        pass
    assert Path(path).read_bytes() == b"something else"


def test_a_boot_has_one_id() -> None:
    assert boot_id() == boot_id()
    assert len(boot_id()) == 16


def test_a_lock_reopens_a_replaced_file(path: str) -> None:
    mine, other, third = FileLock(path), FileLock(path), FileLock(path)
    with mine.held() as page:
        page.write(b"old")
        assert other.page.read() == b"old"
        os.unlink(path)
    with other.held() as page:
        assert page.read() is None
        page.write(b"new")
        with pytest.raises(StorageError, match="holds the lock"), third.held(0):
            pass
        with pytest.raises(StorageError, match="holds the lock"), mine.held(0):
            pass
    with mine.held() as page:
        assert page.read() == b"new"


def test_a_lock_that_is_held_takes_one_descriptor(path: str) -> None:
    old_count = len(os.listdir("/proc/self/fd"))
    with FileLock(path).held():
        assert len(os.listdir("/proc/self/fd")) == old_count + 1


def test_too_many_open_files_fails_with_advice(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(StorageError, match=r"Too many open files: raise the limit of the process \(ulimit -n\)"):
        FileLock(path).acquire(1.0)


def test_an_orphaned_descriptor_does_not_keep_the_lock_forever(path: str, caplog: pytest.LogCaptureFixture) -> None:
    clock, other = Time(), FileLock(path)
    with other.held():
        pass
    lock_fd = next(fd for fd in map(int, os.listdir("/proc/self/fd")) if is_open(fd, path))
    unknown = os.open(path, os.O_RDWR)
    try:
        for descriptor in (unknown, lock_fd):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            caplog.clear()
            with FileLock(path, sleep=clock.sleep, monotonic=clock.monotonic).held(5):
                assert [record.levelno for record in caplog.records] == [logging.ERROR]
                assert "that none of its threads uses" in caplog.text
    finally:
        os.close(unknown)


def test_a_thread_keeps_the_lock_while_others_wait(path: str, caplog: pytest.LogCaptureFixture) -> None:
    clock, holding = Time(), FileLock(path)
    with holding.held():
        for _ in range(2):
            with (
                pytest.raises(LockHeldError, match=f"process {os.getpid()} has held"),
                FileLock(path, sleep=clock.sleep, monotonic=clock.monotonic).held(5),
            ):
                pass
        assert f"process {os.getpid()} has held the lock for more than 1 s" in caplog.text
    with FileLock(path).held(0):
        pass


def test_queued_threads_name_the_process_that_holds_the_lock(path: str) -> None:
    waits = threading.Event()
    lock = FileLock(path, sleep=lambda pause_s: (waits.set(), time.sleep(pause_s))[1])
    with holder(path) as (process, _):
        process.send_signal(signal.SIGSTOP)
        waiting = threading.Thread(target=lambda: refused(lock, 0.5))
        waiting.start()
        assert waits.wait(120)
        message = refused(lock, 0.05)
        assert message.details["pid"] == process.pid
        assert "it is stopped" in str(message)
        waiting.join()


def test_the_last_writer_of_the_page_is_not_named_as_the_holder(path: str) -> None:
    """Another process may hold the lock without having written the page."""
    lock = FileLock(path)
    with lock.held():
        pass
    program = "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print(); input()"
    program = program.replace("print()", "print(flush=True)")
    with Program(program, path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert refused(lock, 0).details["pid"] == process.pid
        process.communicate("\n")


def test_a_fork_while_a_file_is_opened_leaves_no_copy_that_holds_the_lock(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, forked, inside = FileLock(path), threading.Event(), threading.Event()
    with FileLock(path).held():
        pass

    def wait_for_the_fork() -> None:
        inside.set()
        forked.wait(120)

    def hold(holds: threading.Event, ends: threading.Event) -> None:
        with lock.held():
            holds.set()
            ends.wait(120)

    before_call(monkeypatch, "open", lambda file, *_: file == copy_path(path), wait_for_the_fork)
    holds, ends = threading.Event(), threading.Event()
    thread = threading.Thread(target=hold, args=(holds, ends))
    thread.start()
    assert inside.wait(120)
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        forked.set()
        assert holds.wait(120)
        events = list[str]()
        for name in os.listdir(f"/proc/{child}/fd"):
            with suppress(FileNotFoundError):
                events.append(Path(f"/proc/{child}/fdinfo", name).read_text())
        assert any(f"ino:\t{os.stat(path).st_ino}\n" in field for field in events)
        assert not any("FLOCK" in field for field in events)
    finally:
        ends.set()
        thread.join()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def is_open(descriptor: int, path: str) -> bool:
    """Return whether the descriptor is of the file."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def refused(lock: FileLock, timeout_s: float) -> LockHeldError:
    """Return the error of a lock that cannot be acquired in time."""
    with pytest.raises(LockHeldError) as error, lock.held(timeout_s):
        pass
    return error.value
