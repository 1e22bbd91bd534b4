"""A file that is dumped: where it is, what its name says, and the batches of a log that may be damaged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.buffers import byte_array
from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptRecordError
from distlog.core.kernels.batch_scan import BAD_LENGTH, BATCH, LOG_OVERHEAD, OK, SMALLEST_LENGTH, SMALLEST_PREFIX
from distlog.core.kernels.frame_scan import count_frames, read_frames
from distlog.core.reading.chunks.read_ahead import LogFile
from distlog.core.storage.part import Part
from distlog.core.storage.storage import Storage

#: How many bytes of a log are looked at together.
WINDOW_BYTES = 2 << 20

_BASE_OFFSET = re.compile(r"[0-9]{1,20}")
_FOLDER_AND_NAME = re.compile(r"(?P<folder>.*[/:])?(?P<name>[^/]*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Frames:
    """Whole batches of a log: the bytes, which begin at `position` of the file, and BATCH rows."""

    data: memoryview
    batches: npt.NDArray[Any]
    position: int


@dataclass(frozen=True, slots=True)
class DumpedFile:
    """A file, and its address as the user gave it."""

    address: str
    storage: Storage
    name: str

    @classmethod
    def at(cls, address: str, storage_options: dict[str, Any] | None = None) -> DumpedFile:
        """The file at a path or URL; raises StorageError for an address that is none."""
        found = _FOLDER_AND_NAME.fullmatch(address)
        assert found is not None
        return cls(address, Storage(found["folder"] or ".", storage_options), found["name"])

    @property
    def suffix(self) -> str:
        """What follows the last dot of the name, with it; empty without one."""
        return "." + self.name.rpartition(".")[2] if "." in self.name else ""

    @property
    def path(self) -> str:
        """The whole path or URL."""
        return f"{self.storage.url.rstrip('/')}/{self.name}"

    @property
    def base_offset(self) -> int:
        """The offset in the name, before its first dot; 0 if there is none, as in distlog's own names."""
        stem = self.name.partition(".")[0]
        return min(int(stem), MAX_LONG) if _BASE_OFFSET.fullmatch(stem) else 0

    @property
    def size(self) -> int:
        """The size in bytes; raises FileNotFoundError."""
        return self.storage.size(self.name)

    def sibling(self, suffix: str) -> DumpedFile:
        """The segment's file of another suffix."""
        return DumpedFile(self.address, self.storage, self.name.partition(".")[0] + suffix)

    def frames(self, end: int) -> Iterator[Frames]:
        """The whole batches before `end`, some MB at a time; no checksum is looked at.

        Raises CorruptRecordError for an impossible size, after which nothing can be found.
        """
        position, size = 0, WINDOW_BYTES
        file = LogFile(self.storage, Part.file(self.name, end), end, mapped=False)
        try:
            while position < end:
                data = file.read(position, min(position + size, end))
                array = byte_array(data)
                status, stop, count = count_frames(array)
                if count:
                    batches = np.zeros(count, BATCH)
                    read_frames(array, batches)
                    yield Frames(data[:stop], batches, position)
                if status != OK:
                    raise self._bad_size(status, array, stop, position)
                size = WINDOW_BYTES if count else _size_of_batch(data)
                if position + stop + size > end and not count:
                    return
                position += stop
        finally:
            file.close()

    def _bad_size(self, status: int, data: npt.NDArray[np.uint8], at: int, origin: int) -> CorruptRecordError:
        length = int.from_bytes(data[at + 8 : at + LOG_OVERHEAD].tobytes(), "big", signed=True)
        wanted = f"at least {SMALLEST_LENGTH}" if status == BAD_LENGTH else "those of its header"
        return CorruptRecordError(
            f"a batch says that it has {length} bytes, not {wanted}: nothing behind it can be read",
            file=self.path,
            position=origin + at,
        )


def _size_of_batch(data: memoryview) -> int:
    """The size of the batch that `data` begins with, if there is enough to tell, else more than any file has."""
    if len(data) < SMALLEST_PREFIX:
        return 1 << 62
    return LOG_OVERHEAD + int.from_bytes(data[8:LOG_OVERHEAD], "big")
