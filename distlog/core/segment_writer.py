"""Writing a partition's records as relocatable segments.

A segment is written as if it began at offset 0, since its offsets are given at commit (`SegmentInfo.at`).
Index entries follow Kafka's `LogSegment.append`: one when more than `index.interval.bytes` have passed since the
last, never for the first batch, (last offset, start position); the last time index entry on close is the maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core import paths
from distlog.core.compression import CODEC_NAMES
from distlog.core.config import MAX_INT, TopicConfig
from distlog.core.offset_index import encode_offset_entries
from distlog.core.record_encoder import EncodedBatches, encode
from distlog.core.records import NO_TIMESTAMP
from distlog.core.segment_info import SegmentInfo
from distlog.core.storage import ObjectWriter, Storage
from distlog.core.time_index import encode_time_entries

#: Rows are gathered up to this many bytes before they are encoded, so that small inputs do not make small batches.
ENCODE_BYTES = 1 << 20
#: A log file up to this size is held and put together with its index files; a larger one is streamed.
HELD_BYTES = 1 << 20
BATCH_OVERHEAD = 61 + 21


class SegmentWriter:
    """Writes the records of one partition, rolled by `segment.bytes`; memory is bounded by a few MiB.

    `new_id` gives the unique hex part of a stem. Raises InvalidRecordError for a record that fits no batch or
    segment; what was written so far is then named by nobody and left to vacuum.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        partition: int,
        begin: int,
        config: TopicConfig,
        *,
        codec: str,
        clock: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._storage, self._topic, self._partition, self._begin = storage, topic, partition, begin
        self._config, self._codec, self._clock, self._new_id = config, codec, clock, new_id
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._segment: _OpenSegment | None = None
        self._sealed: list[SegmentInfo] = []

    def append(self, records: pa.RecordBatch) -> None:
        """Take `records` (columns timestamp, key, value and perhaps headers) to be written in this order."""
        if records.num_rows == 0:
            return
        self._pending.append(records)
        self._pending_bytes += records.nbytes
        if self._pending_bytes >= ENCODE_BYTES:
            self._encode_pending()

    def close(self) -> list[SegmentInfo]:
        """Make everything durable; the segments in order, each starting at offset 0. Empty if nothing came."""
        self._encode_pending()
        self._seal()
        return self._sealed

    def abort(self) -> None:
        """Give up; files already written are named by nobody."""
        if self._segment is not None:
            self._segment.abort()

    def _encode_pending(self) -> None:
        if not self._pending:
            return
        records = self._pending[0] if len(self._pending) == 1 else pa.concat_batches(self._pending)
        self._pending, self._pending_bytes = [], 0
        self._write(encode(records, **self._encoding()))

    def _encoding(self) -> dict[str, Any]:
        config = self._config
        limit = min(config.max_message_bytes, config.segment_bytes)
        append_time = self._clock() if config.message_timestamp_type == "LogAppendTime" else None
        return {
            "codec": CODEC_NAMES.index(self._codec),
            "level": compression_level(config, self._codec),
            "batch_bytes": max(1, min(config.batch_bytes, limit - BATCH_OVERHEAD)),
            "max_batch_bytes": limit,
            "append_time_ms": append_time,
        }

    def _write(self, encoded: EncodedBatches) -> None:
        first = 0
        while first < len(encoded.batches):
            segment = self._segment = self._segment or self._open()
            end = segment.room(encoded.batches, first)
            if end > first:
                segment.write(encoded, first, end)
                first = end
            else:
                self._seal()

    def _open(self) -> _OpenSegment:
        stem = paths.new_stem(self._begin, self._new_id())
        return _OpenSegment(self._storage, self._topic, self._partition, stem, self._config)

    def _seal(self) -> None:
        if self._segment is not None:
            self._sealed.append(self._segment.seal(self._codec, self._clock()))
            self._segment = None


def compression_level(config: TopicConfig, codec: str) -> int | None:
    """The level that the topic asks for `codec`, or None where the codec has none."""
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return levels.get(codec)


class _OpenSegment:
    """One segment on its way: the log held or streamed, the index entries gathered."""

    def __init__(self, storage: Storage, topic: str, partition: int, stem: str, config: TopicConfig) -> None:
        self._storage, self._topic, self._partition, self._stem = storage, topic, partition, stem
        self._segment_bytes, self._interval = config.segment_bytes, config.index_interval_bytes
        self._held: list[memoryview] = []
        self._stream: ObjectWriter | None = None
        self._bytes = self._offset = self._crc = 0
        self._since_entry = 0
        self._offset_entries: list[tuple[int, int]] = []
        self._time_entries: list[tuple[int, int]] = []
        self._max_timestamp = NO_TIMESTAMP
        self._max_entry_offset = 0
        self._offset_of_max = -1
        self._first_timestamp = NO_TIMESTAMP

    def room(self, batches: npt.NDArray[Any], first: int) -> int:
        """The end of the run of `batches` from `first` that still fits."""
        sizes = np.cumsum(batches["size"][first:])
        ends = self._offset + np.cumsum(batches["last_offset_delta"][first:].astype(np.int64) + 1)
        fits = (self._bytes + sizes <= self._segment_bytes) & (ends - 1 <= MAX_INT)
        return first + int(fits.argmin() if not fits.all() else len(fits))

    def write(self, encoded: EncodedBatches, first: int, end: int) -> None:
        """Append batches [first, end) of `encoded`, renumbered to follow what is here."""
        batches = encoded.batches[first:end]
        spans = batches["last_offset_delta"].astype(np.int64) + 1
        bases = self._offset + np.cumsum(spans) - spans
        start = int(batches["position"][0])
        data = np.frombuffer(encoded.data, np.uint8)[start : int(batches["position"][-1] + batches["size"][-1])]
        _patch_base_offsets(data, batches["position"] - start, bases)
        moved = encoded.offsets_of_max_timestamp[first:end] - batches["base_offset"] + bases
        for index in range(len(batches)):
            self._index(batches[index], int(bases[index]), int(moved[index]))
        self._store(data.data)

    def _index(self, batch: Any, base_offset: int, offset_of_max: int) -> None:
        last_offset = base_offset + int(batch["last_offset_delta"])
        if self._bytes == 0:
            self._first_timestamp = int(batch["base_timestamp"])
        if batch["max_timestamp"] > self._max_timestamp:
            self._max_timestamp = int(batch["max_timestamp"])
            self._max_entry_offset, self._offset_of_max = last_offset, offset_of_max
        if self._since_entry > self._interval:
            self._offset_entries.append((last_offset, self._bytes))
            self._add_time_entry()
            self._since_entry = 0
        self._since_entry += int(batch["size"])
        self._bytes += int(batch["size"])
        self._offset = last_offset + 1

    def _add_time_entry(self) -> None:
        last = self._time_entries[-1][0] if self._time_entries else NO_TIMESTAMP
        if self._max_timestamp > last:
            self._time_entries.append((self._max_timestamp, self._max_entry_offset))

    def _store(self, data: memoryview) -> None:
        self._crc = crc32c.crc32c(data, self._crc)
        if self._stream is None:
            self._held.append(data)
            if self._bytes > HELD_BYTES:
                self._stream = self._storage.open_write(self._name(".log"))
                for part in self._held:
                    self._stream.write(part)
                self._held = []
        else:
            self._stream.write(data)

    def seal(self, codec: str, now_ms: int) -> SegmentInfo:
        """Finish the files and describe them."""
        self._add_time_entry()
        files = {
            ".index": encode_offset_entries(*_columns(self._offset_entries)),
            ".timeindex": encode_time_entries(*_columns(self._time_entries)),
        }
        sizes = {suffix: len(data) for suffix, data in files.items()}
        if self._stream is None:
            files[".log"] = b"".join(self._held)
        else:
            self._stream.close()
        self._storage.put_many({self._name(suffix): data for suffix, data in files.items() if data})
        return SegmentInfo(
            partition=self._partition,
            stem=self._stem,
            base_offset=0,
            next_offset=self._offset,
            stored_base_offset=0,
            record_count=self._offset,
            log_bytes=self._bytes,
            offset_index_bytes=sizes[".index"],
            time_index_bytes=sizes[".timeindex"],
            txn_index_bytes=0,
            first_timestamp=self._first_timestamp,
            max_timestamp=self._max_timestamp,
            offset_of_max_timestamp=self._offset_of_max,
            compression=codec,
            created_ms=now_ms,
            crc32c=self._crc,
        )

    def abort(self) -> None:
        if self._stream is not None:
            self._stream.abort()

    def _name(self, suffix: str) -> str:
        return paths.segment_file(self._topic, self._partition, self._stem, suffix)


def _columns(entries: list[tuple[int, int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    table = np.array(entries, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _patch_base_offsets(
    data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], bases: npt.NDArray[np.int64]
) -> None:
    """Write the base offset of each batch; it lies outside the checksum, so nothing else changes."""
    data[positions[:, None] + np.arange(8)] = bases.astype(">i8").view(np.uint8).reshape(-1, 8)
