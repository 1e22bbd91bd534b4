"""Rows of Parquet files as records: named columns, or records with the columns of a topic; else the whole row."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from distlog.core.errors import InvalidRecordError
from distlog.core.files.csv_rows import check_names
from distlog.core.files.formats import RECORDS
from distlog.core.files.input_files import InputFile, shorter, vanished
from distlog.core.files.read_options import ReadOptions
from distlog.core.files.record_times import TimeReader
from distlog.core.files.row_json import json_rows, json_values
from distlog.core.storage.input_storage import InputStorage
from distlog.core.write.rows import ACCEPTED

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Rows of one table at most, and the bytes that they should have.
_MOST_ROWS, _TABLE_BYTES = 1 << 14, 16 << 20
#: The columns of a row group of an object are fetched together if they have at most this many bytes. Larger ones, and
#: columns of a local file, are read in buffers.
_TOGETHER_BYTES, _LOCAL_BUFFER, _OBJECT_BUFFER = 32 << 20, 1 << 20, 4 << 20


class StoredFile(io.RawIOBase):
    """A file of its listed size, read by ranges; of an object one request for each read."""

    def __init__(self, storage: InputStorage, file: InputFile) -> None:
        self._storage, self._file, self._position = storage, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._file.size

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes. Raises InvalidRecordError if the file is shorter than it was."""
        end = self._file.size if size is None or size < 0 else min(self._position + size, self._file.size)
        if end <= self._position:
            return b""
        try:
            data = self._storage.read(self._file.url, self._position, end)
        except FileNotFoundError:
            raise vanished(self._file.url) from None
        if len(data) < end - self._position:
            raise shorter(self._file, self._position + len(data))
        self._position = end
        return data

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


def row_groups(storage: InputStorage, file: InputFile) -> list[int]:
    """The stored bytes of each row group of a file."""
    with _open(storage, file) as parquet:
        metadata = parquet.metadata
        return [_stored_bytes(metadata.row_group(number), None) for number in range(metadata.num_row_groups)]


class _open:  # noqa: N801 - a context manager
    """A Parquet file in a `with` block, in which Arrow's errors name the file."""

    def __init__(self, storage: InputStorage, file: InputFile) -> None:
        self._storage, self._file = storage, file

    def __enter__(self) -> Any:
        import pyarrow.parquet as pq

        is_local = self._storage.is_local(self._file.url)
        source = self._file.url if is_local else StoredFile(self._storage, self._file)
        try:
            self._parquet = pq.ParquetFile(
                source, pre_buffer=False, buffer_size=_LOCAL_BUFFER if is_local else _OBJECT_BUFFER
            )
        except FileNotFoundError:
            raise vanished(self._file.url) from None
        except (pa.ArrowException, OSError) as error:
            raise self._error(error) from None
        return self._parquet

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._parquet.close()
        if isinstance(error, InvalidRecordError):
            error.details.setdefault("file", self._file.name)
        elif isinstance(error, pa.ArrowException):
            raise self._error(error) from None

    def _error(self, error: Exception) -> InvalidRecordError:
        return InvalidRecordError(f"the Parquet file cannot be read: {error}", file=self._file.name)


def check_columns(storage: InputStorage, file: InputFile, options: ReadOptions) -> None:
    """Raise InvalidRecordError for a file without a column that the options name, or that cannot be read."""
    with _open(storage, file) as parquet:
        _columns(parquet.schema_arrow.names, options)


class ParquetRecords(NamedTuple):
    """Records of adjacent rows, of which the first is row `first_row` of the file, and what is wrong with rows.

    `faults` counts rows from `first_row`.
    """

    table: pa.Table
    first_row: int
    faults: dict[int, str]


def parquet_records(
    storage: InputStorage, file: InputFile, groups: range | None, options: ReadOptions, times: TimeReader
) -> Iterator[ParquetRecords]:
    """The records of the row groups of a file (None: all), in order."""
    import pyarrow.parquet as pq

    with _open(storage, file) as parquet:
        columns = _columns(parquet.schema_arrow.names, options)
        rows, size = max(parquet.metadata.num_rows, 1), max(file.size, 1)
        batch_rows = max(1024, min(_MOST_ROWS, _TABLE_BYTES * rows // (4 * size)))
        column_names = None if columns is None else sorted({*columns.values()})
        numbers = range(parquet.metadata.num_row_groups) if groups is None else groups
        first_row = sum(parquet.metadata.row_group(number).num_rows for number in range(numbers.start))
        is_local = storage.is_local(file.url)
        for number in numbers:
            is_small = (
                not is_local and _stored_bytes(parquet.metadata.row_group(number), column_names) <= _TOGETHER_BYTES
            )
            reading = parquet
            if is_small:
                # the columns of the row group are fetched together
                reading = pq.ParquetFile(StoredFile(storage, file), metadata=parquet.metadata, pre_buffer=True)
            # of one group at a time, since Arrow fetches those that it is given all at once
            for batch in reading.iter_batches(batch_rows, row_groups=[number], columns=column_names):
                table, faults = _records(batch, columns, options, times)
                yield ParquetRecords(table, first_row, faults)
                first_row += batch.num_rows


def _stored_bytes(group: Any, column_names: Sequence[str] | None) -> int:
    """The stored bytes of the columns `column_names` of a row group; None for all."""
    columns = map(group.column, range(group.num_columns))
    return sum(
        column.total_compressed_size
        for column in columns
        if column_names is None or any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in column_names)
    )


def _columns(names: Sequence[str], options: ReadOptions) -> dict[str, str] | None:
    """The columns that are parts of the records, by role; None if all of the row is read."""
    check_names(options.fields, names)
    if options.format == RECORDS:
        columns = {name: name for name in ACCEPTED if name in names} | options.fields
        if "value" not in columns:
            raise InvalidRecordError(f"records need a column value; there are {', '.join(names)}")
        return columns
    return options.fields if "value" in options.fields else None


def _records(
    batch: pa.RecordBatch, columns: dict[str, str] | None, options: ReadOptions, times: TimeReader
) -> tuple[pa.Table, dict[int, str]]:
    fields, faults = options.fields if columns is None else columns, dict[int, str]()
    arrays = dict[str, pa.Array]()
    for role, name in fields.items():
        column = batch.column(name)
        if role == "timestamp":
            moments = times.of_column(column)
            arrays[role], faults = moments.column, moments.faults
        elif role in ("key", "value"):
            arrays[role] = _bytes(column)
        else:
            arrays[role] = column
    if "value" not in fields:
        arrays["value"] = json_rows(batch)
    return pa.table(arrays), faults


def _bytes(column: pa.Array) -> pa.Array:
    """A column as bytes: text and bytes as they are, numbers and times as in JSON without quotes, others as JSON."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_nested(kind):
        return json_values(column)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_string(kind) or pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    if pa.types.is_large_string(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    from pyarrow import compute as pc

    return pc.utf8_trim(json_values(column).cast(pa.large_string()), '"').cast(pa.large_binary())
