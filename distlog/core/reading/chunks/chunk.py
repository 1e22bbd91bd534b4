"""A chunk: whole batches of one or several segments, back to back in one buffer, checked and decoded at once.

The kernels run over the whole buffer, not over each piece, so a thousand small segments cost what one large costs.
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
from distlog.core.batches.record_batch import first_bad_crc, wrong_crc
from distlog.core.batches.record_decoder import decode_parts
from distlog.core.batches.record_sections import AskedBatches
from distlog.core.batches.source import Source
from distlog.core.buffers import byte_array
from distlog.core.errors import CorruptRecordError
from distlog.core.kernels.batch_order import RUN, first_misplaced
from distlog.core.reading.chunks.piece import Files, Longs, Piece, headers_of, headers_of_all
from distlog.core.transactions.isolation import Isolation, PerBatch

#: Decoded records above this size are cut: for Spark a batch of 5 MB is as good as two, and better than 4 and 1.
OUTPUT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """The batches (`BATCH` rows, positions in `data`) of `pieces`; `owner` says which piece each belongs to."""

    pieces: Sequence[Piece]
    data: memoryview
    batches: npt.NDArray[Any]
    owner: Longs

    def records(self, columns: Sequence[str], isolation: Isolation) -> Iterator[pa.RecordBatch]:
        """The records that the pieces ask for, checked, in batches of at most about OUTPUT_BYTES.

        Raises CorruptRecordError, with file and position, before it yields a record that is not what was written.
        """
        asked = replace(self.asked(), unchecked=True)
        seen = isolation.visible(self.batches, asked.shift, asked.partition)
        if not seen.all():
            self.check()
            asked = replace(asked.of_rows(np.flatnonzero(seen)), unchecked=False)
        try:
            for part in decode_parts(asked, columns, OUTPUT_BYTES):
                yield from _cut(part)
        except CorruptRecordError as error:
            # a wrong checksum tells more than what follows from it
            raise (self._wrong_crc() or self._located(error)) from None

    def check(self) -> None:
        """Raise CorruptRecordError for a wrong checksum. Offsets are outside of these, and were checked before."""
        if error := self._wrong_crc():
            raise error

    def _wrong_crc(self) -> CorruptRecordError | None:
        bad = first_bad_crc(self.data, self.batches)
        return self._located(wrong_crc(self._source(), bad, self.batches[bad])) if bad >= 0 else None

    def rows(self, start: int, end: int) -> Chunk:
        """The chunk with batches [start, end), at least one, and their bytes. This chunk must have only one piece."""
        (piece,) = self.pieces
        batches = self.batches[start:end].copy()
        low, high = int(batches["position"][0]), int(batches["position"][-1] + batches["size"][-1])
        batches["position"] -= low
        part = piece._replace(position=piece.position + low, start=0, end=high - low)
        return Chunk([part], self.data[low:high], batches, self.owner[start:end])

    def part(self, first: int, end: int) -> Chunk:
        """The chunk of the pieces [first, end), at least one."""
        start, stop = self.pieces[first].start, self.pieces[end - 1].end
        rows = slice(*np.searchsorted(self.owner, (first, end)))
        batches = self.batches[rows].copy()
        batches["position"] -= start
        pieces = [one._replace(start=one.start - start, end=one.end - start) for one in self.pieces[first:end]]
        return Chunk(pieces, self.data[start:stop], batches, self.owner[rows] - first)

    def timed(self) -> Chunk:
        """The chunk with the LogAppendTime of its rows written into its bytes.

        Returns this chunk if no segment has such a time. Compare the checksums before, since they are made anew.
        """
        given = np.array([piece.slice.segment.append_time_ms >= 0 for piece in self.pieces])[self.owner]
        if not given.any():
            return self
        data, batches = np.array(self.data, np.uint8), self.batches.copy()
        timed = batches[given]
        write_append_times(data, timed)
        batches[given] = timed
        return replace(self, data=data.data, batches=batches)

    def check_offsets(self) -> None:
        """Raise CorruptRecordError for a batch at offsets that its segment does not have there.

        Base offsets are outside the checksums, so only their place can be checked: batches follow each other from
        the file's first offset to its last, without a gap if the segment is dense.
        """
        wrong = first_misplaced(self.batches, self.owner, np.array([piece.facts() for piece in self.pieces], RUN))
        if wrong >= 0:
            message = "a batch is not at the offsets that its segment has there: verify, then restore it from a copy"
            raise self._located(self._source().corrupt(message, wrong, self.batches[wrong]))

    def check_identity(self) -> None:
        """Raise CorruptRecordError for a file whose first or last batch, if the chunk has it, is another log's."""
        if len(self.batches) == 0:
            return
        crcs, positions = self.batches["crc"], self.batches["position"]
        if len(self.pieces) == 1:
            # the fast way, since a point read does little else
            self.pieces[0].check_ends(int(crcs[0]), int(crcs[-1]), int(positions[-1]))
            return
        changes = np.flatnonzero(np.diff(self.owner)) + 1
        firsts, lasts = np.append(0, changes), np.append(changes, len(self.owner)) - 1
        ends = (array.tolist() for array in (self.owner[firsts], crcs[firsts], crcs[lasts], positions[lasts]))
        for number, first_crc, last_crc, last_position in zip(*ends, strict=True):
            self.pieces[number].check_ends(first_crc, last_crc, last_position)

    def asked(self) -> AskedBatches:
        """All batches, and which of their records the pieces ask for."""
        segments, starts, ends, _, _, times = zip(*[piece.slice for piece in self.pieces], strict=True)
        return AskedBatches(
            byte_array(self.data),
            self.batches,
            self.per_batch([segment.shift for segment in segments]),
            self.per_batch([segment.partition for segment in segments]),
            self.per_batch(starts),
            self.per_batch(ends),
            self._source(),
            self.per_batch([each.oldest for each in times]),
            self.per_batch([each.newest for each in times]),
        )

    def _source(self) -> Source:
        file = self.pieces[0].file if len(self.pieces) == 1 else Files(self.pieces, self.owner)
        return Source(file, self.per_batch([piece.origin for piece in self.pieces]))

    def per_batch(self, values: Iterable[int]) -> PerBatch:
        """`values`, one for each piece, as an array with one for each batch, or as one number if all are equal."""
        found = list(values)
        return found[0] if found.count(found[0]) == len(found) else np.array(found, np.int64)[self.owner]

    def _located(self, error: CorruptRecordError) -> CorruptRecordError:
        file, position = error.details["file"], error.details["position"]
        return next(piece for piece in self.pieces if piece.holds(file, position)).located(error)


def _cut(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if records.get_total_buffer_size() <= OUTPUT_BYTES:
        # most are this small, and the exact size costs more to compute
        return iter([records] if records.num_rows else [])
    parts = ceil(records.nbytes / OUTPUT_BYTES)
    rows = ceil(records.num_rows / parts) or 1
    return (records.slice(start, rows) for start in range(0, records.num_rows, rows))


def chunk_of_files(pieces: Sequence[Piece], data: memoryview) -> Chunk:
    """The chunk of whole log files, which fill `data`; CorruptRecordError for a file that is not what was written."""
    batches = headers_of_all(pieces, data)
    ends = np.array([piece.end for piece in pieces])
    chunk = Chunk(pieces, data, batches, np.searchsorted(ends, batches["position"], side="right"))
    chunk.check_offsets()
    chunk.check_identity()
    _give_append_times(chunk)
    return chunk


def chunk_of_batches(piece: Piece, data: memoryview) -> Chunk | None:
    """The chunk of the whole batches that `data` begins with; None if there is not even one."""
    batches = headers_of(piece, data)
    if len(batches) == 0:
        return None
    end = int(batches["position"][-1] + batches["size"][-1])
    chunk = Chunk([piece._replace(end=end)], data[:end], batches, np.zeros(len(batches), np.int64))
    chunk.check_offsets()
    chunk.check_identity()
    _give_append_times(chunk)
    return chunk


def _give_append_times(chunk: Chunk) -> None:
    times = [piece.slice.segment.append_time_ms for piece in chunk.pieces]
    if max(times, default=-1) >= 0:
        give_append_times(chunk.batches, np.array(times, np.int64)[chunk.owner])
