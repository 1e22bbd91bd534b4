"""A small value that processes share, in a page of a file that all of them map. It survives killed processes.

There are two slots. A write fills the slot with the older value, so a process that is killed while it writes leaves
the newer value whole. Each slot has a number that grows and a CRC-32C; the whole slot with the larger number counts.
So readers need no lock. Writers need one (`FileLock`), since two of them would fill the same slot.

The page is in the page cache: it survives processes, and after a power loss it may hold anything. So store the
boot's id (`boot_id`) with each value.

Behind the slots are counters, for measurements only. They have no checksum, and begin at 0 with each boot.

    position  size  field
           0     8  magic
           8     8  process id of the last holder of the lock, for error messages only
        1024  1024  slot 0: number uint64, length uint32, CRC-32C uint32 (of number, length and value), value
        2048  1024  slot 1
        3072    16  the boot's id, if the counters are of this boot
        3088    64  counters, int64 of this machine
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from crc32c import crc32c

from distlog.core.errors import StorageError
from distlog.core.storage.local.mapping import map_shared, map_watched

PAGE_BYTES = 4096
SLOT_BYTES = 1024
_MAGIC = b"DLGPAGE1"
_HOLDER = struct.Struct("<q")
_HOLDER_AT = 8
_SLOTS_AT = (1024, 2048)
_NUMBERS = struct.Struct("<QI")
_NUMBER = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_VALUE_AT = _NUMBERS.size + _CRC.size
MAX_VALUE_BYTES = SLOT_BYTES - _VALUE_AT
_BOOT_AT = 3072
_BOOT_BYTES = 16
COUNTERS = 8
_COUNTERS = struct.Struct(f"={COUNTERS}q")
_COUNTERS_AT = _BOOT_AT + _BOOT_BYTES


class _Slot(NamedTuple):
    """A whole slot: its number and value, its place, and all of its bytes."""

    number: int
    value: bytes
    at: int
    data: bytes

    @property
    def other(self) -> int:
        """The place of the other slot."""
        return _SLOTS_AT[self.at == _SLOTS_AT[0]]


class SharedPage:
    """The page in the open file `descriptor`; an empty file, and one that a power loss garbled, become a page.

    No process may cut the file while it is mapped. Raises StorageError for a file that is not such a page.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        status = os.fstat(descriptor)
        if status.st_size not in (0, PAGE_BYTES):
            raise StorageError(
                "the lock file has the wrong size: delete it while no process uses the topic", file=path
            )
        if not status.st_size or not status.st_blocks:
            # a hole in the map would kill the process (SIGBUS) that writes to it while the disk is full
            os.posix_fallocate(descriptor, 0, PAGE_BYTES)
        if os.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
            # new, or what a power loss left; several processes may do this at once: all write the same bytes
            os.pwrite(descriptor, _MAGIC, 0)
        self._page = map_shared(descriptor, PAGE_BYTES)
        self._known: _Slot | None = None
        # items of 8 bytes, so that a reader sees each of them whole
        self._counters = self._page[_COUNTERS_AT : _COUNTERS_AT + _COUNTERS.size].cast("q")
        self._counted = False

    @property
    def holder(self) -> int:
        """The id of the process that last called `tell_holder`; it may have ended since."""
        return int(_HOLDER.unpack_from(self._page, _HOLDER_AT)[0])

    def tell_holder(self, process_id: int) -> None:
        """Store the id of the process that holds the lock, for the errors of those that wait."""
        _HOLDER.pack_into(self._page, _HOLDER_AT, process_id)

    def read(self) -> bytes | None:
        """The newest whole value, or None if there is none."""
        slot = self._newest()
        return slot.value if slot else None

    def write(self, value: bytes) -> None:
        """Replace the older value by `value`, at most MAX_VALUE_BYTES. Needs the lock."""
        if len(value) > MAX_VALUE_BYTES:
            raise ValueError(f"a value of {len(value)} bytes does not fit into a slot of {MAX_VALUE_BYTES}")
        newest = self._newest()
        number, at = (newest.number + 1, newest.other) if newest else (0, _SLOTS_AT[0])
        head = _NUMBERS.pack(number, len(value))
        data = head + _CRC.pack(crc32c(value, crc32c(head))) + value
        self._page[at : at + len(data)] = data
        self._known = _Slot(number, value, at, data)

    def add(self, *amounts: int) -> None:
        """Add to the counters, of which there are COUNTERS, from the first one on. Needs the lock."""
        counters = self._counters
        if not self._counted and self._page[_BOOT_AT:_COUNTERS_AT] != boot_id():
            self._page[_BOOT_AT : _COUNTERS_AT + _COUNTERS.size] = boot_id() + bytes(_COUNTERS.size)
        self._counted = True
        for place, amount in enumerate(amounts):
            counters[place] += amount

    def _newest(self) -> _Slot | None:
        known = self._known
        if known is None or not self._is_newest(known):
            known = self._known = _newest_slot(self._page)
        return known

    def _is_newest(self, slot: _Slot) -> bool:
        """Whether a slot that was found whole is there as it was, and the other one cannot be newer.

        This says what `_newest_slot` says, without checksums.
        """
        page = self._page
        is_there = page[slot.at : slot.at + len(slot.data)].tobytes() == slot.data
        return is_there and _NUMBER.unpack_from(page, slot.other)[0] < slot.number and page[: len(_MAGIC)] == _MAGIC


class WatchedPage:
    """The page in the file `path`, for a process that wants to know when it changes, and needs no lock for that.

    Raises FileNotFoundError, and StorageError for a file that is not such a page.
    """

    def __init__(self, path: str) -> None:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(file).st_size != PAGE_BYTES:
                raise StorageError("the lock file has the wrong size", file=path)
            # without the head and the counters, which say nothing of the value
            self._slots = map_watched(file, PAGE_BYTES)[_SLOTS_AT[0] : _BOOT_AT]
        finally:
            os.close(file)
        self._seen = b""

    def changed(self) -> bool:
        """Whether any byte of the value changed since the last call, the first time too.

        A write that was seen half done is seen again when it is done.
        """
        now = self._slots.tobytes()
        changed, self._seen = now != self._seen, now
        return changed


def read_newest(read: Callable[[], bytes]) -> bytes | None:
    """The newest whole value of a page that others may be writing to; `read` gives its bytes now. Needs no lock.

    Two writes during one read may leave in it no value but one that was old before. Then a slot in it is not whole,
    and the page is read again: the newer value of both reads is not older than what was there at first.
    """
    slots = _whole_slots(read())
    if len(slots) < len(_SLOTS_AT):
        slots += _whole_slots(read())
    return max(slots).value if slots else None


def counters_of(page: bytes) -> tuple[int, ...]:
    """The counters in the bytes of a page; zeros if nobody counted since the machine was started."""
    if len(page) < PAGE_BYTES or page[_BOOT_AT:_COUNTERS_AT] != boot_id():
        return (0,) * COUNTERS
    return _COUNTERS.unpack_from(page, _COUNTERS_AT)


def _newest_slot(page: bytes | memoryview) -> _Slot | None:
    return max(_whole_slots(page), default=None)


def _whole_slots(page: bytes | memoryview) -> list[_Slot]:
    if page[: len(_MAGIC)] != _MAGIC or len(page) < PAGE_BYTES:
        return []
    return [slot for slot in (_slot(page, at) for at in _SLOTS_AT) if slot is not None]


def _slot(page: bytes | memoryview, at: int) -> _Slot | None:
    """The slot at this place; None if it is not whole."""
    data = bytes(page[at : at + SLOT_BYTES])
    number, length = _NUMBERS.unpack_from(data)
    if length > MAX_VALUE_BYTES:
        return None
    value = data[_VALUE_AT : _VALUE_AT + length]
    (checksum,) = _CRC.unpack_from(data, _NUMBERS.size)
    if crc32c(value, crc32c(data[: _NUMBERS.size])) != checksum:
        return None
    return _Slot(number, value, at, data[: _VALUE_AT + length])


@cache
def boot_id() -> bytes:
    """16 bytes that change with each start of the machine; zeros if the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return bytes.fromhex(file.read().decode().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)
