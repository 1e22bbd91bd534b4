"""Checks all there is to check of one segment: each byte of its log, each entry of its indexes, its metadata.

It only reads. It goes on behind damaged bytes, as far as it can tell batches apart. What depends on damaged bytes is
not reported a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrow_arrays import numbers_of
from distlog.core.batches.append_time import give_append_times
from distlog.core.batches.record_batch import CONTROL, LOG_OVERHEAD, check_crcs, read_headers
from distlog.core.batches.record_decoder import OFFSETS_OUT_OF_ORDER, decode_parts
from distlog.core.batches.record_sections import AskedBatches
from distlog.core.batches.source import Source
from distlog.core.buffers import byte_array
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptRecordError, DistlogError
from distlog.core.maintenance.integrity.anomalies import Anomaly, Word
from distlog.core.maintenance.integrity.index_files import IndexFile, find_indexes
from distlog.core.maintenance.integrity.log_facts import LogFacts, is_contiguous
from distlog.core.reading.chunks.chunk import OUTPUT_BYTES
from distlog.core.reading.chunks.read_ahead import LogFile
from distlog.core.reading.files.segment_reader import CHUNK_BYTES, SegmentReader

#: The check of a segment stops when it has this many anomalies.
MAX_ANOMALIES = 100

_MISMATCH: dict[str, Word] = {
    ".index": "index_mismatch",
    ".timeindex": "time_index_mismatch",
    ".txnindex": "index_mismatch",
}

Batches = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SegmentVerdict:
    """How many batches and records of one segment were read, and what is wrong with it."""

    segment: SegmentInfo
    batches: int
    records: int
    anomalies: tuple[Anomaly, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.anomalies


def verify_segment(reader: SegmentReader, segment: SegmentInfo) -> SegmentVerdict:
    """Check one segment. Memory is a few chunks of its log, and its indexes. Raises only StorageError."""
    return _Verifier(reader, segment).verdict()


class _TooManyAnomaliesError(Exception):
    pass


class _Verifier:
    def __init__(self, reader: SegmentReader, segment: SegmentInfo) -> None:
        self._reader, self._segment, self._log = reader, segment, reader.part(segment)
        self._indexes = find_indexes(reader, segment)
        self._facts = LogFacts(segment)
        self._anomalies: list[Anomaly] = []
        # the stored offset at which the next batch begins, or its lower bound if there may be gaps; -1: not known
        self._following = segment.stored_base_offset

    def verdict(self) -> SegmentVerdict:
        with suppress(_TooManyAnomaliesError):
            self._check_all()
        return SegmentVerdict(self._segment, self._facts.batches, self._facts.records, tuple(self._anomalies))

    def _check_all(self) -> None:
        end = self._end_of_log()
        before = len(self._anomalies)
        if end is not None:
            self._walk(end)
        intact = end == self._segment.log_bytes and len(self._anomalies) == before
        for index in self._indexes:
            is_known = index.suffix == ".txnindex" or not self._segment.is_active
            self._check_index(index, compared=intact and is_known)
        if intact:
            for message in self._facts.contradictions():
                self._report("metadata_mismatch", message)

    def _report(self, word: Word, message: str, position: int | None = None, **place: int) -> None:
        if position is not None or not self._log.is_file:
            place["position"] = self._log.begin + (position or 0)
        self._report_error(word, DistlogError(message, file=self._log.name, **place))

    def _report_error(self, word: Word, error: DistlogError) -> None:
        located = DistlogError(error.message, **{**error.details, "partition": self._segment.partition})
        self._anomalies.append(Anomaly.of(word, located, self._segment.shift))
        if len(self._anomalies) == MAX_ANOMALIES:
            raise _TooManyAnomaliesError

    def _end_of_log(self) -> int | None:
        """How many bytes of the log file to read, or None if there is no file."""
        try:
            size = self._reader.storage.size(self._log.name) - self._log.begin
        except FileNotFoundError:
            self._report("missing_segment", "the log file is gone: restore it from a copy")
            return None
        expected = self._segment.log_bytes
        # an active log grows, and may have preallocated space behind its end
        if size < expected or (size > expected and self._log.is_file and not self._segment.is_active):
            size = max(size, 0)
            message = f"log_bytes is {expected} in the metadata, {size} in the log"
            self._report("metadata_mismatch", message, position=min(size, expected))
        return min(size, expected)

    def _check_index(self, index: IndexFile, *, compared: bool) -> None:
        if compared:
            index.finish()
        if index.error is not None:
            word: Word = "missing_index" if index.state == "missing" else "corrupt_index"
            self._report_error(_MISMATCH[index.suffix] if index.state == "stale" else word, index.error)

    def _walk(self, end: int) -> None:
        file = LogFile(self._reader.storage, self._log, end, mapped=False)
        position, size = 0, CHUNK_BYTES
        try:
            while position < end:
                data = file.read(position, min(position + size, end))
                batches, error = self._headers(data, position)
                taken = int(batches["size"].sum())
                if taken:
                    self._check_batches(data[:taken], batches, position)
                if error is not None:
                    self._report_error("corrupt_batch", error)
                    if "offset" not in error.details:
                        # it is not known where the next batch begins
                        return
                    taken += _size_of_batch(data[taken:])
                    self._following = -1
                position, size = position + taken, CHUNK_BYTES
                if not taken:
                    size = _size_of_batch(data)
                    if size > end - position or len(data) == end - position:
                        self._report("corrupt_batch", "the file ends within a batch", position=position)
                        return
        finally:
            file.close()

    def _headers(self, data: memoryview, position: int) -> tuple[Batches, CorruptRecordError | None]:
        """The batches before the first damaged header, and what is wrong with that header."""
        try:
            return read_headers(data, file=self._log.name, file_position=self._log.begin + position), None
        except CorruptRecordError as error:
            whole = error.details["position"] - self._log.begin - position
            batches, earlier = self._headers(data[:whole], position)
            return batches, earlier or error

    def _check_batches(self, data: memoryview, batches: Batches, position: int) -> None:
        for index in self._indexes:
            index.add(batches, position)
        # indexes hold the times in the log; readers may see the time of the commit instead
        give_append_times(batches, np.full(len(batches), self._segment.append_time_ms))
        self._facts.add_batches(data, batches)
        whole = self._check_crcs(data, batches, position)
        self._check_offsets(batches, position, whole)
        control = batches["attributes"] & CONTROL != 0
        for records in self._decoded(data, batches[whole & ~control], position):
            self._facts.add_records(records)
        # the decoder passes over control batches: without the flag it decodes them too
        hidden = batches[whole & control]
        hidden["attributes"] &= ~CONTROL
        for _ in self._decoded(data, hidden, position):
            pass

    def _check_crcs(self, data: memoryview, batches: Batches, position: int) -> npt.NDArray[np.bool_]:
        whole = np.ones(len(batches), bool)
        start = 0
        while start < len(batches):
            try:
                check_crcs(data, batches[start:], file=self._log.name, file_position=self._log.begin + position)
                break
            except CorruptRecordError as error:
                self._report_error("corrupt_batch", error)
                start = self._row_of(error, batches, position) + 1
                whole[start - 1] = False
        return whole

    def _check_offsets(self, batches: Batches, position: int, whole: npt.NDArray[np.bool_]) -> None:
        base = batches["base_offset"]
        following = np.where(whole, base + batches["last_offset_delta"] + 1, -1)
        expected = np.concatenate([[self._following], following[:-1]])
        wrong = base != expected if is_contiguous(self._segment) else base < expected
        for row in np.flatnonzero(wrong & (expected >= 0)).tolist():
            word: Word = "offset_gap" if base[row] > expected[row] else "offset_overlap"
            message = f"a batch begins at another offset than {expected[row] + self._segment.shift}"
            place = {"position": position + int(batches["position"][row]), "offset": int(base[row])}
            self._report(word, message, **place)
        self._following = int(following[-1])

    def _decoded(self, data: memoryview, batches: Batches, position: int) -> Iterator[pa.RecordBatch]:
        shift, partition = self._segment.shift, self._segment.partition
        source, start = Source(self._log.name, self._log.begin + position), 0
        batches = batches[batches["record_count"] > 0]
        while start < len(batches):
            asked = AskedBatches(byte_array(data), batches[start:], shift, partition, 0, MAX_LONG, source)
            try:
                for records in decode_parts(asked, ("offset", "timestamp"), OUTPUT_BYTES):
                    start += self._check_times(records, batches[start:], position)
                    yield records
                return
            except CorruptRecordError as error:
                out_of_order = error.message == OFFSETS_OUT_OF_ORDER
                self._report_error("non_monotonical_delta" if out_of_order else "corrupt_record", error)
                bad = self._row_of(error, batches, position)
                yield from self._decoded(data, batches[start:bad], position)
                start = bad + 1

    def _check_times(self, records: pa.RecordBatch, batches: Batches, position: int) -> int:
        """Compare `records`, which are all records of the first few `batches`, with the headers of these.

        Returns how many batches these are.
        """
        ends = np.cumsum(batches["record_count"])
        count = int(np.searchsorted(ends, records.num_rows, side="right"))
        timestamps = numbers_of(records.column("timestamp").cast(pa.int64()))
        newest = np.maximum.reduceat(timestamps, np.append(0, ends[: count - 1]))
        stated = batches["max_timestamp"][:count]
        # format 1 is left out: it is not known as well what old brokers and clients put around its messages
        for row in np.flatnonzero((newest != stated) & (batches["magic"][:count] == 2)).tolist():
            message = f"the largest timestamp is {stated[row]} in the header of a batch, {newest[row]} in its records"
            place = {"position": position + int(batches["position"][row]), "offset": int(batches["base_offset"][row])}
            self._report("timestamp_mismatch", f"{message}: compact, which mends it", **place)
        return count

    def _row_of(self, error: CorruptRecordError, batches: Batches, position: int) -> int:
        return int(np.searchsorted(batches["position"], error.details["position"] - self._log.begin - position))


def _size_of_batch(data: memoryview) -> int:
    return LOG_OVERHEAD + int.from_bytes(data[8:LOG_OVERHEAD], "big")
