"""The one decorator behind every kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile `function` on first call, without the interpreter lock, and keep the machine code beside the source.

    Where no folder for compiled code can be written (a read-only installation without a home, an archive),
    numba refuses to cache; the kernel then compiles once per process instead.
    """
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:
        return cast(F, numba.njit(nogil=True)(function))
