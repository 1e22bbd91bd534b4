"""A store that may ignore the condition of a put, or check it too early, and a process that knows no store yet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from distlog.core.storage import object_client as storage_client


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    def forget() -> None:
        monkeypatch.setattr(storage_client, "_CLIENTS", {})

    forget()
    return forget


class Bucket(MemoryFileSystem):
    """A store with a client of its own; `is_atomic` and `looks` say how it keeps the condition of a put."""

    protocol = "gs"
    store: dict[str, Any] = {}  # noqa: RUF012 - fsspec's memory is shared through the class
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    looks, is_atomic = True, True
    _lock = threading.Lock()

    def begin(self) -> None:
        """Let two of the next puts check before one writes, unless the store is atomic."""
        type(self).has_two, type(self).looking = threading.Event(), 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("gs://", "memory://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if mode != "create" or not self.looks:
            super().pipe_file(path, value)
        elif self.is_atomic:
            with self._lock:
                self._refuse_existing(path)
                super().pipe_file(path, value)
        else:
            self._refuse_existing(path)
            with self._lock:
                type(self).looking += 1
                if self.looking == 2:
                    self.has_two.set()
            assert self.has_two.wait(120)
            super().pipe_file(path, value)

    def _refuse_existing(self, path: str) -> None:
        if self.exists(path):
            raise FileExistsError(path)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, new_process: Any) -> Iterator[type[Bucket]]:
    monkeypatch.setattr(fsspec, "filesystem", lambda protocol, **settings: Bucket(skip_instance_cache=True))
    # where gcsfs is installed
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda _: Bucket)
    monkeypatch.setattr(storage_client, "_CLIENTS", {})
    for name in ("is_atomic", "looks"):
        monkeypatch.setattr(Bucket, name, True)
    Bucket(skip_instance_cache=True).begin()
    yield Bucket
    Bucket.store.clear()
    Bucket.pseudo_dirs[:] = [""]
