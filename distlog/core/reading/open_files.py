"""What was opened of files, the last few of them, each used as long as its file is the one that was opened.

To open a file and to check it costs much more than to look something up in it. But files are replaced, and people
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
    """Up to `limit` things that were made of a file each, by key; for many threads, and picklable, then empty.

    With `timed` a file that was touched is another one; a copy's time is its last use.
    """

    def __init__(self, limit: int, *, timed: bool) -> None:
        self._limit, self._timed = limit, timed
        self._open: OrderedDict[Hashable, tuple[str, _Identity, T]] = OrderedDict()
        self._lock = ProcessLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _empty, (self._limit, self._timed)

    def known(self, key: Hashable) -> T | None:
        """What was opened under `key`, unless its file is gone or another one since."""
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
        """What is known under `key`, or what `open_file` makes of the file at `path`, whose errors are raised."""
        opened = self.known(key)
        if opened is not None:
            return opened
        # looked at before it is opened: of a file that is replaced in between the next use learns
        identity, opened = self._identity(path), open_file()
        with self._lock:
            self._open[key] = path, identity, opened
            # not closed: another thread may be looking something up; its memory goes with the last reference
            while len(self._open) > self._limit:
                self._open.popitem(last=False)
        return opened

    def forget(self, key: Hashable) -> None:
        """Open the file anew when it is needed."""
        with self._lock:
            self._open.pop(key, None)

    def _identity(self, path: str) -> _Identity:
        status = os.stat(path)
        return status.st_ino, status.st_size, status.st_mtime_ns if self._timed else 0


def _empty(limit: int, timed: bool) -> OpenFiles[Any]:
    return OpenFiles(limit, timed=timed)
