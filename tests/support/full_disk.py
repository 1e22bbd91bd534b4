"""A small file system that a test fills to the last byte."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DISK_BYTES = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of DISK_BYTES, in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    process = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if not process or process.returncode:
        pytest.skip("only who may mount a file system can fill one")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Write until not a byte is left."""
    with contextlib.suppress(OSError), (folder / uuid.uuid4().hex).open("wb", buffering=0) as file:
        for _ in range(2 * DISK_BYTES // 512):
            file.write(bytes(512))
    status = os.statvfs(folder)
    assert status.f_bavail == 0


def make_room(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()


def fail_writes(
    monkeypatch: pytest.MonkeyPatch, is_full: Callable[[], bool] = lambda: True, code: int = errno.ENOSPC
) -> None:
    """Have each `os.write` to a file fail that comes while the disk `is_full`."""
    real = os.write

    def write(file: int, data: Any) -> int:
        if os.readlink(f"/proc/self/fd/{file}").startswith("/") and is_full():
            raise OSError(code, os.strerror(code))
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
