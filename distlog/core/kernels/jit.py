"""The decorators behind every kernel."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar, cast

import numba
from numba.core.compiler_lock import global_compiler_lock

F = TypeVar("F", bound=Callable[..., Any])

# Arrays are then not counted when they are handed from one function to the next.
_UNCOUNTED: Any = {"nogil": True, "_nrt": False}

# A fork waits until no thread loads or compiles a kernel: the child would find numba's lock held for ever by none of
# its own threads, and what it guards half done.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)


def kernel(function: F) -> F:
    """Compile `function` on first call, without the interpreter lock, and keep the machine code beside the source.

    Where no folder for compiled code can be written (a read-only installation without a home, an archive),
    numba refuses to cache; the kernel then compiles once per process instead.
    """
    return _kept(function, nogil=True)


def fill_kernel(function: F) -> F:
    """A kernel that creates no array, but fills those that it is given.

    Numba then counts no references. That matters where arrays are handed on to `inlined` functions: counting costs
    several times what reading a varint does.
    """
    return _kept(function, **_UNCOUNTED)


def inlined(function: F) -> F:
    """A part of fill kernels, merged into each of them by LLVM; it creates no array either."""
    return cast(F, numba.njit(forceinline=True, **_UNCOUNTED)(function))


def _kept(function: F, **options: Any) -> F:
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return cast(F, numba.njit(**options)(function))
    if not numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        # numba looks for changes in the function's own file only, not in what is inlined from others
        index = compiled._cache._cache_file
        index._source_stamp = (index._source_stamp, _digest_of_sources())
    return cast(F, compiled)


@cache
def _digest_of_sources() -> bytes:
    """Changes with any source file of this package."""
    found = sorted(
        (file.name, file.read_bytes()) for file in files(__package__).iterdir() if file.name.endswith(".py")
    )
    return hashlib.sha256(repr(found).encode()).digest()
