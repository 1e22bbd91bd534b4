"""A lock shared by processes, by `flock` on a file: a process that ends, or is killed, no longer holds it.

`flock` belongs to an open file, which a forked child shares with its parent: the child's copy would hold the lock
when the parent is dead. So a child closes its copies, and opens its own files when it locks.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from distlog.core.errors import StorageError
from distlog.core.storage.local.durable_files import failing_as, make_folders
from distlog.core.storage.local.shared_page import SharedPage

#: How long to wait for a lock. Its holders need milliseconds, and about a second when they commit.
TIMEOUT_S = 60.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 2e-3

_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC

_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """The lock of the file `path`, and the page of state in that file; a missing file is created.

    It excludes threads and processes, and is not reentrant. Its holder may remove the file: the next holder makes a
    new one, and its folder too if `makes_folder`. `sleep` and `monotonic` are in seconds.
    """

    def __init__(
        self,
        path: str,
        *,
        makes_folder: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._makes_folder, self._sleep, self._monotonic = makes_folder, sleep, monotonic
        self._thread = threading.Lock()
        self._file = -1
        self._page: SharedPage | None = None
        _locks.add(self)

    @property
    def page(self) -> SharedPage:
        """The page that processes share by this lock. Reading needs no lock, writing does."""
        return self._page or self._open()

    def held(self, timeout_s: float = TIMEOUT_S) -> Held:
        """Hold the lock; StorageError, with the id of the process that holds it, when it is not free in time."""
        return Held(self, timeout_s)

    def acquire(self, timeout_s: float) -> SharedPage:
        """Take the lock, as `held` does."""
        end = self._monotonic() + timeout_s
        if not self._thread.acquire(timeout=max(timeout_s, 0)):
            raise self._taken(os.getpid(), timeout_s)
        try:
            page = self._locked(end, timeout_s)
            page.tell_holder(os.getpid())
        except BaseException:
            self.release()
            raise
        return page

    def release(self) -> None:
        """Give the lock back."""
        try:
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            if self._thread.locked():
                self._thread.release()

    def alone(self) -> AbstractContextManager[object]:
        """No thread of this process holds the lock in the block; other processes may."""
        return self._thread

    def close(self) -> None:
        """Close the file. The lock can be used again, which opens the file again."""
        with self.alone():
            self.forget()

    def forget(self) -> None:
        """Close the file without taking a lock: for a caller that is alone in the process, as in a forked child."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._page = -1, None

    def renew(self) -> None:
        """Make the lock free in a forked child, even if the parent holds it."""
        self._thread = threading.Lock()
        self.forget()

    def _open(self) -> SharedPage:
        with failing_as("open the lock", self.path):
            if self._makes_folder and not os.path.isdir(folder := os.path.dirname(self.path)):
                make_folders(folder)
            # first the file, then its page: if it is removed in between, who locks it sees that
            file = os.open(self.path, _OPEN, 0o666)
            try:
                page = self._mapped()
            except BaseException:
                os.close(file)
                raise
        self._file, self._page = file, page
        return page

    def _mapped(self) -> SharedPage:
        # opened again: a map keeps what its descriptor opened, which would hold the lock in a forked child
        mapped = os.open(self.path, _OPEN, 0o666)
        try:
            return SharedPage(mapped, self.path)
        finally:
            os.close(mapped)

    def _locked(self, end: float, timeout_s: float) -> SharedPage:
        while True:
            page = self.page
            self._lock(page, end, timeout_s)
            if os.fstat(self._file).st_nlink > 0:
                return page
            # the file was removed meanwhile: other processes lock a new one
            self.forget()

    def _lock(self, page: SharedPage, end: float, timeout_s: float) -> None:
        pause_s = _SHORTEST_PAUSE_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if self._monotonic() >= end:
                    raise self._taken(page.holder, timeout_s) from None
            except OSError as error:
                raise StorageError(f"cannot lock: {error.strerror}", file=self.path) from error
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _taken(self, holder: int, timeout_s: float) -> StorageError:
        return StorageError(
            f"process {holder} has held the lock for more than {timeout_s:g} s: see what it waits for, or end it",
            file=self.path,
            pid=holder,
        )


class Held:
    """A FileLock that is held in a `with` block; unlike a generator it costs next to nothing."""

    __slots__ = ("_lock", "_timeout_s")

    def __init__(self, lock: FileLock, timeout_s: float) -> None:
        self._lock, self._timeout_s = lock, timeout_s

    def __enter__(self) -> SharedPage:
        return self._lock.acquire(self._timeout_s)

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)


@contextmanager
def flocked(path: str) -> Iterator[None]:
    """Hold the lock of an existing file without a page of state: it needs no space, and waits without an end.

    Raises StorageError.
    """
    with failing_as("lock", path):
        # a network file system wants to see that the file may be written
        file = os.open(path, (os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        with failing_as("lock", path):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        # a child that was forked meanwhile has the open file too, and must not keep the lock
        fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)
