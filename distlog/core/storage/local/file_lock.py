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
from contextlib import contextmanager

from distlog.core.errors import StorageError
from distlog.core.storage.local.durable_files import failing_as
from distlog.core.storage.local.shared_page import SharedPage

#: How long to wait for a lock. Its holders need milliseconds, and about a second when they commit.
TIMEOUT_S = 60.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 2e-3

_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC

_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """The lock of the file `path`, and the page of state in that file; a missing file is created.

    It excludes threads and processes, and is not reentrant. Its holder may remove the file: the next holder makes a
    new one. `sleep` and `monotonic` are in seconds.
    """

    def __init__(
        self,
        path: str,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._sleep, self._monotonic = sleep, monotonic
        self._thread = threading.Lock()
        self._file = -1
        self._page: SharedPage | None = None
        _locks.add(self)

    @property
    def page(self) -> SharedPage:
        """The page that processes share by this lock. Reading needs no lock, writing does."""
        return self._page or self._open()

    @contextmanager
    def held(self, timeout_s: float = TIMEOUT_S) -> Iterator[SharedPage]:
        """Hold the lock; StorageError, with the id of the process that holds it, when it is not free in time."""
        end = self._monotonic() + timeout_s
        if not self._thread.acquire(timeout=max(timeout_s, 0)):
            raise self._taken(os.getpid(), timeout_s)
        try:
            page = self._locked(end, timeout_s)
            try:
                page.tell_holder(os.getpid())
                yield page
            finally:
                if self._file >= 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            self._release_thread()

    def close(self) -> None:
        """Close the file. The lock can be used again, which opens the file again."""
        with self._thread:
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
            self._file = os.open(self.path, _OPEN, 0o666)
            # opened a second time: a map keeps a copy of its descriptor, which would hold the lock in a forked child
            mapped = os.open(self.path, _OPEN, 0o666)
            try:
                self._page = page = SharedPage(mapped, self.path)
            finally:
                os.close(mapped)
        return page

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
            f"process {holder} holds the lock for more than {timeout_s:g} s: end it, or see what it waits for",
            file=self.path,
            pid=holder,
        )

    def _release_thread(self) -> None:
        if self._thread.locked():
            self._thread.release()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
