"""Describes a segment from its log file alone, whichever program wrote it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

from distlog.core.arrays import MAX_LONG, byte_array
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.format.record_batch import LOG_OVERHEAD, Source, check_crcs, read_headers
from distlog.core.format.record_decoder import BatchSelection, decode_parts
from distlog.core.segments.segment_state import LogDescription, RecordStats, UnfitBatchError

#: How many log bytes are read, and bytes of records decoded, at once.
_PART_BYTES = 4 << 20


def describe_segment(
    log: Any, base_offset: int, *, partition: int, stem: str, created_ms: int, interval_bytes: int, file: str = ""
) -> tuple[SegmentInfo, dict[str, bytes]]:
    """The segment of a log that begins at `base_offset`, and its index files. `log` is any buffer, of any format.

    The segment ends before a batch that is not whole, as its `log_bytes` show. Raises CorruptRecordError, with `file`
    and the position, for a batch that is damaged, or whose offsets do not ascend from `base_offset` on.
    """
    description, record_fields = LogDescription(base_offset, interval_bytes=interval_bytes), RecordStats()
    for data, batches in _parts(memoryview(log), file):
        source = Source(file, description.size)
        try:
            description.add(data, batches)
        except UnfitBatchError as error:
            text = f"a record batch cannot follow those before it in segment {base_offset}: restore it from a copy"
            raise source.corrupt(text, error.row, batches[error.row]) from None
        selection = BatchSelection(byte_array(data), batches, 0, partition, 0, MAX_LONG, source)
        for records in decode_parts(selection, ("offset", "timestamp"), _PART_BYTES):
            record_fields.add(records)
    segment, files = description.describe(partition, stem, created_ms)
    return dataclasses.replace(segment, **record_fields.fields()), files


def _parts(log: memoryview, file: str) -> Iterator[tuple[memoryview, npt.NDArray[Any]]]:
    """The whole batches of the log, some MiB at a time, with their checksums compared."""
    start, size = 0, _PART_BYTES
    while start < len(log):
        data = log[start : start + size]
        batches = read_headers(data, file=file, file_position=start)
        check_crcs(data, batches, file=file, file_position=start)
        complete_bytes = int(batches["size"].sum())
        if complete_bytes:
            yield data[:complete_bytes], batches
            start, size = start + complete_bytes, _PART_BYTES
        elif start + size < len(log):
            size = LOG_OVERHEAD + int.from_bytes(data[8:LOG_OVERHEAD], "big")
        else:
            return
