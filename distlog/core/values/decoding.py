"""From values with schemas to columns, batch by batch; a value that cannot be decoded is named, or is null."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import booleans, integers, numbers_of
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.values.framing import unframed

OnError = Literal["fail", "null"]
Longs = npt.NDArray[np.int64]

#: The columns that a read needs in addition to the wanted ones.
NEEDED = ("partition", "offset", "value")


class Decoded(NamedTuple):
    """The rows of values, null in each column for a null and for a bad value, and why each bad value is."""

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
    """The `columns` with those of the values instead of `value`, or at the end; as its parts without `flatten`."""
    decoded = decoder.schema if flatten else pa.schema([pa.field("value", pa.struct(list(decoder.schema)))])
    others = [field for field in columns if field.name != "value"]
    if twice := sorted({field.name for field in others} & set(decoded.names)):
        raise InvalidConfigError(
            f"a column is called {twice[0]} already: flatten=False makes one column of the value's fields, "
            "or leave that column out of the read",
            columns=",".join(twice),
        )
    at = max(columns.get_field_index("value"), -1)
    at = len(others) if at < 0 else at
    return pa.schema([*others[:at], *decoded, *others[at:]])


def decoded_table(
    batches: Iterable[pa.RecordBatch], columns: pa.Schema, decoder: Decoder, on_error: OnError, flatten: bool
) -> pa.Table:
    schema = schema_with(columns, decoder, flatten)
    return pa.Table.from_batches(decoded_batches(batches, schema, decoder, on_error, flatten), schema)


def decoded_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, decoder: Decoder, on_error: OnError, flatten: bool
) -> Iterator[pa.RecordBatch]:
    """Batches of `schema`; InvalidRecordError for the first bad value, unless `on_error` is null."""
    for batch in batches:
        values = batch.column("value").cast(pa.binary())
        rows, faults = decoder.decode(values)
        if faults and on_error == "fail":
            _fail(batch, min(faults), faults[min(faults)])
        made = dict(zip(rows.schema.names, rows.columns, strict=True))
        if not flatten:
            missing = booleans(np.isin(np.arange(len(values)), list(faults)) | _nulls(values))
            made = {"value": pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema), mask=missing)}
        columns = [made[field.name] if field.name in made else batch.column(field.name) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def without_headers(batches: Iterable[pa.RecordBatch], on_error: OnError) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        ids, payloads = unframed(batch.column("value"))
        bad = (ids < 0) & ~_nulls(batch.column("value"))
        if on_error == "fail" and bad.any():
            _fail(batch, int(bad.argmax()), "the value has no header with a schema's id")
        at = batch.schema.get_field_index("value")
        yield batch.set_column(
            at, "value", pc.if_else(booleans(bad), pa.nulls(1, payloads.type)[0], payloads) if bad.any() else payloads
        )


def _nulls(values: pa.Array) -> npt.NDArray[np.bool_]:
    return numbers_of(values.is_null().cast(pa.uint8())).view(np.bool_)


def _fail(batch: pa.RecordBatch, row: int, why: str) -> None:
    place = {name: batch.column(name)[row].as_py() for name in ("partition", "offset") if name in batch.schema.names}
    raise InvalidRecordError(f"{why}; on_error='null' leaves the fields of such records null", **place)


def attempt(function: Callable[[Any], Any], given: Any) -> tuple[Any, str]:
    try:
        return function(given), ""
    except Exception as error:
        return None, f"{type(error).__name__} {str(error)[:200]}".strip()


#: Up to this many values are decoded one by one, if some of them cannot be decoded together with the others.
FEW = 64

Payloads = TypeVar("Payloads", list[bytes], pa.Array)


def in_halves(
    rows: Longs,
    payloads: Payloads,
    together: Callable[[Payloads], pa.RecordBatch | None],
    one_by_one: Callable[[Longs, Payloads], tuple[Longs, pa.RecordBatch]],
) -> Iterator[tuple[Longs, pa.RecordBatch]]:
    """The rows of payloads that are decoded, and their columns: together, except a few around each bad value."""
    columns = together(payloads)
    if columns is not None:
        yield rows, columns
    elif len(rows) <= FEW:
        yield one_by_one(rows, payloads)
    else:
        half = len(rows) // 2
        yield from in_halves(rows[:half], payloads[:half], together, one_by_one)
        yield from in_halves(rows[half:], payloads[half:], together, one_by_one)


def scattered(parts: Sequence[tuple[Longs, pa.RecordBatch]], count: int, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of `parts`, each at the number in its part, among `count` rows; the others are null."""
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
