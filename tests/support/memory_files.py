"""What fsspec's memory holds: a listing looks at all that was ever stored in it, and so does each write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem


def held() -> dict[str, Any]:
    """All files, by their paths."""
    return dict(MemoryFileSystem.store)


def hold(files: Mapping[str, Any] | None = None) -> None:
    """Hold these files and no others."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    MemoryFileSystem.store.update(files or {})
