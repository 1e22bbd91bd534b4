"""Dumps a log: a line per batch, with its checksum checked, and optionally a line per record."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import booleans, byte_array, integers, numbers_of
from distlog.core.errors import CorruptRecordError
from distlog.core.format.kernels.batch_scan import (
    BAD_LENGTH,
    BATCH,
    LOG_OVERHEAD,
    OK,
    SMALLEST_LENGTH,
    count_frames,
    read_frames,
)
from distlog.core.format.kernels.crc import find_valid
from distlog.core.format.record_batch import (
    ABORT,
    APPEND_TIME,
    CODEC_MASK,
    COMMIT,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    LEGACY_CRC_START,
    TRANSACTIONAL,
    Batches,
    BatchWalk,
    Headers,
    Source,
    resolve_wrappers,
)
from distlog.core.format.record_decoder import (
    BatchSelection,
    RecordFields,
    headers_to_arrow,
    open_sections,
    scan_sections,
)
from distlog.core.integers import MAX_INT, MAX_LONG, MIN_LONG
from distlog.core.kafka.dump_lines import (
    ABSENT,
    DumpOptions,
    DumpOutput,
    Line,
    Longs,
    choice,
    flag,
    labelled,
    number,
    optional,
    time,
)
from distlog.core.read.row_lines import (
    TEXT,
    Texts,
    bytes_of,
    java_texts,
    joined,
    joined_items,
    json_texts,
    or_else,
    raw,
)
from distlog.core.segments.segment_parts import LogFile
from distlog.core.storage.backend import Part
from distlog.core.storage.parallel import cores, in_order, prefetched
from distlog.core.storage.storage import Storage


class _LogDump:
    def __init__(self, file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
        self._file, self._options, self._output = file, options, output
        style = LogStyle(not options.skip_record_metadata, options.print_data_log, output.as_json)
        self._windows = LogWindows(file.path, style, options.is_deep)
        self._last_offset = -1
        self._title = f"Non-consecutive offsets in {file.path}"

    def run(self, end: int) -> None:
        position = 0
        try:
            for parts, stop in self._shown(end):
                for part in parts:
                    self._output.write(part.lines)
                    self._compare_offsets(part)
                    if part.error is not None:
                        self._output.fail(part.error)
                position = stop
        except CorruptRecordError as error:
            self._output.fail(error)
        if position < end and not self._options.is_cut:
            text = f"Found {end - position} invalid bytes at the end of {self._file.name}"
            self._output.say(text, "invalidBytes", count=end - position)

    def _shown(self, end: int) -> Iterator[tuple[Iterator[ShownBatches], int]]:
        """Yield the output and the end of windows; all cores format the next windows."""
        workers = cores()
        tasks = (partial(self._started, window) for window in self._file.frames(end))
        with closing(in_order(tasks, workers + 1, workers=workers, joined=True)) as windows:
            yield from windows

    def _started(self, window: Batches) -> tuple[Iterator[ShownBatches], int]:
        return prefetched(self._windows.show(window), _BUFFERED_PARTS), window.end

    def _compare_offsets(self, part: ShownBatches) -> None:
        if part.ends is None:
            return
        (first, last), starts, ends = part.ends, part.gap_starts, part.gap_ends
        if self._last_offset not in (-1, first - 1):
            starts, ends = np.append(self._last_offset, starts), np.append(first, ends)
        self._output.problems(self._title, NON_CONSECUTIVE, {"first": starts, "second": ends})
        self._title = "" if len(starts) else self._title
        self._last_offset = last


_SMALLEST_HEADER = 2
#: The size of a message of formats 0 and 1 after its offset, and its checksum.
_LEGACY_SIZE_AND_CRC = struct.Struct(">iI")


@dataclass(frozen=True)
class DumpedRecords:
    """The first `counts` records of the `sections` of `data`, all of the format `magic`."""

    data: npt.NDArray[np.uint8]
    sections: npt.NDArray[Any]
    counts: Longs
    fields: RecordFields
    magic: int
    has_fault: bool = False

    @cached_property
    def size(self) -> int:
        """The number of records."""
        return int(self.counts.sum())

    @property
    def offsets(self) -> Longs:
        """The offset of each record."""
        return self.fields.offsets[: self.size]

    @property
    def timestamps(self) -> Longs:
        """The timestamp of each record in ms."""
        return self.fields.timestamps[: self.size]

    @cached_property
    def key(self) -> pa.Array:
        """The key of each record."""
        return self.fields.to_arrow("key", self.size)

    @cached_property
    def value(self) -> pa.Array:
        """The value of each record."""
        return self.fields.to_arrow("value", self.size)

    @cached_property
    def headers(self) -> pa.Array:
        """The headers of each record."""
        room = int((self.sections["end"] - self.sections["start"]).sum())
        count = room // _SMALLEST_HEADER if self.has_fault else int(self.sections["header_count"].sum())
        return headers_to_arrow(self.data, self.fields.headed, self.size, count, room)

    @cached_property
    def checksums(self) -> tuple[Longs, npt.NDArray[np.bool_]]:
        """The checksums of the messages of formats 0 and 1, and whether they are right."""
        crcs, valid = np.full(self.size, -1), np.ones(self.size, bool)
        if self.magic < 2:
            data, rows = memoryview(self.data.data), iter(range(self.size))
            for start, count in zip(self.sections["start"].tolist(), self.counts.tolist(), strict=True):
                for row in islice(rows, count):
                    size, crcs[row] = _LEGACY_SIZE_AND_CRC.unpack_from(data, start + 8)
                    end = start + LOG_OVERHEAD + size
                    valid[row] = zlib.crc32(data[start + LEGACY_CRC_START : end]) == crcs[row]
                    start = end
        return crcs, valid


def no_records(batches: npt.NDArray[Any]) -> DumpedRecords:
    """Return a placeholder for records that are not selected, or cannot be read."""
    counts = np.zeros(len(batches), np.int64)
    return DumpedRecords(byte_array(b""), batches[:0], counts, RecordFields.allocate(0, ()), int(batches["magic"][0]))


def scan(
    data: npt.NDArray[np.uint8], batches: npt.NDArray[Any], source: Source, columns: tuple[str, ...], enough: int
) -> tuple[DumpedRecords, CorruptRecordError | None]:
    """Return the records of the first of `batches`, up to `enough` bytes, and the error of a bad record."""
    try:
        batches = _readable(data, batches, source)
        selection = BatchSelection(data, batches, 0, 0, MIN_LONG, MAX_LONG, source)
        buffer, sections = open_sections(selection, enough)
    except CorruptRecordError as error:
        return no_records(batches), error
    room = int((sections["end"] - sections["start"]).sum())
    counts = sections["record_count"].copy()
    fields = RecordFields.allocate(int(counts.sum()), columns, room)
    magic, fault = int(batches["magic"][0]), None
    try:
        scan_sections(selection, buffer, sections, fields)
    except CorruptRecordError as error:
        fault = error
        counts = np.array([error.details["record"] if len(batches) == 1 else 0] * len(batches))
    return DumpedRecords(buffer, sections, counts, fields, magic, fault is not None), fault


def _readable(data: npt.NDArray[np.uint8], batches: npt.NDArray[Any], source: Source) -> npt.NDArray[Any]:
    """Convert `batches` for a decoder; as in Kafka, later formats are read as format 2."""
    readable: npt.NDArray[Any] = batches.copy()
    readable["magic"] = np.minimum(readable["magic"], 2)
    if readable["magic"][0] < 2:
        resolve_wrappers(data, readable, source)
    negative = np.flatnonzero(readable["record_count"] < 0)
    if len(negative):
        row = int(negative[0])
        raise source.corrupt("a batch has a negative number of records", row, batches[row])
    return readable


def _sizes(slices: Any, count: int) -> Longs:
    sizes = np.diff(slices.offsets[: count + 1]).astype(np.int64)
    return np.where(slices.valid[:count], sizes, -1)


_NAMES = (
    "ABORT",
    "COMMIT",
    "LEADER_CHANGE",
    "SNAPSHOT_HEADER",
    "SNAPSHOT_FOOTER",
    "KRAFT_VERSION",
    "KRAFT_VOTERS",
)
_UNKNOWN = len(_NAMES)
_TYPES = (
    tuple(f" endTxnMarker: {name}" for name in _NAMES[:2])
    + tuple(f" controlType: {name}({number})" for number, name in enumerate(_NAMES[2:], 2))
    + (" controlType: UNKNOWN",),
    tuple(f',"endTxnMarker":"{name}"' for name in _NAMES[:2])
    + tuple(f',"controlType":"{name}"' for name in _NAMES[2:])
    + (',"controlType":"UNKNOWN"',),
)
#: The additional values of a control record: its type, the number of an unknown type, and the coordinator's epoch.
MARKER = (
    labelled("type", *_TYPES),
    optional("type_number", ("", "(", ")"), ("", ',"controlTypeId":', "")),
    optional("epoch", ("", " coordinatorEpoch: ", ""), ("", ',"coordinatorEpoch":', "")),
)


def _markers(records: DumpedRecords, is_control: npt.NDArray[np.bool_], style: int) -> pa.Array:
    """Return the values of MARKER for control records, and null for other records."""
    rows = integers(np.flatnonzero(is_control))
    keys, values = (column.take(rows).to_pylist() for column in (records.key, records.value))
    numbers = np.full((len(MARKER), len(rows)), ABSENT)
    for row, (key, value) in enumerate(zip(keys, values, strict=True)):
        kind = int.from_bytes(key[2:4], "big", signed=True) if key is not None and len(key) >= 4 else -1
        numbers[:2, row] = (kind, ABSENT) if 0 <= kind < _UNKNOWN else (_UNKNOWN, kind)
        if kind in (ABORT, COMMIT) and value is not None and len(value) >= 6:
            numbers[2, row] = int.from_bytes(value[2:6], "big", signed=True)
    parts = [part for field, column in zip(MARKER, numbers, strict=True) for part in field.parts(column, style)]
    marker_rows = np.maximum(np.cumsum(is_control) - 1, 0)
    markers = joined(parts, len(rows)).take(integers(marker_rows))
    return pc.if_else(booleans(is_control), markers, pa.nulls(1, TEXT)[0])


#: How many bytes of a log are processed together.
WINDOW_BYTES = 2 << 20

_BASE_OFFSET = re.compile(r"[0-9]{1,20}")
_FOLDER_AND_NAME = re.compile(r"(?P<folder>.*[/:])?(?P<name>[^/]*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DumpedFile:
    """A file, and its address as the user gave it."""

    address: str
    storage: Storage
    name: str

    @classmethod
    def from_address(cls, address: str, storage_options: dict[str, Any] | None = None) -> DumpedFile:
        """Return the file at a path or URL. Raises StorageError for a bad address."""
        match = _FOLDER_AND_NAME.fullmatch(address)
        assert match is not None
        return cls(address, Storage(match["folder"] or ".", storage_options), match["name"])

    @property
    def suffix(self) -> str:
        """The end of the name from the last dot; empty without a dot."""
        return "." + self.name.rpartition(".")[2] if "." in self.name else ""

    @property
    def path(self) -> str:
        """The whole path or URL."""
        return f"{self.storage.url.rstrip('/')}/{self.name}"

    @property
    def base_offset(self) -> int:
        """The offset in the name, before the first dot; 0 without an offset, as in distlog's names."""
        stem = self.name.partition(".")[0]
        return offset if _BASE_OFFSET.fullmatch(stem) and (offset := int(stem)) <= MAX_LONG else 0

    @property
    def size(self) -> int:
        """The size in bytes; raises FileNotFoundError."""
        return self.storage.size(self.name)

    def sibling(self, suffix: str) -> DumpedFile:
        """The segment's file of another suffix."""
        return DumpedFile(self.address, self.storage, self.name.partition(".")[0] + suffix)

    def frames(self, end: int) -> Iterator[Batches]:
        """Yield the complete batches before `end`, some MB at a time, unchecked. Raises CorruptRecordError."""
        file = LogFile(self.storage, Part.file(self.name, end), end, mapped=False)
        try:
            yield from BatchWalk(file.read, 0, end, WINDOW_BYTES, "raise", headers=self._headers)
        finally:
            file.close()

    def _headers(self, data: memoryview, position: int) -> Headers:
        array = byte_array(data)
        status, stop, count = count_frames(array)
        rows = np.zeros(count, BATCH)
        read_frames(array, rows)
        return rows, None if status == OK else self._bad_size(status, array, stop, position)

    def _bad_size(self, status: int, data: npt.NDArray[np.uint8], position: int, origin: int) -> CorruptRecordError:
        length = int.from_bytes(data[position + 8 : position + LOG_OVERHEAD].tobytes(), "big", signed=True)
        least = f"at least {SMALLEST_LENGTH}" if status == BAD_LENGTH else "the bytes of its header"
        return CorruptRecordError(
            f"a batch claims {length} bytes, not {least}: nothing after it can be read",
            file=self.path,
            position=origin + position,
        )


_END = (
    number("position"),
    *time("maxTimestamp"),
    number("size"),
    number("magic"),
    choice("compresscodec", ("none", "gzip", "snappy", "lz4", "zstd", "unknown(5)", "unknown(6)", "unknown(7)")),
    number("crc"),
    flag("isvalid"),
)
BATCH_LINE = Line(
    "batch",
    (
        *(number(name) for name in ("baseOffset", "lastOffset", "count", "baseSequence", "lastSequence")),
        *(number(name) for name in ("producerId", "producerEpoch", "partitionLeaderEpoch")),
        flag("isTransactional"),
        flag("isControl"),
        optional("deleteHorizonMs"),
        *_END,
    ),
)
LEGACY_BATCH = Line("batch", (number("offset"), *_END))
_RECORD = (number("offset"), *time("timestamp"), number("keySize"), number("valueSize"))
RECORD = Line("record", (*_RECORD, number("sequence")), begin="|", end="")
#: The brace is in the lines of Kafka's tool too.
LEGACY_RECORD = Line("record", (*_RECORD, flag("isValid"), number("crc")), begin="|")
BARE_RECORD = Line("record", ())


@dataclass(frozen=True, slots=True)
class LogStyle:
    """The printed values of a record, and their form."""

    metadata: bool
    content: bool
    as_json: bool

    def lines(
        self, batches: npt.NDArray[Any], origin: int, valid: npt.NDArray[np.bool_], records: DumpedRecords
    ) -> memoryview:
        """The lines of `batches`; the file has the position `origin` at 0, and `valid` marks right checksums."""
        line = BATCH_LINE if batches["magic"][0] >= 2 else LEGACY_BATCH
        columns = _batch_columns(batches, origin, valid)
        lines = line.texts(len(batches), columns, as_json=self.as_json)
        if not records.size:
            return bytes_of(lines)
        # each batch, and then its records
        firsts = np.arange(len(batches)) + np.cumsum(records.counts) - records.counts
        order = np.full(len(batches) + records.size, -1)
        order[firsts] = np.arange(len(batches))
        order[order < 0] = len(batches) + np.arange(records.size)
        return bytes_of(pa.concat_arrays([lines, self._records(batches, records)]).take(integers(order)))

    def _records(self, batches: npt.NDArray[Any], records: DumpedRecords) -> pa.Array:
        current = int(batches["magic"][0]) >= 2
        parts: list[Texts] = []
        if not self.metadata:
            parts += BARE_RECORD.parts({}, as_json=self.as_json)
        else:
            line = RECORD if current else LEGACY_RECORD
            parts += line.parts(_record_columns(batches, records), as_json=self.as_json)
            # the brace is in the lines of Kafka's tool too
            parts += [] if current or self.as_json else ["}"]
            if current:
                keys = records.headers.flatten().field("key")
                lengths = numbers_of(pc.list_value_length(records.headers))
                names = joined_items(json_texts(keys) if self.as_json else raw(keys), lengths, ",")
                parts += [',"headerKeys":[' if self.as_json else " headerKeys: [", names, "]"]
        is_control = np.repeat((batches["attributes"] & CONTROL != 0) & current, records.counts)
        if is_control.any() and self.metadata:
            parts.append(or_else(_markers(records, is_control, int(self.as_json)), ""))
        if self.content:
            bar = "" if self.metadata else "|"
            labels = (',"key":', ',"payload":') if self.as_json else (f"{bar} key: ", " payload: ")
            for label, column in zip(labels, (records.key, records.value), strict=True):
                parts.append(self._content(label, column, is_control))
        return joined([*parts, "}\n" if self.as_json else "\n"], records.size)

    def _content(self, label: str, column: pa.Array, is_control: npt.NDArray[np.bool_]) -> pa.Array:
        texts = json_texts(column, ('{"base64":"', '"}')) if self.as_json else java_texts(column)
        texts = joined([label, texts], len(column))
        if is_control.any():
            texts = pc.if_else(booleans(is_control), pa.nulls(1, TEXT)[0], texts)
        return or_else(texts, "")


def _batch_columns(batches: npt.NDArray[Any], origin: int, valid: npt.NDArray[np.bool_]) -> dict[str, Any]:
    attributes, sequence = batches["attributes"], batches["base_sequence"].astype(np.int64)
    last_offset = batches["base_offset"] + batches["last_offset_delta"]
    return {
        "offset": last_offset,
        "baseOffset": batches["base_offset"],
        "lastOffset": last_offset,
        "count": batches["record_count"],
        "baseSequence": sequence,
        "lastSequence": np.where(sequence == -1, -1, (sequence + batches["last_offset_delta"]) & MAX_INT),
        "producerId": batches["producer_id"],
        "producerEpoch": batches["producer_epoch"],
        "partitionLeaderEpoch": batches["leader_epoch"],
        "isTransactional": attributes & TRANSACTIONAL != 0,
        "isControl": attributes & CONTROL != 0,
        "deleteHorizonMs": np.where(attributes & DELETE_HORIZON != 0, batches["base_timestamp"], ABSENT),
        "position": batches["position"] + origin,
        "timestamp_type": timestamp_types(batches),
        "maxTimestamp": batches["max_timestamp"],
        "size": batches["size"],
        "magic": batches["magic"],
        "compresscodec": attributes & CODEC_MASK,
        "crc": batches["crc"],
        "isvalid": valid,
    }


def timestamp_types(batches: npt.NDArray[Any]) -> Longs:
    """The type of each batch's timestamps, as `line.time` takes it."""
    types = np.where(batches["attributes"] & APPEND_TIME, 2, 1)
    return np.where((batches["magic"] == 1) | (batches["magic"] >= 2), types, 0)


def _record_columns(batches: npt.NDArray[Any], records: DumpedRecords) -> dict[str, Any]:
    sequences = np.repeat(batches["base_sequence"].astype(np.int64), records.counts)
    deltas = records.offsets - np.repeat(batches["base_offset"], records.counts)
    crcs, hold = records.checksums
    return {
        "offset": records.offsets,
        "timestamp_type": np.repeat(timestamp_types(batches), records.counts),
        "timestamp": records.timestamps,
        "keySize": _sizes(records.fields.key, records.size),
        "valueSize": _sizes(records.fields.value, records.size),
        "sequence": np.where(sequences >= 0, (sequences + deltas) & MAX_INT, -1),
        "isValid": hold,
        "crc": crcs,
    }


# A window depends only on its bytes, so several are formatted concurrently.


#: Records are shown when their batches have decompressed to this size.
PART_BYTES = 4 << 20

NO_OFFSETS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class ShownBatches:
    """The lines of a part of a log, its first and last offset, gaps between neighbours, and the error at its end."""

    lines: memoryview
    ends: tuple[int, int] | None
    gap_starts: Longs
    gap_ends: Longs
    error: CorruptRecordError | None


@dataclass(frozen=True, slots=True)
class LogWindows:
    """Makes the lines of windows of the log at `path`; with `is_deep` of their records too."""

    path: str
    style: LogStyle
    is_deep: bool

    def show(self, window: Batches) -> Iterator[ShownBatches]:
        """The output for the `window`, part by part."""
        valid = np.zeros(len(window.rows), bool)
        find_valid(byte_array(window.data), window.rows, CRC_START, LEGACY_CRC_START, valid)
        # each run of one format
        changes = np.flatnonzero(np.diff(window.rows["magic"])) + 1
        for start, end in zip([0, *changes.tolist()], [*changes.tolist(), len(window.rows)], strict=True):
            batches = window.rows[start:end]
            for records, error in self._records(window, batches):
                count = len(records.counts)
                lines = self.style.lines(batches[:count], window.position, valid[start : start + count], records)
                yield _shown(lines, records, error)
                batches, start = batches[count:], start + count

    def _records(
        self, window: Batches, batches: npt.NDArray[Any]
    ) -> Iterator[tuple[DumpedRecords, CorruptRecordError | None]]:
        """The records of `batches`, part by part; a batch that cannot be read is a part by itself."""
        source = Source(self.path, window.position)
        if not self.is_deep:
            yield no_records(batches), None
            return
        if batches["magic"][0] < 0:
            text = f"batches have the unknown format {batches['magic'][0]}, so their records are not shown"
            yield no_records(batches), source.corrupt(text, 0, batches[0])
            return
        has_headers = batches["magic"][0] >= 2 and self.style.metadata
        data, columns = byte_array(window.data), ("key", "value", "headers") if has_headers else ("key", "value")
        while len(batches):
            records, error = scan(data, batches, source, columns, PART_BYTES)
            if error is not None and len(batches) > 1:
                # halves of halves find the bad batch
                yield from self._records(window, batches[: len(batches) // 2])
                batches = batches[len(batches) // 2 :]
            else:
                yield records, error
                batches = batches[len(records.counts) :]


def _shown(lines: memoryview, records: DumpedRecords, error: CorruptRecordError | None) -> ShownBatches:
    if records.size == 0:
        return ShownBatches(lines, None, NO_OFFSETS, NO_OFFSETS, error)
    offsets = records.offsets
    gaps = np.flatnonzero(np.diff(offsets) != 1)
    return ShownBatches(lines, (int(offsets[0]), int(offsets[-1])), offsets[gaps], offsets[gaps + 1], error)


#: How many parts of a window are formatted early: more would need unbounded memory, since a window may decompress to
#: any size.
_BUFFERED_PARTS = 4

NON_CONSECUTIVE = Line("nonConsecutive", (number("first", ""), number("second", " is followed by ")), begin="  ")


def dump_log(file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
    """Write the contents of a `.log` file. Skips a batch that cannot be read, if its size can be read."""
    output.say(f"Log starting offset: {file.base_offset}", "log", startOffset=file.base_offset)
    _LogDump(file, options, output).run(min(file.size, options.max_bytes))
