"""Reads of input files by their splits, as the command and a job do them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from distlog.core.files.file_reader import FileReader, check_fields, pack, runs_to_repeat
from distlog.core.files.input_files import ReadOptions
from distlog.core.storage.storage import InputStorage


def reader(**options: Any) -> FileReader:
    return FileReader(ReadOptions(**options), InputStorage())


def tables(
    inputs: Sequence[object], split_bytes: int | None = None, tasks: int = 1, **options: Any
) -> list[pa.Table]:
    """The tables of records of the inputs, read by `tasks` tasks."""
    source = reader(**options)
    runs = pack(source.splits(source.files([str(path) for path in inputs]), split_bytes), tasks)
    readings = [source.read(run) for run in runs]
    parts = [[part.records for part in reading] for reading in readings]
    reports = [reading.report for reading in readings]
    for repeat in reversed(runs_to_repeat(runs, reports)):
        again = source.read(repeat.run)
        parts[repeat.first : repeat.end] = [[part.records for part in again]]
        reports[repeat.first : repeat.end] = [again.report]
    check_fields(reports)
    all_tables = [table for group in parts for table in group]
    assert sum(split.records for report in reports for split in report.splits) == sum(
        table.num_rows for table in all_tables
    )
    return all_tables


def rows(
    inputs: Sequence[object], split_bytes: int | None = None, tasks: int = 1, **options: Any
) -> list[tuple[Any, ...]]:
    """The (key, value, timestamp) of each record."""
    all_tables = tables(inputs, split_bytes, tasks, **options)
    return [
        tuple(row.get(name) for name in ("key", "value", "timestamp"))
        for table in all_tables
        for row in table.to_pylist()
    ]


def values(inputs: Sequence[object], split_bytes: int | None = None, tasks: int = 1, **options: Any) -> list[Any]:
    return [row[1] for row in rows(inputs, split_bytes, tasks, **options)]


def written(folder: Path, **files: bytes | str) -> list[Path]:
    """Files with these contents; a name has `__` for a full stop."""
    paths = []
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        paths.append(path)
    return paths
