"""A device and the page cache in front: names, sizes and pages, synced or not.

A power loss works as in journaling file systems (ext4, XFS), without their promises beyond POSIX:

- Names: each folder has a journal of unsynced changes. A prefix of the journal survives, independently of
  other folders. A rename is one change. A sync of a file says nothing about its name.
- Sizes and cuts of a file happen in order, up to any point. Cut bytes do not come back after the cut.
- Bytes: the device has the old or the newest version of each unsynced page, or some sectors of both. The system
  writes pages at any time, so the old version may be of any time since the last sync.
- Failed writes (Linux since 4.13): the page counts as clean, so no sync writes it unless it changes again. The system
  may drop it from its cache at any time, and then a read returns the page of the device. One sync of each
  open file returns the error. When no process has the file open, the error may be forgotten.
- A mapped page may be written to the device at any time, and is not dropped from the cache.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.local_disk import Opened
    from simulation.world import Waiting

PAGE, SECTOR = 4096, 512
_PREAD, _PWRITE = os.pread, os.pwrite

Names = dict[str, "Folder | File"]
Change = Mapping[str, "Folder | File | None"]


@dataclass(eq=False, slots=True)
class Folder:
    """A folder: its names, the durable names, and the changes in between, in order."""

    names: Names = field(default_factory=dict)
    durable: Names = field(default_factory=dict)
    journal: list[Change] = field(default_factory=list)
    holder: Opened | None = None
    waiting: deque[Waiting] = field(default_factory=deque)

    def note(self, change: Change) -> None:
        """Change names in one step; None removes a name."""
        self.journal.append(change)
        _apply(self.names, change)

    def sync(self) -> None:
        self.durable, self.journal = dict(self.names), []

    def after_loss(self, count: int) -> Names:
        """Return the durable names after the first `count` changes."""
        names = dict(self.durable)
        for change in self.journal[:count]:
            _apply(names, change)
        return names


def _apply(names: Names, change: Change) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


@dataclass(eq=False, slots=True)
class File:
    """A file: a descriptor of the cache, the pages of the device, and the difference."""

    cache: int
    device: dict[int, bytes] = field(default_factory=dict)
    device_size: int = 0
    #: Each size since the last sync, and whether it was a cut.
    sizes: list[tuple[int, bool]] = field(default_factory=list)
    dirty: set[int] = field(default_factory=set)
    #: Pages that the device refused: clean for the system.
    refused: set[int] = field(default_factory=set)
    #: Pages with space on the disk.
    allocated: set[int] = field(default_factory=set)
    is_mapped: bool = False
    #: The number of failed writes to the device, and whether the last one was reported.
    errors: int = 0
    is_reported: bool = True
    holder: Opened | None = None
    waiting: deque[Waiting] = field(default_factory=deque)

    @property
    def size(self) -> int:
        return os.fstat(self.cache).st_size

    def wrote(self, start: int, end: int, old_size: int) -> None:
        """Note that bytes were written to a cache of `old_size` bytes."""
        pages = range(start // PAGE, -(-end // PAGE))
        self.dirty.update(pages)
        self.allocated.update(pages)
        self.refused.difference_update(pages)
        if end > old_size:
            # the size of the device may stop at any page
            self.sizes += [(page * PAGE, False) for page in range(old_size // PAGE + 1, -(-end // PAGE))]
            self.sizes.append((end, False))

    def resized(self, size: int, old_size: int) -> None:
        """Note that the file was cut, or extended with zeros."""
        self.sizes.append((size, size < old_size))
        if size < old_size:
            freed = {page for page in self.device.keys() | self.allocated | self.dirty if page * PAGE >= size}
            self.allocated -= freed
            self.refused -= freed
            self.dirty -= freed - self.device.keys()
            self.dirty |= freed & self.device.keys()
            if size % PAGE:
                self.dirty.add(size // PAGE)

    def write_back(self, pages: Iterable[int]) -> None:
        for page in pages:
            data = self._page(page)
            if data.strip(b"\0"):
                self.device[page] = data
            else:
                self.device.pop(page, None)

    def sync(self) -> None:
        self.write_back(sorted(self.dirty))
        self.dirty = set()
        self.device_size, self.sizes = self.size, []
        for page in [page for page in self.device if page * PAGE >= self.device_size]:
            del self.device[page]

    def drop(self) -> None:
        size = self.size
        for page in sorted(self.refused):
            data = self.device.get(page, b"").ljust(PAGE, b"\0")
            _PWRITE(self.cache, data[: max(size - page * PAGE, 0)], page * PAGE)
        self.refused = set()

    def after_loss(self, random: Random, mood: str) -> tuple[dict[int, bytes], int]:
        """Draw the pages and the size of the device after a power loss."""
        count = count_surviving(random, mood, len(self.sizes))
        pages, size = dict(self.device), self.device_size
        for size, is_cut in self.sizes[:count]:
            if is_cut:
                pages = {page: data[: size - page * PAGE] for page, data in pages.items() if page * PAGE < size}
        # pages that a later cut freed were written again elsewhere
        later = min((size for size, is_cut in self.sizes[count:] if is_cut), default=math.inf)
        for page in sorted(self.dirty) if mood != "nothing" else ():
            if (page + 1) * PAGE > later:
                continue
            old, new = pages.get(page, b"").ljust(PAGE, b"\0"), self._page(page).ljust(PAGE, b"\0")
            kind = 0.0 if mood == "all" else random.random()
            if kind < 0.4:
                pages[page] = new
            elif kind < 0.6:
                is_new = [random.random() < 0.6 for _ in range(PAGE // SECTOR)]
                sectors = (((old, new)[flag])[index * SECTOR :][:SECTOR] for index, flag in enumerate(is_new))
                pages[page] = b"".join(sectors)
        return {page: data[: size - page * PAGE] for page, data in pages.items() if page * PAGE < size}, size

    def _page(self, number: int) -> bytes:
        return _PREAD(self.cache, PAGE, number * PAGE)


def count_surviving(random: Random, mood: str, count: int) -> int:
    """Draw how many of the unsynced changes reach the device."""
    return {"all": count, "nothing": 0}.get(mood, random.randrange(count + 1))
