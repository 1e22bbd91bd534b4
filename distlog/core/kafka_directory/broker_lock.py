"""Keeps brokers out of a log directory while its files are looked at or written."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from distlog.core.errors import StorageError
from distlog.core.kafka_directory.directory_names import BROKER_LOCK_FILE
from distlog.core.storage.storage import Storage


@contextmanager
def without_broker(log_dir: Storage) -> Iterator[None]:
    """Keep brokers out of the log directory; raises StorageError if one may be running.

    A broker holds a lock of its `.lock` for as long as it runs (Java's `FileChannel.tryLock`, so POSIX's). Without
    the file no broker runs here.
    """
    path = log_dir.local_path(BROKER_LOCK_FILE)
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        _lock(file, path)
        yield
    finally:
        os.close(file)


def _lock(file: int, path: str) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        text = "a broker is running on this log directory, since it holds the lock: stop it first"
        raise StorageError(text, file=path) from None
