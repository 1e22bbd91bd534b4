"""A local disk that forgets what was not synced, and processes that end in the middle of a call."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distlog.core.storage import local_files

CALLS = ("open", "write", "writev", "fsync", "link", "unlink", "replace", "mkdir")

_REAL = {name: getattr(os, name) for name in CALLS}


class Killed(BaseException):
    """The process is no more."""


class Disk:
    """The state of the folder `root` after a power loss; it watches this process's system calls.

    A folder keeps the names that it had when it was synced last, and a file the bytes. The initial
    content is durable.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self._root = root
        self._names: dict[int, dict[str, int]] = {}
        self._bytes: dict[int, bytes] = {}
        self._kinds: dict[int, bool] = {}
        self._steps_left: int | None = None
        for folder, _, files in os.walk(root):
            self._sync_names(folder)
            for file in files:
                self._sync_bytes(os.path.join(folder, file))
        for name in CALLS:
            monkeypatch.setattr(os, name, self._watched(name))
        self._monkeypatch = monkeypatch

    def new_process(self, steps: int | None = None) -> None:
        """Forget what a process remembers; with `steps` it ends before its call of that number."""
        self._monkeypatch.setattr(local_files, "DURABLE_FOLDERS", {})
        self._steps_left = steps

    def after_power_loss(self, folder: Path) -> Path:
        self._restore(os.stat(self._root).st_ino, folder)
        return folder

    def _watched(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self._steps_left is not None and (name != "open" or arguments[1] & os.O_CREAT):
                if self._steps_left == 0:
                    raise Killed
                self._steps_left -= 1
            result = _REAL[name](*arguments, **options)
            self._note(name, arguments, result)
            return result

        return call

    def _note(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        if name == "open" and arguments[1] & os.O_CREAT and not os.fstat(result).st_size:
            # a new file, which may have the number of a deleted one
            self._bytes[os.fstat(result).st_ino] = b""
        elif name == "mkdir":
            self._names[os.stat(arguments[0]).st_ino] = {}
        elif name == "fsync":
            path = os.readlink(f"/proc/self/fd/{arguments[0]}")
            if Path(path).is_relative_to(self._root):
                (self._sync_names if stat.S_ISDIR(os.fstat(arguments[0]).st_mode) else self._sync_bytes)(path)

    def _sync_names(self, folder: str) -> None:
        with os.scandir(folder) as names:
            entries = {entry.name: entry for entry in names}
        self._names[os.stat(folder).st_ino] = {name: entry.inode() for name, entry in entries.items()}
        self._kinds.update({entry.inode(): entry.is_dir() for entry in entries.values()})

    def _sync_bytes(self, file: str) -> None:
        descriptor = _REAL["open"](file, os.O_RDONLY)
        try:
            self._bytes[os.fstat(descriptor).st_ino] = os.pread(descriptor, 1 << 30, 0)
        finally:
            os.close(descriptor)

    def _restore(self, inode: int, folder: Path) -> None:
        _REAL["mkdir"](folder)
        for name, child in self._names[inode].items():
            if self._kinds[child]:
                self._restore(child, folder / name)
                continue
            descriptor = _REAL["open"](folder / name, os.O_WRONLY | os.O_CREAT)
            _REAL["write"](descriptor, self._bytes[child])
            os.close(descriptor)
