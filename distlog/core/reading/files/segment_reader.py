"""Reads one segment: finds a position by an index, walks whole batches, and gives them out as chunks.

A missing or bad index only costs time: the log is walked from its start instead. A bad one gives a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain

import numpy as np

from distlog.core.batches.record_batch import LOG_OVERHEAD
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.errors import (
    CorruptIndexError,
    CorruptionError,
    CorruptRecordError,
    StorageError,
)
from distlog.core.indexes.growing_index import GrowingOffsetIndex
from distlog.core.indexes.index_cache import IndexCache
from distlog.core.indexes.offset_index import OffsetIndex
from distlog.core.indexes.time_index import TimestampOffset
from distlog.core.indexes.transaction_index import AbortedTransaction
from distlog.core.reading.chunks.chunk import Chunk, chunk_of_batches, chunk_of_files
from distlog.core.reading.chunks.piece import Piece, cut_short
from distlog.core.reading.chunks.read_ahead import LogFile
from distlog.core.reading.files.missing_files import check_log, gone
from distlog.core.reading.files.open_logs import OpenLogs
from distlog.core.reading.files.segment_indexes import SegmentIndexes
from distlog.core.reading.slices.slice_bounds import bounds_by
from distlog.core.reading.slices.slices import SegmentSlice
from distlog.core.segments.log_identity import HEAD_BYTES, IdentifiedLogs
from distlog.core.segments.segment_parts import part_of
from distlog.core.storage.part import Part
from distlog.core.storage.storage import Storage

#: Log bytes read and decoded at once.
CHUNK_BYTES = 8 << 20
#: A range of fewer bytes is read whole, without asking an index.
INDEX_WORTH_BYTES = 256 << 10

_log = logging.getLogger("distlog")


class SegmentReader:
    """Reads the segments of one topic through its storage and a cache of index files."""

    def __init__(self, storage: Storage, topic: str, cache: IndexCache) -> None:
        self.storage, self.topic = storage, topic
        self._indexes = SegmentIndexes(storage, topic, cache)
        self._identified = IdentifiedLogs()
        self.logs = OpenLogs(storage, topic, self._identified)

    def part(self, segment: SegmentInfo, suffix: str = ".log") -> Part:
        """Where the segment's log is, or its index of that suffix."""
        return part_of(self.topic, segment, suffix)

    def name(self, segment: SegmentInfo, suffix: str = ".log") -> str:
        """The object that holds it, relative to the topic."""
        return self.part(segment, suffix).name

    def whole(self, slices: Sequence[SegmentSlice]) -> Chunk:
        """One chunk with all batches of the segments of `slices`, which are small; raises what `chunks` raises."""
        logs = [self.part(part.segment) for part in slices]
        with self._explained([part.segment for part in slices]):
            data = self.storage.read_joined([log.whole for log in logs])
        ends = np.cumsum([log.size for log in logs]).tolist()
        pieces = [
            Piece(part, log, 0, end - log.size, end, part.segment.stored_base_offset)
            for part, log, end in zip(slices, logs, ends, strict=True)
        ]
        return chunk_of_files(pieces, data)

    def chunks(self, part: SegmentSlice, step: int = CHUNK_BYTES) -> Iterator[Chunk]:
        """Chunks with the batches that `part` owns, of about `step` log bytes: use a small `step` to stop early.

        Memory is a few chunks. Raises CorruptRecordError for bytes that are no batch or a batch that is out of place
        (checksums are left to `Chunk.check`), and SnapshotTooOldError if the file is gone.
        """
        start, hint = self._bounds(part)
        walk = self._walk(part, start, hint, step)
        if start > 0:
            try:
                walk = chain([next(walk)], walk)
            except StopIteration:
                return
            except (CorruptIndexError, CorruptRecordError) as error:
                # the index may be wrong: the log is read from its start
                self._distrust(part.segment, error)
                walk = self._walk(part, 0, part.end_position, step)
        yield from walk

    def _walk(self, part: SegmentSlice, position: int, hint: int, step: int) -> Iterator[Chunk]:
        """Walk whole batches from `position`, where one begins; the wanted batches should end at `hint`."""
        segment, log = part.segment, self.part(part.segment)
        by_index, size = position > 0, 0
        following = -1 if by_index else segment.stored_base_offset
        if by_index and self.storage.is_local:
            # files are replaced, and to check again costs little when the file is opened anyway
            self._identified.forget(segment)
        with self._explained([segment]):
            file = LogFile(self.storage, log, hint, mapped=not segment.is_active)
        try:
            while position < part.end_position and following < part.end_offset - segment.shift:
                stop = hint if position < hint else segment.log_bytes
                end = position + size if size else min(position + step, stop)
                with self._explained([segment]):
                    data = self._read_identified(file, segment, position, end)
                piece = Piece(part, log, position, 0, len(data), following)
                chunk = chunk_of_batches(piece, data)
                if chunk is None:
                    size = self._size_of_batch(piece, data)
                    continue
                if by_index:
                    _check_start(chunk)
                if owned := _owned(chunk):
                    yield owned
                if position == 0:
                    self._identified.add(segment)
                following = int(chunk.batches["base_offset"][-1] + chunk.batches["last_offset_delta"][-1]) + 1
                position, size, by_index = position + len(chunk.data), 0, False
        finally:
            file.close()

    def _read_identified(self, file: LogFile, segment: SegmentInfo, position: int, end: int) -> memoryview:
        """Bytes of a log. If they are not its first bytes, those are read and checked too, once."""
        if position == 0 or self._identified.knows(segment):
            return file.read(position, end)
        head, data = file.read_with_head(HEAD_BYTES, position, end)
        self._identified.check_head(segment, self.part(segment), head)
        return data

    def _size_of_batch(self, piece: Piece, data: memoryview) -> int:
        """The size of the batch that begins with `data`."""
        room, header = piece.log.size - piece.position, data
        if len(data) < LOG_OVERHEAD <= room:
            with self._explained([piece.slice.segment]):
                header = self.storage.read_joined([piece.log.range(piece.position, piece.position + LOG_OVERHEAD)])
        size = LOG_OVERHEAD + int.from_bytes(header[8:LOG_OVERHEAD], "big")
        if len(header) < LOG_OVERHEAD or not len(data) < size <= room:
            raise cut_short(piece, piece.start)
        return size

    def _bounds(self, part: SegmentSlice) -> tuple[int, int]:
        """(where a batch begins, at or before the first owned one; where the last owned one should have ended)."""
        segment = part.segment
        starts_inside = part.start_offset > segment.base_offset or part.start_position > 0
        ends_inside = part.end_offset < segment.next_offset
        if segment.log_bytes <= INDEX_WORTH_BYTES or not (starts_inside or ends_inside):
            return 0, part.end_position
        index = self._indexes.offsets(segment)
        if index is None:
            return 0, part.end_position
        try:
            return bounds_by(index, part)
        except CorruptIndexError as error:
            self._distrust(segment, error)
            return 0, part.end_position

    def offset_index(self, segment: SegmentInfo) -> OffsetIndex | GrowingOffsetIndex | None:
        """The segment's offset index, or None if there is no usable one, or the segment is too small for one."""
        return self._indexes.offsets(segment) if segment.log_bytes > INDEX_WORTH_BYTES else None

    def time_entry(self, segment: SegmentInfo, timestamp_ms: int) -> TimestampOffset | None:
        """The time index's last entry below `timestamp_ms` (stored offset), or None without a usable index."""
        if segment.append_time_ms >= 0:
            # its entries have the times that the batches were written with
            return None
        index = self._indexes.times(segment) if segment.log_bytes > INDEX_WORTH_BYTES else None
        if index is None:
            return None
        try:
            entry = index.lookup(timestamp_ms - 1)
        except CorruptIndexError as error:
            self._distrust(segment, error)
            return None
        return entry if entry.timestamp >= 0 else None

    def aborted_transactions(self, segment: SegmentInfo) -> list[AbortedTransaction]:
        """The aborted transactions that end in the segment, at the offsets that readers see.

        Without them aborted data would be shown, so a bad index is an error here: CorruptIndexError, or
        SnapshotTooOldError if it is gone.
        """
        try:
            transactions = self._indexes.aborted_transactions(segment)
        except FileNotFoundError:
            raise gone(segment, self.part(segment, ".txnindex")) from None
        return [transaction.moved(segment.shift) for transaction in transactions]

    def fetch_indexes(self, segments: Sequence[SegmentInfo]) -> None:
        """Fetch indexes of bundles that will be wanted soon, with few requests; one that is not there shows later."""
        with suppress(FileNotFoundError, StorageError):
            self._indexes.fetch(segments)

    def forget_indexes(self, segment: SegmentInfo) -> None:
        """Forget the segment's indexes: they were found wrong, or replaced. The next use opens them again."""
        self._indexes.forget(segment)

    def _distrust(self, segment: SegmentInfo, error: CorruptionError) -> None:
        _log.warning("%s: scanning the log instead; verify the topic", error)
        self.forget_indexes(segment)

    @contextmanager
    def _explained(self, segments: Sequence[SegmentInfo]) -> Iterator[None]:
        """If a log file of `segments` is missing or too short, raise the error that says so."""
        try:
            yield
        except (FileNotFoundError, StorageError):
            for segment in segments:
                check_log(self.storage, segment, self.part(segment))
            raise


def _check_start(chunk: Chunk) -> None:
    """Refuse an index that led to no batch, or to one behind the first wanted batch."""
    (piece,), first = chunk.pieces, chunk.rows(0, 1)
    first.check()
    part, base_offset = piece.slice, int(first.batches["base_offset"][0]) + piece.slice.segment.shift
    if piece.position > part.start_position and base_offset > max(part.start_offset, part.segment.base_offset):
        raise CorruptIndexError(
            "the offset index leads behind the offset: rebuild the index",
            file=piece.file,
            position=piece.file_position,
            partition=part.segment.partition,
        )


def _owned(chunk: Chunk) -> Chunk | None:
    """The chunk of the batches that begin in the slice's byte range and may hold its offsets; None for no batch."""
    (piece,), batches = chunk.pieces, chunk.batches
    part, shift = piece.slice, piece.slice.segment.shift
    if part.whole:
        return chunk
    positions, base_offsets = batches["position"] + piece.position, batches["base_offset"] + shift
    owned = (positions >= part.start_position) & (positions < part.end_position)
    owned &= (base_offsets + batches["last_offset_delta"] >= part.start_offset) & (base_offsets < part.end_offset)
    if owned.all():
        return chunk
    rows = np.flatnonzero(owned)
    return chunk.rows(int(rows[0]), int(rows[-1]) + 1) if len(rows) else None
