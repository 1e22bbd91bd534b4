"""One segment on its way to storage: the log held or streamed, its indexes gathered, its description at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core import paths
from distlog.core.batches.base_offsets import header_offsets, write_base_offsets
from distlog.core.batches.record_batch import APPEND_TIME, CRC_START, DELETE_HORIZON
from distlog.core.commits.segment_info import NO_OFFSET, SegmentInfo
from distlog.core.config import MAX_INT, TopicConfig
from distlog.core.indexes.index_builder import IndexBuilder
from distlog.core.kernels.crc import crc_of_batches
from distlog.core.segments.index_facts import index_facts
from distlog.core.storage.storage import ObjectWriter, Storage
from distlog.core.times import NO_TIMESTAMP

#: A log file up to this size is held and put together with its index files; a larger one is streamed.
HELD_BYTES = 1 << 20


class SegmentFile:
    """A new segment that is written as if it began at offset 0; holds HELD_BYTES, or what its stream holds.

    Nobody knows its files until a commit names them.
    """

    def __init__(self, storage: Storage, topic: str, partition: int, stem: str, config: TopicConfig) -> None:
        self._storage, self._topic, self._partition, self._stem = storage, topic, partition, stem
        self._segment_bytes = config.segment_size
        self._indexes = IndexBuilder(config.index_interval_bytes, config.segment_index_bytes)
        self._held = bytearray()
        self._stream: ObjectWriter | None = None
        self.size = self._crc = self._records = 0
        self._max_timestamp = self._min_timestamp = self._first_timestamp = NO_TIMESTAMP
        self._first_batch_crc = self._last_batch_crc = 0
        self._offset_of_max = -1
        self.next_offset = 0

    def room(self, batches: npt.NDArray[Any], base_offsets: npt.NDArray[np.int64]) -> int:
        """How many of `batches`, at `base_offsets`, still fit: below `segment.bytes`, offsets within an int32,
        indexes below `segment.index.bytes`; the first batch always fits into those.
        """
        sizes = self.size + np.cumsum(batches["size"])
        fits = (sizes <= self._segment_bytes) & (base_offsets + batches["last_offset_delta"] <= MAX_INT)
        room = int(fits.argmin() if not fits.all() else len(fits))
        return min(room, self._indexes.room(batches[:room]))

    def write(
        self,
        data: npt.NDArray[np.uint8],
        batches: npt.NDArray[Any],
        base_offsets: npt.NDArray[np.int64],
        offsets_of_max_timestamp: npt.NDArray[np.int64],
        min_timestamp: int,
    ) -> None:
        """Append `batches` (BATCH rows, positions in `data`), which are all of `data`, at `base_offsets`.

        The base offsets in `data` are overwritten. They ascend; gaps are allowed. None of the records is older than
        `min_timestamp`, -1 where that is not known. Then `data` must stay as it is until the next call returns.
        """
        write_base_offsets(data, batches["position"], header_offsets(batches, base_offsets))
        if self.size == 0:
            # the base timestamp is not what readers see, or is a delete horizon
            unusual = batches["attributes"][0] & (APPEND_TIME | DELETE_HORIZON)
            self._first_timestamp = int(batches["max_timestamp" if unusual else "base_timestamp"][0])
            self._min_timestamp, self._first_batch_crc = min_timestamp, int(batches["crc"][0])
        self._min_timestamp = min(self._min_timestamp, min_timestamp)
        self._last_batch_crc = int(batches["crc"][-1])
        newest = int(batches["max_timestamp"].argmax())
        if batches["max_timestamp"][newest] > self._max_timestamp:
            self._max_timestamp = int(batches["max_timestamp"][newest])
            self._offset_of_max = int(offsets_of_max_timestamp[newest])
        self._indexes.add(batches, base_offsets, self.size)
        self._records += int(batches["record_count"].sum())
        self.size += len(data)
        self.next_offset = int(base_offsets[-1] + batches["last_offset_delta"][-1]) + 1
        self._crc = self._crc_with(data, batches)
        self._store(data.data)

    def _crc_with(self, data: npt.NDArray[np.uint8], batches: npt.NDArray[Any]) -> int:
        if (batches["magic"] == 2).all():
            return int(crc_of_batches(self._crc, data, batches, CRC_START))
        return crc32c(data.data, self._crc)

    def _store(self, data: memoryview) -> None:
        if self._stream is None and self.size > HELD_BYTES:
            self._stream = self._storage.open_write(self._name(".log"))
            self._stream.write(self._held)
            self._held = bytearray()
        if self._stream is None:
            self._held += data
        else:
            self._stream.write_behind(data)

    def seal(self, compression: str, now_ms: int) -> SegmentInfo:
        """Make the files durable and describe them."""
        files = self._indexes.finish()
        indexes = index_facts({**files, ".txnindex": b""})
        if self._stream is None:
            files[".log"] = bytes(self._held)
        else:
            self._stream.close()
        self._storage.put_many({self._name(suffix): data for suffix, data in files.items() if data})
        return SegmentInfo(
            partition=self._partition,
            stem=self._stem,
            base_offset=0,
            next_offset=self.next_offset,
            stored_base_offset=0,
            record_count=self._records,
            log_bytes=self.size,
            first_timestamp=self._first_timestamp,
            max_timestamp=self._max_timestamp,
            offset_of_max_timestamp=self._offset_of_max,
            compression=compression,
            created_ms=now_ms,
            crc32c=self._crc,
            min_timestamp=self._min_timestamp,
            first_batch_crc=self._first_batch_crc,
            last_batch_crc=self._last_batch_crc,
            first_unstable_offset=NO_OFFSET,
            **indexes,
        )

    def abort(self) -> None:
        """Give up; what was written is named by nobody."""
        if self._stream is not None:
            self._stream.abort()

    def _name(self, suffix: str) -> str:
        return paths.segment_file(self._topic, self._partition, self._stem, suffix)
