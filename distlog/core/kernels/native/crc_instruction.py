"""CRC-32C of eight bytes by the processor's own instruction, SSE 4.2, if numba compiles for a processor that has it.

Otherwise HAS_INSTRUCTION is False, and nothing may call `crc_of_word`.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir  # type: ignore[import-untyped]
import numba
from numba.core import types
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic


def _is_there() -> bool:
    # Ask what numba compiles for, which is also its key for cached code, not what this processor happens to have.
    config: Any = numba.config
    host_features: Any = get_host_cpu_features
    features = host_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return not config.DISABLE_JIT and "+sse4.2" in features.split(",")


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
