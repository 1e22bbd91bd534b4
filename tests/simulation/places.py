"""Where modules of the library hold names of their surroundings, so that these lead to a world, and back."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any


class Places:
    """Where the library's modules hold names of their surroundings: as globals, default arguments, or in cells.

    `rebound` has, for each real name, the one that leads to the world.
    """

    def __init__(self, rebound: Mapping[Any, Any]) -> None:
        self._rebound = rebound
        self._looked_at = set[str]()
        self._seen: tuple[int, str] | None = None
        self._setters: list[tuple[Callable[[Any], None], Any]] = []

    def lead_here(self) -> None:
        """Have all of them lead to the world."""
        # the last one that was imported: to look at all of their names takes as long as all else at a world's begin
        seen = len(sys.modules), next(reversed(sys.modules))
        for name, module in list(sys.modules.items()) if seen != self._seen else ():
            if (name == "distlog" or name.startswith("distlog.")) and name not in self._looked_at:
                self._looked_at.add(name)
                self._look_at(module)
        self._seen = seen
        for put, real in self._setters:
            put(self._rebound[real])

    def lead_back(self) -> None:
        """Have all of them lead to the machine."""
        for put, real in self._setters:
            put(real)

    def _look_at(self, module: types.ModuleType) -> None:
        for name, value in list(vars(module).items()):
            if self._is_rebound(value):
                self._setters.append((partial(setattr, module, name), value))
            elif isinstance(value, types.FunctionType):
                self._look_at_function(value)
            elif isinstance(value, type) and value.__module__ == module.__name__:
                for each in list(vars(value).values()):
                    function = getattr(each, "__func__", each)
                    if isinstance(function, types.FunctionType):
                        self._look_at_function(function)

    def _look_at_function(self, function: types.FunctionType) -> None:
        for at, value in enumerate(function.__defaults__ or ()):
            if self._is_rebound(value):
                self._setters.append((partial(_set_default, function, at), value))
        for name, value in (function.__kwdefaults__ or {}).items():
            if self._is_rebound(value):
                self._setters.append((partial(function.__kwdefaults__.__setitem__, name), value))
        # where a dataclass keeps the makers of its defaults
        for cell in function.__closure__ or ():
            with suppress(ValueError):
                if self._is_rebound(cell.cell_contents):
                    self._setters.append((partial(setattr, cell, "cell_contents"), cell.cell_contents))

    def _is_rebound(self, value: Any) -> bool:
        try:
            return value in self._rebound
        except TypeError:
            return False


def _set_default(function: types.FunctionType, at: int, value: Any) -> None:
    defaults = list(function.__defaults__ or ())
    defaults[at] = value
    function.__defaults__ = tuple(defaults)
