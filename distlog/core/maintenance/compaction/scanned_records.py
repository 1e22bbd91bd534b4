"""Scans the records of a chunk for compaction: their keys, offsets, times, and whether they have a value."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from distlog.core.batches.legacy_upgrade import upgraded
from distlog.core.batches.record_decoder import scan_sections
from distlog.core.batches.record_fields import RecordFields
from distlog.core.batches.record_sections import open_sections
from distlog.core.batches.rewritten_batches import Bytes, Flags, Longs
from distlog.core.buffers import new_array
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.config import MAX_LONG
from distlog.core.kernels.record_filter import RECORD_GROWTH, rewrite_records
from distlog.core.maintenance.compaction.key_hash import hash_keys
from distlog.core.reading.chunks.chunk import Chunk
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.slices.slices import SegmentSlice
from distlog.core.reading.whole_log import whole_log

#: Compressed batches are opened until they have expanded to this many bytes.
OPENED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ScannedRecords:
    """The records, in `data`, of the first `len(sections)` of the requested batches; offsets are absolute."""

    data: np.ndarray
    sections: np.ndarray
    fields: RecordFields
    count: int

    @property
    def offsets(self) -> Longs:
        """The offset of each record."""
        return self.fields.offsets[: self.count]

    @property
    def timestamps(self) -> Longs:
        """The timestamp of each record."""
        return self.fields.timestamps[: self.count]

    @property
    def keyed(self) -> npt.NDArray[np.bool_]:
        """Whether each record has a key."""
        return self.fields.key.valid[: self.count]

    def hashes(self, secret: bytes) -> Longs:
        """The hash of each record's key under `secret`, in the form of `hash_keys`."""
        key = self.fields.key
        return hash_keys(self.data, key.positions[: self.count], key.offsets[: self.count + 1], secret)

    def rewritten(
        self, sections: np.ndarray, first_records: Longs, base_offsets: Longs, base_timestamps: Longs, keep: Flags
    ) -> tuple[Bytes, Longs]:
        """The records of some `sections` that are kept, relative to other bases, and where each section ends.

        See `rewrite_records`, also for the arguments.
        """
        room = int((sections["end"] - sections["start"]).sum() + RECORD_GROWTH * sections["record_count"].sum())
        target, ends = new_array(room, np.uint8), np.empty(len(sections), np.int64)
        bases = np.ascontiguousarray(base_offsets), np.ascontiguousarray(base_timestamps)
        rewrite_records(self.data, sections, first_records, *bases, keep, self.timestamps, target, ends)
        return target, ends


def scan_records(
    chunk: Chunk, rows: npt.NDArray[np.intp], columns: Collection[str], start_offset: int = 0
) -> ScannedRecords:
    """Scan the records from `start_offset` on in batches `rows`, at least one, of a chunk.

    If batches are compressed, it scans only the first rows, as many as expand to OPENED_BYTES.
    """
    asked = replace(chunk.asked().of_rows(rows), start_offset=start_offset, end_offset=MAX_LONG)
    data, sections = open_sections(asked, OPENED_BYTES)
    fields = RecordFields.allocate(int(sections["record_count"].sum()), columns)
    return ScannedRecords(data, sections, fields, scan_sections(asked, data, sections, fields))


def checked_chunks(reader: SegmentReader, segment: SegmentInfo, start_offset: int = 0) -> Iterator[Chunk]:
    """The segment's chunks with batches from `start_offset` on; compares the checksums of the batches.

    If these are all batches, the checksum of the whole file is compared too, after the last chunk. Nothing made from
    the chunks may be committed before that. Old formats come as format 2. Raises CorruptRecordError.
    """
    if start_offset <= segment.base_offset:
        yield from map(_in_format_2, whole_log(reader, segment))
        return
    for chunk in reader.chunks(SegmentSlice(segment, start_offset, segment.next_offset, 0, segment.log_bytes)):
        chunk.check()
        yield _in_format_2(chunk)


def _in_format_2(chunk: Chunk) -> Chunk:
    """The chunk, which is of one piece, with all its batches in format 2, as Kafka's cleaner writes old ones."""
    if (chunk.batches["magic"] == 2).all():
        return chunk
    (piece,) = chunk.pieces
    data, batches = upgraded(chunk.data, chunk.batches, file=piece.file, file_position=piece.origin)
    whole = piece._replace(start=0, end=len(data))
    return Chunk([whole], data, batches, np.zeros(len(batches), np.int64))
