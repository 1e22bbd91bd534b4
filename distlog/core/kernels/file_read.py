"""Reads many small files in one call, without the interpreter lock.

From Python each open, read and close releases the lock and takes it again, so threads that read small files hinder
each other: that was a seventh of the time of a scan of small files by two threads.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from distlog.core.kernels.jit import fill_kernel
from distlog.core.kernels.memory import pointer_to_item

_open: Any = types.ExternalFunction("open", types.int32(types.voidptr, types.int32))
_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.voidptr, types.int64, types.int64))
_close: Any = types.ExternalFunction("close", types.int32(types.int32))


@intrinsic
def _pointer_to_compiled(typing_context: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return pointer_to_item(context, builder, signature.args[0], *args)

    return types.voidptr(array, types.int64), codegen


_pointer_to: Any = _pointer_to_compiled


@fill_kernel
def _read_files(
    names: np.ndarray, name_at: np.ndarray, starts: np.ndarray, sizes: np.ndarray, data: np.ndarray, flags: int
) -> int:
    filled = 0
    for row in range(sizes.size):
        file = _open(_pointer_to(names, name_at[row]), flags)
        if file < 0:
            return row
        done = 0
        while done < sizes[row]:
            count = _pread(file, _pointer_to(data, filled + done), sizes[row] - done, starts[row] + done)
            if count <= 0:
                break
            done += count
        _close(file)
        if done < sizes[row]:
            return row
        filled += sizes[row]
    return sizes.size


def _read_none(
    names: np.ndarray, name_at: np.ndarray, starts: np.ndarray, sizes: np.ndarray, data: np.ndarray, flags: int
) -> int:
    return 0


#: `read_files(names, name_at, starts, sizes, data, flags)`: open files with `flags` and read `sizes` bytes of each
#: from `starts` on into `data`, which must have room. Each name ends with a zero byte and begins in `names` at
#: `name_at`. Returns how many files were read before one that does not give all its bytes, or is interrupted, without
#: the reason. Without a compiler it reads none.
read_files: Any = _read_none if numba.config.DISABLE_JIT else _read_files  # type: ignore[attr-defined]
