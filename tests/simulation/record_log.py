"""The records of a topic, read from the bytes of its segments as docs/formats.md describes them.

`RecordLog` has what was committed at each offset. A later segment may drop records, where the rules of `Rewrite`
allow it, and must change none.
"""

from __future__ import annotations

import gzip
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from simulation.commit_reader import DEFAULTS, Body, UnreadableError

Headers = tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """A record: its time in ms, and its contents."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class StoredRow(NamedTuple):
    """A record in a segment, with what its batch says: the producer if it is of a transaction, and a horizon."""

    offset: int
    row: Row
    transaction: int | None
    horizon_ms: int | None


class Marker(NamedTuple):
    """The end of a transaction of a producer."""

    offset: int
    producer: int
    is_commit: bool


_HEADER = struct.Struct(">qiibIhiqqqhii")
_CODECS = {3: "lz4", 4: "zstd"}
_APPEND_TIME, _TRANSACTIONAL, _CONTROL, _HORIZON = 8, 16, 32, 64


def read_segment(data: bytes, segment: Body) -> tuple[list[StoredRow], list[Marker]]:
    """The records and markers of a segment whose log is `data`; raises UnreadableError."""
    rows, markers, at = list[StoredRow](), list[Marker](), 0
    shift = segment["base_offset"] - segment["stored_base_offset"]
    while at < len(data):
        facts = _HEADER.unpack_from(data, at)
        base, size, _, magic, crc, attributes, _, base_ms, newest_ms, producer, _, _, count = facts
        end = at + 12 + size
        if magic != 2 or end > len(data) or crc32c(data[at + 21 : end]) != crc:
            raise UnreadableError(f"the batch at {at} of {segment['stem']} is damaged")
        body = _decompressed(attributes & 7, data[at + _HEADER.size : end])
        transaction = producer if attributes & _TRANSACTIONAL else None
        for delta_ms, offset, key, value, headers in _records(body, count):
            place = base + offset + shift
            if attributes & _CONTROL:
                assert key is not None
                markers.append(Marker(place, producer, key[3] == 1))
                continue
            time_ms = newest_ms if attributes & _APPEND_TIME else base_ms + delta_ms
            if segment["append_time_ms"] >= 0:
                time_ms = segment["append_time_ms"]
            horizon_ms = base_ms if attributes & _HORIZON else None
            rows.append(StoredRow(place, Row(time_ms, key, value, headers), transaction, horizon_ms))
        at = end
    return rows, markers


def rows_by_offset(rows: pa.RecordBatch | pa.Table) -> dict[tuple[int, int], Any]:
    """Columns of records, all or some of a Row's, by partition and offset; ValueError if they are in no order."""
    names = [name for name in Row._fields if name in rows.schema.names]
    kind: Callable[..., Any] = Row if len(names) == len(Row._fields) else _kinds[tuple(names)]
    columns = [_values(rows, name) for name in names]
    places = list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    found = {place: kind(*values) for place, values in zip(places, zip(*columns, strict=True), strict=True)}
    last: dict[int, int] = {}
    for partition, offset in places:
        if offset <= last.get(partition, -1):
            raise ValueError(f"offset {offset} of partition {partition} comes twice, or out of order: {places}")
        last[partition] = offset
    return found


class _Kinds(dict[tuple[str, ...], Any]):
    def __missing__(self, names: tuple[str, ...]) -> Any:
        self[names] = NamedTuple("Columns", [(name, Any) for name in names])  # type: ignore[misc]
        return self[names]


_kinds = _Kinds()


def _values(rows: pa.RecordBatch | pa.Table, name: str) -> list[Any]:
    column = rows[name]
    if name == "timestamp":
        found: list[Any] = column.cast(pa.int64()).to_pylist()
        return [-1 if each is None else each for each in found]
    if name == "headers":
        return [tuple((one["key"], one["value"]) for one in each or ()) for each in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


#: What segments of fetched batches are like: their offsets are in the batches.
FETCHED = {**DEFAULTS, "stem": "what was fetched", "base_offset": 0, "stored_base_offset": 0}


def rows_of_client(data: bytes, aborted: Iterable[Any], start: int) -> dict[int, Row]:
    """The records of fetched batches from `start` on, without the aborted ones, as Kafka's clients have them."""
    rows, markers = read_segment(data, FETCHED)
    hidden = set[int]()
    for one in aborted:
        ends = [marker.offset for marker in markers if marker.producer == one.producer_id]
        end = min((end for end in ends if end > one.first_offset), default=1 << 62)
        hidden |= {
            each.offset
            for each in rows
            if each.transaction == one.producer_id and one.first_offset <= each.offset < end
        }
    return {each.offset: each.row for each in rows if each.offset >= start and each.offset not in hidden}


def _decompressed(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return gzip.decompress(data)
    if codec in _CODECS:
        plain: bytes = pa.CompressedInputStream(pa.BufferReader(data), _CODECS[codec]).read()
        return plain
    if codec:
        raise UnreadableError(f"no history has the codec {codec}")
    return data


def _records(data: bytes, count: int) -> Iterator[tuple[int, int, bytes | None, bytes | None, Headers]]:
    at = 0

    def number() -> int:
        nonlocal at
        shift = value = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def text() -> bytes | None:
        nonlocal at
        size = number()
        if size < 0:
            return None
        at += size
        return data[at - size : at]

    for _ in range(count):
        number()
        at += 1
        delta_ms, offset, key, value = number(), number(), text(), text()
        headers = tuple(((text() or b"").decode(), text()) for _ in range(number()))
        yield delta_ms, offset, key, value, headers
    if at != len(data):
        raise UnreadableError("a batch has more bytes than records")


@dataclass(slots=True)
class RecordLog:
    """What was committed of one partition: each record at its offset, for as long as a topic lives."""

    rows: dict[int, Row] = field(default_factory=dict)
    #: When the record at an offset was committed, in s, and the offsets of each key, ascending.
    committed_s: dict[int, float] = field(default_factory=dict)
    by_key: dict[bytes, list[int]] = field(default_factory=dict)
    #: The producers of records of transactions, and the ends of these.
    producers: dict[int, int] = field(default_factory=dict)
    markers: dict[int, list[Marker]] = field(default_factory=dict)

    def add(self, stored: StoredRow, now_s: float) -> Row:
        """The record that was committed at this offset: the first one of all."""
        offset = stored.offset
        if offset in self.rows:
            return self.rows[offset]
        self.rows[offset], self.committed_s[offset] = stored.row, now_s
        if stored.row.key is not None:
            # what an import brings may lie below what is there
            places = self.by_key.setdefault(stored.row.key, [])
            places.insert(bisect_left(places, offset), offset)
        if stored.transaction is not None:
            self.producers[offset] = stored.transaction
        return stored.row

    def end(self, marker: Marker) -> None:
        """Note the end of a transaction."""
        markers = self.markers.setdefault(marker.producer, [])
        if marker not in markers:
            markers.append(marker)
            markers.sort()

    def is_committed(self, offset: int, end: int) -> bool | None:
        """Whether a record counts as committed in a log that ends at `end`; None if its transaction is open."""
        producer = self.producers.get(offset)
        if producer is None:
            return True
        markers = self.markers.get(producer, [])
        at = bisect_right(markers, (offset, 1 << 62, True))
        return markers[at].is_commit if at < len(markers) and markers[at].offset < end else None

    def stable_end(self, end: int) -> int:
        """The first offset of an open transaction in a log that ends at `end`, or its end."""
        opened = (offset for offset in self.producers if offset < end and self.is_committed(offset, end) is None)
        return min(opened, default=end)

    def later(self, key: bytes, offset: int, below: int) -> Iterator[int]:
        """The offsets of committed records with this key after `offset`, below an end."""
        places = self.by_key.get(key, [])
        for place in places[bisect_right(places, offset) : bisect_left(places, below)]:
            if self.is_committed(place, 1 << 62):
                yield place


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A commit that has other segments in the place of some, and the rules by which records may be missing then."""

    log: RecordLog
    start: int
    #: Up to where compaction has cleaned.
    clean_end: int
    is_compacted: bool
    now_ms: int
    now_s: float
    lag_ms: int
    tombstones_kept_ms: int

    def wrong(self, before: Iterable[StoredRow], after: Iterable[StoredRow]) -> Iterator[str]:
        """What is missing, and may not be."""
        left = {stored.offset for stored in after}
        for stored in before:
            if stored.offset not in left and stored.offset >= self.start and (why := self._why_not(stored)):
                yield f"the record at offset {stored.offset} is gone: {why}"

    def _why_not(self, stored: StoredRow) -> str:
        """Why a record must not be missing; empty if it may."""
        offset, row = stored.offset, stored.row
        if not self.is_compacted:
            return "the topic is not compacted"
        if self.log.is_committed(offset, 1 << 62) is False:
            return ""
        if offset >= self.clean_end:
            return f"the log was cleaned up to {self.clean_end}"
        if 0 < self.lag_ms > self.now_ms - row.timestamp:
            return f"it is {self.now_ms - row.timestamp} ms old, and min.compaction.lag.ms is {self.lag_ms}"
        if row.key is None:
            return ""
        later = next(self.log.later(row.key, offset, self.clean_end), None)
        if later is not None:
            return ""
        if row.value is not None:
            return f"it is the newest one of key {row.key!r} below {self.clean_end}"
        age_ms = (self.now_s - self.log.committed_s[offset]) * 1000
        if age_ms < self.tombstones_kept_ms - 1000:
            return f"it is a tombstone, committed {age_ms:.0f} ms ago, not {self.tombstones_kept_ms}"
        return ""

    def superseded(self, live: Iterable[StoredRow]) -> Iterator[str]:
        """The records that are left below the end of what is clean, although a later one has their key."""
        for stored in live:
            offset, key = stored.offset, stored.row.key
            if not self.start <= offset < self.clean_end or not self.log.is_committed(offset, 1 << 62):
                continue
            if key is None:
                yield f"the record without a key at offset {offset} is left below {self.clean_end}"
            elif (later := next(self.log.later(key, offset, self.clean_end), None)) is not None:
                yield f"key {key!r} is left at offset {offset}, and is newer at {later}, below {self.clean_end}"
