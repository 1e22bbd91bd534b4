"""Arrays from Python and numpy to Arrow and back, without pandas; memory for kernels; and checked integers."""

from __future__ import annotations

# `concurrent.futures.thread` registers hooks that acquire a lock before each fork, and release it after the fork. If
# `_prepare_fork`, itself a hook before forks, were the first to import it, only the release would run.
import concurrent.futures.thread  # noqa: F401
import operator
import os
import re
from array import array as packed
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.errors import InvalidConfigError

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
MIN_LONG = -(2**63)

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

#: Direct writes (O_DIRECT) use whole pages: every disk's block size divides a page.
PAGE_BYTES = 4096
#: The bytes of a buffer for writes: enough to keep a disk busy.
BLOCK_BYTES = 2 << 20
_MIN_POOLED_BYTES = 4096
_BYTE = np.dtype(np.uint8)

# Arrow's `pa.array`, `pa.scalar` and `to_numpy` import pandas where it is installed, which takes as long as all of
# distlog. A command, and each of Spark's planners, is a process of its own that should start at once.


def numbers_of(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return a column of integers without nulls as a read-only array; a copy only if it has several chunks."""
    chunk = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values: npt.NDArray[Any] = np.from_dlpack(chunk)
    values.flags.writeable = False
    return values


def flags_of(column: pa.Array) -> npt.NDArray[np.bool_]:
    if not len(column):
        return np.zeros(0, np.bool_)
    # Arrow's own conversion takes several times as long to start
    skipped_bytes, skipped_bits = divmod(column.offset, 8)
    bits = np.frombuffer(column.buffers()[1], np.uint8)[skipped_bytes:]
    return np.unpackbits(bits, count=skipped_bits + len(column), bitorder="little")[skipped_bits:].view(np.bool_)


def integers(values: npt.ArrayLike, kind: pa.DataType | None = None) -> pa.Array:
    """Return a column of integers; an array of `kind` is not copied. OverflowError if a value is too large."""
    kind = kind or pa.int64()
    source = np.asarray(values)
    array = np.ascontiguousarray(source, f"i{kind.bit_width // 8}")
    if not np.can_cast(source.dtype, array.dtype) and not np.array_equal(array, source):
        raise OverflowError(f"a number does not fit in {kind}")
    return pa.Array.from_buffers(kind, array.size, [None, pa.py_buffer(array)])


def booleans(values: npt.ArrayLike) -> pa.Array:
    array = np.ascontiguousarray(values, np.bool_)
    bits = np.packbits(array, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), array.size, [None, pa.py_buffer(bits)])


def texts(values: Sequence[str]) -> pa.Array:
    return _binary_column([value.encode() for value in values], pa.string(), None)


_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def java_text(data: bytes) -> str:
    """Decode bytes as Java does: a surrogate becomes one U+FFFD, instead of two or three as in Python."""
    return _SURROGATE.sub("\ufffd".encode(), data).decode("utf-8", "replace")


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of Python values, of which some may be None; raises the errors of `pa.array`."""
    try:
        column = _column_without_pandas(values, kind)
    except (TypeError, ValueError, OverflowError, AttributeError):
        column = None
    return pa.array(values, kind) if column is None else column


def scalar_of(value: Any, kind: pa.DataType) -> pa.Scalar:
    return column_of([value], kind)[0]


def table_of_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Same as `pa.Table.from_pylist`."""
    return pa.Table.from_batches([batch_of_rows(rows, schema)])


def table_of_numbers(rows: Sequence[Mapping[str, int]], names: Iterable[str]) -> pa.Table:
    return table_of_rows(rows, pa.schema([(name, pa.int64()) for name in names]))


def batch_of_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Same as `pa.RecordBatch.from_pylist`."""
    columns = [column_of([row.get(spec.name) for row in rows], spec.type) for spec in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_NULL = type(None)
_FEW_VALUES = 64
#: The largest size of the data of an Arrow binary column, whose offsets are int32.
_MAX_DATA_BYTES = 2**31 - 1
_TYPE_CODES = {pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q"}


def _column_without_pandas(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Return the column, or None if only `pa.array` can convert the values."""
    types = set(map(type, values))
    valid = None
    if _NULL in types:
        types.discard(_NULL)
        flags = np.fromiter((value is not None for value in values), np.bool_, len(values))
        valid = pa.py_buffer(np.packbits(flags, bitorder="little"))
    code = "q" if pa.types.is_timestamp(kind) else _TYPE_CODES.get(kind)
    if code and types <= {int}:
        numbers = packed(code, values if valid is None else [value or 0 for value in values])
        return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(numbers)])
    if kind == pa.binary() and types <= {bytes}:
        return _binary_column(values if valid is None else [value or b"" for value in values], kind, valid)
    if kind == pa.string() and types <= {str}:
        return _binary_column([(value or "").encode() for value in values], kind, valid)
    if pa.types.is_list(kind) and types <= {list, tuple}:
        ends = _offsets_of((len(value or ()) for value in values), len(values))
        items = column_of([item for value in values for item in value or ()], kind.value_type)
        return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(ends)], children=[items])
    if kind == pa.bool_() and valid is None and types <= {bool}:
        return booleans(np.array(values, np.bool_))
    if pa.types.is_struct(kind) and valid is None and types in ({tuple}, {dict}, set()):
        names = [spec.name for spec in kind]
        rows = [tuple(map(value.get, names)) for value in values] if types == {dict} else values
        parts = zip(*rows, strict=True) if rows else [()] * kind.num_fields
        children = [column_of(part, spec.type) for part, spec in zip(parts, kind, strict=True)]
        return pa.Array.from_buffers(kind, len(values), [None], children=children)
    return None


def _binary_column(values: Sequence[bytes], kind: pa.DataType, valid: pa.Buffer | None) -> pa.Array:
    ends, data = _offsets_of(map(len, values), len(values)), b"".join(values)
    if len(data) > _MAX_DATA_BYTES:
        raise OverflowError
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(ends), pa.py_buffer(data)])


def _offsets_of(lengths: Iterable[int], count: int) -> Any:
    """Return Arrow's int32 offsets of `count` items: 0, and the end of each item."""
    if count <= _FEW_VALUES:  # a numpy array takes longer to make
        return packed("i", accumulate(lengths, initial=0))
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.fromiter(lengths, np.int32, count), out=ends[1:])
    return ends


def _prepare_fork() -> None:
    global _has_threads
    # Arrow imports pandas here, since a child could wait forever for an import lock of another thread
    pa.array([0])
    _has_threads = len(os.listdir("/proc/self/task")) > 1 if os.path.isdir("/proc/self/task") else True


def _change_pool() -> None:
    """Take memory from the C library if another thread may have held a lock of Arrow's own pool (mimalloc 3)."""
    if _has_threads:
        pa.set_memory_pool(pa.system_memory_pool())


_has_threads = False
os.register_at_fork(before=_prepare_fork, after_in_child=_change_pool)


def byte_view(data: Any) -> memoryview:
    """Return the bytes of `data`, of any item type, as a flat view without a copy."""
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


def byte_array(data: Any) -> np.ndarray:
    """`data`, any contiguous buffer, as a uint8 array; read-only, so that kernels are compiled for one kind only."""
    return np.frombuffer(memoryview(data).toreadonly(), _BYTE)


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, spec.type) for spec in schema], schema=schema)


def join(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return one batch with all rows of `batches`: at least one batch, all of the same schema."""
    filled = [batch for batch in batches if len(batch)] or batches[:1]
    if len(filled) == 1:
        return filled[0]
    # as structs, since a table of few rows takes twice as long, and `pa.concat_batches` came with Arrow 19
    return pa.RecordBatch.from_struct_array(pa.concat_arrays([batch.to_struct_array() for batch in filled]))


def new_array(size: int, dtype: type[np.generic]) -> np.ndarray:
    """Return an uninitialised array. Large ones reuse pages of Arrow's pool: fresh pages take longer than kernels."""
    if size < _MIN_POOLED_BYTES:
        return np.empty(size, dtype)
    return np.frombuffer(pa.allocate_buffer(size * np.dtype(dtype).itemsize), dtype)


def fitted(array: np.ndarray, size: int) -> np.ndarray:
    """The first `size` items of an array that was made too large; copied if a quarter or more would be wasted."""
    if 4 * size > 3 * array.size:
        return array[:size]
    copied = new_array(size, array.dtype.type)
    copied[:] = array[:size]
    return copied


def new_pages(size: int, position: int = 0) -> npt.NDArray[np.uint8]:
    """Return uninitialised memory for the bytes of a file from `position` on.

    Each page of the file lies in one page of the memory, so that a direct write needs no copy.
    """
    memory = np.frombuffer(pa.allocate_buffer(size + PAGE_BYTES), np.uint8)
    start = (position - address(memory)) % PAGE_BYTES
    return memory[start : start + size]


def lies_in_pages(memory: npt.NDArray[np.uint8], position: int) -> bool:
    return (address(memory) - position) % PAGE_BYTES == 0


def address(memory: npt.NDArray[np.uint8]) -> int:
    begin: int = memory.__array_interface__["data"][0]
    return begin


def whole_number(name: str, value: object) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise InvalidConfigError(f"{name} must be a whole number", value=repr(value))


def count_of(name: str, value: object) -> int:
    if (number := whole_number(name, value)) < 0:
        raise InvalidConfigError(f"{name} must be 0 or more", value=number)
    return number


def whole_numbers(name: str, values: object) -> list[int]:
    if isinstance(values, Iterable) and not isinstance(values, str):
        return [whole_number(name, value) for value in values]
    return [whole_number(name, values)]
