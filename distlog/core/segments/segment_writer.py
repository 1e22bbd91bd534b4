"""Writes a partition's records as relocatable segments.

A segment is written as if it began at offset 0, since it gets its offsets at commit (`SegmentInfo.at`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.batches.batch_format import BatchFormat
from distlog.core.batches.compression import CODEC_NAMES
from distlog.core.batches.record_encoder import EncodedBatches, RecordEncoder
from distlog.core.batches.record_input import RecordInput
from distlog.core.commits.format.segment_info import BY_COMMIT, SegmentInfo
from distlog.core.config import MAX_LONG, TopicConfig
from distlog.core.errors import InvalidConfigError, InvalidRecordError, StorageError
from distlog.core.segments.bundles import Bundles
from distlog.core.segments.roll import RollTime, jittered, time_span
from distlog.core.segments.segment_file import SegmentFile
from distlog.core.storage.storage import Storage

BATCH_OVERHEAD = 61 + 21
#: What topics call the codec `none`.
_UNCOMPRESSED = "uncompressed"


class SegmentWriter:
    """Writes the records of one partition as segments, in about 6 MiB of memory (32 on object stores).

    A segment ends by `segment.bytes`, `segment.index.bytes`, and `segment.ms` less a part of `segment.jitter.ms` that
    `random` chooses once. The same records give the same bytes, however they are cut into appends. `new_id` gives the
    unique hex part of a stem. Raises InvalidRecordError for a record that fits no batch or segment; what was written
    so far stays unreferenced, for vacuum to delete. With `bundles`, small segments are written by these.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        partition: int,
        read_version: int,
        config: TopicConfig,
        *,
        codec: str,
        clock: Callable[[], int],
        new_id: Callable[[], str],
        random: Random,
        bundles: Bundles | None = None,
    ) -> None:
        self._storage, self._topic, self._partition, self._read_version = storage, topic, partition, read_version
        self._config, self._clock, self._new_id, self._bundles = config, clock, new_id, bundles
        form = batch_format(config, codec, clock, random)
        self._encoder, self._time = RecordEncoder(form), RollTime(form.window_ms)
        self._segment: SegmentFile | None = None
        self._sealed: list[SegmentInfo] = []
        self._is_aborted = False

    def append(self, source: RecordInput, rows: npt.NDArray[np.int64]) -> None:
        """Take the `rows` of `source`, to be written in this order."""
        try:
            for encoded in self._encoder.append(source, rows):
                self._write(encoded)
        except InvalidRecordError as error:
            raise self._in_partition(error) from None

    @property
    def is_uploading(self) -> bool:
        """Whether the open segment is too large to be held, so that to close it takes requests."""
        return self._segment is not None and self._segment.is_uploading

    def close(self) -> list[SegmentInfo]:
        """Make everything durable; returns the segments in order, each starting at offset 0; none if nothing came.

        With LogAppendTime their commit gives them their time (`BY_COMMIT`).
        """
        if self._is_aborted:
            raise StorageError("cannot close: the segment was aborted", partition=self._partition)
        try:
            self._write(self._encoder.finish())
        except InvalidRecordError as error:
            raise self._in_partition(error) from None
        self._seal()
        return self._sealed

    def abort(self) -> None:
        """Abort; the files already written stay unreferenced, for vacuum to delete."""
        self._is_aborted = True
        if self._segment is not None:
            self._segment.abort()

    def _in_partition(self, error: InvalidRecordError) -> InvalidRecordError:
        row = error.details.pop("row")
        return InvalidRecordError(error.message, partition=self._partition, row_of_partition=row, **error.details)

    def _write(self, encoded: EncodedBatches) -> None:
        batches, data = encoded.batches, np.frombuffer(encoded.data, np.uint8)
        spans = batches["last_offset_delta"].astype(np.int64) + 1
        bases = np.cumsum(spans) - spans
        # relative to their batches, since every segment counts its own offsets
        newest, oldest = encoded.offsets_of_max_timestamp - batches["base_offset"], encoded.min_timestamps
        first = 0
        while first < len(batches):
            segment = self._segment = self._segment or self._open()
            moved = bases[first:] - bases[first] + segment.next_offset
            end = first + self._room(segment, batches[first:], moved, oldest[first:])
            if end > first:
                rows = batches[first:end].copy()
                start = int(rows["position"][0])
                rows["position"] -= start
                part = data[start : start + int(rows["size"].sum())]
                moved = moved[: end - first]
                segment.write(part, rows, moved, newest[first:end] + moved, oldest[first:end])
                first = end
                self._encoder.file_position = segment.size
            else:
                self._seal()

    def _room(
        self,
        segment: SegmentFile,
        batches: npt.NDArray[Any],
        base_offsets: npt.NDArray[np.int64],
        smallest: npt.NDArray[np.int64],
    ) -> int:
        now_ms = self._clock()
        if segment.size == 0:
            self._time.open(batches[0], int(smallest[0]), now_ms)
        return min(segment.room(batches, base_offsets), self._time.room(batches, now_ms))

    def _open(self) -> SegmentFile:
        stem = paths.new_stem(self._read_version, self._new_id())
        return SegmentFile(self._storage, self._topic, self._partition, stem, self._config, self._bundles)

    def _seal(self) -> None:
        if self._segment is not None:
            sealed = self._segment.seal(self._clock())
            waits = self._config.message_timestamp_type == "LogAppendTime"
            self._sealed.append(dataclasses.replace(sealed, append_time_ms=BY_COMMIT) if waits else sealed)
            self._segment = None


def batch_format(config: TopicConfig, codec: str, clock: Callable[[], int], random: Random) -> BatchFormat:
    """The format of new batches of a topic; `clock` gives the times of LogAppendTime, `random` the jitter."""
    limit = largest_batch(config)
    by_append_time = config.message_timestamp_type == "LogAppendTime"
    return BatchFormat(
        codec=CODEC_NAMES.index(codec),
        level=compression_level(config, codec),
        batch_bytes=usual_batch(config),
        max_batch_bytes=limit,
        # with LogAppendTime all records of an append have the same time
        window_ms=MAX_LONG if by_append_time else jittered(time_span(config), config, random),
        append_time=clock if by_append_time else None,
    )


def usual_batch(config: TopicConfig) -> int:
    """How many bytes of uncompressed records a batch of several records has at most."""
    return max(1, min(config.batch_bytes, largest_batch(config) - BATCH_OVERHEAD))


def largest_batch(config: TopicConfig) -> int:
    """The size in bytes that no batch may exceed."""
    return min(config.max_message_bytes, config.segment_size)


def codec_of(config: TopicConfig, asked: str | None) -> str:
    """The codec of new batches: the topic's own, or, if it leaves that to producers, the one that is `asked` for.

    Raises InvalidConfigError if there is no such codec.
    """
    if asked not in (None, _UNCOMPRESSED, *CODEC_NAMES):
        raise InvalidConfigError(f"compression must be one of {', '.join(CODEC_NAMES)}", value=asked)
    chosen = asked or _UNCOMPRESSED if config.compression_type == "producer" else config.compression_type
    return "none" if chosen == _UNCOMPRESSED else chosen


def compression_level(config: TopicConfig, codec: str) -> int | None:
    """The topic's level for `codec`; None if the codec has no levels."""
    levels = {
        "gzip": config.compression_gzip_level,
        "lz4": config.compression_lz4_level,
        "zstd": config.compression_zstd_level,
    }
    return levels.get(codec)
