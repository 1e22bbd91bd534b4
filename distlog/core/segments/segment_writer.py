"""Writing a partition's records as relocatable segments.

A segment is written as if it began at offset 0, since its offsets are given at commit (`SegmentInfo.at`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core import paths
from distlog.core.batches.compression import CODEC_NAMES
from distlog.core.batches.record_encoder import EncodedBatches, encode
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidRecordError
from distlog.core.segments.segment_file import SegmentFile
from distlog.core.storage.storage import Storage

#: Rows are gathered up to this many bytes before they are encoded: many batches in one kernel call.
ENCODE_BYTES = 1 << 20
BATCH_OVERHEAD = 61 + 21
#: What a slice may hold on to beside its own bytes before it is copied.
_SPARE_BYTES = 4096


class SegmentWriter:
    """Writes the records of one partition, rolled by `segment.bytes`, in a few MiB of memory (32 on object stores).

    The same records give the same bytes, however they are cut into appends. `new_id` gives the unique hex part of a
    stem. Raises InvalidRecordError for a record that fits no batch or segment; what was written so far is then named
    by nobody and left to vacuum.
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
        self._pending_bytes, self._encode_at = 0, ENCODE_BYTES
        self._encoded_rows = 0
        self._segment: SegmentFile | None = None
        self._sealed: list[SegmentInfo] = []

    def append(self, records: pa.RecordBatch) -> None:
        """Take `records` (columns timestamp, key, value and perhaps headers) to be written in this order."""
        if records.num_rows == 0:
            return
        self._pending.append(_compact(records))
        self._pending_bytes += records.nbytes
        if self._pending_bytes >= self._encode_at:
            self.encode()

    def close(self) -> list[SegmentInfo]:
        """Make everything durable; the segments in order, each starting at offset 0. Empty if nothing came."""
        self._encode_pending(last=True)
        self._seal()
        return self._sealed

    def abort(self) -> None:
        """Give up; files already written are named by nobody."""
        if self._segment is not None:
            self._segment.abort()

    def encode(self) -> None:
        """Write what was taken so far, but for the last batch: more records may belong to it."""
        self._encode_pending(last=False)

    def _encode_pending(self, last: bool) -> None:
        if not self._pending:
            return
        records = _joined(self._pending)
        try:
            encoded = encode(records, open_end=not last, **self._encoding())
        except InvalidRecordError as error:
            row = error.details.pop("row", 0) + self._encoded_rows
            raise InvalidRecordError(
                error.message, partition=self._partition, row_of_partition=row, **error.details
            ) from None
        self._write(encoded)
        count = int(encoded.batches["record_count"].sum())
        self._encoded_rows += count
        self._keep(records.slice(count))

    def _keep(self, rest: pa.RecordBatch) -> None:
        self._pending, self._pending_bytes = [_compact(rest)] if rest.num_rows else [], rest.nbytes
        # a batch may be larger than what is gathered; then it is not looked at again for every little append
        self._encode_at = max(ENCODE_BYTES, 2 * rest.nbytes)

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
        batches, data = encoded.batches, np.frombuffer(encoded.data, np.uint8)
        spans = batches["last_offset_delta"].astype(np.int64) + 1
        bases = np.cumsum(spans) - spans
        # where each batch lies does not matter, since every segment counts its own offsets
        newest = encoded.offsets_of_max_timestamp - batches["base_offset"]
        first = 0
        while first < len(batches):
            segment = self._segment = self._segment or self._open()
            moved = bases[first:] - bases[first] + segment.next_offset
            end = first + segment.room(batches[first:], moved)
            if end > first:
                rows = batches[first:end].copy()
                start = int(rows["position"][0])
                rows["position"] -= start
                part = data[start : start + int(rows["size"].sum())]
                segment.write(part, rows, moved[: end - first], newest[first:end] + moved[: end - first])
                first = end
            else:
                self._seal()

    def _open(self) -> SegmentFile:
        stem = paths.new_stem(self._begin, self._new_id())
        return SegmentFile(self._storage, self._topic, self._partition, stem, self._config)

    def _seal(self) -> None:
        if self._segment is not None:
            self._sealed.append(self._segment.seal(self._codec, self._clock()))
            self._segment = None


def _compact(records: pa.RecordBatch) -> pa.RecordBatch:
    """`records`, copied if they are a small slice, which would keep in memory all that it was cut from."""
    if records.get_total_buffer_size() <= 2 * records.nbytes + _SPARE_BYTES:
        return records
    return pa.concat_batches([records])


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    # permissive: one append may have headers, or large_binary values, and the next may not
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    (joined,) = table.combine_chunks().to_batches()
    return joined


def compression_level(config: TopicConfig, codec: str) -> int | None:
    """The level that the topic asks for `codec`, or None where the codec has none."""
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return levels.get(codec)
