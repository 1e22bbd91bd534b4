"""Writes the records of a batch to files of each format, and reads them from there, as `distlog append` does."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from distlog.core.files import file_reader
from distlog.core.files.file_reader import FileReader, check_fields, pack, runs_to_repeat
from distlog.core.files.input_files import RECORDS, SKIP, ReadOptions
from distlog.core.read.row_lines import csv_rows, json_objects
from distlog.core.storage.storage import InputStorage
from distlog.core.times import iso

#: A writer of a table to a file; returns the bytes, the ending of the name, and the options of a read.
Form = Callable[[pa.Table, Random], tuple[bytes, str, Mapping[str, Any]]]


def _records(table: pa.Table, random: Random) -> tuple[bytes, str, Mapping[str, Any]]:
    return b"".join(map(json_objects, table.to_batches())), ".json", {"format": RECORDS}


def _objects(table: pa.Table, random: Random) -> tuple[bytes, str, Mapping[str, Any]]:
    names, unit = {name: name for name in table.schema.names}, random.choice(tuple(_UNITS))
    rows, is_text = table.to_pylist(), random.random() < 0.5
    for row in rows:
        if row.get("timestamp") is not None:
            row["timestamp"] = iso(row["timestamp"]) if is_text else row["timestamp"] * _UNITS[unit]
    lines = [json.dumps({name: _text(value) for name, value in row.items()}) for row in rows]
    return "\n".join(lines).encode(), ".jsonl", {**names, "timestamp_unit": unit}


def _rows(table: pa.Table, random: Random) -> tuple[bytes, str, Mapping[str, Any]]:
    if "timestamp" in table.schema.names and random.random() < 0.5:
        table = table.set_column(2, "timestamp", table["timestamp"].cast(pa.timestamp("ms", "UTC")))
    parts = [csv_rows(batch, titles=number == 0) for number, batch in enumerate(table.to_batches())]
    return b"".join(parts), ".csv", {name: name for name in table.schema.names}


def _columns(table: pa.Table, random: Random) -> tuple[bytes, str, Mapping[str, Any]]:
    sink, types = pa.BufferOutputStream(), random.choice(_TYPES)
    table = table.cast(pa.schema([field.with_type(types.get(field.name, field.type)) for field in table.schema]))
    pq.write_table(table, sink, row_group_size=2)
    return sink.getvalue().to_pybytes(), ".parquet", {"format": RECORDS}


def _lines(table: pa.Table, random: Random) -> tuple[bytes, str, Mapping[str, Any]]:
    if "timestamp" in table.schema.names:
        names, rows = ("key", "timestamp", "value"), table.to_pylist()
        lines = ["|".join(_text(row[name]) or "" for name in names) for row in rows]
        pattern = r"^(?P<key>[^|]*)\|(?P<timestamp>[^|]*)\|(?P<value>.*)$"
        return "\r\n".join(lines).encode(), ".log", {"pattern": pattern}
    keyed = table["key"].null_count == 0
    names = ("key", "value") if keyed else ("value",)
    lines = ["\t".join(_text(row[name]) or "" for name in names) for row in table.to_pylist()]
    return "\n".join(lines).encode(), ".txt", {"key_separator": "\t"} if keyed else {}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value if value is None else str(value)


#: The numbers of units in a millisecond.
_UNITS = {"ms": 1, "us": 1000, "ns": 1_000_000}
#: Other types of columns.
_TYPES: Sequence[Mapping[str, pa.DataType]] = (
    {},
    {"timestamp": pa.timestamp("ms", "UTC"), "key": pa.string(), "value": pa.large_binary()},
    {"timestamp": pa.timestamp("ms"), "key": pa.dictionary(pa.int32(), pa.binary()), "value": pa.large_string()},
)


def _forms(table: pa.Table) -> Sequence[Form]:
    """Return the formats that can have the records."""
    if "headers" in table.schema.names or table["value"].null_count:
        return [_records, _columns]
    # a field of CSV, or a part of a line, is not null
    lines = {0: [_rows, _lines], table.num_rows: [_lines]}.get(table["key"].null_count, [])
    return [_records, _columns, _objects, *lines]


def through_files(table: pa.Table, random: Random) -> pa.Table:
    """Write the records to one or two files, and return what is read from them, in splits of any size."""
    form, seed, cut = random.choice(_forms(table)), random.random(), random.randrange(table.num_rows + 1)
    bad_lines = random.randrange(3) if form in (_records, _objects, _rows) else 0
    with tempfile.TemporaryDirectory() as folder:
        options: Mapping[str, Any] = {}
        for number, part in enumerate(part for part in (table[:cut], table[cut:]) if part.num_rows):
            data, ending, options = form(part, Random(seed))
            if number == 0 and bad_lines:
                # the first line of CSV has the names
                first, _, rows = data.partition(b"\n")
                data = b"\n".join([first, *[b'"no record'] * bad_lines, rows])
            is_packed = random.random() < 0.3 and ending != ".parquet"
            with open(os.path.join(folder, f"{number}{ending}"), "wb") as file:
                file.write(gzip.compress(data) if is_packed else data)
        tables, skipped = _read(folder, {**options, "bad_lines": SKIP}, random)
    if skipped != bad_lines:
        raise AssertionError(f"{skipped} lines were skipped, and {bad_lines} are bad")
    return pa.concat_tables(tables, promote_options="default")


def _read(folder: str, options: Mapping[str, Any], random: Random) -> tuple[list[pa.Table], int]:
    """Return the records of the files, and the number of skipped lines."""
    reader = FileReader(ReadOptions(**options), InputStorage())
    files = reader.files([folder])
    reader.check_first_files(files)
    # blocks of a few lines
    with mock.patch.multiple(file_reader, _SMALL_BYTES=50, _BLOCK_BYTES=100, _FIRST_TAIL_READ=10):
        runs = pack(reader.splits(files, random.choice((None, 20, 100))), random.choice((1, 3)))
        readings = [reader.read(run) for run in runs]
        tables = [[part.records for part in reading] for reading in readings]
        reports = [reading.report for reading in readings]
        repeats = runs_to_repeat(runs, reports)
        for repeat in reversed(repeats):
            again = reader.read(repeat.run)
            tables[repeat.first : repeat.end] = [[part.records for part in again]]
            reports[repeat.first : repeat.end] = [again.report]
    check_fields(reports)
    return [table for part in tables for table in part], sum(report.skipped for report in reports)
