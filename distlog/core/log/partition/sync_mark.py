"""What the flush lock's page says of the last sync of a segment's log; it counts until the machine restarts.

The kernel tells an error of the disk once, to those that have the file open, and counts the pages as clean then. So
a sync is marked before it begins, and who finds the mark knows that a sync that succeeds now may save nothing.
"""

from __future__ import annotations

import os
from enum import Enum

from distlog.core import paths
from distlog.core.errors import StorageError
from distlog.core.log.partition.state_record import stored_value
from distlog.core.storage.local.file_lock import FileLock
from distlog.core.storage.local.shared_page import boot_id


class Sync(Enum):
    """Nobody knows how the sync ended, or whether there was one; it failed; it ended well, as far as anybody told.

    DOUBTED: that ended well, but what came since was written by somebody who may have been killed, so the kernel may
    have lost it: the next sync can be trusted if it can be read.
    """

    BEGUN = b"B"
    FAILED = b"F"
    DOUBTED = b"D"
    ENDED = b""


def mark(sync: Sync, stem: str) -> bytes:
    """The page's value that says this of the segment `stem`."""
    return boot_id() + sync.value + stem.encode("ascii") if sync != Sync.ENDED else b""


def marked(value: bytes | None, stem: str) -> Sync:
    """What the page's value says of the segment `stem`."""
    return next((sync for sync in (Sync.BEGUN, Sync.FAILED, Sync.DOUBTED) if value == mark(sync, stem)), Sync.ENDED)


def stored_mark(folder: str, stem: str) -> Sync:
    """What the page in the partition's `folder` says of the segment; takes no lock. Raises StorageError."""
    return marked(stored_value(os.path.join(folder, paths.FLUSH_FILE)), stem)


def mark_doubted(folder: str, stem: str) -> bool:
    """Have the next sync of the segment read first what it is to save; False while one is under way."""
    lock = FileLock(os.path.join(folder, paths.FLUSH_FILE))
    try:
        with lock.held(0) as page:
            if marked(page.read(), stem) == Sync.ENDED:
                page.write(mark(Sync.DOUBTED, stem))
    except StorageError:
        return False
    finally:
        lock.close()
    return True
