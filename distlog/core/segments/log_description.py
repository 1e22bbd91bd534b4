"""Describes a log, batch by batch: as it is written, read again, or taken over from a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from distlog.core.batches.compression import CODEC_NAMES
from distlog.core.batches.record_batch import (
    APPEND_TIME,
    CODEC_MASK,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    TRANSACTIONAL,
)
from distlog.core.buffers import byte_array
from distlog.core.commits.segment_info import NOT_LOOKED, UNKNOWN, SegmentInfo
from distlog.core.config import MAX_INT, MAX_LONG
from distlog.core.errors import CorruptRecordError
from distlog.core.indexes.index_builder import IndexBuilder
from distlog.core.kernels.crc import crc_of_batches
from distlog.core.segments.index_facts import index_facts
from distlog.core.times import NO_TIMESTAMP

_KNOWN_CODECS = dict(enumerate(CODEC_NAMES))
_UNKNOWN_CODEC = "?"

Batches = npt.NDArray[Any]
Longs = npt.NDArray[np.int64]


@dataclass(slots=True)
class RecordFacts:
    """The number of a log's records, and their timestamps in ms, taken from the batches or from the records."""

    count: int = 0
    first: int = NO_TIMESTAMP
    oldest: int = MAX_LONG
    newest: int = NO_TIMESTAMP
    offset_of_newest: int = -1

    def add_batches(self, batches: Batches, offsets_of_newest: Longs, oldest: int) -> None:
        """Count the next batches, at least one, by their headers; none of their records is older than `oldest`."""
        if self.oldest == MAX_LONG:
            # here the base timestamp is not the one that readers see, or it is a delete horizon
            unusual = batches["attributes"][0] & (APPEND_TIME | DELETE_HORIZON)
            self.first = int(batches["max_timestamp" if unusual else "base_timestamp"][0])
        self.count += int(batches["record_count"].sum())
        self._add(batches["max_timestamp"], offsets_of_newest, oldest)

    def add_records(self, records: pa.RecordBatch) -> None:
        """Count the next records that readers get; their first columns are offset and timestamp."""
        if not records.num_rows:
            return
        timestamps = records.column(1).cast(pa.int64()).to_numpy()
        if self.oldest == MAX_LONG:
            self.first = int(timestamps[0])
        self.count += records.num_rows
        self._add(timestamps, records.column(0).to_numpy(), int(timestamps.min()))

    def _add(self, timestamps: Longs, offsets: Longs, oldest: int) -> None:
        self.oldest = min(self.oldest, oldest)
        newest = int(timestamps.argmax())
        if timestamps[newest] > self.newest:
            self.newest, self.offset_of_newest = int(timestamps[newest]), int(offsets[newest])


class LogDescription:
    """Sizes, offsets, flags and checksums of a log, and its indexes; offsets are relative to the log's first offset.

    Hidden batches, those of control records and those that compaction emptied, have no codec.
    """

    def __init__(self, interval_bytes: int = MAX_INT, index_bytes: int = MAX_INT) -> None:
        self.indexes = IndexBuilder(interval_bytes, index_bytes)
        self.size = self.crc = self.batches = self.next_offset = self.attributes = 0
        self.first_batch_crc = self.last_batch_crc = UNKNOWN
        self.codecs: set[str] = set()

    def add(self, data: Any, batches: Batches, base_offsets: Longs) -> None:
        """Take the next batches, at least one. They are all of `data`, and their checksums are right."""
        array = byte_array(data)
        if self.batches == 0:
            self.first_batch_crc = int(batches["crc"][0])
        self.last_batch_crc = int(batches["crc"][-1])
        self.crc = self._crc_with(array, batches)
        self.indexes.add(batches, base_offsets, self.size)
        self.size, self.batches = self.size + array.size, self.batches + len(batches)
        self.next_offset = int(base_offsets[-1] + batches["last_offset_delta"][-1]) + 1
        self._add_attributes(batches)

    def _crc_with(self, data: npt.NDArray[np.uint8], batches: Batches) -> int:
        if (batches["magic"] == 2).all():
            return int(crc_of_batches(self.crc, data, batches, CRC_START))
        return crc32c(data.data, self.crc)

    def _add_attributes(self, batches: Batches) -> None:
        attributes = batches["attributes"]
        self.attributes |= int(np.bitwise_or.reduce(attributes))
        hidden = (attributes & CONTROL != 0) | (batches["record_count"] == 0)
        self.codecs |= {
            _KNOWN_CODECS.get(codec, _UNKNOWN_CODEC) for codec in set((attributes[~hidden] & CODEC_MASK).tolist())
        }

    @property
    def ends(self) -> dict[str, int]:
        """The SegmentInfo fields that tell this log from others; none if it is empty."""
        if self.batches == 0:
            return {}
        return {"first_batch_crc": self.first_batch_crc, "last_batch_crc": self.last_batch_crc}

    @property
    def has_transactions(self) -> bool:
        """Whether there are batches of transactions, or markers that end transactions."""
        return self.attributes & (TRANSACTIONAL | CONTROL) != 0

    def describe(
        self, partition: int, stem: str, records: RecordFacts, created_ms: int, base_offset: int = 0
    ) -> tuple[SegmentInfo, dict[str, bytes]]:
        """The segment, whose file begins at `base_offset`, and its index files by suffix; no transaction index.

        Offsets in `records` are those that readers see. The first unstable offset is NOT_LOOKED. Raises
        CorruptRecordError for a batch with a codec that Kafka does not have.
        """
        if _UNKNOWN_CODEC in self.codecs:
            raise CorruptRecordError(
                "a record batch has an unknown codec: verify, then restore it from a copy",
                partition=partition,
                stem=stem,
            )
        files = self.indexes.finish()
        segment = SegmentInfo(
            partition=partition,
            stem=stem,
            base_offset=base_offset,
            next_offset=base_offset + self.next_offset,
            stored_base_offset=base_offset,
            record_count=records.count,
            log_bytes=self.size,
            first_timestamp=records.first,
            max_timestamp=records.newest,
            offset_of_max_timestamp=records.offset_of_newest,
            compression=",".join(sorted(self.codecs)) or "none",
            has_transactions=self.has_transactions,
            created_ms=created_ms,
            crc32c=self.crc,
            min_timestamp=records.oldest if records.oldest != MAX_LONG else UNKNOWN,
            first_batch_crc=self.first_batch_crc,
            last_batch_crc=self.last_batch_crc,
            first_unstable_offset=NOT_LOOKED,
            **index_facts({**files, ".txnindex": b""}),
        )
        return segment, files
