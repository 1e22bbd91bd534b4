"""Rows of CSV and Parquet as records: some columns are key, value and timestamp; the default value is the whole row.

A row of CSV is as in RFC 4180. Arrow reads a block at once if the number of rows shows that each line is a row; if
not, a regular expression finds the valid rows first. After a quoted field without a valid end, the next line begins a
row, so that a stray quote costs only its line.

In the JSON of a row, times have all digits of their unit, and a Z if the column has a zone. Bytes are text if they
are UTF-8, else {"base64": "..."}. NaN and infinities, which JSON lacks, are texts.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from distlog.core.arrays import Longs, byte_array, flags_of, integers, numbers_of, scalar_of
from distlog.core.errors import InvalidRecordError
from distlog.core.files.input_files import RECORDS, InputFile, ReadOptions, deleted_error, read_range
from distlog.core.files.record_times import TimeReader
from distlog.core.files.text_lines import BadLine, Parsed
from distlog.core.read.row_lines import joined, joined_items, json_labels, json_texts, or_else
from distlog.core.storage.storage import InputStorage
from distlog.core.write.rows import ACCEPTED_COLUMNS

#: A cell of CSV is a quoted field, a field without quotes, or empty.
_CELL = rb'(?:"[^"]*(?:""[^"]*)*"|[^",\r\n][^,\r\n]*|)'
_CELLS = rb"%b(?:,%b)*" % (_CELL, _CELL)
_BLANK = rb"[ \t\v\f\r]*\n"
_ROW = re.compile(rb"(?!%b)%b\r?\n" % (_BLANK, _CELLS))  # a line that is not blank
_BLANK_LINE = re.compile(rb"^%b" % _BLANK, re.MULTILINE)
_BLANKS = re.compile(rb"(?:%b)+" % _BLANK)
_OPEN_QUOTED_FIELD = re.compile(rb'(?:%b,)*"[^"]*(?:""[^"]*)*\Z' % _CELL)  # the text ends in the field
_VALID_CELLS = re.compile(_CELLS)
_TO_ASCII = bytes(min(byte, 127) for byte in range(256))  # a table for `bytes.translate`
_MAX_FIELD_LINES = 1000  # if a quoted field has more lines, its first quote is taken for a stray quote
#: A table of Parquet rows has at most this number of rows, and about this number of bytes.
_MAX_TABLE_ROWS, _TABLE_BYTES = 1 << 14, 16 << 20
#: From an object store, the columns of a row group are fetched together if they have at most this many bytes.
_MAX_GROUP_FETCH = 32 << 20
#: Larger row groups, and all row groups of a local file, are read through buffers with these sizes.
_LOCAL_BUFFER_BYTES, _OBJECT_BUFFER_BYTES = 1 << 20, 4 << 20
_BYTES_KINDS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_string_view,
    pa.types.is_binary_view,
)
_LIST_KINDS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)


@dataclass(frozen=True, slots=True)
class CsvRows:
    """Parses rows of the columns `names`; `fields` names the columns of the key, the value and the timestamp."""

    names: Sequence[str]
    fields: Mapping[str, str]
    times: TimeReader

    def __post_init__(self) -> None:
        check_names(self.fields, self.names)

    def parse(self, text: bytes, limit: int, *, is_last: bool) -> Parsed:
        """Parse the rows that begin in the first `limit` bytes of `text`: whole lines without the last newline.

        A row that does not end in the block is not consumed, unless the block `is_last` (see LineParser).
        """
        is_whole = limit >= len(text)
        text += b"\n"
        end = len(text) if is_whole else limit
        table = _all_rows(text, self.names) if is_whole else None
        if table is not None:
            columns, time_faults = self._record_columns(table)
            if not time_faults:
                return Parsed(columns, (), len(text))
        # the parts of the text with valid rows only, and the fault of each bad line by its position
        spans, faults = list[tuple[int, int]](), dict[int, str]()
        position = 0
        while position < end:
            start = position
            while position < end and (row := _ROW.match(text, position)):
                position = row.end()
            spans.append((start, position))
            if blanks := _BLANKS.match(text, position):
                position = blanks.end()
            elif position < end:
                is_open = _OPEN_QUOTED_FIELD.match(text, position) is not None
                if is_open and not is_last and text.count(b"\n", position) <= _MAX_FIELD_LINES:
                    break  # the next block may end the field
                faults[position] = _fault(text, position, is_open=is_open)
                position = text.index(b"\n", position) + 1
        return self._parse_rows(text, spans, faults, position)

    def _parse_rows(self, text: bytes, spans: list[tuple[int, int]], faults: dict[int, str], consumed: int) -> Parsed:
        """Return the records of the rows in `spans`, and all bad lines; `faults` has the bad lines between spans."""
        valid_rows = b"".join(text[start:end] for start, end in spans)
        try:
            table, row_faults = _read_rows(valid_rows, self.names), dict[int, str]()
        except pa.ArrowInvalid:
            row_faults = _find_bad_rows(valid_rows, self.names)
            rows = [row[0] for number, row in enumerate(_ROW.finditer(valid_rows)) if number not in row_faults]
            table = _read_rows(b"".join(rows), self.names)
        columns, time_faults = self._record_columns(table)
        starts = np.array([row.start() for span in spans for row in _ROW.finditer(text, *span)], np.int64)
        faults |= {int(starts[row]): fault for row, fault in row_faults.items()}
        starts = np.delete(starts, [*row_faults])
        if time_faults:
            faults |= {int(starts[row]): fault for row, fault in time_faults.items()}
            columns = columns.take(integers(np.delete(np.arange(len(starts)), [*time_faults])))
            starts = np.delete(starts, [*time_faults])
        bad_lines = [
            BadLine(position, int(np.searchsorted(starts, position)), fault)
            for position, fault in sorted(faults.items())
        ]
        return Parsed(columns, bad_lines, consumed, starts)

    def _record_columns(self, table: pa.Table) -> tuple[pa.Table, Mapping[int, str]]:
        """Return the columns of the records, and the faults of bad times, by row."""
        columns = {role: table[name] for role, name in self.fields.items() if role != "timestamp"}
        if "value" not in self.fields:
            arrays = [column.combine_chunks() for column in table.columns]
            columns["value"] = json_rows(pa.RecordBatch.from_arrays(arrays, table.schema.names))
        if "timestamp" not in self.fields:
            return pa.table(columns), {}
        times = self.times.of_column(table[self.fields["timestamp"]].combine_chunks())
        return pa.table({**columns, "timestamp": times.column}), times.faults


def check_names(fields: Mapping[str, str], names: Sequence[str]) -> None:
    """Raise InvalidRecordError for a field that is not among the names of a file's columns."""
    for name in fields.values():
        if name not in names:
            raise InvalidRecordError(f"the file has no column {name}; it has {', '.join(names)}")


def _fault(text: bytes, position: int, *, is_open: bool) -> str:
    if is_open:
        return f"the quoted field does not end, at least not within {_MAX_FIELD_LINES} lines"
    valid_cells = _VALID_CELLS.match(text, position)
    if valid_cells and text.startswith(b"\r", valid_cells.end()):
        return "a carriage return must end its line"
    return "there is text after the end of a quoted field: write a quote inside of a field twice"


def header_names(line: bytes) -> list[str]:
    """Parse the names in the first line of a file. Raises InvalidRecordError if it does not name columns."""
    names: list[str] = []
    with suppress(UnicodeDecodeError, csv.Error):
        if _ROW.fullmatch(line + b"\n"):
            names = next(csv.reader([line.decode().removesuffix("\r")]), [])
    if not names or len(set(names)) < len(names):
        reason = "the first line of CSV must have the names of the fields, each once, and no line break in a name"
        raise InvalidRecordError(reason, line=1)
    return names


def _all_rows(text: bytes, names: Sequence[str]) -> pa.Table | None:
    """Return the rows of a text if each line is surely one row, else None."""
    # Arrow ends a row at a lone carriage return, and reads a blank line as a row of one field
    has_lone_returns = text.count(b"\r") != text.count(b"\r\n")
    if has_lone_returns or not _has_plain_quotes(text) or (len(names) == 1 and _BLANK_LINE.search(text)):
        return None
    try:
        table = _read_rows(text, names)
    except pa.ArrowInvalid:
        return None
    # there are fewer rows than lines if a field has a newline, or Arrow has skipped a line
    return table if table.num_rows == text.count(b"\n") else None


def _has_plain_quotes(text: bytes) -> bool:
    """Return whether the quotes alternately begin and end a field."""
    if b'"' not in text:
        return True
    data = byte_array(text)
    positions = np.flatnonzero(data == ord('"'))
    # before a quote at position 0 is data[-1], the newline that ends the text: like the newline before other lines
    characters_before, characters_after = data[positions[::2] - 1], data[positions[1::2] + 1]
    is_begin = (characters_before == ord(",")) | (characters_before == ord("\n"))
    is_end = (characters_after == ord(",")) | (characters_after == ord("\n")) | (characters_after == ord("\r"))
    return len(positions) % 2 == 0 and bool(is_begin.all() and is_end.all())


def _find_bad_rows(rows: bytes, names: Sequence[str]) -> dict[int, str]:
    """Return the faults of rows whose number of fields is wrong, by row."""
    faults: dict[int, str] = {}

    def refuse(row: Any) -> str:
        faults[row.number - 1] = f"the row has {row.actual_columns} fields, not {row.expected_columns}"
        return "skip"

    # Arrow decodes a bad row for its message, and fails if the row is not UTF-8: replace all that is not ASCII
    _read_rows(rows.translate(_TO_ASCII), names, refuse)
    return faults


def _read_rows(text: bytes, names: Sequence[str], refuse: Callable[[Any], str] | None = None) -> pa.Table:
    """Read rows as bytes; raises ArrowInvalid for a row with a wrong number of fields, unless `refuse` skips it."""
    if not text:
        return pa.table({name: pa.nulls(0, pa.binary()) for name in names})
    kinds = {name: pa.binary() for name in names}
    return pyarrow.csv.read_csv(
        io.BytesIO(text),
        # in one block, since Arrow refuses a row that is longer than a block
        pyarrow.csv.ReadOptions(column_names=list(names), use_threads=False, block_size=len(text) + 1),
        pyarrow.csv.ParseOptions(invalid_row_handler=refuse, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(column_types=kinds, strings_can_be_null=False, quoted_strings_can_be_null=False),
    )


class StoredFile(io.RawIOBase):
    """A stored file as a stream of the size that was listed; each read of an object is one request."""

    def __init__(self, storage: InputStorage, file: InputFile) -> None:
        self._storage, self._file, self._position = storage, file, 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        end = self._file.size if size is None or size < 0 else min(self._position + size, self._file.size)
        data = read_range(self._storage, self._file, self._position, end)
        self._position += len(data)
        return data


def row_group_sizes(storage: InputStorage, file: InputFile) -> list[int]:
    with _open(storage, file) as parquet:
        metadata = parquet.metadata
        return [_compressed_bytes(metadata.row_group(number), None) for number in range(metadata.num_row_groups)]


@contextmanager
def _open(storage: InputStorage, file: InputFile) -> Iterator[Any]:
    """Open a Parquet file; errors in the block name the file."""
    import pyarrow.parquet as pq

    is_local = storage.is_local(file.url)
    source = file.url if is_local else StoredFile(storage, file)
    try:
        with pq.ParquetFile(
            source, pre_buffer=False, buffer_size=_LOCAL_BUFFER_BYTES if is_local else _OBJECT_BUFFER_BYTES
        ) as parquet:
            yield parquet
    except FileNotFoundError:
        raise deleted_error(file.url) from None
    except InvalidRecordError as error:
        error.details.setdefault("file", file.name)
        raise
    except (pa.ArrowException, OSError) as error:
        raise InvalidRecordError(f"the Parquet file cannot be read: {error}", file=file.name) from None


def check_columns(storage: InputStorage, file: InputFile, options: ReadOptions) -> None:
    """Raise InvalidRecordError if a file cannot be read, or lacks a column that the options name."""
    with _open(storage, file) as parquet:
        _record_columns(parquet.schema_arrow.names, options)


class ParquetRecords(NamedTuple):
    """Records of adjacent rows of a file, and the faults of rows, counted from `first_row`."""

    table: pa.Table
    first_row: int
    faults: dict[int, str]


def parquet_records(
    storage: InputStorage, file: InputFile, groups: range | None, options: ReadOptions, times: TimeReader
) -> Iterator[ParquetRecords]:
    """Yield the records of a file's row groups `groups` in order; of all its row groups if None."""
    import pyarrow.parquet as pq

    with _open(storage, file) as parquet:
        columns = _record_columns(parquet.schema_arrow.names, options)
        rows, size = max(parquet.metadata.num_rows, 1), max(file.size, 1)
        # a row decodes to about four times its stored bytes, which are `size / rows` on average
        batch_rows = max(1024, min(_MAX_TABLE_ROWS, _TABLE_BYTES * rows // (4 * size)))
        column_names = None if columns is None else sorted({*columns.values()})
        numbers = range(parquet.metadata.num_row_groups) if groups is None else groups
        first_row = sum(parquet.metadata.row_group(number).num_rows for number in range(numbers.start))
        is_local = storage.is_local(file.url)
        for number in numbers:
            reader, group = parquet, parquet.metadata.row_group(number)
            if not is_local and _compressed_bytes(group, column_names) <= _MAX_GROUP_FETCH:
                reader = pq.ParquetFile(StoredFile(storage, file), metadata=parquet.metadata, pre_buffer=True)
            # one group per call, since Arrow fetches all row groups of a call at once
            for batch in reader.iter_batches(batch_rows, row_groups=[number], columns=column_names):
                table, faults = _records(batch, columns, options, times)
                yield ParquetRecords(table, first_row, faults)
                first_row += batch.num_rows


def _compressed_bytes(group: Any, column_names: Sequence[str] | None) -> int:
    """Sum up the compressed bytes of the columns `column_names` of a row group, or of all columns if None."""
    columns = map(group.column, range(group.num_columns))
    return sum(
        column.total_compressed_size
        for column in columns
        if column_names is None or any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in column_names)
    )


def _record_columns(names: Sequence[str], options: ReadOptions) -> dict[str, str] | None:
    """Return the columns to read, by role (a column of the records); None if the value is a whole row, as JSON."""
    check_names(options.fields, names)
    if options.format == RECORDS:
        columns = {name: name for name in ACCEPTED_COLUMNS if name in names} | options.fields
        if "value" not in columns:
            text = f"records need a column value: name it with --value; the file has {', '.join(names)}"
            raise InvalidRecordError(text)
        return columns
    return options.fields if "value" in options.fields else None


def _records(
    batch: pa.RecordBatch, columns: dict[str, str] | None, options: ReadOptions, times: TimeReader
) -> tuple[pa.Table, dict[int, str]]:
    fields, faults = (options.fields if columns is None else columns), dict[int, str]()
    arrays = dict[str, pa.Array]()
    for role, name in fields.items():
        column = batch.column(name)
        if role == "timestamp":
            parsed = times.of_column(column)
            arrays[role], faults = parsed.column, parsed.faults
        elif role in ("key", "value"):
            arrays[role] = _as_bytes(column)
        else:
            arrays[role] = column
    if "value" not in fields:
        arrays["value"] = json_rows(batch)
    return pa.table(arrays), faults


def _as_bytes(column: pa.Array) -> pa.Array:
    """Return a column as bytes: texts and bytes unchanged, numbers and times without quotes, other values as JSON."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_nested(kind):
        return json_values(column)
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    if any(is_bytes(kind) for is_bytes in _BYTES_KINDS):
        return column.cast(pa.large_binary())
    return pc.utf8_trim(json_values(column).cast(pa.large_string()), '"').cast(pa.large_binary())


def json_rows(batch: pa.RecordBatch) -> pa.Array:
    return _as_json_objects(batch.schema.names, batch.columns, batch.num_rows)


def json_values(column: pa.Array) -> pa.Array:
    """Return the values as JSON texts (large_binary), null for null. Raises InvalidRecordError for another type."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return json_values(column.cast(kind.value_type))
    if isinstance(column, pa.ExtensionArray):
        return json_values(column.storage)
    if pa.types.is_struct(kind):
        texts = _as_json_objects([field.name for field in kind], column.flatten(), len(column))
    elif pa.types.is_map(kind):
        texts = joined(["{", joined_items(_entries(column), _lengths(column), ", "), "}"], len(column))
    elif any(is_list(kind) for is_list in _LIST_KINDS):
        if not pa.types.is_list(kind) and not pa.types.is_large_list(kind):
            column = column.cast(pa.list_(kind.value_type))
        items = or_else(json_values(column.flatten()), "null")
        texts = joined(["[", joined_items(items, _lengths(column), ", "), "]"], len(column))
    elif any(is_bytes(kind) for is_bytes in _BYTES_KINDS):
        texts = json_texts(column)
    else:
        texts = _scalars_as_json(column)
    return pc.if_else(column.is_valid(), texts, pa.nulls(1, texts.type)[0]) if column.null_count else texts


def _as_json_objects(names: list[str], columns: list[pa.Array], count: int) -> pa.Array:
    if not columns:
        return joined(["{}"], count)
    texts = (or_else(json_values(column), "null") for column in columns)
    parts = [part for label_and_text in zip(json_labels(names), texts, strict=True) for part in label_and_text]
    return joined([*parts, "}"], count)  # the first label begins with {


def _entries(column: pa.Array) -> pa.Array:
    """Return the entries of all maps, as `"key": value`; the JSON of a key that is not a text is put in quotes."""
    first, end = column.offsets[0].as_py(), column.offsets[len(column)].as_py()
    keys, items = column.keys, column.items
    if len(keys) != end - first:  # the arrays of a sliced column also have the entries outside of the slice
        keys, items = keys.slice(first, end - first), items.slice(first, end - first)
    if not any(is_bytes(keys.type) for is_bytes in _BYTES_KINDS):
        keys = json_values(keys)
    return joined([json_texts(keys), ": ", or_else(json_values(items), "null")], len(keys))


def _lengths(column: pa.Array) -> Longs:
    """Return the number of items of each list or map, 0 for null."""
    if pa.types.is_map(column.type):
        return np.where(flags_of(column.is_valid()), np.diff(numbers_of(column.offsets)), 0)
    return numbers_of(pc.fill_null(pc.cast(pc.list_value_length(column), pa.int64()), scalar_of(0, pa.int64())))


def _scalars_as_json(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.large_binary())
    if pa.types.is_timestamp(kind):
        unit, zone = column.type.unit, column.type.tz
        plain = column.cast(pa.timestamp(unit, "UTC")).cast(pa.timestamp(unit)) if zone else column
        texts = pc.strftime(plain, "%Y-%m-%dT%H:%M:%S")
        return pc.binary_join_element_wise('"', texts, 'Z"' if zone else '"', "").cast(pa.large_binary())
    if pa.types.is_floating(kind):
        doubles = column.cast(pa.float64())
        texts = (doubles if kind == pa.float16() else column).cast(pa.string())
        infinities = pc.if_else(pc.less(doubles, 0.0), '"-Infinity"', '"Infinity"')
        names = pc.if_else(pc.is_nan(doubles), '"NaN"', infinities)
        return pc.if_else(pc.is_finite(doubles), texts, names).cast(pa.large_binary())
    try:
        texts = column.cast(pa.string())
    except pa.ArrowException:
        raise InvalidRecordError(f"a column of type {kind} cannot be JSON: cast it, or leave it out") from None
    if pa.types.is_temporal(kind):
        texts = pc.binary_join_element_wise('"', texts, '"', "")
    return texts.cast(pa.large_binary())
