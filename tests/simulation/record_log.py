"""The records of a topic, read from the bytes of its segments as docs/formats.md describes them.

`RecordLog` has the committed record at each offset. A later segment may lack records where `Rewrite` allows it, and
must change none.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from simulation.commit_reader import DEFAULTS, Body, UnreadableError

Headers = tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """A record's time in ms, and its contents."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class StoredRow(NamedTuple):
    """A record in a segment, with its batch's producer if it is transactional, and its horizon."""

    offset: int
    row: Row
    transaction: int | None
    horizon_ms: int | None


class Marker(NamedTuple):
    offset: int
    producer: int
    is_commit: bool


_HEADER = struct.Struct(">qiibIhiqqqhii")
_CODECS = {3: "lz4", 4: "zstd"}
_APPEND_TIME, _TRANSACTIONAL, _CONTROL, _HORIZON = 8, 16, 32, 64


def read_segment(data: bytes, segment: Body) -> tuple[list[StoredRow], list[Marker]]:
    """Return the records and markers of a segment whose log is `data`; raises UnreadableError."""
    rows, markers, position = list[StoredRow](), list[Marker](), 0
    shift = segment["base_offset"] - segment["stored_base_offset"]
    while position < len(data):
        if data[position + 16] < 2:
            rows += _old_rows(data, position, segment, shift)
            position += _OLD_HEADER.unpack_from(data, position)[1] + 12
            continue
        header = _HEADER.unpack_from(data, position)
        base, size, _, magic, crc, attributes, _, base_ms, newest_ms, producer, _, _, count = header
        end = position + 12 + size
        if magic != 2 or end > len(data) or crc32c(data[position + 21 : end]) != crc:
            raise UnreadableError(f"the batch at {position} of {segment['stem']} is damaged")
        body = _decompressed(attributes & 7, data[position + _HEADER.size : end])
        transaction = producer if attributes & _TRANSACTIONAL else None
        for delta_ms, offset_delta, key, value, headers in _records(body, count):
            offset = base + offset_delta + shift
            if attributes & _CONTROL:
                assert key is not None
                markers.append(Marker(offset, producer, key[3] == 1))
                continue
            time_ms = newest_ms if attributes & _APPEND_TIME else base_ms + delta_ms
            if segment["append_time_ms"] >= 0:
                time_ms = segment["append_time_ms"]
            horizon_ms = base_ms if attributes & _HORIZON else None
            rows.append(StoredRow(offset, Row(time_ms, key, value, headers), transaction, horizon_ms))
        position = end
    return rows, markers


_OLD_HEADER = struct.Struct(">qiIbb")


def _old_rows(data: bytes, position: int, segment: Body, shift: int) -> list[StoredRow]:
    """Return the records of a message of format 0 or 1, which may hold compressed messages."""
    offset, size, crc, magic, attributes = _OLD_HEADER.unpack_from(data, position)
    end, begin = position + 12 + size, position + _OLD_HEADER.size
    if end > len(data) or zlib.crc32(data[position + 16 : end]) != crc:
        raise UnreadableError(f"the message at {position} of {segment['stem']} is damaged")
    time_ms = -1
    if magic:
        (time_ms,), begin = struct.unpack_from(">q", data, begin), begin + 8
    texts = list[bytes | None]()
    for _ in range(2):
        (length,), begin = struct.unpack_from(">i", data, begin), begin + 4
        texts.append(data[begin : begin + length] if length >= 0 else None)
        begin += max(length, 0)
    key, value = texts
    if not attributes & 7:
        time_ms = segment["append_time_ms"] if segment["append_time_ms"] >= 0 else time_ms
        return [StoredRow(offset + shift, Row(time_ms, key, value, ()), None, None)]
    inner, rows, begin = _decompressed(attributes & 7, value or b""), list[StoredRow](), 0
    while begin < len(inner):
        rows += _old_rows(inner, begin, segment, shift)
        begin += _OLD_HEADER.unpack_from(inner, begin)[1] + 12
    # in format 1, inner offsets begin at 0
    moved = offset + shift - rows[-1].offset
    return [stored._replace(offset=stored.offset + moved) for stored in rows]


def rows_by_offset(rows: pa.RecordBatch | pa.Table) -> dict[tuple[int, int], Any]:
    """Return columns of records by partition and offset; raises ValueError if they are out of order."""
    names = [name for name in Row._fields if name in rows.schema.names]
    kind: Callable[..., Any] = Row if len(names) == len(Row._fields) else _kinds[tuple(names)]
    columns = [_values(rows, name) for name in names]
    keys = list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    by_offset = {key: kind(*values) for key, values in zip(keys, zip(*columns, strict=True), strict=True)}
    last: dict[int, int] = {}
    for partition, offset in keys:
        if offset <= last.get(partition, -1):
            raise ValueError(f"offset {offset} of partition {partition} repeats, or is out of order: {keys}")
        last[partition] = offset
    return by_offset


class _Kinds(dict[tuple[str, ...], Any]):
    def __missing__(self, names: tuple[str, ...]) -> Any:
        self[names] = NamedTuple("Columns", [(name, Any) for name in names])  # type: ignore[misc]
        return self[names]


_kinds = _Kinds()


def _values(rows: pa.RecordBatch | pa.Table, name: str) -> list[Any]:
    column = rows[name]
    if name == "timestamp":
        times: list[Any] = column.cast(pa.int64()).to_pylist()
        return [-1 if time is None else time for time in times]
    if name == "headers":
        return [tuple((pair["key"], pair["value"]) for pair in pairs or ()) for pairs in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


#: The segment of fetched batches, which have their offsets in the batches.
FETCHED = {**DEFAULTS, "stem": "the fetched data", "base_offset": 0, "stored_base_offset": 0}


def rows_of_client(data: bytes, aborted: Iterable[Any], start: int) -> dict[int, Row]:
    """Return the records of fetched batches from `start` on without the aborted ones, as Kafka clients do."""
    rows, markers = read_segment(data, FETCHED)
    hidden = set[int]()
    for transaction in aborted:
        ends = [marker.offset for marker in markers if marker.producer == transaction.producer_id]
        end = min((end for end in ends if end > transaction.first_offset), default=1 << 62)
        hidden |= {
            stored.offset
            for stored in rows
            if stored.transaction == transaction.producer_id and transaction.first_offset <= stored.offset < end
        }
    return {stored.offset: stored.row for stored in rows if stored.offset >= start and stored.offset not in hidden}


def _decompressed(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return gzip.decompress(data)
    if codec == 2:
        return b"".join(_snappy_blocks(data))
    if codec in _CODECS:
        plain: bytes = pa.CompressedInputStream(pa.BufferReader(data), _CODECS[codec]).read()
        return plain
    if codec:
        raise UnreadableError(f"no history has the codec {codec}")
    return data


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    """Yield the blocks of a stream of snappy-java: a header of 16 bytes, then blocks after their sizes."""
    position = 16
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        block, position = data[position + 4 : position + 4 + size], position + 4 + size
        plain_size = shift = 0
        for byte in block[:5]:
            plain_size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        yield pa.decompress(block, decompressed_size=plain_size, codec="snappy", asbytes=True)


def _records(data: bytes, count: int) -> Iterator[tuple[int, int, bytes | None, bytes | None, Headers]]:
    position = 0

    def number() -> int:
        nonlocal position
        shift = value = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def text() -> bytes | None:
        nonlocal position
        size = number()
        if size < 0:
            return None
        position += size
        return data[position - size : position]

    for _ in range(count):
        number()
        position += 1
        delta_ms, offset, key, value = number(), number(), text(), text()
        headers = tuple(((text() or b"").decode(), text()) for _ in range(number()))
        yield delta_ms, offset, key, value, headers
    if position != len(data):
        raise UnreadableError("a batch has more bytes than records")


@dataclass(slots=True)
class RecordLog:
    """The committed records of one partition, by offset, as long as a topic lives."""

    rows: dict[int, Row] = field(default_factory=dict)
    #: When the record at an offset was committed, in s, and the offsets of each key, ascending.
    committed_s: dict[int, float] = field(default_factory=dict)
    by_key: dict[bytes, list[int]] = field(default_factory=dict)
    #: The producers of transactional records, and the ends of their transactions.
    producers: dict[int, int] = field(default_factory=dict)
    markers: dict[int, list[Marker]] = field(default_factory=dict)

    def add(self, stored: StoredRow, now_s: float) -> Row:
        offset = stored.offset
        if offset in self.rows:
            return self.rows[offset]
        self.rows[offset], self.committed_s[offset] = stored.row, now_s
        if stored.row.key is not None:
            # an import may add records before existing ones
            offsets = self.by_key.setdefault(stored.row.key, [])
            offsets.insert(bisect_left(offsets, offset), offset)
        if stored.transaction is not None:
            self.producers[offset] = stored.transaction
        return stored.row

    def end(self, marker: Marker) -> None:
        markers = self.markers.setdefault(marker.producer, [])
        if marker not in markers:
            markers.append(marker)
            markers.sort()

    def is_committed(self, offset: int, end: int) -> bool | None:
        """Whether a record is committed in a log that ends at `end`; None if its transaction is open."""
        producer = self.producers.get(offset)
        if producer is None:
            return True
        markers = self.markers.get(producer, [])
        index = bisect_right(markers, (offset, 1 << 62, True))
        return markers[index].is_commit if index < len(markers) and markers[index].offset < end else None

    def stable_end(self, end: int) -> int:
        """Return the first offset of an open transaction in a log that ends at `end`, or its end."""
        undecided = (offset for offset in self.producers if offset < end and self.is_committed(offset, end) is None)
        return min(undecided, default=end)

    def later(self, key: bytes, offset: int, below: int) -> Iterator[int]:
        """Yield the offsets of committed records with this key between `offset` and `below`."""
        offsets = self.by_key.get(key, [])
        for later_offset in offsets[bisect_right(offsets, offset) : bisect_left(offsets, below)]:
            if self.is_committed(later_offset, 1 << 62):
                yield later_offset


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A commit that replaces segments, and the rules for records that are missing afterwards."""

    log: RecordLog
    start: int
    #: The end of the compacted part.
    clean_end: int
    is_compacted: bool
    now_ms: int
    now_s: float
    lag_ms: int
    tombstones_kept_ms: int

    def wrong(self, old: Iterable[StoredRow], new: Iterable[StoredRow]) -> Iterator[str]:
        """Yield the records that must not be missing."""
        remaining = {stored.offset for stored in new}
        for stored in old:
            if stored.offset not in remaining and stored.offset >= self.start and (reason := self._reason(stored)):
                yield f"the record at offset {stored.offset} was removed: {reason}"

    def _reason(self, stored: StoredRow) -> str:
        """Return why a record must not be missing; empty if it may."""
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
            return f"it is the newest one of key {row.key!r} before {self.clean_end}"
        age_ms = (self.now_s - self.log.committed_s[offset]) * 1000
        if age_ms < self.tombstones_kept_ms - 1000:
            return f"it is a tombstone, committed {age_ms:.0f} ms ago, not {self.tombstones_kept_ms}"
        return ""

    def superseded(self, live: Iterable[StoredRow]) -> Iterator[str]:
        """Yield the records of the compacted part that a later one supersedes."""
        for stored in live:
            offset, key = stored.offset, stored.row.key
            if not self.start <= offset < self.clean_end or not self.log.is_committed(offset, 1 << 62):
                continue
            if key is None:
                yield f"the record without a key at offset {offset} remains before {self.clean_end}"
            elif (later := next(self.log.later(key, offset, self.clean_end), None)) is not None:
                text = f"although offset {later} before {self.clean_end} supersedes it"
                yield f"key {key!r} remains at offset {offset}, {text}"
