"""Keeps brokers, and others that write, out of a log directory while its files are looked at or written."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from distlog.core.errors import StorageError
from distlog.core.kafka_directory.directory_names import BROKER_LOCK_FILE
from distlog.core.storage.local.durable_files import failing_as, make_folders
from distlog.core.storage.storage import Storage


@contextmanager
def without_broker(log_dir: Storage, *, alone: bool = False) -> Iterator[None]:
    """Keep brokers out of the log directory; with `alone` also adoptions, and else exports, for they are `alone`.

    Raises StorageError if one of these may be running. A broker holds a lock of its `.lock` for as long as it runs
    (Java's `FileChannel.tryLock`, so POSIX's). Without the file no broker runs here, and none on object storage.
    """
    with ExitStack() as stack:
        if not log_dir.is_local:
            yield
            return
        folder = log_dir.local_path("")
        with failing_as("open the log directory", folder):
            if alone:
                make_folders(folder)
            file = _opened(folder, stack)
        _lock_folder(file, folder, alone=alone)
        path = log_dir.local_path(BROKER_LOCK_FILE)
        with suppress(FileNotFoundError):
            _lock(_opened(path, stack), path)
        yield


def _opened(path: str, stack: ExitStack) -> int:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, file)
    return file


def _lock_folder(file: int, path: str, *, alone: bool) -> None:
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        text = "another export or adoption is at work in this log directory: wait for it"
        raise StorageError(text, directory=path) from None
    except OSError:
        # a network file system without locks of folders: there, who runs two at once must know
        return


def _lock(file: int, path: str) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        text = "a broker is running on this log directory, since it holds the lock: stop it first"
        raise StorageError(text, file=path) from None
