"""Lines of JSON as records: objects of any kind with named fields, or records as `read --json` prints them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from distlog.core.arrays import (
    MAX_INT,
    Bytes,
    Flags,
    Longs,
    byte_array,
    column_of,
    integers,
    new_array,
    scalar_of,
    table_of_rows,
)
from distlog.core.errors import InvalidRecordError
from distlog.core.files.record_times import TimeReader
from distlog.core.files.text_lines import BadLine, Parsed, split_lines, without_bad_rows
from distlog.core.format.kernels.json_scan import BLANK, ESCAPED, NULL, OBJECT, UNSURE, gather, scan_objects
from distlog.core.format.record_batch import HEADERS_TYPE
from distlog.core.write.rows import ACCEPTED_COLUMNS, IGNORED_COLUMNS

_FIELD_TYPES = {"timestamp": pa.int64(), "key": pa.binary(), "value": pa.binary()}
_MAX_NAMES = 20  # how many names the error about a missing field shows
_ARRAY_HINT = "; each line must be one object: `jq -c '.[]' FILE` splits an array"
_SCHEMA = pa.schema({"partition": pa.int32(), **_FIELD_TYPES, "headers": HEADERS_TYPE})
_HEADERS_JSON_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
#: The fields of a record, and the types that Arrow expects when it reads a whole block.
_BULK_TYPES = {
    "partition": pa.int64(),
    "timestamp": pa.int64(),
    "key": pa.string(),
    "value": pa.string(),
    "headers": _HEADERS_JSON_TYPE,
    **dict.fromkeys(IGNORED_COLUMNS, pa.int64()),
    "topic": pa.string(),
}


@dataclass(slots=True)
class SeenFields:
    """The fields that the options name, and whether an object had them, for the error about a missing field."""

    fields: Mapping[str, str]  # the field's name by role: key, value or timestamp
    present: set[str] = field(default_factory=set)  # the names in `fields` that some object had
    names: dict[str, None] = field(default_factory=dict)  # a sample of all names in objects, in order, for the error

    @property
    def is_complete(self) -> bool:
        return self.present >= {*self.fields.values()}

    def note_names(self, text: bytes) -> None:
        """Note names in the first lines of a block, unless enough are known."""
        if len(self.names) >= _MAX_NAMES:
            return
        for line in text.split(b"\n", _MAX_NAMES)[:_MAX_NAMES]:
            self.names |= dict.fromkeys(list(first_object(line))[:_MAX_NAMES])

    def add(self, other: SeenFields) -> None:
        self.present |= other.present
        self.names |= other.names

    def error(self) -> InvalidRecordError | None:
        """Return the error of a field that no object had; None if each field was seen, or no object was read."""
        missing = {*self.fields.values()} - self.present
        if not missing or not self.names:
            return None
        names_text = ", ".join([*self.names][:_MAX_NAMES])
        return InvalidRecordError(f"no line has a field {min(missing)}; the lines have {names_text}")


@dataclass(frozen=True, slots=True)
class JsonFields:
    """A LineParser of objects of any kind, one per line; some fields are the key, the value and the timestamp.

    Without a field for the value, the value is the line. A text loses its quotes, and any other JSON value is used as
    written. A missing field is null. A kernel finds the fields; Python's `json` reads lines that the kernel refuses.
    """

    fields: Mapping[str, str]
    times: TimeReader
    seen_fields: SeenFields

    def parse(self, text: bytes, limit: int, *, is_last: bool) -> Parsed:
        """See LineParser. Only CSV uses `limit` and `is_last`."""
        scanned = _ScannedLines.of(text, list(dict.fromkeys(self.fields.values())))
        line_numbers = np.flatnonzero(scanned.states != BLANK)
        starts, sizes = scanned.line_starts[line_numbers], scanned.line_sizes[line_numbers]
        fields_by_python, faults = dict[int, dict[str, bytes | None]](), dict[int, str]()
        for row in np.flatnonzero(scanned.states[line_numbers] == UNSURE).tolist():
            line = text[starts[row] : starts[row] + sizes[row]]
            try:
                fields_by_python[row] = fields_as_written(line.decode(), scanned.names)
            except (ValueError, RecursionError) as error:
                hint = _ARRAY_HINT if line.strip() in (b"[", b"]", b"{", b"}") else ""
                faults[row] = f"not a record: {error}{hint}"
        self._note_fields(text, scanned, fields_by_python.values())
        columns = dict[str, pa.Array]()
        for role, name in self.fields.items():
            python_values = {row: line_fields.get(name) for row, line_fields in fields_by_python.items()}
            columns[role] = scanned.column(scanned.names.index(name), line_numbers, python_values)
        if "value" not in columns:
            columns["value"] = _gather_column(scanned.data, starts, sizes, valid=None)
        if "timestamp" in columns:
            times = self.times.of_column(columns["timestamp"])
            columns["timestamp"] = times.column
            faults |= {row: f"not a record: {fault}" for row, fault in times.faults.items()}
        columns = {name: columns.get(name, pa.nulls(len(line_numbers), kind)) for name, kind in _FIELD_TYPES.items()}
        consumed = len(text) + 1  # with the newline after the block
        if not faults:
            has_blank_lines = len(line_numbers) < len(scanned.states)
            return Parsed(pa.table(columns), bad=(), consumed=consumed, starts=starts if has_blank_lines else None)
        return without_bad_rows(pa.table(columns), starts, faults, consumed)

    def _note_fields(self, text: bytes, scanned: _ScannedLines, parsed_lines: Iterable[Mapping[str, Any]]) -> None:
        if self.seen_fields.is_complete:
            return
        present = self.seen_fields.present
        present |= {name for number, name in enumerate(scanned.names) if scanned.kinds[:, number].any()}
        present |= {name for line_fields in parsed_lines for name in line_fields}
        if not self.seen_fields.is_complete:
            self.seen_fields.note_names(text)


@dataclass(frozen=True, slots=True)
class JsonRecords:
    """A LineParser of objects that are records, as `distlog read --json` prints them.

    Arrow reads a block in a third of the time of Python's `json`, but a field must have one type in all lines. So a
    block with any {"base64": "..."}, which is an object and not text, is read line by line.
    """

    times: TimeReader

    def parse(self, text: bytes, limit: int, *, is_last: bool) -> Parsed:
        records = self._read_in_bulk(text)
        return self._read_by_line(text) if records is None else Parsed(records, (), len(text) + 1)

    def _read_by_line(self, text: bytes) -> Parsed:
        rows, bad, starts = list[dict[str, Any]](), list[BadLine](), list[int]()
        # one decoder for all lines, since `json.loads` with hooks makes a new one in each call
        decoder, position = json.JSONDecoder(object_pairs_hook=_object_of), 0
        for line in text.split(b"\n"):
            if line.strip():
                try:
                    rows.append(self._record(decoder.decode(line.decode())))
                    starts.append(position)
                except (ValueError, RecursionError) as error:
                    bad.append(BadLine(position, len(rows), f"not a record: {error}"))
            position += len(line) + 1
        return Parsed(table_of_rows(rows, _SCHEMA), bad, len(text) + 1, np.array(starts, np.int64))

    def _read_in_bulk(self, text: bytes) -> pa.Table | None:
        """Return the records of a block; None if Arrow cannot read the block at once."""
        fields = _read_fields_in_bulk(text)
        if fields is None or not _are_valid(fields):
            return None
        times = self.times.of_column(fields["timestamp"])
        if times.faults:
            return None
        headers = pc.coalesce(fields["headers"], scalar_of([], _HEADERS_JSON_TYPE)).cast(HEADERS_TYPE)
        columns = {name: fields[name].cast(_SCHEMA.field(name).type) for name in ("partition", "key", "value")}
        table = pa.table({**columns, "timestamp": times.column, "headers": headers})
        return table.select(_SCHEMA.names).cast(_SCHEMA)

    def _record(self, record: Any) -> dict[str, Any]:
        if not isinstance(record, dict) or "value" not in record:
            raise ValueError('the line must be an object with at least a "value", as `distlog read --json` prints it')
        unknown = sorted(record.keys() - set(ACCEPTED_COLUMNS) - set(IGNORED_COLUMNS))
        if unknown:
            raise ValueError(f"unknown field {unknown[0]}: use {', '.join(ACCEPTED_COLUMNS)}")
        return {
            "partition": _partition(record.get("partition")),
            "timestamp": self.times.of_value(record.get("timestamp")),
            "key": _bytes(record.get("key")),
            "value": _bytes(record["value"]),
            "headers": _headers(record.get("headers")),
        }


def fields_as_written(line: str, names: Sequence[str]) -> dict[str, bytes | None]:
    """Return the fields among `names` as text or JSON. Raises ValueError for a line that is not an object."""
    value = json.loads(line)  # checks the JSON, so the loop below may skip any commas and colons
    if not isinstance(value, dict):
        raise ValueError("the line must be an object")
    fields_by_name = dict[str, bytes | None]()
    decoder, position = json.JSONDecoder(), line.index("{") + 1
    while (position := _after_spaces(line, position, ",")) < len(line) and line[position] == '"':
        name, position = decoder.raw_decode(line, position)
        start = _after_spaces(line, position, ":")
        field_value, position = decoder.raw_decode(line, start)
        if name in names:
            text = field_value if isinstance(field_value, str) else line[start:position]
            fields_by_name[name] = None if field_value is None else text.encode()
    return fields_by_name


def _after_spaces(line: str, position: int, mark: str) -> int:
    while position < len(line) and line[position] in f" \t\r\n{mark}":
        position += 1
    return position


@dataclass(frozen=True, slots=True)
class _ScannedLines:
    """The lines of a block and their fields, as `scan_objects` finds them."""

    data: Bytes
    names: Sequence[str]
    line_starts: Longs
    line_sizes: Longs
    #: The state of each line: OBJECT, BLANK, or UNSURE if the kernel refuses the line or a field has escapes.
    states: Bytes
    #: The kind of each field (0 is ABSENT), with a row per line and a column per name, as in `starts` and `sizes`.
    kinds: Bytes
    starts: Longs
    sizes: Longs

    @classmethod
    def of(cls, text: bytes, names: Sequence[str]) -> _ScannedLines:
        encoded = [name.encode() for name in names]
        name_offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        count = text.count(b"\n") + 1
        shape = count, len(names)
        line_starts, line_sizes = new_array(count, np.int64), new_array(count, np.int64)
        states, kinds = new_array(count, np.uint8), np.zeros(shape, np.uint8)
        starts, sizes = (new_array(kinds.size, np.int64).reshape(shape) for _ in range(2))
        fields = kinds.ravel(), starts.ravel(), sizes.ravel()  # views, which the kernel fills
        data = byte_array(text)
        scan_objects(data, byte_array(b"".join(encoded)), name_offsets, line_starts, line_sizes, states, *fields)
        states[(kinds == ESCAPED).any(axis=1) & (states == OBJECT)] = UNSURE
        return cls(data, names, line_starts, line_sizes, states, kinds, starts, sizes)

    def column(self, number: int, line_numbers: Longs, python_values: Mapping[int, bytes | None]) -> pa.Array:
        """Return a field of the lines `line_numbers`; `python_values` has the fields that Python read, by row."""
        # kinds up to NULL (absent, null) have no bytes
        valid = (self.kinds[line_numbers, number] > NULL) & (self.states[line_numbers] == OBJECT)
        starts = np.where(valid, self.starts[line_numbers, number], 0)
        sizes = np.where(valid, self.sizes[line_numbers, number], 0)
        column = _gather_column(self.data, starts, sizes, None if valid.all() else valid)
        if not python_values:
            return column
        # append the values that Python read to the column, and move them to their rows
        order = np.arange(len(line_numbers))
        order[[*python_values]] = len(line_numbers) + np.arange(len(python_values))
        return pa.concat_arrays([column, column_of([*python_values.values()], pa.binary())]).take(integers(order))


def _gather_column(data: Bytes, starts: Longs, sizes: Longs, valid: Flags | None) -> pa.Array:
    """Return a binary column of slices of `data`, null where `valid` is False."""
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    out = new_array(int(ends[-1]), np.uint8)
    gather(data, np.ascontiguousarray(starts), np.ascontiguousarray(sizes), out)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [bits, pa.py_buffer(ends), pa.py_buffer(out)])


def _read_fields_in_bulk(block: bytes) -> pa.RecordBatch | None:
    """Return the fields of a block of records, read by Arrow; None if Arrow cannot read the block."""
    lines = split_lines(block)
    # Arrow's reader crashes if a line `null` precedes the first object
    have_braces = pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))
    if len(block) >= MAX_INT or not pc.all(have_braces).as_py():
        return None
    time_type = pa.string() if isinstance(first_object(block).get("timestamp"), str) else pa.int64()
    schema = pa.schema({**_BULK_TYPES, "timestamp": time_type})
    try:
        lines.cast(pa.string())  # Arrow's JSON reader does not check that texts are UTF-8
        table = pyarrow.json.read_json(
            pa.BufferReader(block),
            # in one block, since Arrow refuses a line that is longer than a block
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
    except pa.ArrowException:
        return None
    # as } at a line's end precedes { in the next, no object spans lines: equal numbers mean one object in each line
    if table.num_rows != len(lines):
        return None
    fields = table.select(schema.names).combine_chunks().to_batches()[0]
    # Arrow does not distinguish a null from a missing value
    null_lines = lines.filter(pc.is_null(fields["value"])).to_pylist()
    return fields if all("value" in json.loads(line) for line in null_lines) else None


def first_object(block: bytes) -> Mapping[str, Any]:
    """Return the object of the first line; empty if the line is not an object."""
    try:
        value = json.loads(block.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _are_valid(fields: pa.RecordBatch) -> bool:
    """Return whether a bulk read is right: partitions in range, and no null in headers, maybe for a missing field."""
    low, high = (bound.as_py() for bound in pc.min_max(fields["partition"]).values())
    headers = pc.list_flatten(fields["headers"])
    are_complete = all(column.null_count == 0 for column in (headers, *headers.flatten()))
    return are_complete and (low is None or (low >= -1 and high <= MAX_INT))


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object. Raises ValueError for a duplicate name, since a value would be lost."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the line has the field {name} twice")
        fields[name] = value
    return fields


def _partition(value: Any) -> int | None:
    if value is None or (type(value) is int and -1 <= value <= MAX_INT):
        return value
    raise ValueError(f"partition must be an integer from -1 to {MAX_INT}, or null")


def _headers(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list | None):
        raise ValueError("headers must be a list")
    for item in value or ():
        if not isinstance(item, dict) or item.keys() != {"key", "value"} or not isinstance(item["key"], str):
            raise ValueError('a header must be {"key": "...", "value": V}, with text, null or {"base64": "..."} as V')
    return [{"key": item["key"], "value": _bytes(item["value"])} for item in value or ()]


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    raise ValueError('bytes must be text, null or {"base64": "..."}')
