"""Helpers for tests of reads: a topic of one partition, its content, and ways to read and to damage it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from adopted import Rows, rows

import distlog
from distlog import Topic
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.format.record_batch import COLUMNS, SCHEMA, read_headers
from distlog.core.segments.chunks import READ_UNCOMMITTED, SegmentSlice

START = 1_700_000_000_000


class Log(NamedTuple):
    topic: Topic
    expected: Rows

    @property
    def segments(self) -> list[SegmentInfo]:
        return list(self.topic.live_snapshot.partitions[0].segments)

    def file(self, number: int = 0, suffix: str = ".log") -> Path:
        return Path(self.topic.storage.local_path(self.topic.reader.name(self.segments[number], suffix)))


def log_of(topic: Topic) -> Log:
    return Log(topic, rows(topic.scan().to_table()))


def table(count: int) -> pa.Table:
    """Records of different sizes, some without a key or a value, 10 ms apart from START on."""
    numbers = range(count)
    return pa.table(
        {
            "timestamp": [START + 10 * number for number in numbers],
            "key": [b"k%d" % number if number % 3 else None for number in numbers],
            "value": [None if number % 5 == 4 else b"v%d" % number * (number % 4) for number in numbers],
        }
    )


def appended(url: str, *counts: int, **settings: Any) -> Topic:
    """A topic with a segment of each of `counts` records, several in a batch, and an index entry for most batches."""
    topic = distlog.create(url, config={"batch.bytes": "90", "index.interval.bytes": "100", **settings})
    for count in counts:
        topic.append(table(count))
    return topic


def full_slice(segment: SegmentInfo, **changes: int) -> SegmentSlice:
    all_of_it = SegmentSlice(segment, segment.base_offset, segment.next_offset, 0, segment.log_bytes)
    return all_of_it._replace(**changes)


def read(topic: Topic, part: SegmentSlice, step: int = 700) -> Rows:
    """The rows of a slice, read in chunks of about `step` bytes."""
    chunks = topic.reader.chunks(part, step)
    batches = [batch for chunk in chunks for batch in chunk.records(COLUMNS, READ_UNCOMMITTED)]
    return rows(pa.Table.from_batches(batches, SCHEMA))


def changed(data: bytes, position: int, change: int) -> bytes:
    """`data` with the bits of `change` turned over in one byte."""
    return data[:position] + bytes([data[position] ^ change]) + data[position + 1 :]


def each_byte_changed(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(position, `data` with that byte changed), for every byte the low bit and the high bit."""
    for position in range(len(data)):
        for change in (0x01, 0x80):
            yield position, changed(data, position, change)


def batches_of(data: bytes) -> list[bytes]:
    return [data[row["position"] : row["position"] + row["size"]] for row in read_headers(data)]
