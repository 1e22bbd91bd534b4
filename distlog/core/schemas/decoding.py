"""Decodes values with schemas to columns, batch by batch; bad values raise an error or become null.

The values of a registry begin with a header: a zero byte, the schema's id in four bytes, and in Protobuf the indexes
of the message in its file. This is Confluent's wire format:
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrays import Bytes, Longs, booleans, flags_of, integers
from distlog.core.errors import InvalidConfigError, InvalidRecordError

OnError = Literal["fail", "null"]
"""The action for a value that cannot be decoded: raise, or make its fields null."""
ValueFormat = Literal["json", "avro", "protobuf"]
"""The format of values: json, avro or protobuf."""
#: The row numbers of some values, ascending, and their decoded columns.
DecodedRows = tuple[Longs, pa.RecordBatch]
#: The columns that a read needs in addition to the selected columns.
DECODING_COLUMNS = ("partition", "offset", "value")
#: At most this many values are decoded one by one if they cannot be decoded together.
MAX_SINGLY = 64
Payloads = TypeVar("Payloads", list[bytes], pa.Array)
#: The size of a value's header: a zero byte and the schema's id.
HEADER_BYTES = 5
#: The most indexes of a message, one for each level of nesting: protoc refuses deeper messages.
MAX_DEPTH = 32
#: The most bytes of a message's indexes: 5 for their count, and 5 for each.
INDEXES_BYTES = 5 * (MAX_DEPTH + 1)
#: The location of a message in its file: the index of the outermost message, the index within that message, ...
Indexes = tuple[int, ...]
_SHORT_INDEXES_BYTES = 8  # indexes of at most this many bytes are decoded in bulk: up to seven levels of messages


class Decoder(Protocol):
    @property
    def schema(self) -> pa.Schema: ...

    def decode(self, values: pa.Array) -> Decoded: ...


class Decoded(NamedTuple):
    """The rows of values, null for nulls and bad values, and the faults of bad values by row."""

    rows: pa.RecordBatch
    faults: Mapping[int, str]


def check_on_error(on_error: str) -> None:
    if on_error not in get_args(OnError):
        raise ValueError(f"on_error must be one of {', '.join(get_args(OnError))}, not {on_error}")


def schema_with(columns: pa.Schema, decoder: Decoder, flatten: bool) -> pa.Schema:
    """Return `columns` with the values' columns instead of `value`, or if not `flatten`, with a column of structs."""
    decoded = decoder.schema if flatten else pa.schema([pa.field("value", pa.struct(list(decoder.schema)))])
    fields = [field for field in columns if field.name != "value"]
    check_distinct([field.name for field in fields], decoded.names)
    index = columns.get_field_index("value")
    index = len(fields) if index < 0 else index
    return pa.schema([*fields[:index], *decoded, *fields[index:]])


def check_distinct(other_columns: Sequence[str], decoded: Sequence[str]) -> None:
    if duplicates := sorted(set(other_columns) & set(decoded)):
        raise InvalidConfigError(
            f"the column {duplicates[0]} exists already: use flatten=False for one column of the value's fields, "
            "or omit that column from the read",
            columns=",".join(duplicates),
        )


def decoded_batch(
    batch: pa.RecordBatch, schema: pa.Schema, decoder: Decoder, on_error: OnError, flatten: bool
) -> pa.RecordBatch:
    """Return the batch with decoded values. Raises InvalidRecordError for a bad value, unless `on_error` is null."""
    values = batch.column("value").cast(pa.binary())
    rows, faults = decoder.decode(values)
    if faults and on_error == "fail":
        names = [name for name in ("partition", "offset") if name in batch.schema.names]
        position = {name: batch.column(name)[min(faults)].as_py() for name in names}
        text = f"{faults[min(faults)]}; on_error='null' leaves the fields of bad records null"
        raise InvalidRecordError(text, **position)
    decoded = dict(zip(rows.schema.names, rows.columns, strict=True))
    if not flatten:
        missing = booleans(np.isin(np.arange(len(values)), list(faults)) | flags_of(values.is_null()))
        decoded = {"value": pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema), mask=missing)}
    columns = [decoded[field.name] if field.name in decoded else batch.column(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def attempt(function: Callable[[Any], Any], argument: Any) -> tuple[Any, str]:
    """Return the result and an empty text, or None and the error as text."""
    try:
        return function(argument), ""
    except Exception as error:
        return None, f"{type(error).__name__} {str(error)[:200]}".strip()


def decode_singly(
    read: Callable[[Any], Any], expected: str, faults: dict[int, str], rows: Longs, payloads: Sequence[Any]
) -> dict[int, Any]:
    """Return the values that `read` returns for payloads, by row; adds the errors of bad payloads to `faults`."""
    values = {}
    for row, payload in zip(rows.tolist(), payloads, strict=True):
        value, fault = attempt(read, payload)
        if fault:
            faults[row] = f"the value is not {expected}: {fault}"
        else:
            values[row] = value
    return values


def decode_in_halves(
    rows: Longs,
    payloads: Payloads,
    decode_together: Callable[[Payloads], pa.RecordBatch | None],
    decode_one_by_one: Callable[[Longs, Payloads], DecodedRows],
) -> Iterator[DecodedRows]:
    """Decode payloads together, or in halves if `decode_together` returns None, as it does for one bad value."""
    columns = decode_together(payloads)
    if columns is not None:
        yield rows, columns
    elif len(rows) <= MAX_SINGLY:
        yield decode_one_by_one(rows, payloads)
    else:
        half = len(rows) // 2
        yield from decode_in_halves(rows[:half], payloads[:half], decode_together, decode_one_by_one)
        yield from decode_in_halves(rows[half:], payloads[half:], decode_together, decode_one_by_one)


def rows_at_numbers(parts: Sequence[DecodedRows], count: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return `count` rows: the rows of `parts` at their row numbers, and null in other rows."""
    if len(parts) == 1 and len(parts[0][0]) == count:
        return parts[0][1]
    sources = np.full(count, -1, np.int64)  # by result row, its row in the joined parts
    begin = 0
    for rows, _ in parts:
        sources[rows] = np.arange(begin, begin + len(rows))
        begin += len(rows)
    table = pa.Table.from_batches([batch for _, batch in parts], schema)
    indices = pa.array(sources, mask=sources < 0) if (sources < 0).any() else integers(sources)
    columns = [column.combine_chunks().take(indices) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class SplitValues(NamedTuple):
    """The schema ids in values' headers, -1 for a value without a header, and the values without their headers."""

    ids: Longs
    payloads: pa.Array


def split_headers(values: pa.Array) -> SplitValues:
    ids = np.full(len(values), -1, np.int64)
    starts, lengths, data = _slices(values)
    # the bytes of the headers: a zero byte, and the id in big-endian order
    rows = np.flatnonzero(lengths >= HEADER_BYTES)
    headers = data[starts[rows][:, None] + np.arange(HEADER_BYTES)]
    header_ids = headers[:, 1:].copy().view(">i4").ravel().astype(np.int64)
    valid = (headers[:, 0] == 0) & (header_ids >= 0)
    ids[rows[valid]] = header_ids[valid]
    return SplitValues(ids, without_prefixes(values, np.minimum(lengths, HEADER_BYTES)))


def _slices(values: pa.Array) -> tuple[Longs, Longs, Bytes]:
    """Return the starts of values in their bytes, their lengths, and the bytes; a null has no bytes."""
    if not len(values):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)
    _, ends, data = values.buffers()
    offsets = np.frombuffer(ends, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    if values.null_count:
        lengths[~flags_of(values.is_valid())] = 0
    return offsets[:-1], lengths, np.frombuffer(data or b"", np.uint8)


def without_prefixes(values: pa.Array, sizes: Longs) -> pa.Array:
    """Return the values without their prefixes: value i without its first `sizes[i]` bytes."""
    # Flag the bytes of the values, then unflag those in prefixes. The positions of n[i] bytes from starts[i] on, for
    # all i, are repeat(starts - cumsum(n) + n, n) + arange(sum(n)): a run begins at starts[i] and ascends by 1.
    starts, lengths, data = _slices(values)
    new_offsets = np.concatenate([[0], np.cumsum(lengths - sizes)])
    is_payload = np.zeros(len(data), np.bool_)
    if len(starts) and not values.null_count:  # the values are contiguous
        is_payload[starts[0] : starts[-1] + lengths[-1]] = True
    else:
        is_payload[np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())] = True
    is_payload[np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())] = False
    valid = values.is_valid().buffers()[1] if values.null_count else None
    buffers = [valid, pa.py_buffer(new_offsets.astype(np.int32)), pa.py_buffer(data[is_payload])]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def split_messages(payloads: pa.Array) -> tuple[list[Indexes | None], npt.NDArray[np.intp], pa.Array]:
    """Return a list of distinct Indexes (None if bad), each payload's position in this list, and the messages."""
    # almost all payloads have the indexes (0,), which are one zero byte; only other indexes are decoded
    starts, lengths, data = _slices(payloads)
    codes, sizes = np.zeros(len(payloads), np.intp), np.minimum(lengths, 1)
    code_by_indexes: dict[Indexes | None, int] = {(0,): 0}
    nonempty = np.flatnonzero(lengths)
    other_rows = np.concatenate([nonempty[data[starts[nonempty]] != 0], np.flatnonzero(lengths == 0)])
    # the bytes of the indexes as numbers, so that equal indexes are decoded once
    heads = _short_indexes(starts[other_rows], lengths[other_rows], data)
    distinct_heads, head_of_row = np.unique(heads, return_inverse=True)
    decoded = [_read_indexes(head.to_bytes(_SHORT_INDEXES_BYTES, "little")) for head in distinct_heads.tolist()]
    head_codes = [code_by_indexes.setdefault(indexes, len(code_by_indexes)) for indexes, _ in decoded]
    codes[other_rows] = np.array(head_codes, np.intp)[head_of_row]
    sizes[other_rows] = np.array([size for _, size in decoded], np.int64)[head_of_row]
    for row in other_rows[heads == 0].tolist():  # long or bad indexes: replace the result for a head of 0
        indexes, sizes[row] = _read_indexes(bytes(data[starts[row] : starts[row] + min(lengths[row], INDEXES_BYTES)]))
        codes[row] = code_by_indexes.setdefault(indexes, len(code_by_indexes))
    return list(code_by_indexes), codes, without_prefixes(payloads, sizes)


def _short_indexes(starts: Longs, lengths: Longs, data: Bytes) -> npt.NDArray[np.uint64]:
    """Return the bytes of each payload's indexes as one number; 0 for long or bad indexes."""
    # in short indexes all numbers are one byte, and the first, a zigzag varint, is twice the number of indexes
    columns = np.arange(_SHORT_INDEXES_BYTES)
    inside = columns < lengths[:, None]
    # bytes past the payload's end are 0x80, the first byte of a longer number, so that cut indexes are not short
    heads = np.full(inside.shape, 0x80, np.uint8)
    heads[inside] = data[(starts[:, None] + columns)[inside]]
    sizes = 1 + (heads[:, :1] >> 1)
    is_index = columns < sizes
    short = (sizes[:, 0] <= _SHORT_INDEXES_BYTES) & (heads[:, 0] % 2 == 0) & ((heads < 0x80) | ~is_index).all(axis=1)
    numbers: npt.NDArray[np.uint64] = np.where(is_index, heads, 0).astype(np.uint8).view("<u8").ravel()
    return np.where(short, numbers, 0).astype(np.uint64)


def _read_indexes(payload: bytes) -> tuple[Indexes | None, int]:
    """Read a count and the indexes, zigzag varints; returns the indexes and the bytes read, or (None, 0)."""
    count, position = _zigzag(payload, 0)
    if not 0 < count <= MAX_DEPTH:
        # a count of 0 stands for (0,); without a count, `_zigzag` returns -1
        return ((0,), position) if count == 0 else (None, 0)
    numbers = []
    for _ in range(count):
        number, next_position = _zigzag(payload, position)
        if next_position == position or number < 0:
            return None, 0
        numbers.append(number)
        position = next_position
    return tuple(numbers), position


def _zigzag(payload: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position and the next position, or -1 and the same position if there is no number."""
    number = 0
    for shift, byte in enumerate(payload[position : position + 5]):
        number |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position + shift + 1
    return -1, position
