"""Reads a checkpoint's Parquet file in an amount of memory that its size bounds, whatever it holds.

Parquet packs well: a file of 100 kB may say "the same value, 100 million times". So the memory needed is first
computed from the headers of its pages. Strings are read as dictionaries, which do not repeat them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distlog.core.commits.checkpoints import parquet_memory

#: To read a checkpoint may take FREE_BYTES, and BYTES_PER_BYTE times its size. Usual ones take 10 to 30 times.
FREE_BYTES = 64 << 20
BYTES_PER_BYTE = 128
#: Rows that any may have, and how many bytes each row more must have: a usual one has 13 to 60.
FREE_ROWS = 10_000
BYTES_PER_ROW = 4

_LONGEST_LIST = 100_000


def check(data: bytes) -> None:
    """Raise ValueError when reading the Parquet file `data` would take more memory than it may."""
    bytes_needed = parquet_memory.needed(memoryview(data))
    if bytes_needed > _budget(data):
        raise ValueError(f"to read it takes {bytes_needed} bytes of memory, far more than its size")


def read(data: bytes) -> pa.Table:
    """The table that the Parquet file `data` holds; raises as `check` does, also for too many rows."""
    check(data)
    with _open(data) as file:
        footer = file.metadata
        if footer.num_rows > FREE_ROWS + len(data) // BYTES_PER_ROW:
            raise ValueError(f"it has {footer.num_rows} rows, far more than its size")
        leaves = [file.schema.column(number) for number in range(len(file.schema))]
    with _open(data, [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"], footer) as file:
        return _plain(file.read(), _budget(data))


def _open(data: bytes, strings: Sequence[str] = (), footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    source, limit = pa.BufferReader(data), _LONGEST_LIST
    return pq.ParquetFile(source, metadata=footer, read_dictionary=list(strings), thrift_container_size_limit=limit)


def _budget(data: bytes) -> int:
    return FREE_BYTES + BYTES_PER_BYTE * len(data)


def _plain(table: pa.Table, budget: int) -> pa.Table:
    """`table` with dictionaries replaced by their strings, which may take `budget` bytes in all."""
    size = sum(_string_bytes(chunk) for column in table.columns for chunk in column.chunks)
    if size > budget:
        raise ValueError(f"its strings are {size} bytes, far more than its size")
    return table.cast(
        pa.schema([field.with_type(_plain_type(field.type)) for field in table.schema], table.schema.metadata)
    )


def _string_bytes(array: pa.Array) -> int:
    """The bytes of all strings in `array` when none of them is shared."""
    if pa.types.is_dictionary(array.type):
        lengths = pc.binary_length(array.dictionary)
        return pc.sum(pc.take(lengths, array.indices)).as_py() or 0
    if pa.types.is_struct(array.type):
        return sum(_string_bytes(array.field(number)) for number in range(array.type.num_fields))
    return _string_bytes(array.values) if pa.types.is_list(array.type) else 0


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        return pa.struct([member.with_type(_plain_type(member.type)) for member in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind
