"""The decorators behind every kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

# Arrays are then not counted when they are handed from one function to the next.
_UNCOUNTED: Any = {"nogil": True, "_nrt": False}


def kernel(function: F) -> F:
    """Compile `function` on first call, without the interpreter lock, and keep the machine code beside the source.

    Where no folder for compiled code can be written (a read-only installation without a home, an archive),
    numba refuses to cache; the kernel then compiles once per process instead.
    """
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:
        return cast(F, numba.njit(nogil=True)(function))


def fill_kernel(function: F) -> F:
    """A kernel that creates no array, but fills those that it is given.

    Numba then counts no references. That matters where arrays are handed on to `inlined` functions: counting costs
    several times what reading a varint does.
    """
    try:
        return cast(F, numba.njit(cache=True, **_UNCOUNTED)(function))
    except RuntimeError:
        return cast(F, numba.njit(**_UNCOUNTED)(function))


def inlined(function: F) -> F:
    """A part of fill kernels, merged into each of them by LLVM; it creates no array either.

    Numba looks for changes in a kernel's own file only: after a change here, remove the `.nbi` files of its callers.
    """
    return cast(F, numba.njit(forceinline=True, **_UNCOUNTED)(function))
