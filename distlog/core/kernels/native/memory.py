"""What numba's arrays lack: access without an index check, unaligned words, memcpy on a slice, and prefetch.

Numba tests every index for a negative value, which counts from the end; that took a seventh of a scan of records.
Nothing is checked here: the calling kernel must have compared its positions with the end it was given.
Arrays must be contiguous; a kernel that is given others is not compiled.
With NUMBA_DISABLE_JIT=1 plain Python takes over, so that kernels run, slowly, without a compiler; Python does check.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir  # type: ignore[import-untyped]
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from distlog.core.kernels.native.jit import COMPILED, inlined


def _checked(index: int, array: np.ndarray, count: int = 1) -> int:
    if index < 0 or index > array.size - count:
        raise IndexError(f"{count} items from {index} on, of {array.size}")
    return index


def _item_at_python(array: np.ndarray, index: int) -> int:
    return int(array[_checked(index, array)])


def _put_at_python(array: np.ndarray, index: int, value: int) -> None:
    array[_checked(index, array)] = value


def _word_at_python(data: np.ndarray, position: int) -> int:
    return int.from_bytes(data[_checked(position, data, 8) :][:8].tobytes(), "little", signed=True)


def _copy_bytes_python(
    target: np.ndarray, target_position: int, source: np.ndarray, source_position: int, count: int
) -> None:
    found = source[_checked(source_position, source, count) :][:count]
    target[_checked(target_position, target, count) :][:count] = found


def _wrapped_python(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _bits_of_python(value: int) -> int:
    return value.bit_length()


def _low_zeros_python(word: int) -> int:
    return (word & -word).bit_length() - 1 if word else 64


def _prefetch_python(data: np.ndarray, index: int) -> None:
    """Does nothing: Python has no prefetch."""


def pointer_to_item(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
    """The address of an item, for intrinsics."""
    if array_type.layout != "C":
        raise TypeError("kernels take contiguous arrays")
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [position])


@intrinsic
def _item_at_compiled(typing_context: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        item = builder.load(pointer_to_item(context, builder, signature.args[0], *args))
        extend = builder.sext if getattr(array.dtype, "signed", False) else builder.zext
        return extend(item, ir.IntType(64)) if item.type.width < 64 else item

    return types.int64(array, types.int64), codegen


@intrinsic
def _put_at_compiled(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, _, value_type = signature.args
        item = context.cast(builder, args[2], value_type, array_type.dtype)
        data = context.data_model_manager[array_type.dtype].as_data(builder, item)
        builder.store(data, pointer_to_item(context, builder, array_type, args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.int64, value), codegen


@intrinsic
def _word_at_compiled(typing_context: Any, data: Any, position: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointer_to_item(context, builder, signature.args[0], *args)
        return builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)

    return types.int64(data, types.int64), codegen


@intrinsic
def _copy_bytes_compiled(
    typing_context: Any, target: Any, target_position: Any, source: Any, source_position: Any, count: Any
) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = pointer_to_item(context, builder, signature.args[0], args[0], args[1])
        origin = pointer_to_item(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, to, origin, args[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), codegen


@intrinsic
def _bits_of_compiled(typing_context: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zeros = builder.ctlz(args[0], cgutils.false_bit)
        return builder.sub(zeros.type(64), zeros)

    return types.int64(types.int64), codegen


@intrinsic
def _low_zeros_compiled(typing_context: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], cgutils.false_bit)

    return types.int64(types.int64), codegen


@intrinsic
def _prefetch_compiled(typing_context: Any, data: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte_pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], kind)
        pointer = builder.bitcast(pointer_to_item(context, builder, signature.args[0], *args), byte_pointer)
        # prefetch for a read, keep the line in all caches, and as data
        builder.call(fetch, [pointer, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(data, types.int64), codegen


@inlined
def _wrapped_compiled(value: int) -> int:
    return value


#: `item_at(array, index)`: an item of integers or booleans as an int64, since numba makes a float where signed meets
#: unsigned; an item of uint64 is taken as signed.
item_at: Any = _item_at_compiled if COMPILED else _item_at_python

#: `put_at(array, index, value)`: store an item.
put_at: Any = _put_at_compiled if COMPILED else _put_at_python

#: `word_at(data, position)`: the 8 bytes from `position` as a little-endian int64.
word_at: Any = _word_at_compiled if COMPILED else _word_at_python

#: `copy_bytes(target, target_position, source, source_position, count)`: the slices must not overlap.
copy_bytes: Any = _copy_bytes_compiled if COMPILED else _copy_bytes_python

#: `bits_of(value)`: how many bits a value that is not negative takes; 0 for 0.
bits_of: Any = _bits_of_compiled if COMPILED else _bits_of_python

#: `low_zeros(word)`: the number of zero bits below the lowest bit that is set; 64 if none is.
low_zeros: Any = _low_zeros_compiled if COMPILED else _low_zeros_python

#: `prefetch(array, index)`: begin to fetch an item that will be needed soon; any index is safe.
prefetch: Any = _prefetch_compiled if COMPILED else _prefetch_python

#: `wrapped(value)`: the sum, product or shift of int64s cut to 64 bits, as in machine code; Python's integers grow.
wrapped: Any = _wrapped_compiled if COMPILED else _wrapped_python
