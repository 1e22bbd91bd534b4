"""What is shown of some MB of a log: lines of batches and records, and which offsets do not follow each other.

A window depends on nothing but its bytes, so several are made at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import CRC_START, LEGACY_CRC_START
from distlog.core.batches.source import Source
from distlog.core.buffers import byte_array
from distlog.core.dump.dumped_file import Frames
from distlog.core.dump.line import Longs
from distlog.core.dump.log_lines import LogStyle
from distlog.core.dump.scanned import Scanned, no_records, scan
from distlog.core.errors import CorruptRecordError
from distlog.core.kernels.crc_verdicts import find_valid

#: Records are shown when their batches have decompressed to so many bytes.
PART_BYTES = 4 << 20

NO_OFFSETS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Shown:
    """The lines of a part of a log, and what is wrong behind them.

    `ends` are the first and the last offset of its records; `before` and `after` are offsets of neighbours that do
    not follow each other.
    """

    lines: memoryview
    ends: tuple[int, int] | None
    before: Longs
    after: Longs
    error: CorruptRecordError | None


@dataclass(frozen=True, slots=True)
class LogWindows:
    """How windows of the log at `path` are shown; with `is_deep` their records too."""

    path: str
    style: LogStyle
    is_deep: bool

    def show(self, frames: Frames) -> Iterator[Shown]:
        """What is shown of `frames`, part by part."""
        valid = checksums_hold(frames)
        for start, end in _runs_of_one_format(frames.batches):
            batches = frames.batches[start:end]
            for found, error in self._found(frames, batches):
                count = len(found.counts)
                lines = self.style.lines(batches[:count], frames.position, valid[start : start + count], found)
                yield _shown(lines, found, error)
                batches, start = batches[count:], start + count

    def _found(
        self, frames: Frames, batches: npt.NDArray[Any]
    ) -> Iterator[tuple[Scanned, CorruptRecordError | None]]:
        """The records of `batches`, part by part; a batch that cannot be read is a part by itself."""
        source = Source(self.path, frames.position)
        if not self.is_deep:
            yield no_records(batches), None
            return
        if batches["magic"][0] < 0:
            text = f"batches have the unknown format {batches['magic'][0]}, so their records are not shown"
            yield no_records(batches), source.corrupt(text, 0, batches[0])
            return
        data, columns = byte_array(frames.data), self._columns(batches)
        while len(batches):
            found, error = scan(data, batches, source, columns, PART_BYTES)
            if error is not None and len(batches) > 1:
                # halves of halves find the bad batch
                yield from self._found(frames, batches[: len(batches) // 2])
                batches = batches[len(batches) // 2 :]
            else:
                yield found, error
                batches = batches[len(found.counts) :]

    def _columns(self, batches: npt.NDArray[Any]) -> tuple[str, ...]:
        has_headers = batches["magic"][0] >= 2 and self.style.metadata
        return ("key", "value", "headers") if has_headers else ("key", "value")


def _shown(lines: memoryview, found: Scanned, error: CorruptRecordError | None) -> Shown:
    if found.size == 0:
        return Shown(lines, None, NO_OFFSETS, NO_OFFSETS, error)
    offsets = found.offsets
    gaps = np.flatnonzero(np.diff(offsets) != 1)
    return Shown(lines, (int(offsets[0]), int(offsets[-1])), offsets[gaps], offsets[gaps + 1], error)


def checksums_hold(frames: Frames) -> npt.NDArray[np.bool_]:
    """Whose checksum is that of their bytes; formats later than 2 are taken to have it as format 2 has."""
    valid = np.zeros(len(frames.batches), bool)
    find_valid(byte_array(frames.data), frames.batches, CRC_START, LEGACY_CRC_START, valid)
    return valid


def _runs_of_one_format(batches: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    changes = np.flatnonzero(np.diff(batches["magic"])) + 1
    return zip([0, *changes.tolist()], [*changes.tolist(), len(batches)], strict=True)
