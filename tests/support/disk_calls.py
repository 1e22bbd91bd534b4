"""Notes the system calls of this process that change a disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Calls:
    """The calls made, with paths below `root`; all temporary files are called so."""

    NAMES = ("open", "write", "writev", "fsync", "close", "link", "unlink", "replace", "mkdir")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.calls_made: list[str] = []
        self._root, self._paths = root, dict[int, str]()
        self._real = {name: getattr(os, name) for name in self.NAMES}
        for name in self.NAMES:
            monkeypatch.setattr(os, name, self._noting(name))

    def _noting(self, name: str) -> Callable[..., Any]:
        def call(first: Any, *arguments: Any, **options: Any) -> Any:
            subject = self._paths.get(first, first) if isinstance(first, int) else first
            result = self._real[name](first, *arguments, **options)
            if name == "open":
                self._paths[result] = str(first)
            else:
                self.calls_made.append(f"{name} {self._shown(subject)}")
            return result

        return call

    def _shown(self, path: Any) -> str:
        shown = os.path.relpath(str(path), self._root)
        return "temporary" if shown.endswith(".tmp") else shown
