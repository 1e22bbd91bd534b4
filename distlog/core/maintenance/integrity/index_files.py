"""Reads the index files of a segment from storage and says what state each is in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt
from crc32c import crc32c

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.errors import CorruptIndexError
from distlog.core.maintenance.integrity.index_check import (
    IndexCheck,
    OffsetIndexCheck,
    TimeIndexCheck,
    TransactionIndexCheck,
)
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.segments.index_facts import checksum_error, index_size, remedy
from distlog.core.storage.part import Part

#: The state of an index file. "missing": the file is not there. "truncated": shorter than its segment says.
#: "corrupted": has entries that no log can have, or more bytes or another checksum than its segment says. "stale": is
#: of another log. "fine": nothing is wrong.
State = Literal["fine", "missing", "truncated", "corrupted", "stale"]

CHECKS: dict[str, type[IndexCheck]] = {
    check.SUFFIX: check for check in (OffsetIndexCheck, TimeIndexCheck, TransactionIndexCheck)
}


@dataclass(slots=True)
class IndexFile:
    """One index file, compared with its log batch by batch; `error` says what is wrong, if anything is."""

    suffix: str
    data: bytes
    state: State
    error: CorruptIndexError | None
    check: IndexCheck | None

    def add(self, batches: npt.NDArray[Any], position: int) -> None:
        """Compare with the next batches of the log; `position` is the first one's byte position in the log file."""
        if self.check is not None:
            self.check.add(batches, position)

    def finish(self) -> None:
        """Settle the state after the last batch of the log."""
        mismatch = self.check.mismatch() if self.check is not None else None
        if mismatch is not None:
            self.error, self.state = mismatch, "stale" if self.data else "missing"


def find_indexes(reader: SegmentReader, segment: SegmentInfo) -> list[IndexFile]:
    """The segment's index files, read from the storage and not from a cache."""
    return [_find(reader, segment, suffix) for suffix in CHECKS]


def _find(reader: SegmentReader, segment: SegmentInfo, suffix: str) -> IndexFile:
    part, size = reader.part(segment, suffix), index_size(segment, suffix)
    # one byte more shows a file that is too long; that of an active segment grows
    end = size + 1 if part.is_file and not segment.is_active else size
    try:
        data = reader.storage.read(*part.range(0, end)) if size else b""
    except FileNotFoundError:
        return IndexFile(suffix, b"", "missing", _error("the index file is gone", suffix, part, segment, 0), None)
    if len(data) != size:
        message = "the size of the index file differs from its segment's metadata"
        error = _error(message, suffix, part, segment, min(len(data), size))
        return IndexFile(suffix, data, "truncated" if len(data) < size else "corrupted", error, None)
    other = checksum_error(segment, suffix, part, crc32c(data))
    try:
        return IndexFile(suffix, data, "corrupted" if other else "fine", other, CHECKS[suffix](part, segment, data))
    except CorruptIndexError as error:
        return IndexFile(suffix, data, "corrupted", error, None)


def _error(message: str, suffix: str, part: Part, segment: SegmentInfo, position: int) -> CorruptIndexError:
    message = f"{message}: {remedy(segment)}"
    return CorruptIndexError(message, file=part.name, position=part.begin + position, partition=segment.partition)
