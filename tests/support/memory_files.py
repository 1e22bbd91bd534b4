"""The content of fsspec's memory: each listing and each write visits everything that was stored in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem


def held() -> dict[str, Any]:
    return dict(MemoryFileSystem.store)


def refuse_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the store refuse each write, as to who has no right to it."""

    def refused(client: MemoryFileSystem, path: str, *_: object, **__: object) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refused)


def after_write(monkeypatch: pytest.MonkeyPatch, is_it: Callable[[str], bool], work: Callable[[], object]) -> None:
    """Do `work` once, right after the first write to a path that `is_it`."""
    real = MemoryFileSystem.pipe_file

    def write(client: MemoryFileSystem, path: str, *arguments: Any, **named: Any) -> None:
        real(client, path, *arguments, **named)
        if is_it(path):
            monkeypatch.setattr(MemoryFileSystem, "pipe_file", real)
            work()

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", write)


def hold(files: Mapping[str, Any] | None = None) -> None:
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    MemoryFileSystem.store.update(files or {})
