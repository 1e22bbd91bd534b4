"""Redirects the names of their surroundings that modules of the library hold."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any


class ReboundNames:
    """Names that modules of the library hold as globals, default arguments or in cells, with their replacements."""

    def __init__(self, rebound: Mapping[Any, Any]) -> None:
        self._rebound = rebound
        self._inspected = set[str]()
        self._last_modules: tuple[int, str] | None = None
        self._setters: list[tuple[Callable[[Any], None], Any]] = []

    def install(self) -> None:
        # the number and the last one of the modules, since an inspection of all names is slow
        modules = len(sys.modules), next(reversed(sys.modules))
        for name, module in list(sys.modules.items()) if modules != self._last_modules else ():
            if (name == "distlog" or name.startswith("distlog.")) and name not in self._inspected:
                self._inspected.add(name)
                self._inspect(module)
        self._last_modules = modules
        for put, real in self._setters:
            put(self._rebound[real])

    def restore(self) -> None:
        for put, real in self._setters:
            put(real)

    def _inspect(self, module: types.ModuleType) -> None:
        for name, value in list(vars(module).items()):
            if self._is_rebound(value):
                self._setters.append((partial(setattr, module, name), value))
            elif isinstance(value, types.FunctionType):
                self._inspect_function(value)
            elif isinstance(value, type) and value.__module__ == module.__name__:
                for member in list(vars(value).values()):
                    function = getattr(member, "__func__", member)
                    if isinstance(function, types.FunctionType):
                        self._inspect_function(function)

    def _inspect_function(self, function: types.FunctionType) -> None:
        for index, value in enumerate(function.__defaults__ or ()):
            if self._is_rebound(value):
                self._setters.append((partial(_set_default, function, index), value))
        for name, value in (function.__kwdefaults__ or {}).items():
            if self._is_rebound(value):
                self._setters.append((partial(function.__kwdefaults__.__setitem__, name), value))
        # a dataclass keeps the factories of its defaults in cells
        for cell in function.__closure__ or ():
            with suppress(ValueError):
                if self._is_rebound(cell.cell_contents):
                    self._setters.append((partial(setattr, cell, "cell_contents"), cell.cell_contents))

    def _is_rebound(self, value: Any) -> bool:
        try:
            return value in self._rebound
        except TypeError:
            return False


def _set_default(function: types.FunctionType, index: int, value: Any) -> None:
    defaults = list(function.__defaults__ or ())
    defaults[index] = value
    function.__defaults__ = tuple(defaults)
