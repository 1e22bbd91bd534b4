"""Reading one segment: find a position by an index, walk whole batches, hand them out as chunks.

A missing or bad index costs time, never the answer: the log is walked from its start instead, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.chunk import Chunk, Piece
from distlog.core.errors import CorruptIndexError, CorruptRecordError
from distlog.core.index_cache import IndexCache
from distlog.core.offset_index import OffsetIndex
from distlog.core.read_ahead import LogFile
from distlog.core.record_batch import HEADER_SIZE, read_headers
from distlog.core.segment_info import SegmentInfo
from distlog.core.slices import SegmentSlice
from distlog.core.storage import Storage
from distlog.core.time_index import TimeIndex, TimestampOffset
from distlog.core.transaction_index import TransactionIndex

#: Log bytes decoded at once; a Spark record batch is best at 1 to 4 MB.
CHUNK_BYTES = 4 << 20
#: A range of fewer bytes is read whole, without asking an index.
INDEX_WORTH_BYTES = 256 << 10

_log = logging.getLogger("distlog")


class SegmentReader:
    """Reads the segments of one topic through its storage and a cache of index files."""

    def __init__(self, storage: Storage, topic: str, cache: IndexCache) -> None:
        self.storage, self.topic, self._cache = storage, topic, cache

    def name(self, segment: SegmentInfo, suffix: str = ".log") -> str:
        """The segment's file of that suffix, relative to the topic."""
        return paths.segment_file(self.topic, segment.partition, segment.stem, suffix)

    def chunks(self, piece: SegmentSlice) -> Iterator[Chunk]:
        """Chunks of about CHUNK_BYTES with the batches that `piece` owns; memory is one chunk and its windows.

        Raises CorruptRecordError for a batch that is none, and FileNotFoundError when the file is gone.
        """
        start, hint = self._bounds(piece)
        walk = self._walk(piece, start, hint)
        if start > 0:
            try:
                walk = chain([next(walk)], walk)
            except StopIteration:
                return
            except (CorruptIndexError, CorruptRecordError) as error:
                # the index may be what is wrong: the log itself is asked, from its start
                _log.warning("%s: scanning the log instead; verify the topic", error)
                walk = self._walk(piece, 0, piece.end_position)
        yield from walk

    def _walk(self, piece: SegmentSlice, position: int, hint: int) -> Iterator[Chunk]:
        """Walk whole batches from `position`, where one begins; those wanted should end at `hint`."""
        segment, name = piece.segment, self.name(piece.segment)
        file = LogFile(self.storage, name, position, hint)
        start, want, following = position, CHUNK_BYTES, segment.base_offset
        try:
            while position < piece.end_position and following < piece.end_offset:
                limit = hint if position < hint and want == CHUNK_BYTES else segment.log_bytes
                data = file.read(position, min(position + want, limit))
                batches: npt.NDArray[Any] = read_headers(data, file=name, file_position=position)
                if len(batches) == 0:
                    want = self._missing(segment, name, position, data)
                    continue
                if position == start:
                    _check_start(piece, name, start, batches)
                end = int(batches["position"][-1] + batches["size"][-1])
                if chunk := _owned(piece, name, position, data[:end], batches):
                    yield chunk
                following = int(batches["base_offset"][-1] + batches["last_offset_delta"][-1]) + 1 + segment.shift
                position, want = position + end, CHUNK_BYTES
        finally:
            file.close()

    def _missing(self, segment: SegmentInfo, name: str, position: int, data: memoryview) -> int:
        """The size of the batch of which `data` is the beginning."""
        header = data if len(data) >= HEADER_SIZE else self.storage.read(name, position, position + HEADER_SIZE)
        size = 12 + int.from_bytes(header[8:12], "big") if len(header) >= 12 else 0
        if size <= len(data) or position + size > segment.log_bytes:
            raise CorruptRecordError(
                "the file ends within a batch; verify the topic, restore the file",
                file=name,
                position=position,
                partition=segment.partition,
            )
        return size

    def _bounds(self, piece: SegmentSlice) -> tuple[int, int]:
        """(where a batch begins, at or before the first owned one; where the last owned one should have ended)."""
        segment = piece.segment
        starts_inside = piece.start_offset > segment.base_offset or piece.start_position > 0
        ends_inside = piece.end_offset < segment.next_offset
        if segment.log_bytes <= INDEX_WORTH_BYTES or not (starts_inside or ends_inside):
            return 0, piece.end_position
        index = self._offset_index(segment)
        if index is None:
            return 0, piece.end_position
        by_offset = index.lookup(piece.start_offset - segment.shift).position
        start = max(by_offset, index.position_floor(piece.start_position).position)
        stop = _end_of(index, piece.end_offset - 1 - segment.shift) if ends_inside else None
        return start, piece.end_position if stop is None else min(stop, piece.end_position)

    def _offset_index(self, segment: SegmentInfo) -> OffsetIndex | None:
        """The segment's offset index if it is there and sane, else None and a warning."""
        if not segment.offset_index_bytes:
            return None
        name = self.name(segment, ".index")
        try:
            index = OffsetIndex(
                self._cache.path(self.storage, name, segment.offset_index_bytes), segment.stored_base_offset
            )
            index.sanity_check(segment.log_bytes)
        except (CorruptIndexError, FileNotFoundError) as error:
            _log.warning("%s: scanning the log instead; rebuild the indexes to be fast again", error)
            return None
        return index

    def time_entry(self, segment: SegmentInfo, timestamp_ms: int) -> TimestampOffset | None:
        """The time index's last entry below `timestamp_ms` (stored offset), or None where there is none."""
        if not segment.time_index_bytes:
            return None
        name = self.name(segment, ".timeindex")
        try:
            index = TimeIndex(
                self._cache.path(self.storage, name, segment.time_index_bytes), segment.stored_base_offset
            )
            index.sanity_check()
        except (CorruptIndexError, FileNotFoundError) as error:
            _log.warning("%s: scanning the log instead; rebuild the indexes to be fast again", error)
            return None
        entry = index.lookup(timestamp_ms - 1)
        return entry if entry.timestamp >= 0 else None

    def transaction_index(self, segment: SegmentInfo) -> TransactionIndex | None:
        """The segment's aborted transactions, if it has any."""
        if not segment.txn_index_bytes:
            return None
        name = self.name(segment, ".txnindex")
        path = self._cache.path(self.storage, name, segment.txn_index_bytes)
        return TransactionIndex(path, segment.stored_base_offset)


def _check_start(piece: SegmentSlice, name: str, start: int, batches: npt.NDArray[Any]) -> None:
    """Refuse an index that led behind the first wanted record."""
    too_far = batches["base_offset"][0] + piece.segment.shift > max(piece.start_offset, piece.segment.base_offset)
    if start > 0 and piece.start_position == 0 and too_far:
        raise CorruptIndexError("the offset index leads too far", file=name, position=start)


def _end_of(index: OffsetIndex, last_offset: int) -> int | None:
    """A position behind the batch that holds `last_offset`, or None where the index does not reach."""
    entry = index.ceiling(last_offset)
    after = index.ceiling(entry.offset + 1) if entry else None
    return after.position if after else None


def _owned(
    piece: SegmentSlice, name: str, position: int, data: memoryview, batches: npt.NDArray[Any]
) -> Chunk | None:
    """The chunk of those batches that begin in the byte range of `piece` and may hold its offsets."""
    at = batches["position"] + position
    last = batches["base_offset"] + batches["last_offset_delta"] + piece.segment.shift
    base = batches["base_offset"] + piece.segment.shift
    owned = (at >= piece.start_position) & (at < piece.end_position)
    owned &= (last >= piece.start_offset) & ((base < piece.end_offset) | (batches["magic"] < 2))
    rows = np.flatnonzero(owned)
    if len(rows) == 0:
        return None
    low = int(batches["position"][rows[0]])
    high = int(batches["position"][rows[-1]] + batches["size"][rows[-1]])
    kept = batches[rows[0] : rows[-1] + 1].copy()
    kept["position"] -= low
    whole = position + high == piece.segment.log_bytes
    part = Piece(piece, name, position + low, data[low:high], whole)
    return Chunk([part], part.data, kept, np.zeros(len(kept), np.int64))
