"""Writing a partition's records as relocatable segments.

A segment is written as if it began at offset 0, since its offsets are given at commit (`SegmentInfo.at`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core import paths
from distlog.core.compression import CODEC_NAMES
from distlog.core.config import TopicConfig
from distlog.core.record_encoder import EncodedBatches, encode
from distlog.core.segment_file import SegmentFile
from distlog.core.segment_info import SegmentInfo
from distlog.core.storage import Storage

#: Rows are gathered up to this many bytes before they are encoded, so that small inputs do not make small batches.
ENCODE_BYTES = 1 << 20
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
        self._segment: SegmentFile | None = None
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


def compression_level(config: TopicConfig, codec: str) -> int | None:
    """The level that the topic asks for `codec`, or None where the codec has none."""
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return levels.get(codec)
