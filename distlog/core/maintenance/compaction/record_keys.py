"""Reads the keys of segments as hashes, with their offsets, to find the last record of each key.

For this, tasks exchange only a hash of 16 bytes and an offset of 8 bytes per record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import CONTROL
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.maintenance.compaction.batch_verdicts import Verdicts
from distlog.core.maintenance.compaction.offset_map import OffsetMap
from distlog.core.maintenance.compaction.scanned_records import checked_chunks, scan_records
from distlog.core.reading.files.segment_reader import SegmentReader

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyedRecords:
    """Some consecutive records: the hashes of their keys, whether each has a key, and their offsets.

    `record_ends[i]` is the number of records up to the end of batch i. `settled[i]` is the last offset before batch
    i; `settled[-1]` is the last offset after all of them.
    """

    hashes: Longs
    keyed: npt.NDArray[np.bool_]
    offsets: Longs
    record_ends: Longs
    settled: Longs


def keyed_records(
    reader: SegmentReader, segment: SegmentInfo, start_offset: int, verdicts: Verdicts, secret: bytes
) -> Iterator[KeyedRecords]:
    """The records of a segment that count for compaction: no control records, none of aborted transactions.

    Their keys are hashed under `secret`, the same for a whole run. Memory is a few chunks. Raises CorruptRecordError.
    """
    for chunk in checked_chunks(reader, segment, start_offset):
        batches = chunk.batches
        base_offsets = batches["base_offset"] + segment.shift
        ends = base_offsets + batches["last_offset_delta"]
        counts = (batches["attributes"] & CONTROL == 0) & (batches["record_count"] > 0)
        rows = np.flatnonzero(counts & ~verdicts.discardable(base_offsets))
        while len(rows):
            scanned = scan_records(chunk, rows, ("key",), start_offset)
            done, rows = rows[: len(scanned.sections)], rows[len(scanned.sections) :]
            settled = np.append(np.where(done > 0, ends[done - 1], -1), ends[rows[0] - 1 if len(rows) else -1])
            ends_of_records = np.cumsum(scanned.sections["emitted"])
            yield KeyedRecords(scanned.hashes(secret), scanned.keyed, scanned.offsets, ends_of_records, settled)


def build_map(
    reader: SegmentReader,
    segments: Iterable[SegmentInfo],
    start_offset: int,
    end_offset: int,
    verdicts: Verdicts,
    offset_map: OffsetMap,
    secret: bytes,
) -> None:
    """Put the keys of the dirty range [start_offset, end_offset) into `offset_map` until it is full.

    `segments` hold the range. Afterwards every key up to `offset_map.latest_offset` is in the map (Kafka's
    `buildOffsetMap`).
    """
    for segment in segments:
        for records in keyed_records(reader, segment, start_offset, verdicts, secret):
            taken = offset_map.put(records.hashes, records.keyed, records.offsets)
            full = taken < len(records.offsets)
            batch = int(np.searchsorted(records.record_ends, taken, side="right")) if full else -1
            offset_map.update_latest_offset(max(offset_map.latest_offset, int(records.settled[batch])))
            if full:
                return
        offset_map.update_latest_offset(segment.next_offset - 1)
    offset_map.update_latest_offset(end_offset - 1)
