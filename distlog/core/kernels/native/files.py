"""Files for kernels: the calls of the C library that open, read and close one, without the interpreter lock."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic

from distlog.core.kernels.native.memory import pointer_to_item

#: `open_file(name, flags)`: a file descriptor, negative when it fails. `name` is a pointer.
open_file: Any = types.ExternalFunction("open", types.int32(types.voidptr, types.int32))

#: `read_at(file, target, count, position)`: the bytes read to the pointer `target`, at most `count`; negative when it
#: fails.
read_at: Any = types.ExternalFunction("pread", types.int64(types.int32, types.voidptr, types.int64, types.int64))

#: `close_file(file)`.
close_file: Any = types.ExternalFunction("close", types.int32(types.int32))


@intrinsic
def _pointer_to_compiled(typing_context: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return pointer_to_item(context, builder, signature.args[0], *args)

    return types.voidptr(array, types.int64), codegen


#: `pointer_to(array, index)`: the address of an item, for these calls.
pointer_to: Any = _pointer_to_compiled
