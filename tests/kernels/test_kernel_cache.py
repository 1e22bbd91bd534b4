"""Compiled kernels are kept between processes, until the source of any of them changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import distlog

INNER = """
from distlog.core.kernels.native.jit import inlined

@inlined
def number():
    return {number}
"""
OUTER = """
from distlog.core.kernels.inner import number
from distlog.core.kernels.native.jit import fill_kernel, kernel

@fill_kernel
def fill(out):
    out[0] = number()

@kernel
def give():
    return number()
"""
PROGRAM = """
import numpy as np
from distlog.core.kernels.outer import fill, give

out = np.zeros(1, np.int64)
fill(out)
print(out[0], give(), *(sum(one.stats.cache_hits.values()) for one in (fill, give)))
"""


class Copy:
    """A copy of the library with two more kernels, of which one is inlined in the other from another file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.kernels = folder / "distlog" / "core" / "kernels"
        source = Path(str(distlog.__file__)).parent
        shutil.copytree(source, folder / "distlog", ignore=shutil.ignore_patterns("__pycache__"))
        (self.kernels / "outer.py").write_text(OUTER)
        self.change(1)

    def change(self, number: int) -> None:
        """Let the inlined kernel return `number`."""
        (self.kernels / "inner.py").write_text(INNER.format(number=number))

    def comment(self, name: str) -> None:
        """Add a comment to a file of the library, by its path in `distlog/core`."""
        with (self._folder / "distlog" / "core" / name).open("a") as file:
            file.write("# new\n")

    def run(self, **environment: str) -> list[int]:
        """What a new process gets from both callers, and how often each was taken from the cache."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
        settings = {**kept, **environment, "PYTHONPATH": str(self._folder)}
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=settings,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=True,
        )
        return [int(part) for part in ran.stdout.split()]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_machine_code_is_kept_until_an_inlined_source_changes(copy: Copy) -> None:
    assert copy.run() == [1, 1, 0, 0]
    assert copy.run() == [1, 1, 1, 1]
    copy.change(2)
    assert copy.run() == [2, 2, 0, 0]
    assert copy.run() == [2, 2, 1, 1]


def test_in_a_folder_of_ones_own_it_is_kept_until_what_kernels_are_given_or_made_with_changes(
    copy: Copy, tmp_path: Path
) -> None:
    folder = str(tmp_path / "cache")
    assert copy.run(NUMBA_CACHE_DIR=folder) == [1, 1, 0, 0]
    assert copy.run(NUMBA_CACHE_DIR=folder) == [1, 1, 1, 1]
    for name in ("kernel_tuples.py", "kernels/native/memory.py"):
        copy.comment(name)
        assert copy.run(NUMBA_CACHE_DIR=folder) == [1, 1, 0, 0]
