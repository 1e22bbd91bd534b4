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

#: Whether kernels are compiled; with NUMBA_DISABLE_JIT=1 they run as plain Python.
COMPILED: bool = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]

# Numba then counts no references to arrays when one function passes them to the next.
_UNCOUNTED: Any = {"nogil": True, "_nrt": False}

# A fork waits until no thread loads or compiles a kernel. Otherwise the child would find numba's lock held forever,
# since it does not have the thread that holds it, and the state that the lock guards half changed.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)


def kernel(function: F) -> F:
    """Compile `function` on first call to run without the interpreter lock; keep the machine code beside the source.

    Where no folder for compiled code can be written (a read-only installation without a home, an archive),
    numba refuses to cache; the kernel then compiles once per process instead.
    """
    return _kept(function, nogil=True)


def fill_kernel(function: F) -> F:
    """A kernel that creates no array and only fills the arrays that it is given.

    Numba then counts no references. That matters where arrays are passed on to `inlined` functions: counting costs
    several times as much as reading a varint.
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
    if COMPILED:
        # numba looks for changes in the function's own file only, not in the files of inlined functions
        index = compiled._cache._cache_file
        index._source_stamp = (index._source_stamp, _digest_of_sources())
    return cast(F, compiled)


@cache
def _digest_of_sources() -> bytes:
    """A digest that changes with any source file that a kernel may be made of."""
    core, kernels = files("distlog.core"), files("distlog.core.kernels")
    folders = (kernels, kernels / "native")
    found = sorted(
        (file.name, file.read_bytes()) for folder in folders for file in folder.iterdir() if file.name.endswith(".py")
    )
    tuples = (core / "kernel_tuples.py").read_bytes()
    return hashlib.sha256(repr((tuples, found)).encode()).digest()
