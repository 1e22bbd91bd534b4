"""A piece of a chunk: whole batches of one log file, where they lie, their headers, and the errors that name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import read_headers
from distlog.core.commits.format.segment_info import UNKNOWN
from distlog.core.errors import CorruptRecordError
from distlog.core.reading.slices.slices import SegmentSlice
from distlog.core.segments.log_identity import another_log
from distlog.core.storage.part import Part

Longs = npt.NDArray[np.int64]


class Piece(NamedTuple):
    """Bytes [start, end) of a chunk: whole batches of `log`, from its byte `position` on.

    `first_offset` is the stored offset at which they begin, or, if the segment has gaps, a lower bound of it; -1 if
    it is not known.
    """

    slice: SegmentSlice
    log: Part
    position: int
    start: int
    end: int
    first_offset: int = -1

    @property
    def file(self) -> str:
        """The object that holds the log."""
        return self.log.name

    @property
    def file_position(self) -> int:
        """Where the piece begins in that object."""
        return self.log.begin + self.position

    @property
    def origin(self) -> int:
        """The position in that object that the chunk's first byte would have."""
        return self.file_position - self.start

    @property
    def ends_log(self) -> bool:
        """Whether the log ends with the piece."""
        return self.position + self.end - self.start == self.slice.segment.log_bytes

    def holds(self, file: str, position: int) -> bool:
        """Whether byte `position` of the object `file` is in the piece."""
        return file == self.file and self.start <= position - self.origin < self.end

    def facts(self) -> tuple[int, int, int, int]:
        """The values that its batches are checked against, as a RUN row."""
        part, _, position, start, end, first_offset = self
        segment = part.segment
        ends_log = position + end - start == segment.log_bytes
        return first_offset, segment.next_offset - segment.shift, segment.dense, ends_log

    def check_ends(self, first_crc: int, last_crc: int, last_position: int) -> None:
        """Raise CorruptRecordError if its first batch, or its last, shows that the log is another segment's."""
        segment = self.slice.segment
        if self.position == 0 and segment.first_batch_crc not in (UNKNOWN, first_crc):
            raise another_log(segment, self.file, self.file_position)
        if self.ends_log and segment.last_batch_crc not in (UNKNOWN, last_crc):
            raise another_log(segment, self.file, self.origin + last_position)

    def located(self, error: CorruptRecordError) -> CorruptRecordError:
        """`error`, which has the file and the stored offset, with the partition and the offset that readers see."""
        segment, details = self.slice.segment, dict(error.details)
        if "offset" in details:
            details["offset"] += segment.shift
        return CorruptRecordError(error.message, **details, partition=segment.partition)


class Files(Sequence[str]):
    """The file of each batch, looked up when an error names it."""

    def __init__(self, pieces: Sequence[Piece], owner: Longs) -> None:
        self._pieces, self._owner = pieces, owner

    def __len__(self) -> int:
        return len(self._owner)

    def __getitem__(self, row: Any) -> Any:
        return self._pieces[self._owner[row]].file


def headers_of_all(pieces: Sequence[Piece], data: memoryview) -> npt.NDArray[Any]:
    """The headers of the batches of whole log files, which fill `data`, as BATCH rows.

    Raises CorruptRecordError for a file that is not whole batches from its start to its end.
    """
    try:
        batches: npt.NDArray[Any] = read_headers(data)
        batch_ends, ends = np.append(0, batches["position"] + batches["size"]), [piece.end for piece in pieces]
        if (batch_ends[np.searchsorted(batch_ends[:-1], ends)] == ends).all():
            return batches
    except CorruptRecordError:
        pass
    # one of the files is damaged: reading each by itself tells where
    return np.concatenate([_headers_of_file(piece, data) for piece in pieces])


def _headers_of_file(piece: Piece, data: memoryview) -> npt.NDArray[Any]:
    batches = headers_of(piece, data)
    end = int(batches["position"][-1] + batches["size"][-1]) if len(batches) else piece.start
    if end != piece.end:
        raise cut_short(piece, end)
    return batches


def headers_of(piece: Piece, data: memoryview) -> npt.NDArray[Any]:
    """The headers of the whole batches of one piece of `data`, as BATCH rows; raises CorruptRecordError."""
    try:
        batches: npt.NDArray[Any] = read_headers(
            data, start=piece.start, end=piece.end, file=piece.file, file_position=piece.origin
        )
    except CorruptRecordError as error:
        raise piece.located(error) from None
    return batches


def cut_short(piece: Piece, position: int) -> CorruptRecordError:
    """The error for a log whose last batch, at `position` of the chunk, is cut short."""
    return CorruptRecordError(
        "the file ends within a batch: verify, then restore it from a copy",
        file=piece.file,
        position=piece.origin + position,
        partition=piece.slice.segment.partition,
    )
