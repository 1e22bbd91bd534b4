"""The lines of a dump: batches and records, as Kafka's `DumpLogSegments` prints them or as JSON."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import (
    MAX_INT,
    MAX_LONG,
    MIN_LONG,
    Bytes,
    Flags,
    Longs,
    booleans,
    byte_array,
    integers,
    numbers_of,
    texts,
)
from distlog.core.errors import CorruptRecordError, DistlogError
from distlog.core.format.kernels.batch_scan import LOG_OVERHEAD
from distlog.core.format.record_batch import (
    ABORT,
    APPEND_TIME,
    CODEC_MASK,
    COMMIT,
    CONTROL,
    DELETE_HORIZON,
    LEGACY_CRC_START,
    TRANSACTIONAL,
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
from distlog.core.read.row_lines import (
    TEXT,
    Texts,
    bytes_of,
    java_texts,
    joined,
    joined_items,
    json_texts,
    number_texts,
    or_else,
    raw,
    scalar,
)

ABSENT = MIN_LONG
#: Kinds of a LineField's values: a number; a number that may be ABSENT (missing); an index of the field's texts.
_NUMBER, _OPTIONAL, _CHOICE = range(3)
_BOOLEANS = ("false", "true")
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_LINES_AT_ONCE = 1 << 16
_SMALLEST_HEADER = 2  # the fewest bytes of a header: two lengths, of an empty name and of a null value
#: The size of a message of formats 0 and 1 after its offset, and its checksum.
_LEGACY_SIZE_AND_CRC = struct.Struct(">iI")
#: Kafka's types of control records, by number: the end markers of transactions, and the types from 2 on.
_END_MARKERS = ("ABORT", "COMMIT")
_OTHER_CONTROL_TYPES = ("LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION", "KRAFT_VOTERS")
_UNKNOWN = len(_END_MARKERS) + len(_OTHER_CONTROL_TYPES)


@dataclass(frozen=True, slots=True)
class LineField:
    """A value of a line. `labels` and `words` are pairs: the first item is for text, the second for JSON.

    The words of a choice are the texts to choose from. An optional number has three: the text for ABSENT, and the
    prefix and the suffix of any other value. These include the label, so its `labels` are empty.
    """

    name: str
    kind: int
    labels: tuple[str, str]
    words: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def parts(self, values: npt.NDArray[Any], *, as_json: bool) -> list[Texts]:
        """Return the texts of the values, with their label."""
        words, label = self.words[as_json], self.labels[as_json]
        if self.kind == _CHOICE:
            return [label, texts(words).cast(TEXT).take(integers(values, pa.int64()))]
        column = integers(values, pa.int64())
        if self.kind == _NUMBER:
            return [label, number_texts(column)]
        absent, prefix, suffix = words
        present = joined([prefix, number_texts(column), suffix], len(column))
        return [label, pc.if_else(booleans(values == ABSENT), scalar(absent), present)]


def number_field(name: str, label: str | None = None) -> LineField:
    """Return the field of a number; `label` is its label in text, by default made from `name`."""
    text_label, json_label = _labels(name)
    return LineField(name, _NUMBER, (text_label if label is None else label, json_label))


def number_fields(*names: str) -> tuple[LineField, ...]:
    return tuple(map(number_field, names))


def flag_field(name: str) -> LineField:
    return LineField(name, _CHOICE, _labels(name), (_BOOLEANS, _BOOLEANS))


def choice_field(name: str, words: Sequence[str]) -> LineField:
    return LineField(name, _CHOICE, _labels(name), (tuple(words), tuple(json.dumps(word) for word in words)))


def labelled_choice_field(name: str, as_text: Sequence[str], as_json: Sequence[str]) -> LineField:
    """Return the field of a choice among words that already contain the label."""
    return LineField(name, _CHOICE, ("", ""), (tuple(as_text), tuple(as_json)))


def optional_field(
    name: str, as_text: tuple[str, str, str] | None = None, as_json: tuple[str, str, str] | None = None
) -> LineField:
    """Return the field of an optional number, with its words; by default as Java prints an `OptionalLong`."""
    text_label, json_label = _labels(name)
    as_text = as_text or (f"{text_label}OptionalLong.empty", f"{text_label}OptionalLong[", "]")
    return LineField(name, _OPTIONAL, ("", ""), (as_text, as_json or (f"{json_label}null", json_label, "")))


def time_fields(name: str) -> list[LineField]:
    """Return two fields for a timestamp: the type, as an index of `types`, and the time in ms, called `name`."""
    types = ("NoTimestampType", "CreateTime", "LogAppendTime")
    label = labelled_choice_field(
        "timestamp_type", tuple(f" {kind}: " for kind in types), tuple(f',"timestampType":"{kind}"' for kind in types)
    )
    return [label, number_field(name, "")]


def _labels(name: str) -> tuple[str, str]:
    return f" {name}: ", f',"{name}":'


@dataclass(frozen=True, slots=True)
class Line:
    """The fields of a line. In JSON it is an object of type `kind`; in text `begin` and `end` surround the fields."""

    kind: str
    fields: tuple[LineField, ...]
    begin: str = ""
    end: str = "\n"

    def parts(self, columns: Mapping[str, npt.NDArray[Any]], *, as_json: bool) -> list[Texts]:
        """Return the texts of lines with the values of `columns`, without the end of the line."""
        parts = [part for spec in self.fields for part in spec.parts(columns[spec.name], as_json=as_json)]
        if as_json:
            return [f'{{"type":"{self.kind}"', *parts]
        if not self.begin and parts:
            # this is the first field's label, which begins with a space
            parts[0] = str(parts[0]).removeprefix(" ")
        return [self.begin, *parts]

    def texts(self, count: int, columns: Mapping[str, npt.NDArray[Any]], *, as_json: bool) -> pa.Array:
        return joined([*self.parts(columns, as_json=as_json), "}\n" if as_json else self.end], count)


@dataclass(slots=True)
class DumpOutput:
    """The streams of a dump; `failures` counts the files and batches that could not be read."""

    out: BinaryIO
    err: BinaryIO
    as_json: bool = False
    failures: int = field(default=0, init=False)
    title: str = field(default="", init=False)  # the title of the last problem

    def write_line(self, text: str, kind: str, stream: BinaryIO | None = None, /, **fields: Any) -> None:
        """Write one line: `text`, or an object of type `kind` with `fields`."""
        line = _ENCODER.encode({"type": kind, **fields}) if self.as_json else text
        (stream or self.out).write(f"{line}\n".encode("utf-8", "backslashreplace"))

    def write_lines(
        self, line: Line, columns: Mapping[str, npt.NDArray[Any]], stream: BinaryIO | None = None
    ) -> None:
        count = len(next(iter(columns.values())))
        for start in range(0, count, _LINES_AT_ONCE):
            batch = {name: values[start : start + _LINES_AT_ONCE] for name, values in columns.items()}
            text = line.texts(min(_LINES_AT_ONCE, count - start), batch, as_json=self.as_json)
            (stream or self.out).write(bytes_of(text))

    def write_problems(self, title: str, line: Line, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write lines of problems; in text, `title` precedes them unless it was the title of the last problems."""
        if len(next(iter(columns.values()))):
            if not self.as_json and title != self.title:
                self.err.write(f"{title}\n".encode())
            self.title = title
            self.write_lines(line, columns, self.out if self.as_json else self.err)

    def write_note(self, text: str, kind: str, **fields: Any) -> None:
        self.write_line(text, kind, self.out if self.as_json else self.err, **fields)

    def fail(self, error: DistlogError) -> None:
        """Write the error of a file or batch that could not be read."""
        self.failures += 1
        self.write_note(" ".join(str(error).split()), "error", message=error.message, **error.details)


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """The options of `distlog dump`; see its help."""

    print_data_log: bool = False
    deep_iteration: bool = False
    skip_record_metadata: bool = False
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_bytes: int = MAX_INT

    @property
    def is_deep(self) -> bool:
        return self.print_data_log or self.deep_iteration


@dataclass(frozen=True)
class DumpedRecords:
    """The first `counts[i]` records of batch i. `sections[i]` has the `start` and `end` of its records in `data`."""

    data: Bytes
    sections: npt.NDArray[Any]
    counts: Longs
    fields: RecordFields
    magic: int  # the format of all batches
    has_fault: bool = False  # whether a record is bad

    @cached_property
    def size(self) -> int:
        return int(self.counts.sum())

    @property
    def offsets(self) -> Longs:
        return self.fields.offsets[: self.size]

    @property
    def timestamps(self) -> Longs:
        return self.fields.timestamps[: self.size]

    @cached_property
    def key(self) -> pa.Array:
        return self.fields.to_arrow("key", self.size)

    @cached_property
    def value(self) -> pa.Array:
        return self.fields.to_arrow("value", self.size)

    @cached_property
    def headers(self) -> pa.Array:
        record_bytes = int((self.sections["end"] - self.sections["start"]).sum())
        # after a bad record the number of headers is unknown: allow as many as the bytes could hold
        count = record_bytes // _SMALLEST_HEADER if self.has_fault else int(self.sections["header_count"].sum())
        return headers_to_arrow(self.data, self.fields.header_positions, self.size, count, record_bytes)

    @cached_property
    def checksums(self) -> tuple[Longs, Flags]:
        """The checksums of the messages of formats 0 and 1, and whether they are right."""
        crcs, valid = np.full(self.size, -1), np.ones(self.size, bool)
        if self.magic < 2:
            data, rows = memoryview(self.data.data), iter(range(self.size))  # `rows` continues from batch to batch
            for start, count in zip(self.sections["start"].tolist(), self.counts.tolist(), strict=True):
                for row in islice(rows, count):
                    size, crcs[row] = _LEGACY_SIZE_AND_CRC.unpack_from(data, start + 8)
                    end = start + LOG_OVERHEAD + size
                    valid[row] = zlib.crc32(data[start + LEGACY_CRC_START : end]) == crcs[row]
                    start = end
        return crcs, valid


def empty_records(batches: npt.NDArray[Any]) -> DumpedRecords:
    """Return no records of `batches`. The sections are a placeholder, since only records need them."""
    counts = np.zeros(len(batches), np.int64)
    return DumpedRecords(byte_array(b""), batches[:0], counts, RecordFields.allocate(0, ()), int(batches["magic"][0]))


def decode(
    data: Bytes, batches: npt.NDArray[Any], source: Source, columns: tuple[str, ...], part_bytes: int
) -> tuple[DumpedRecords, CorruptRecordError | None]:
    """Return the records of `batches`, or of the first that expand to some `part_bytes`, and a bad record's error."""
    try:
        batches = _decodable(data, batches, source)
        selection = BatchSelection(
            data, batches, shift=0, partition=0, start_offset=MIN_LONG, end_offset=MAX_LONG, source=source
        )
        buffer, sections = open_sections(selection, part_bytes)
    except CorruptRecordError as error:
        return empty_records(batches), error
    record_bytes = int((sections["end"] - sections["start"]).sum())
    counts = sections["record_count"].copy()
    fields = RecordFields.allocate(int(counts.sum()), columns, record_bytes)
    magic, fault = int(batches["magic"][0]), None
    try:
        scan_sections(selection, buffer, sections, fields)
    except CorruptRecordError as error:
        fault = error
        # several batches get no records: the caller halves them to find the bad one
        sound_count = error.details["record"] if len(batches) == 1 else 0
        counts = np.array([sound_count] * len(batches))
    return DumpedRecords(buffer, sections, counts, fields, magic, fault is not None), fault


def _decodable(data: Bytes, batches: npt.NDArray[Any], source: Source) -> npt.NDArray[Any]:
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
    return np.where(slices.valid[:count], sizes, -1)  # -1: null


#: The types of control records with their labels: for text, and for JSON.
_MARKER_WORDS = (
    tuple(f" endTxnMarker: {name}" for name in _END_MARKERS)
    + tuple(f" controlType: {name}({number})" for number, name in enumerate(_OTHER_CONTROL_TYPES, 2))
    + (" controlType: UNKNOWN",),
    tuple(f',"endTxnMarker":"{name}"' for name in _END_MARKERS)
    + tuple(f',"controlType":"{name}"' for name in _OTHER_CONTROL_TYPES)
    + (',"controlType":"UNKNOWN"',),
)
#: The additional fields of a control record: its type, the number of an unknown type, and the coordinator's epoch.
MARKER_FIELDS = (
    labelled_choice_field("type", *_MARKER_WORDS),
    optional_field("type_number", ("", "(", ")"), ("", ',"controlTypeId":', "")),
    optional_field("epoch", ("", " coordinatorEpoch: ", ""), ("", ',"coordinatorEpoch":', "")),
)


def _markers(records: DumpedRecords, is_control: Flags, *, as_json: bool) -> pa.Array:
    """Return the texts of MARKER_FIELDS of control records; null for other records."""
    rows = integers(np.flatnonzero(is_control))
    keys, values = (column.take(rows).to_pylist() for column in (records.key, records.value))
    marker_values = np.full((len(MARKER_FIELDS), len(rows)), ABSENT)
    for row, (key, value) in enumerate(zip(keys, values, strict=True)):
        # the key and the value begin with a version of 2 bytes
        kind = int.from_bytes(key[2:4], "big", signed=True) if key is not None and len(key) >= 4 else -1
        marker_values[:2, row] = (kind, ABSENT) if 0 <= kind < _UNKNOWN else (_UNKNOWN, kind)  # type, type_number
        if kind in (ABORT, COMMIT) and value is not None and len(value) >= 6:
            marker_values[2, row] = int.from_bytes(value[2:6], "big", signed=True)
    parts = [
        part
        for line_field, column in zip(MARKER_FIELDS, marker_values, strict=True)
        for part in line_field.parts(column, as_json=as_json)
    ]
    # the row of each control record in `markers`; other records have some row, and become null
    marker_rows = np.maximum(np.cumsum(is_control) - 1, 0)
    markers = joined(parts, len(rows)).take(integers(marker_rows))
    return pc.if_else(booleans(is_control), markers, pa.nulls(1, TEXT)[0])


_CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "unknown(5)", "unknown(6)", "unknown(7)")
_COMMON_BATCH_FIELDS = (
    number_field("position"),
    *time_fields("maxTimestamp"),
    *number_fields("size", "magic"),
    choice_field("compresscodec", _CODECS),
    number_field("crc"),
    flag_field("isvalid"),
)
BATCH_LINE = Line(
    "batch",
    (
        *number_fields("baseOffset", "lastOffset", "count", "baseSequence", "lastSequence"),
        *number_fields("producerId", "producerEpoch", "partitionLeaderEpoch"),
        flag_field("isTransactional"),
        flag_field("isControl"),
        optional_field("deleteHorizonMs"),
        *_COMMON_BATCH_FIELDS,
    ),
)
LEGACY_BATCH_LINE = Line("batch", (number_field("offset"), *_COMMON_BATCH_FIELDS))
_COMMON_RECORD_FIELDS = (number_field("offset"), *time_fields("timestamp"), *number_fields("keySize", "valueSize"))
# `LogStyle._records` ends the lines of records itself: it uses only their `parts`
RECORD_LINE = Line("record", (*_COMMON_RECORD_FIELDS, number_field("sequence")), begin="|", end="")
LEGACY_RECORD_LINE = Line("record", (*_COMMON_RECORD_FIELDS, flag_field("isValid"), number_field("crc")), begin="|")
BARE_RECORD_LINE = Line("record", ())


@dataclass(frozen=True, slots=True)
class LogStyle:
    """Formats batches and records: with their metadata, with their content (key and value), as JSON or text."""

    has_metadata: bool
    has_content: bool
    as_json: bool

    def lines(
        self, batches: npt.NDArray[Any], window_position: int, valid: Flags, records: DumpedRecords
    ) -> memoryview:
        """Return the lines of batches in a window of the file; `valid` shows which checksums are right."""
        line = BATCH_LINE if batches["magic"][0] >= 2 else LEGACY_BATCH_LINE
        columns = _batch_columns(batches, window_position, valid)
        lines = line.texts(len(batches), columns, as_json=self.as_json)
        if not records.size:
            return bytes_of(lines)
        # a stable sort by batch: a batch's line comes before the lines of its records
        batch_numbers = np.arange(len(batches))
        order = np.argsort(np.append(batch_numbers, np.repeat(batch_numbers, records.counts)), kind="stable")
        return bytes_of(pa.concat_arrays([lines, self._records(batches, records)]).take(integers(order)))

    def _records(self, batches: npt.NDArray[Any], records: DumpedRecords) -> pa.Array:
        is_current_format = int(batches["magic"][0]) >= 2
        parts: list[Texts] = []
        if not self.has_metadata:
            parts += BARE_RECORD_LINE.parts({}, as_json=self.as_json)
        else:
            line = RECORD_LINE if is_current_format else LEGACY_RECORD_LINE
            parts += line.parts(_record_columns(batches, records), as_json=self.as_json)
            if not is_current_format and not self.as_json:
                parts.append("}")  # Kafka's tool prints an unmatched brace
            if is_current_format:
                keys = records.headers.flatten().field("key")
                lengths = numbers_of(pc.list_value_length(records.headers))
                names = joined_items(json_texts(keys) if self.as_json else raw(keys), lengths, ",")
                parts += [',"headerKeys":[' if self.as_json else " headerKeys: [", names, "]"]
        is_control = np.repeat((batches["attributes"] & CONTROL != 0) & is_current_format, records.counts)
        if is_control.any() and self.has_metadata:
            parts.append(or_else(_markers(records, is_control, as_json=self.as_json), ""))
        if self.has_content:
            bar = "" if self.has_metadata else "|"  # with metadata, RECORD_LINE begins with the bar
            labels = (',"key":', ',"payload":') if self.as_json else (f"{bar} key: ", " payload: ")
            for label, column in zip(labels, (records.key, records.value), strict=True):
                # in JSON, bytes that are not UTF-8 become {"base64":"..."}
                contents = json_texts(column, ('{"base64":"', '"}')) if self.as_json else java_texts(column)
                contents = joined([label, contents], len(column))
                if is_control.any():
                    contents = pc.if_else(booleans(is_control), pa.nulls(1, TEXT)[0], contents)  # not shown
                parts.append(or_else(contents, ""))  # a null has no text
        return joined([*parts, "}\n" if self.as_json else "\n"], records.size)


def _batch_columns(batches: npt.NDArray[Any], window_position: int, valid: Flags) -> dict[str, Any]:
    attributes, sequence = batches["attributes"], batches["base_sequence"].astype(np.int64)
    last_offset = batches["base_offset"] + batches["last_offset_delta"]
    return {
        "offset": last_offset,
        "baseOffset": batches["base_offset"],
        "lastOffset": last_offset,
        "count": batches["record_count"],
        "baseSequence": sequence,
        # the sequence after MAX_INT is 0
        "lastSequence": np.where(sequence == -1, -1, (sequence + batches["last_offset_delta"]) & MAX_INT),
        "producerId": batches["producer_id"],
        "producerEpoch": batches["producer_epoch"],
        "partitionLeaderEpoch": batches["leader_epoch"],
        "isTransactional": attributes & TRANSACTIONAL != 0,
        "isControl": attributes & CONTROL != 0,
        # with this attribute, the base timestamp is the time when compaction may delete tombstones (KIP-534)
        "deleteHorizonMs": np.where(attributes & DELETE_HORIZON != 0, batches["base_timestamp"], ABSENT),
        "position": batches["position"] + window_position,
        "timestamp_type": timestamp_types(batches),
        "maxTimestamp": batches["max_timestamp"],
        "size": batches["size"],
        "magic": batches["magic"],
        "compresscodec": attributes & CODEC_MASK,
        "crc": batches["crc"],
        "isvalid": valid,
    }


def timestamp_types(batches: npt.NDArray[Any]) -> Longs:
    """Return the type of each batch's timestamps: 0 for none, 1 for CreateTime, 2 for LogAppendTime."""
    types = np.where(batches["attributes"] & APPEND_TIME, 2, 1)
    return np.where(batches["magic"] >= 1, types, 0)


def _record_columns(batches: npt.NDArray[Any], records: DumpedRecords) -> dict[str, Any]:
    sequences = np.repeat(batches["base_sequence"].astype(np.int64), records.counts)
    deltas = records.offsets - np.repeat(batches["base_offset"], records.counts)
    crcs, valid = records.checksums
    return {
        "offset": records.offsets,
        "timestamp_type": np.repeat(timestamp_types(batches), records.counts),
        "timestamp": records.timestamps,
        "keySize": _sizes(records.fields.key, records.size),
        "valueSize": _sizes(records.fields.value, records.size),
        "sequence": np.where(sequences >= 0, (sequences + deltas) & MAX_INT, -1),
        "isValid": valid,
        "crc": crcs,
    }
