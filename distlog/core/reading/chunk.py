"""A chunk: whole batches of one or several segments, back to back in one buffer, checked and decoded at once.

The kernels run over the buffer and not over its pieces, so a thousand small segments cost what one large costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.batches.append_time import give_append_times, write_append_times
from distlog.core.batches.record_batch import check_crcs, read_headers
from distlog.core.batches.record_decoder import decode_parts
from distlog.core.batches.record_sections import AskedBatches
from distlog.core.batches.source import Source
from distlog.core.buffers import byte_array
from distlog.core.commits.segment_info import UNKNOWN
from distlog.core.errors import CorruptRecordError
from distlog.core.kernels.batch_order import RUN, first_misplaced
from distlog.core.reading.slices import SegmentSlice
from distlog.core.segments.log_identity import another_log
from distlog.core.transactions.isolation import Isolation, PerBatch

#: What a chunk expands to is cut above this: for Spark a batch of 5 MB is as good as two, and better than 4 and 1.
OUTPUT_BYTES = 8 << 20

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [start, end) of a chunk: whole batches of `file`, from `file_position` on.

    `first_offset` is the stored offset at which they begin, or, where the segment has gaps, not before which; -1 when
    that is not known.
    """

    slice: SegmentSlice
    file: str
    file_position: int
    start: int
    end: int
    first_offset: int = -1

    @property
    def origin(self) -> int:
        """Where in the file the chunk's first byte would lie."""
        return self.file_position - self.start

    @property
    def ends_file(self) -> bool:
        """Whether the file ends with the piece."""
        return self.origin + self.end == self.slice.segment.log_bytes

    def facts(self) -> tuple[int, int, int, int]:
        """What its batches are checked by, a RUN row."""
        segment = self.slice.segment
        return self.first_offset, segment.next_offset - segment.shift, segment.dense, self.ends_file

    def check_ends(self, first_crc: int, last_crc: int, last_position: int) -> None:
        """Raise CorruptRecordError if its first batch, or its last, shows that the log is another segment's."""
        segment = self.slice.segment
        if self.file_position == 0 and segment.first_batch_crc not in (UNKNOWN, first_crc):
            raise another_log(segment, self.file, 0)
        if self.ends_file and segment.last_batch_crc not in (UNKNOWN, last_crc):
            raise another_log(segment, self.file, self.origin + last_position)

    def located(self, error: CorruptRecordError) -> CorruptRecordError:
        """`error`, which knows the file and what is stored, with the partition, and the offset that readers know."""
        segment, details = self.slice.segment, dict(error.details)
        if "offset" in details:
            details["offset"] += segment.shift
        return CorruptRecordError(error.message, **details, partition=segment.partition)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The batches (`BATCH` rows, positions in `data`) of `pieces`; `owner` says which piece each belongs to."""

    pieces: Sequence[Piece]
    data: memoryview
    batches: npt.NDArray[Any]
    owner: Longs

    def records(self, columns: Sequence[str], isolation: Isolation) -> Iterator[pa.RecordBatch]:
        """The records that the pieces ask for, checked, in batches of at most about OUTPUT_BYTES.

        Raises CorruptRecordError, naming the file and position, before a record that is not what was written.
        """
        self.check()
        asked = self._asked()
        seen = isolation.visible(self.batches, asked.shift, asked.partition)
        if not seen.all():
            asked = asked.of_rows(np.flatnonzero(seen))
        try:
            for part in decode_parts(asked, columns, OUTPUT_BYTES):
                yield from _cut(part)
        except CorruptRecordError as error:
            raise self._located(error) from None

    def check(self) -> None:
        """Compare all checksums: CorruptRecordError. Offsets are outside of them, and were checked before."""
        source = self._source()
        try:
            check_crcs(self.data, self.batches, file=source.file, file_position=source.file_position)
        except CorruptRecordError as error:
            raise self._located(error) from None

    def rows(self, start: int, end: int) -> Chunk:
        """The chunk of batches [start, end), at least one, and of their bytes; only of a chunk of one piece."""
        (piece,) = self.pieces
        batches = self.batches[start:end].copy()
        low, high = int(batches["position"][0]), int(batches["position"][-1] + batches["size"][-1])
        batches["position"] -= low
        part = replace(piece, file_position=piece.file_position + low, start=0, end=high - low)
        return Chunk([part], self.data[low:high], batches, self.owner[start:end])

    def timed(self) -> Chunk:
        """The chunk whose bytes have the time of LogAppendTime that its rows have; only of a chunk of one piece.

        It is this one where its segment has no such time. Checksums are compared before, since they are made anew.
        """
        (piece,) = self.pieces
        if piece.slice.segment.append_time_ms < 0:
            return self
        data, batches = np.array(self.data, np.uint8), self.batches.copy()
        write_append_times(data, batches)
        return replace(self, data=data.data, batches=batches)

    def check_offsets(self) -> None:
        """Raise CorruptRecordError for a batch at offsets that its segment does not have there.

        Base offsets are outside of the checksums, so only their place tells: batches follow each other, without a
        gap where the segment is dense, from the first offset of the file to the last.
        """
        wrong = first_misplaced(self.batches, self.owner, np.array([piece.facts() for piece in self.pieces], RUN))
        if wrong >= 0:
            message = "a batch is not at the offsets that its segment has there: verify, then restore it from a copy"
            raise self._located(self._source().corrupt(message, wrong, self.batches[wrong]))

    def check_identity(self) -> None:
        """Raise CorruptRecordError for a file whose first or last batch, where they are here, is another log's."""
        if len(self.batches) == 0:
            return
        crcs, positions = self.batches["crc"], self.batches["position"]
        if len(self.pieces) == 1:
            # a point read has little else to do
            self.pieces[0].check_ends(int(crcs[0]), int(crcs[-1]), int(positions[-1]))
            return
        changes = np.flatnonzero(np.diff(self.owner)) + 1
        firsts, lasts = np.append(0, changes), np.append(changes, len(self.owner)) - 1
        ends = (array.tolist() for array in (self.owner[firsts], crcs[firsts], crcs[lasts], positions[lasts]))
        for number, first_crc, last_crc, last_position in zip(*ends, strict=True):
            self.pieces[number].check_ends(first_crc, last_crc, last_position)

    def _asked(self) -> AskedBatches:
        slices = [piece.slice for piece in self.pieces]
        return AskedBatches(
            byte_array(self.data),
            self.batches,
            self._per_batch(part.segment.shift for part in slices),
            self._per_batch(part.segment.partition for part in slices),
            self._per_batch(part.start_offset for part in slices),
            self._per_batch(part.end_offset for part in slices),
            self._source(),
            self._per_batch(part.times.oldest for part in slices),
            self._per_batch(part.times.newest for part in slices),
        )

    def _source(self) -> Source:
        file = self.pieces[0].file if len(self.pieces) == 1 else _Files(self.pieces, self.owner)
        return Source(file, self._per_batch(piece.origin for piece in self.pieces))

    def _per_batch(self, values: Iterable[int]) -> PerBatch:
        """`values`, one for each piece, as one for each batch, or as one for all where they are equal."""
        found = list(values)
        return found[0] if found.count(found[0]) == len(found) else np.array(found, np.int64)[self.owner]

    def _located(self, error: CorruptRecordError) -> CorruptRecordError:
        return next(piece for piece in self.pieces if piece.file == error.details["file"]).located(error)


class _Files(Sequence[str]):
    """The file of each batch, looked up when an error names it."""

    def __init__(self, pieces: Sequence[Piece], owner: Longs) -> None:
        self._pieces, self._owner = pieces, owner

    def __len__(self) -> int:
        return len(self._owner)

    def __getitem__(self, row: Any) -> Any:
        return self._pieces[self._owner[row]].file


def _cut(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    parts = ceil(records.nbytes / OUTPUT_BYTES) or 1
    rows = ceil(records.num_rows / parts) or 1
    return (records.slice(start, rows) for start in range(0, records.num_rows, rows))


def chunk_of_files(pieces: Sequence[Piece], data: memoryview) -> Chunk:
    """The chunk of whole log files, which fill `data`; CorruptRecordError for one that is not what was written."""
    batches = _headers_of_all(pieces, data)
    ends = np.array([piece.end for piece in pieces])
    chunk = Chunk(pieces, data, batches, np.searchsorted(ends, batches["position"], side="right"))
    chunk.check_offsets()
    chunk.check_identity()
    _give_append_times(chunk)
    return chunk


def chunk_of_batches(piece: Piece, data: memoryview) -> Chunk | None:
    """The chunk of the whole batches that `data` begins with, None where there is not even one."""
    batches = _headers(piece, data)
    if len(batches) == 0:
        return None
    end = int(batches["position"][-1] + batches["size"][-1])
    chunk = Chunk([replace(piece, end=end)], data[:end], batches, np.zeros(len(batches), np.int64))
    chunk.check_offsets()
    chunk.check_identity()
    _give_append_times(chunk)
    return chunk


def _give_append_times(chunk: Chunk) -> None:
    times = [piece.slice.segment.append_time_ms for piece in chunk.pieces]
    if max(times, default=-1) >= 0:
        give_append_times(chunk.batches, np.array(times, np.int64)[chunk.owner])


def _headers_of_all(pieces: Sequence[Piece], data: memoryview) -> npt.NDArray[Any]:
    try:
        batches: npt.NDArray[Any] = read_headers(data)
        batch_ends, ends = np.append(0, batches["position"] + batches["size"]), [piece.end for piece in pieces]
        if (batch_ends[np.searchsorted(batch_ends[:-1], ends)] == ends).all():
            return batches
    except CorruptRecordError:
        pass
    # one of the files is damaged: each by itself tells where
    return np.concatenate([_headers_of_file(piece, data) for piece in pieces])


def _headers_of_file(piece: Piece, data: memoryview) -> npt.NDArray[Any]:
    batches = _headers(piece, data)
    end = int(batches["position"][-1] + batches["size"][-1]) if len(batches) else piece.start
    if end != piece.end:
        raise cut_short(piece, piece.origin + end)
    return batches


def _headers(piece: Piece, data: memoryview) -> npt.NDArray[Any]:
    try:
        batches: npt.NDArray[Any] = read_headers(
            data, start=piece.start, end=piece.end, file=piece.file, file_position=piece.origin
        )
    except CorruptRecordError as error:
        raise piece.located(error) from None
    return batches


def cut_short(piece: Piece, position: int) -> CorruptRecordError:
    """The error for a file of which the last batch, at `position`, is not all there."""
    return CorruptRecordError(
        "the file ends within a batch: verify, then restore it from a copy",
        file=piece.file,
        position=position,
        partition=piece.slice.segment.partition,
    )
