"""CRC-32C of eight bytes by the processor's own instruction, SSE 4.2, where kernels are compiled for one that has it.

On other processors HAS_INSTRUCTION is False and nothing may call `crc_of_word`.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import llvmlite.ir as ir  # type: ignore[import-untyped]
import numba
from numba.core import types
from numba.extending import intrinsic


def _is_there() -> bool:
    config: Any = numba.config
    if config.DISABLE_JIT or config.CPU_NAME or config.CPU_FEATURES:
        return False  # not compiled, or for some other processor
    return platform.machine().lower() in ("x86_64", "amd64") and bool(llvm.get_host_cpu_features().get("sse4.2"))


HAS_INSTRUCTION = _is_there()


@intrinsic
def _crc_of_word_compiled(typing_context: Any, crc: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word_type = ir.IntType(64)
        kind = ir.FunctionType(word_type, [word_type, word_type])
        step = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", (), kind)
        return builder.call(step, args)

    return types.int64(types.int64, types.int64), codegen


#: `crc_of_word(crc, word)`: the register `crc` after the eight bytes of `word`, both int64.
crc_of_word: Any = _crc_of_word_compiled
