"""Segments that a writer made of records, and what is in their files."""

from __future__ import annotations

import itertools
import struct
import uuid
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.config import TopicConfig
from distlog.core.format.record_encoder import RecordInput
from distlog.core.segments.segment_writer import SegmentWriter
from distlog.core.storage.storage import Storage

NOW = 1_700_000_000_000


class Written(NamedTuple):
    """The result of a writer: the segments, and the bytes of each of their files by suffix."""

    segments: list[SegmentInfo]
    files: list[dict[str, bytes]]


def records(timestamps: list[int], size: int = 10, **columns: Any) -> pa.RecordBatch:
    """A record of `size` bytes for each timestamp, its value its number."""
    defaults: dict[str, Any] = {
        "timestamp": pa.array(timestamps, pa.int64()),
        "key": pa.nulls(len(timestamps), pa.binary()),
        "value": pa.array([b"%0*d" % (size, number) for number in range(len(timestamps))], pa.binary()),
    }
    return pa.RecordBatch.from_pydict({**defaults, **columns})


def writer(storage: Storage, codec: str = "none", **settings: object) -> SegmentWriter:
    config = TopicConfig.parse({name.replace("_", "."): value for name, value in settings.items()})
    ids = (f"{number:032x}" for number in itertools.count())
    return SegmentWriter(
        storage, "t", 3, 7, config, codec=codec, clock=lambda: NOW, new_id=ids.__next__, random=Random(0)
    )


def append(segment_writer: SegmentWriter, batch: pa.RecordBatch) -> None:
    segment_writer.append(RecordInput.from_arrow(batch), np.arange(batch.num_rows))


def memory() -> Storage:
    return Storage(f"memory://{uuid.uuid4().hex}")


def write(*batches: pa.RecordBatch, storage: Storage | None = None, **settings: Any) -> Written:
    """Write `batches`, in memory without a storage."""
    storage = storage or memory()
    segment_writer = writer(storage, **settings)
    for batch in batches:
        append(segment_writer, batch)
    segments = segment_writer.close()
    return Written(segments, [files(storage, segment) for segment in segments])


def files(storage: Storage, segment: SegmentInfo) -> dict[str, bytes]:
    files_by_suffix = {
        f".{info.name.rpartition('.')[2]}": info.name for info in storage.list("t-3") if segment.stem in info.name
    }
    return {suffix: storage.read(name) for suffix, name in files_by_suffix.items()}


class Batch(NamedTuple):
    """A batch found by reading bytes one after the other."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int


def walk(log: bytes) -> list[Batch]:
    batches, position = [], 0
    while position < len(log):
        base_offset, length = struct.unpack_from(">qi", log, position)
        (delta,) = struct.unpack_from(">i", log, position + 23)
        (max_timestamp,) = struct.unpack_from(">q", log, position + 35)
        batches.append(Batch(position, 12 + length, base_offset, base_offset + delta, max_timestamp))
        position += 12 + length
    return batches
