"""A snapshot of a topic as an Arrow dataset, into which DuckDB and Polars push their columns and filters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NoReturn, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from distlog.core.arrays import integers
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import InvalidRecordError
from distlog.core.format.record_batch import COLUMNS, SCHEMA
from distlog.core.read.conditions import Conditions
from distlog.core.read.scan import check_columns, count_records, first, known_count, plan_slices
from distlog.core.schemas.decoding import DECODING_COLUMNS, Decoder, OnError, decoded_batch, schema_with
from distlog.core.segments.chunks import Isolation, IsolationLevel, SegmentSlice
from distlog.core.segments.segment_reader import SegmentReader, read_slices
from distlog.core.storage.calls import cores

_BATCH_ROWS = 1 << 16  # the most rows of a batch of `_numbers_of_partitions`
TEXT_COLUMNS = ("key", "value")
_NO_FILES = "a topic has no Arrow files: call to_table() or scanner() of its dataset"


class TopicDataset(ds.UnionDataset):  # type: ignore[misc]
    """The records of one snapshot as a `pyarrow.dataset.Dataset`, which can be pickled; made by `Topic.dataset`.

    A filter on partition, offset, timestamp and key bounds what is read; the whole filter is applied to the records.
    """

    def __init__(
        self,
        reader: SegmentReader,
        snapshot: Snapshot,
        isolation: IsolationLevel = "read_uncommitted",
        *,
        text: Collection[str] = (),  # the columns to return as strings
        condition: pc.Expression | None = None,
        decoder: Decoder | None = None,
        on_error: OnError = "fail",
    ) -> None:
        # Without a C++ dataset, methods of Arrow's C++ code would end the process. So Arrow gets one whose file is
        # missing: nothing exists under /dev/null. Arrow's error shows the path of the file, the text `_NO_FILES`.
        files = SubTreeFileSystem("/dev/null", LocalFileSystem())
        fragment = ds.IpcFileFormat().make_fragment(_NO_FILES, files)
        super().__init__(SCHEMA, [ds.FileSystemDataset([fragment], SCHEMA, ds.IpcFileFormat())])
        self._reader, self._snapshot, self._isolation = reader, snapshot, isolation
        self._string_columns, self._condition, self._decoder, self._on_error = text, condition, decoder, on_error
        self._all_records = Conditions(frozenset(range(len(snapshot.partitions))))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records."""
        kinds = dict.fromkeys(self._string_columns, pa.string())
        columns = pa.schema([field.with_type(kinds.get(field.name, field.type)) for field in SCHEMA])
        return columns if self._decoder is None else schema_with(columns, self._decoder, flatten=False)

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> _Scanner:
        """Plan a read, which happens once, when a result is requested.

        Args:
            columns: Names of columns, or expressions by the names of their columns; default all.
            filter: An expression that is true for the records to return; default all.
            **options: The other options of `pyarrow.dataset.Scanner.from_batches`, such as the size of batches.

        Returns:
            The scanner, with the methods of Arrow's scanners.

        Examples:
            >>> import pyarrow.compute as pc
            >>> topic.dataset().scanner(["key"], pc.field("offset") == 1).to_table().to_pylist()
            [{'key': b'bert'}]
        """
        conditions, condition = self._conditions(filter)
        names = self._columns_to_read(columns, condition)
        batches, schema = self._batches(conditions, names), self._schema_of(names)
        if columns is not None and not isinstance(columns, Mapping):
            columns = list(columns)
        return _Scanner(batches, schema, columns=columns, filter=condition, **options)

    def head(
        self,
        num_rows: int,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> pa.Table:
        """Read the first records that pass the filter, in the order of (partition, offset).

        Args:
            num_rows: The most records.
            columns: As in `scanner`.
            filter: As in `scanner`.
            **options: As in `scanner`.

        Returns:
            The table.

        Examples:
            >>> topic.dataset().head(1, columns=["key"]).to_pylist()
            [{'key': b'anna'}]
        """
        conditions, condition = self._conditions(filter)
        if condition is not None:
            return self.scanner(columns, filter, **options).head(num_rows)
        names = self._columns_to_read(columns, None)
        slices, visible = self._slices(conditions)
        batches = first(self._reader, slices, self._stored_columns(names), num_rows, visible)
        table = pa.Table.from_batches((self._typed(batch, names) for batch in batches), self._schema_of(names))
        return ds.dataset(table).to_table(columns=columns)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Count the records that pass the filter; segments whose metadata has the number are not read.

        Args:
            filter: As in `scanner`.
            **options: As in `scanner`.

        Returns:
            The number of records.

        Examples:
            >>> topic.dataset().count_rows()
            3
        """
        conditions, condition = self._conditions(filter)
        if condition is not None:
            return int(self.scanner(["partition"], filter, **options).count_rows())
        slices, visible = self._slices(conditions)
        return count_records(self._reader, slices, visible, cores())

    def filter(self, expression: pc.Expression) -> TopicDataset:
        """Return a dataset of the records that also pass the expression.

        Args:
            expression: An expression that is true for the records to return.

        Returns:
            The dataset.

        Examples:
            >>> import pyarrow.compute as pc
            >>> topic.dataset().filter(pc.field("partition") == 0).count_rows()
            2
        """
        constructor, arguments = self._constructor_with(self._with_own_condition(expression))
        return cast(TopicDataset, constructor(*arguments))

    def sort_by(self, sorting: str | list[tuple[str, str]], **options: Any) -> ds.Dataset:
        """Read all records and sort them, as Arrow's datasets do."""
        return ds.dataset(self.to_table().sort_by(sorting, **options))

    def join(self, right_dataset: ds.Dataset, *keys: Any, **options: Any) -> ds.Dataset:
        """Read all records of both datasets and join them, as Arrow's datasets do."""
        return ds.dataset(self.to_table()).join(ds.dataset(right_dataset.to_table()), *keys, **options)

    def join_asof(self, right_dataset: ds.Dataset, *keys: Any, **options: Any) -> ds.Dataset:
        """Read all records of both datasets and join them by the nearest value, as Arrow's datasets do."""
        return ds.dataset(self.to_table()).join_asof(ds.dataset(right_dataset.to_table()), *keys, **options)

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:
        """Raise NotImplementedError: segments are not files of Arrow."""
        raise NotImplementedError(_NO_FILES)

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Raise NotImplementedError: the columns of records are fixed."""
        raise NotImplementedError("the columns of a topic are fixed: cast the columns of the table that was read")

    def __reduce__(self) -> tuple[Any, ...]:
        return self._constructor_with(self._condition)

    def __repr__(self) -> str:
        return f"TopicDataset({self._reader.topic!r}, version={self._snapshot.version}, columns={self.schema.names})"

    def _constructor_with(self, condition: pc.Expression | None) -> tuple[Any, ...]:
        """Return the function and the arguments that copy this dataset with a condition, for pickle and `filter`."""
        options: dict[str, Any] = {"text": self._string_columns, "decoder": self._decoder, "on_error": self._on_error}
        return partial(TopicDataset, condition=condition, **options), (self._reader, self._snapshot, self._isolation)

    def _conditions(self, filter: pc.Expression | None) -> tuple[Conditions, pc.Expression | None]:
        """Return the bounds of what is read, and the filter that records within them must still pass."""
        condition = self._with_own_condition(filter)
        if condition is None:
            return self._all_records, None
        conditions = Conditions.of_expression(condition, self.schema, self._all_records.partitions)
        return conditions, None if conditions.is_exact else condition

    def _with_own_condition(self, filter: pc.Expression | None) -> pc.Expression | None:
        if self._condition is None or filter is None:
            return self._condition if filter is None else filter
        return self._condition & filter

    def _columns_to_read(self, columns: Any, condition: pc.Expression | None) -> Sequence[str]:
        if columns is None or isinstance(columns, Mapping):
            return COLUMNS
        check_columns(tuple(columns))
        if condition is None:
            return list(dict.fromkeys(columns)) or ["partition"]  # without columns, records are only counted
        return [name for name in COLUMNS if name in columns or _refers_to(condition, name, self.schema)]

    def _slices(self, conditions: Conditions) -> tuple[list[SegmentSlice], Isolation]:
        states = self._snapshot.partitions
        ranges = {number: (state.log_start_offset, state.log_end_offset) for number, state in enumerate(states)}
        bounds = {} if conditions.is_empty else conditions.narrow(ranges)
        keys = conditions.key_array()
        return plan_slices(self._reader, self._snapshot, bounds, self._isolation, times=conditions.times, keys=keys)

    def _batches(self, conditions: Conditions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        slices, visible = self._slices(conditions)
        if list(names) == ["partition"]:
            yield from self._numbers_of_partitions(slices, visible)
            return
        for batch in read_slices(self._reader, slices, self._stored_columns(names), visible, cores()):
            yield self._typed(batch, names)

    def _schema_of(self, names: Sequence[str]) -> pa.Schema:
        schema = self.schema
        return pa.schema([schema.field(name) for name in names])

    def _stored_columns(self, names: Sequence[str]) -> Sequence[str]:
        """Return the columns to read for `names`: also partition and offset for errors if values are decoded."""
        is_decoded = self._decoder is not None and "value" in names
        return list(dict.fromkeys((*names, *DECODING_COLUMNS))) if is_decoded else names

    def _numbers_of_partitions(self, slices: list[SegmentSlice], visible: Isolation) -> Iterator[pa.RecordBatch]:
        """Yield the column `partition`, which DuckDB's count(*) reads. Reads no slice that metadata can count."""
        for has_count, run in groupby(slices, lambda part: known_count(part) is not None):
            if not has_count:
                yield from read_slices(self._reader, run, ["partition"], visible, cores())
                continue
            for part in run:
                count = known_count(part) or 0
                for start in range(0, count, _BATCH_ROWS):
                    rows = min(_BATCH_ROWS, count - start)
                    numbers = np.full(rows, part.segment.partition, np.int32)
                    yield pa.record_batch({"partition": integers(numbers)})

    def _typed(self, batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Return the columns `names` with texts as strings and decoded values."""
        for name in set(self._string_columns).intersection(names):
            if not is_text(batch[name]):
                raise self._not_text(name)
            batch = batch.set_column(batch.schema.get_field_index(name), name, batch[name].cast(pa.string()))
        if self._decoder is None or "value" not in names:
            return batch
        try:
            return decoded_batch(batch, self._schema_of(names), self._decoder, self._on_error, flatten=False)
        except InvalidRecordError as error:
            text = f"the value of a record of {self._reader.topic} cannot be decoded: {error.message}"
            raise InvalidRecordError(text, **error.details) from None

    def _not_text(self, name: str) -> InvalidRecordError:
        """Return the error about the first record of the topic whose column is not text."""
        slices, visible = self._slices(self._all_records)
        batches = read_slices(self._reader, slices, ["partition", "offset", name], visible, 1)
        batch = next(batch for batch in batches if not is_text(batch[name]))
        records = (batch.slice(row, 1) for row in range(len(batch)))
        record = next(record for record in records if not is_text(record[name]))
        details = {column: record[column][0].as_py() for column in ("partition", "offset")}
        return InvalidRecordError(
            f"the {name} of a record of {self._reader.topic} is not UTF-8: read keys and values as bytes, with"
            " blobs=True or topic.dataset()",
            **details,
        )


class _Scanner:
    """Arrow's scanner without its read-ahead thread, which may crash the process at Python's exit after a LIMIT."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, **options: Any) -> None:
        self._batches, self.dataset_schema, self._options = batches, schema, options
        self.projected_schema = ds.Scanner.from_batches(iter(()), schema=schema, **options).projected_schema
        self._is_unchanged = options["filter"] is None and self.projected_schema.equals(schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            # the expressions of a Mapping may change values even if the schema is unchanged
            if self._is_unchanged and not isinstance(self._options["columns"], Mapping):
                yield batch
            else:
                yield from ds.dataset(pa.Table.from_batches([batch])).scanner(**self._options).to_batches()

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def count_rows(self) -> int:
        return sum(batch.num_rows for batch in self.to_batches())

    def __getattr__(self, name: str) -> Any:
        """Return another method of Arrow's scanner, which works on a table of all rows."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(ds.dataset(self.to_table()).scanner(), name)

    def head(self, num_rows: int) -> pa.Table:
        parts, missing = list[pa.RecordBatch](), num_rows
        for batch in self.to_batches() if num_rows > 0 else ():
            parts.append(batch.slice(0, missing))
            missing -= batch.num_rows
            if missing <= 0:
                break
        return pa.Table.from_batches(parts, self.projected_schema)


def _refers_to(expression: pc.Expression, name: str, schema: pa.Schema) -> bool:
    """Return whether an expression needs a column: if so, encoding it fails with a schema that lacks the column."""
    other_columns = pa.schema([field for field in schema if field.name != name])
    try:
        expression.to_substrait(other_columns)
    except (pa.ArrowInvalid, NotImplementedError, KeyError):
        return True
    return False


def is_text(values: pa.ChunkedArray | pa.Array) -> bool:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True
