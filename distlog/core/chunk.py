"""A chunk: whole batches of one or several segments, back to back in one buffer, checked and decoded at once.

The kernels run over the buffer and not over its pieces, so a thousand small segments cost what one large costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.errors import CorruptRecordError
from distlog.core.isolation import Isolation
from distlog.core.record_batch import CODEC_MASK, check_crcs, read_headers
from distlog.core.record_decoder import decode
from distlog.core.slices import SegmentSlice

#: A Spark record batch is best at 1 to 4 MB.
OUTPUT_BYTES = 4 << 20
#: Compressed batches decoded at once: what they unpack to is not known before.
COMPRESSED_BATCHES = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a chunk: `data`, from `file_position` of `file`; `last` says that the file ends with it.

    `start` is where it lies in the chunk's buffer.
    """

    slice: SegmentSlice
    file: str
    file_position: int
    data: memoryview
    last: bool
    start: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """The batches (`BATCH` rows, positions in `data`) of `pieces`; `owner` says which piece each belongs to."""

    pieces: Sequence[Piece]
    data: memoryview
    batches: npt.NDArray[Any]
    owner: npt.NDArray[np.int64]

    def records(self, columns: Sequence[str], isolation: Isolation) -> Iterator[pa.RecordBatch]:
        """The records that the pieces ask for, checked, in batches of at most about OUTPUT_BYTES.

        Raises CorruptRecordError, naming the file and position, before a record that is not what was written.
        """
        self.check()
        for low, high in self._steps():
            yield from _cut(self._decode(low, high, columns, isolation))

    def _steps(self) -> Iterator[tuple[int, int]]:
        compressed = bool((self.batches["attributes"] & CODEC_MASK).any())
        step = COMPRESSED_BATCHES if compressed else max(1, len(self.batches))
        return ((low, min(low + step, len(self.batches))) for low in range(0, len(self.batches), step))

    def one(self, row: int) -> Chunk:
        """The chunk of batch `row` alone; only of a chunk of one piece."""
        return self._rows(row, row + 1)

    def first(self, count: int) -> Chunk:
        """The chunk of the first `count` batches; only of a chunk of one piece."""
        return self._rows(0, count)

    def _rows(self, start: int, end: int) -> Chunk:
        (piece,) = self.pieces
        batches = self.batches[start:end].copy()
        low, high = int(batches["position"][0]), int(batches["position"][-1] + batches["size"][-1])
        batches["position"] -= low
        last = piece.last and end == len(self.batches)
        part = replace(piece, file_position=piece.file_position + low, data=piece.data[low:high], last=last)
        return Chunk([part], part.data, batches, self.owner[start:end])

    def _of_each(self, name: str) -> npt.NDArray[np.int64]:
        """The segment's attribute `name` for each batch."""
        values = np.array([getattr(piece.slice.segment, name) for piece in self.pieces], np.int64)
        return values[self.owner]

    def check(self) -> None:
        """Check every CRC, and that the offsets are those of the metadata; CorruptRecordError if not."""
        check_crcs(self.data, self.batches, **self._origin(self.owner))
        wrong = _wrong_offsets(self)
        if wrong.any():
            row = int(wrong.argmax())
            piece, batch = self.pieces[self.owner[row]], self.batches[row]
            raise CorruptRecordError(
                "the batch's offsets are not those its segment's metadata says; verify the topic, restore the file",
                file=piece.file,
                position=piece.file_position - piece.start + int(batch["position"]),
                partition=piece.slice.segment.partition,
                offset=int(batch["base_offset"]) + piece.slice.segment.shift,
            )

    def _origin(self, owner: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Where the batches of `owner` come from, as the decoder wants to name it in an error."""
        positions = np.array([piece.file_position - piece.start for piece in self.pieces])[owner]
        return {"file": _Files(self.pieces, owner), "file_position": positions}

    def _decode(self, low: int, high: int, columns: Sequence[str], isolation: Isolation) -> pa.RecordBatch:
        batches, owner = self.batches[low:high], self.owner[low:high]
        shift, partition = self._of_each("shift")[low:high], self._of_each("partition")[low:high]
        seen = isolation.visible(batches, shift, partition)
        starts = np.array([piece.slice.start_offset for piece in self.pieces])[owner]
        ends = np.array([piece.slice.end_offset for piece in self.pieces])[owner]
        return decode(
            self.data,
            batches[seen],
            columns=columns,
            shift=shift[seen],
            partition=partition[seen].astype(np.int32),
            start_offset=starts[seen],
            end_offset=ends[seen],
            **self._origin(owner[seen]),
        )


class _Files(Sequence[str]):
    """The file of each batch, looked up when an error names it."""

    def __init__(self, pieces: Sequence[Piece], owner: npt.NDArray[np.int64]) -> None:
        self._pieces, self._owner = pieces, owner

    def __len__(self) -> int:
        return len(self._owner)

    def __getitem__(self, row: Any) -> Any:
        return self._pieces[self._owner[row]].file


def _cut(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = records.num_rows * OUTPUT_BYTES // max(records.nbytes, OUTPUT_BYTES) or 1
    return (records.slice(start, rows) for start in range(0, records.num_rows, rows))


def chunk_of(pieces: Sequence[Piece]) -> Chunk:
    """The chunk of all whole batches in `pieces`; CorruptRecordError if one does not begin or end with a batch."""
    if len(pieces) == 1:
        piece = pieces[0]
        batches = read_headers(piece.data, file=piece.file, file_position=piece.file_position)
        _check_end(piece, batches)
        return Chunk(pieces, piece.data, batches, np.zeros(len(batches), np.int64))
    data = memoryview(b"".join([piece.data for piece in pieces]))
    edges = np.cumsum([0] + [len(piece.data) for piece in pieces])
    placed = [replace(piece, start=start) for piece, start in zip(pieces, edges.tolist(), strict=False)]
    try:
        batches = read_headers(data)
        ends = batches["position"] + batches["size"]
        aligned = bool(np.isin(edges[1:], ends).all())
    except CorruptRecordError:
        aligned = False
    if not aligned:
        # one of the pieces is damaged; alone it tells its own file and position
        for piece in pieces:
            chunk_of([piece])
        raise CorruptRecordError("batches run across files", file=pieces[0].file, position=0)
    return Chunk(placed, data, batches, np.searchsorted(edges, batches["position"], side="right") - 1)


def _check_end(piece: Piece, batches: npt.NDArray[Any]) -> None:
    end = int(batches["position"][-1] + batches["size"][-1]) if len(batches) else 0
    if piece.last and end != len(piece.data):
        raise CorruptRecordError(
            "the file ends within a batch; verify the topic, restore the file",
            file=piece.file,
            position=piece.file_position + end,
            partition=piece.slice.segment.partition,
        )


def _wrong_offsets(chunk: Chunk) -> npt.NDArray[np.bool_]:
    """Which batches lie at offsets that their segment does not have there.

    The base offset is outside the checksum, so only its place tells: batches follow each other, without a gap
    where the segment is dense, from the first offset of the file to the last.
    """
    batches, owner = chunk.batches, chunk.owner
    stored_base = chunk._of_each("stored_base_offset")
    stored_end = chunk._of_each("next_offset") - chunk._of_each("shift")
    dense = chunk._of_each("dense").astype(bool) & (batches["magic"] >= 2)
    base = batches["base_offset"]
    following = base + batches["last_offset_delta"] + 1
    opens = np.ones(len(batches), bool)
    opens[1:] = owner[1:] != owner[:-1]
    at_start = np.array([piece.file_position == 0 for piece in chunk.pieces])[owner] & opens
    closes = np.array([piece.last for piece in chunk.pieces])[owner]
    closes[:-1] &= owner[1:] != owner[:-1]
    expected = np.where(opens, stored_base, np.concatenate([[0], following[:-1]]))
    wrong: npt.NDArray[np.bool_] = np.where(dense & (at_start | ~opens), base != expected, base < expected)
    wrong |= (following > stored_end) | (following <= base) | (dense & closes & (following != stored_end))
    return wrong
