"""What numba's arrays lack: loads of one and of 8 unaligned bytes, the C library's memcpy on a slice, and prefetch.

All are unchecked: the kernel that calls them has compared the bytes that it needs with the end it was given.
With NUMBA_DISABLE_JIT=1 plain Python stands in, so that kernels run, slowly, without a compiler.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic


def _byte_at_python(data: np.ndarray, position: int) -> int:
    return int(data[position])


def _word_at_python(data: np.ndarray, position: int) -> int:
    return int.from_bytes(data[position : position + 8].tobytes(), "little", signed=True)


def _copy_bytes_python(
    target: np.ndarray, target_position: int, source: np.ndarray, source_position: int, count: int
) -> None:
    target[target_position : target_position + count] = source[source_position : source_position + count]


def _prefetch_python(data: np.ndarray, index: int) -> None:
    """There is nothing to hurry."""


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [position])


@intrinsic
def _byte_at_compiled(typing_context: Any, data: Any, position: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *args)
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(data, types.int64), codegen


@intrinsic
def _word_at_compiled(typing_context: Any, data: Any, position: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *args)
        return builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)

    return types.int64(data, types.int64), codegen


@intrinsic
def _copy_bytes_compiled(
    typing_context: Any, target: Any, target_position: Any, source: Any, source_position: Any, count: Any
) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = _pointer(context, builder, signature.args[0], args[0], args[1])
        origin = _pointer(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, to, origin, args[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), codegen


@intrinsic
def _prefetch_compiled(typing_context: Any, data: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte_pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], kind)
        pointer = builder.bitcast(_pointer(context, builder, signature.args[0], *args), byte_pointer)
        # for reading, to stay in all caches, as data
        builder.call(fetch, [pointer, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(data, types.int64), codegen


_compiled = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]

#: `byte_at(data, position)`: a byte, 0 to 255, as an int64; numba makes floats where signed meets unsigned.
byte_at: Any = _byte_at_compiled if _compiled else _byte_at_python

#: `word_at(data, position)`: the 8 bytes from `position` as a little-endian int64.
word_at: Any = _word_at_compiled if _compiled else _word_at_python

#: `copy_bytes(target, target_position, source, source_position, count)`: the slices must not overlap.
copy_bytes: Any = _copy_bytes_compiled if _compiled else _copy_bytes_python

#: `prefetch(array, index)`: begin to fetch the item, which will be wanted soon; any index is safe.
prefetch: Any = _prefetch_compiled if _compiled else _prefetch_python
