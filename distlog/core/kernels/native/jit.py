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

from distlog.core.kernels.native.kept_code import keep_code

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
    """Compile `function` on first call to run without the interpreter lock; the machine code is kept.

    `kept_code` says where. If no folder for compiled code can be written, as in an archive or a read-only
    installation without a home, the kernel compiles once per process, unless `distlog warmup` left its code.
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
    compiled = numba.njit(**options)(function)
    if COMPILED:
        # with the digest of all, since a kernel has code of other files inlined
        keep_code(compiled, _digest_of_sources())
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
