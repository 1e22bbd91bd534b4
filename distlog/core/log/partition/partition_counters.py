"""Counts what all processes do to one partition in place, in the pages of its locks: for measurements only.

Who appends or seals counts in the page of the partition's lock, who flushes in that of the flush lock: each counts
under the lock that it holds anyway. A process that dies takes nothing with it. The counters begin at 0 when the
machine is started.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from distlog.core import paths
from distlog.core.storage.local.durable_files import failing_as
from distlog.core.storage.local.shared_page import PAGE_BYTES, counters_of


class PartitionCounters(NamedTuple):
    """What was done; the fields are the first counters of a page.

    An append is what one caller appends at once, one or more batches, and its time goes from when it asks for the
    lock until others see it. A flush is a sync of the log, also that of a seal.
    """

    appends: int = 0
    append_bytes: int = 0
    append_ns: int = 0
    flushes: int = 0
    flush_ns: int = 0


def counters_in(folder: str) -> PartitionCounters | None:
    """What was done to the partition of this folder; None if nobody appended to it in place. Takes no lock.

    Raises StorageError.
    """
    pages = [page for name in (paths.LOCK_FILE, paths.FLUSH_FILE) if (page := _page(os.path.join(folder, name)))]
    if not pages:
        return None
    sums = [sum(each) for each in zip(*map(counters_of, pages), strict=True)]
    return PartitionCounters(*sums[: len(PartitionCounters._fields)])


def _page(path: str) -> bytes | None:
    with failing_as("read", path):
        try:
            with open(path, "rb", buffering=0) as file:
                return file.read(PAGE_BYTES)
        except FileNotFoundError:
            return None
