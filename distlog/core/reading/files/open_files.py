"""Keeps the last few opened files, each as long as the file on disk is still the one that was opened.

Opening and checking a file costs much more than looking something up in it. But files are replaced, and people
damage them; so each use asks the file system once.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from distlog.core.locks import ProcessLock

T = TypeVar("T")
#: Inode, size and time of a file.
_Identity = tuple[int, int, int]


class OpenFiles(Generic[T]):
    """Up to `limit` objects by key, each opened from one file; safe between threads, and empty after pickling.

    With `timed`, a file with another modification time counts as another file. Copies in a cache are not `timed`:
    the time of a copy is its last use.
    """

    def __init__(self, limit: int, *, timed: bool) -> None:
        self._limit, self._timed = limit, timed
        self._open: OrderedDict[Hashable, tuple[str, _Identity, T]] = OrderedDict()
        self._lock = ProcessLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _empty, (self._limit, self._timed)

    def known(self, key: Hashable) -> T | None:
        """The object opened under `key`; None if there is none, or its file is gone or was replaced."""
        found = self._open.get(key)
        if found is None:
            return None
        path, identity, opened = found
        with suppress(OSError):
            if self._identity(path) == identity:
                with self._lock:
                    if key in self._open:
                        self._open.move_to_end(key)
                return opened
        return None

    def get(self, key: Hashable, path: str, open_file: Callable[[], T]) -> T:
        """The object known under `key`, or else what `open_file` makes of the file at `path`; raises its errors."""
        opened = self.known(key)
        if opened is not None:
            return opened
        # identified before it is opened: if the file is replaced in between, the next use sees that
        identity, opened = self._identity(path), open_file()
        with self._lock:
            self._open[key] = path, identity, opened
            # not closed, since another thread may be using it; its memory is freed with the last reference
            while len(self._open) > self._limit:
                self._open.popitem(last=False)
        return opened

    def forget(self, key: Hashable) -> None:
        """Forget the object, so that its file is opened again when it is needed."""
        with self._lock:
            self._open.pop(key, None)

    def _identity(self, path: str) -> _Identity:
        status = os.stat(path)
        return status.st_ino, status.st_size, status.st_mtime_ns if self._timed else 0


def _empty(limit: int, timed: bool) -> OpenFiles[Any]:
    return OpenFiles(limit, timed=timed)
