"""Where the machine code of kernels is kept, also in places that only who installs can write, and who is told of it.

Numba keeps code in NUMBA_CACHE_DIR, beside the source, or below the user's home, wherever it can write. An image for
containers, or an installation of another user, has the code that `distlog warmup` left there, but can mostly not be
written to. So such code is looked for first, and what is missing there is kept where numba would keep it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import numba
from numba.core import config, event
from numba.core.caching import CompileResultCacheImpl, FunctionCache

_log = logging.getLogger("distlog")
#: By the id of a kernel, which lives as long as the process, the folder for its new code, if there is one.
_folders: dict[int, str | None] = {}

#: Beside the source; the name differs between versions of numba.
_InTreeLocator: Any = CompileResultCacheImpl._locator_classes[1]


class _ReadOnlyLocator(_InTreeLocator):  # type: ignore[misc]
    """The place of code that was left there before: in NUMBA_CACHE_DIR if that is set, else beside the source."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        super().__init__(py_func, py_file)
        if folder := getattr(config, "CACHE_DIR", None):
            self._cache_path = os.path.join(folder, self.get_suitable_cache_subpath(py_file))

    def ensure_cache_path(self) -> None:
        """Nothing is written here, so the folder need not be there."""


class _ReadOnlyImpl(CompileResultCacheImpl):
    _locator_classes = [_ReadOnlyLocator]  # noqa: RUF012 - as numba declares it


class _LayeredCache(FunctionCache):
    """Code that cannot be written here, and behind it, if there is any, the place where numba keeps code."""

    _impl_class = _ReadOnlyImpl

    own: Any | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code of a signature, or None."""
        found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        return found if found is not None or self.own is None else self.own.load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep new code where numba would keep it."""
        if self.own is not None:
            self.own.save_overload(sig, data)


def keep_code(compiled: Any, stamp: bytes) -> None:
    """Let `compiled`, a kernel, take its code from where it is kept, and keep it there if that can be written.

    Code is good only for kernels of the same `stamp`: numba looks for changes in the function's own file only.
    """
    own = _cache_of(FunctionCache, compiled.py_func)
    left = _cache_of(_LayeredCache, compiled.py_func)
    if left is not None and (own is None or own.cache_path != left.cache_path):
        left.own = own
        compiled._cache = left
    elif own is not None:
        compiled._cache = own
    for cache in filter(None, (own, left)):
        cache._cache_file._source_stamp = (cache._cache_file._source_stamp, stamp)
    _folders[id(compiled)] = None if own is None else own.cache_path


def _cache_of(kind: Any, function: Callable[..., Any]) -> Any | None:
    try:
        return kind(function)
    except RuntimeError:  # numba finds no place for it
        return None


class _TellOnce(event.Listener):
    """Says once per process that kernels are compiled, and whether the next process will have to do it again."""

    def on_start(self, event: Any) -> None:
        """The compilation of a function begins."""
        kernel = id(event.data.get("dispatcher"))
        if kernel not in _folders:
            return
        folder = _folders[kernel]
        _folders.clear()  # so it is said once
        if folder is None:
            _log.warning(
                "compiling distlog's kernels takes 10 to 30 s, in each process anew, since no folder for the code "
                "can be written: set NUMBA_CACHE_DIR, or let who installs run `distlog warmup`"
            )
        else:
            level = logging.WARNING if sys.stderr.isatty() or "ipykernel" in sys.modules else logging.INFO
            _log.log(level, "compiling distlog's kernels takes 10 to 30 s, once: the code is kept in %s", folder)

    def on_end(self, event: Any) -> None:
        """It has ended."""


if not numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    event.register("numba:compile", _TellOnce())  # type: ignore[no-untyped-call]
