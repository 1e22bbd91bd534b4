"""Who may bring removed files back, or delete them ahead of a gc floor: one process at a time.

A restore looks whether files are there, and then commits. Vacuum of a full disk deletes files before its floor fits,
so the floor cannot refuse a restore in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distlog.core import paths
from distlog.core.storage.local.file_lock import flocked
from distlog.core.storage.storage import Storage


@contextmanager
def removed_files_held(storage: Storage) -> Iterator[None]:
    """No other process or thread is in such a block for this topic; raises StorageError if the disk has no locks.

    Commit 0 is locked: it is always there, so a full disk needs no space for it. Other storage is never full.
    """
    if not storage.is_local:
        yield
        return
    with flocked(storage.local_path(paths.commit_file(0))):
        yield
