"""A disk that loses random unsynced data, page by page and name by name.

It intercepts this process's system calls in one folder, and keeps the durable bytes of each file. A sync makes all
pages durable, and the kernel may do so before. A failed sync makes none durable, and the pages count as clean: no
later sync writes them, unless they change again (as in Linux since 4.13). A page of a map is written at any time, so
the caller determines the page of the lock.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from distlog.core.storage import local_files
from distlog.core.storage.locks_and_pages import SharedPage

PAGE = 4096
SECTOR = 512
STEPS = ("open", "write", "pwrite", "ftruncate", "posix_fallocate", "fsync", "link", "unlink", "replace", "mkdir")
_REAL = {name: getattr(os, name) for name in STEPS}
_WRITE_PAGE = SharedPage.write


class PowerLossError(BaseException):
    """The machine lost its power."""


class CachedFile:
    """A file: a descriptor that reserves its number, the durable bytes, and the pages that no sync writes."""

    def __init__(self, path: str, is_durable: bool) -> None:
        self.file = _REAL["open"](path, os.O_RDONLY | os.O_CLOEXEC)
        self.device = self.now() if is_durable else b""
        self.lost_pages: set[int] = set()

    def now(self) -> bytes:
        return os.pread(self.file, os.fstat(self.file).st_size, 0)


class LossyDisk:
    def __init__(self, patches: pytest.MonkeyPatch, root: Path, chance: random.Random) -> None:
        self.root, self.chance, self._patches = root, chance, patches
        self.steps_left: int | None = None
        self.failing_syncs = 0
        self.syncs = 0
        self._files: dict[int, CachedFile] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        for folder, _, files in os.walk(root):
            for file in files:
                self._file(os.path.join(folder, file), is_durable=True)
            self._names[os.stat(folder).st_ino] = self._listed(folder)
        self._is_off = False
        for name in STEPS:
            patches.setattr(os, name, self._watched(name))
        patches.setattr(SharedPage, "write", lambda page, value: self._write_page(page, value))
        patches.setattr(local_files, "DURABLE_FOLDERS", {})

    def after_power_loss(self, folder: Path) -> None:
        """Restore the state after a power loss in `folder`."""
        self._restore(str(self.root), folder)

    @contextmanager
    def power_until(self, steps: int) -> Iterator[None]:
        """Let the power fail before a step in this block."""
        self.steps_left = steps
        try:
            yield
        finally:
            self.steps_left = None

    @contextmanager
    def killed_after(self, steps: int) -> Iterator[None]:
        """Let the process end before a step in this block."""
        with suppress(PowerLossError), self.power_until(steps):
            yield
        self._is_off = False

    def close(self) -> None:
        for file in self._files.values():
            os.close(file.file)
        self._files = {}

    def _step(self) -> None:
        if self._is_off or self.steps_left == 0:
            self._is_off = True
            raise PowerLossError
        if self.steps_left is not None:
            self.steps_left -= 1

    def _write_page(self, page: SharedPage, value: bytes) -> None:
        self._step()
        _WRITE_PAGE(page, value)

    def _watched(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name != "open" or arguments[1] & os.O_CREAT:
                self._step()
            if name == "fsync":
                return self._sync(arguments[0])
            if name in ("pwrite", "ftruncate"):
                self._before_change(name, *arguments)
            result = _REAL[name](*arguments, **options)
            if name == "open" and arguments[1] & os.O_CREAT and self._is_ours(str(arguments[0])):
                self._file(str(arguments[0]), is_durable=False)
            return result

        return call

    def _before_change(self, name: str, file: int, *arguments: Any) -> None:
        entry = self._files.get(os.fstat(file).st_ino)
        if entry is None:
            return
        if self.chance.random() < 0.3:
            # the kernel writes some pages at any time
            entry.device = self._mixed(entry, is_whole=False)
        if name == "pwrite":
            size, position = memoryview(arguments[0]).nbytes, int(arguments[1])
            entry.lost_pages -= set(range(position // PAGE, (position + size) // PAGE + 1))
        else:
            entry.lost_pages.discard(int(arguments[0]) // PAGE)

    def _sync(self, file: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        if not self._is_ours(path):
            return _REAL["fsync"](file)  # type: ignore[no-any-return]
        self.syncs += 1
        if stat.S_ISDIR(os.fstat(file).st_mode):
            self._names[os.fstat(file).st_ino] = self._listed(path)
            return None
        entry = self._files[os.fstat(file).st_ino]
        # sometimes the sync of an index fails, which comes after the sync of its log
        fails = path.endswith(".log") or (path.endswith("index") and self.chance.random() < 0.3)
        if self.failing_syncs > 0 and fails:
            self.failing_syncs -= 1
            entry.device = self._mixed(entry, is_whole=False)
            now = entry.now()
            entry.lost_pages |= {
                page for page in range(-(-len(now) // PAGE)) if _page(now, page) != _page(entry.device, page)
            }
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        entry.device = self._synced(entry)
        return None

    def _synced(self, entry: CachedFile) -> bytes:
        now = bytearray(entry.now())
        for page in entry.lost_pages:
            part = _page(entry.device, page)
            now[page * PAGE : (page + 1) * PAGE] = part.ljust(len(_page(now, page)), b"\0")[: len(_page(now, page))]
        return bytes(now)

    def _mixed(self, entry: CachedFile, *, is_whole: bool) -> bytes:
        """Return a possible state of the device: each page is old, new, or a mix of sectors."""
        new, old = self._synced(entry), entry.device
        if not is_whole and self.chance.random() < 0.2:
            return new
        size = self.chance.choice([len(old), len(new), self.chance.randint(*sorted((len(old), len(new))))])
        mixed = bytearray(size)
        for number in range(0, size, PAGE):
            step = SECTOR if self.chance.random() < 0.3 else PAGE
            for start in range(number, min(number + PAGE, size), step):
                source = self.chance.choice([old, new, new])
                part = source[start : min(start + step, number + PAGE, size)]
                mixed[start : start + len(part)] = part
        return bytes(mixed)

    def _is_ours(self, path: str) -> bool:
        return path == str(self.root) or path.startswith(f"{self.root}/")

    def _file(self, path: str, *, is_durable: bool) -> None:
        number = os.stat(path).st_ino
        if number not in self._files:
            self._files[number] = CachedFile(path, is_durable)

    def _listed(self, folder: str) -> dict[str, tuple[int, bool]]:
        with os.scandir(folder) as entries:
            return {entry.name: (entry.inode(), entry.is_dir()) for entry in entries}

    def _restore(self, source: str, folder: Path) -> None:
        number = os.stat(source).st_ino
        durable, now = self._names.get(number, {}), self._listed(source)
        _REAL["mkdir"](folder)
        for name in sorted(durable.keys() | now.keys()):
            entry = self._entry(durable.get(name), now.get(name))
            if entry is None:
                continue
            if entry[1]:
                self._restore(f"{source}/{name}", folder / name)
                continue
            file = self._files[entry[0]]
            data = self._mixed(file, is_whole=True)
            # the file of a lock is complete or empty: no write extends it
            is_complete = len(data) in (0, PAGE) or not name.startswith(".")
            (folder / name).write_bytes(data if is_complete else b"")

    def _entry(self, old: tuple[int, bool] | None, new: tuple[int, bool] | None) -> tuple[int, bool] | None:
        return old if old == new else self.chance.choice([old, new])


def _page(data: bytes | bytearray, page: int) -> bytes:
    return bytes(data[page * PAGE : (page + 1) * PAGE])
