"""What a disk has, and what the page cache has beyond it: names, sizes and pages, synced or not.

The model of what a power loss leaves is that of journalling file systems (ext4, XFS), without what these promise
beyond POSIX:

- Names: each folder has a journal of its changes that were not synced. A beginning of it survives, of each folder
  independently. A rename is one change. A sync of a file says nothing about its name.
- Sizes and cuts of a file happen in their order, up to any point. What a cut took away does not come back behind it.
- Bytes: of each page that was not synced the device has the old one or the newest, or some sectors of both. The
  system writes pages by itself at any time, so the old one may be of any time since the last sync.
- A write to the device that fails (Linux since 4.13): the page counts as clean from then on, so no sync writes it
  unless it is written again. The system may drop it from its cache at any time, and then a read gets what the device
  has. Each open file is told of the error by one sync. When no process has the file open, the error may be forgotten.
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
    """A folder: its names, those on the device, and the changes from these to those, in their order."""

    names: Names = field(default_factory=dict)
    durable: Names = field(default_factory=dict)
    journal: list[Change] = field(default_factory=list)

    def note(self, change: Change) -> None:
        """Change names, in one step; None takes a name away."""
        self.journal.append(change)
        _apply(self.names, change)

    def sync(self) -> None:
        """Have all names on the device."""
        self.durable, self.journal = dict(self.names), []

    def left(self, count: int) -> Names:
        """The names on the device if so many of the changes got there."""
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
    """A file: a descriptor of what the cache has, the pages on the device, and what differs."""

    cache: int
    device: dict[int, bytes] = field(default_factory=dict)
    device_size: int = 0
    #: Each size since the last sync, with whether the file was cut to it.
    sizes: list[tuple[int, bool]] = field(default_factory=list)
    dirty: set[int] = field(default_factory=set)
    #: Pages that the device did not take: clean for the system.
    refused: set[int] = field(default_factory=set)
    #: Pages that have their place on the disk.
    placed: set[int] = field(default_factory=set)
    is_mapped: bool = False
    #: How many errors there were of writes to the device, and whether the last one was told to anybody.
    errors: int = 0
    is_told: bool = True
    holder: Opened | None = None
    waiting: deque[Waiting] = field(default_factory=deque)

    @property
    def size(self) -> int:
        """The size in the cache."""
        return os.fstat(self.cache).st_size

    def wrote(self, start: int, end: int, before: int) -> None:
        """Note that bytes were written to the cache; the file had the size `before`."""
        pages = range(start // PAGE, -(-end // PAGE))
        self.dirty.update(pages)
        self.placed.update(pages)
        self.refused.difference_update(pages)
        if end > before:
            # the size on the device may stop at any page
            self.sizes += [(each * PAGE, False) for each in range(before // PAGE + 1, -(-end // PAGE))]
            self.sizes.append((end, False))

    def resized(self, size: int, before: int) -> None:
        """Note that the file was cut, or made longer by zeros."""
        self.sizes.append((size, size < before))
        if size < before:
            gone = {page for page in self.device.keys() | self.placed | self.dirty if page * PAGE >= size}
            self.placed -= gone
            self.refused -= gone
            self.dirty -= gone - self.device.keys()
            self.dirty |= gone & self.device.keys()
            if size % PAGE:
                self.dirty.add(size // PAGE)

    def write_back(self, pages: Iterable[int]) -> None:
        """Have these pages on the device as they are now."""
        for page in pages:
            data = self._page(page)
            if data.strip(b"\0"):
                self.device[page] = data
            else:
                self.device.pop(page, None)

    def sync(self) -> None:
        """Have all of it on the device but the pages that it refused."""
        self.write_back(sorted(self.dirty))
        self.dirty = set()
        self.device_size, self.sizes = self.size, []
        for page in [page for page in self.device if page * PAGE >= self.device_size]:
            del self.device[page]

    def drop(self) -> None:
        """Have the cache forget what the device did not take."""
        size = self.size
        for page in sorted(self.refused):
            data = self.device.get(page, b"").ljust(PAGE, b"\0")
            _PWRITE(self.cache, data[: max(size - page * PAGE, 0)], page * PAGE)
        self.refused = set()

    def left(self, random: Random, mood: str) -> tuple[dict[int, bytes], int]:
        """The pages and the size that the device has after a power loss."""
        count = count_left(random, mood, len(self.sizes))
        pages, size = dict(self.device), self.device_size
        for size, is_cut in self.sizes[:count]:
            if is_cut:
                pages = {page: data[: size - page * PAGE] for page, data in pages.items() if page * PAGE < size}
        #: what a later cut freed was written anew elsewhere
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
                parts = ((new if each else old)[at * SECTOR :][:SECTOR] for at, each in enumerate(is_new))
                pages[page] = b"".join(parts)
        return {page: data[: size - page * PAGE] for page, data in pages.items() if page * PAGE < size}, size

    def _page(self, number: int) -> bytes:
        return _PREAD(self.cache, PAGE, number * PAGE)


def count_left(random: Random, mood: str, count: int) -> int:
    """How many of the changes that were not synced get to the device."""
    return {"all": count, "nothing": 0}.get(mood, random.randrange(count + 1))
