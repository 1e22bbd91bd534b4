"""Decodes values with schemas to columns, batch by batch; bad values raise an error or become null."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import booleans, integers, numbers_of
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.schemas.framing import unframed

OnError = Literal["fail", "null"]
Longs = npt.NDArray[np.int64]

#: The columns that a read needs in addition to the selected columns.
NEEDED = ("partition", "offset", "value")


class Decoded(NamedTuple):
    """The rows of values, null for nulls and bad values, and the faults of bad values by row."""

    rows: pa.RecordBatch
    faults: Mapping[int, str]


class Decoder(Protocol):
    @property
    def schema(self) -> pa.Schema: ...

    def decode(self, values: pa.Array) -> Decoded: ...


def check_on_error(on_error: str) -> None:
    if on_error not in get_args(OnError):
        raise ValueError(f"on_error must be one of {', '.join(get_args(OnError))}, not {on_error}")


def schema_with(columns: pa.Schema, decoder: Decoder, flatten: bool) -> pa.Schema:
    """Return `columns` with the values' columns in place of `value`, or at the end; as a struct without `flatten`."""
    decoded = decoder.schema if flatten else pa.schema([pa.field("value", pa.struct(list(decoder.schema)))])
    fields = [field for field in columns if field.name != "value"]
    if duplicates := sorted({field.name for field in fields} & set(decoded.names)):
        raise InvalidConfigError(
            f"the column {duplicates[0]} exists already: use flatten=False for one column of the value's fields, "
            "or omit that column from the read",
            columns=",".join(duplicates),
        )
    index = columns.get_field_index("value")
    index = len(fields) if index < 0 else index
    return pa.schema([*fields[:index], *decoded, *fields[index:]])


def decoded_table(
    batches: Iterable[pa.RecordBatch], columns: pa.Schema, decoder: Decoder, on_error: OnError, flatten: bool
) -> pa.Table:
    schema = schema_with(columns, decoder, flatten)
    return pa.Table.from_batches(decoded_batches(batches, schema, decoder, on_error, flatten), schema)


def decoded_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, decoder: Decoder, on_error: OnError, flatten: bool
) -> Iterator[pa.RecordBatch]:
    """Yield batches of `schema`. Raises InvalidRecordError for the first bad value, unless `on_error` is null."""
    for batch in batches:
        values = batch.column("value").cast(pa.binary())
        rows, faults = decoder.decode(values)
        if faults and on_error == "fail":
            _fail(batch, min(faults), faults[min(faults)])
        decoded = dict(zip(rows.schema.names, rows.columns, strict=True))
        if not flatten:
            missing = booleans(np.isin(np.arange(len(values)), list(faults)) | _nulls(values))
            decoded = {"value": pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema), mask=missing)}
        columns = [decoded[field.name] if field.name in decoded else batch.column(field.name) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def without_headers(batches: Iterable[pa.RecordBatch], on_error: OnError) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        ids, payloads = unframed(batch.column("value"))
        bad = (ids < 0) & ~_nulls(batch.column("value"))
        if on_error == "fail" and bad.any():
            _fail(batch, int(bad.argmax()), "the value has no header with a schema's id")
        index = batch.schema.get_field_index("value")
        yield batch.set_column(
            index,
            "value",
            pc.if_else(booleans(bad), pa.nulls(1, payloads.type)[0], payloads) if bad.any() else payloads,
        )


def _nulls(values: pa.Array) -> npt.NDArray[np.bool_]:
    return numbers_of(values.is_null().cast(pa.uint8())).view(np.bool_)


def _fail(batch: pa.RecordBatch, row: int, fault: str) -> None:
    names = [name for name in ("partition", "offset") if name in batch.schema.names]
    position = {name: batch.column(name)[row].as_py() for name in names}
    raise InvalidRecordError(f"{fault}; on_error='null' leaves the fields of bad records null", **position)


def attempt(function: Callable[[Any], Any], argument: Any) -> tuple[Any, str]:
    try:
        return function(argument), ""
    except Exception as error:
        return None, f"{type(error).__name__} {str(error)[:200]}".strip()


#: Up to this many values are decoded one by one, if not all can be decoded together.
FEW = 64

Payloads = TypeVar("Payloads", list[bytes], pa.Array)


def in_halves(
    rows: Longs,
    payloads: Payloads,
    together: Callable[[Payloads], pa.RecordBatch | None],
    singly: Callable[[Longs, Payloads], tuple[Longs, pa.RecordBatch]],
) -> Iterator[tuple[Longs, pa.RecordBatch]]:
    """Yield the rows of decoded payloads and their columns; decodes only a few around a bad value one by one."""
    columns = together(payloads)
    if columns is not None:
        yield rows, columns
    elif len(rows) <= FEW:
        yield singly(rows, payloads)
    else:
        half = len(rows) // 2
        yield from in_halves(rows[:half], payloads[:half], together, singly)
        yield from in_halves(rows[half:], payloads[half:], together, singly)


def scattered(parts: Sequence[tuple[Longs, pa.RecordBatch]], count: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return `count` rows, with the rows of `parts` at their numbers, and null elsewhere."""
    if len(parts) == 1 and len(parts[0][0]) == count:
        return parts[0][1]
    sources = np.full(count, -1, np.int64)
    begin = 0
    for rows, _ in parts:
        sources[rows] = np.arange(begin, begin + len(rows))
        begin += len(rows)
    table = pa.Table.from_batches([batch for _, batch in parts], schema)
    indices = pa.array(sources, mask=sources < 0) if (sources < 0).any() else integers(sources)
    columns = [column.combine_chunks().take(indices) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
