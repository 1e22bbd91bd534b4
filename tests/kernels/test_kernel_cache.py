"""Compiled kernels are kept between processes, until the source of any of them changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import golden
import pytest

import distlog

pytestmark = pytest.mark.long

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


#: For root, who can write anywhere.
UNPRIVILEGED = ["setpriv", "--reuid=65534", "--clear-groups"]


def _cannot_drop_rights() -> bool:
    if os.geteuid() != 0:
        return False
    command = [*UNPRIVILEGED, sys.executable, "-c", ""]
    return shutil.which("setpriv") is None or subprocess.run(command, capture_output=True).returncode != 0


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

    def files(self) -> set[str]:
        """All files of the copy."""
        return {str(path) for path in self._folder.rglob("*")}

    def run_unprivileged(self) -> tuple[list[int], str]:
        """As `run`, by a user who can write nowhere; also what it says on standard error."""
        settings = {
            **os.environ,
            "PYTHONPATH": str(self._folder),
            "HOME": "/nonexistent",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
            settings.pop(name, None)
        command = [sys.executable, "-c", PROGRAM]
        if os.geteuid() == 0:
            self._folder.chmod(0o755)
            command = [*UNPRIVILEGED, *command]
        else:
            for folder in (*self._folder.rglob("*/"), self._folder):
                folder.chmod(0o555)
        ran = subprocess.run(command, env=settings, cwd="/", capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return [int(part) for part in ran.stdout.split()], ran.stderr


@pytest.fixture
def copy() -> Iterator[Copy]:
    """Not in pytest's folder, which each start of a pytest, another worker's too, closes for all other users."""
    with tempfile.TemporaryDirectory(prefix="distlog-copy-", ignore_cleanup_errors=True) as folder:
        yield Copy(Path(folder))


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


@pytest.mark.skipif(_cannot_drop_rights(), reason="root can write anywhere")
def test_code_that_was_left_beside_the_library_is_used_where_nothing_can_be_written(copy: Copy) -> None:
    """1. Who installs compiles. 2. A container without a writable home uses that, and leaves nothing."""
    assert copy.run() == [1, 1, 0, 0]
    before = copy.files()
    assert copy.run_unprivileged() == ([1, 1, 1, 1], "")
    assert copy.files() == before


@pytest.mark.skipif(_cannot_drop_rights(), reason="root can write anywhere")
def test_who_can_keep_no_code_is_told_once_what_to_set(copy: Copy) -> None:
    found, said = copy.run_unprivileged()
    assert found == [1, 1, 0, 0]
    assert said.count("\n") == 1
    assert "set NUMBA_CACHE_DIR, or let who installs run `distlog warmup`" in said


def test_a_warm_up_leaves_nothing_to_compile_for_the_usual_work() -> None:
    program = """
import io, itertools, sys
import distlog
from distlog.core.dump.dump import DumpedFile, DumpOptions, DumpOutput, dump
from numba.core import event
distlog.warm_up()
with event.install_recorder("numba:compile") as recorder:
    topic = distlog.create("memory://warm/clicks")
    topic.append([{"key": "k", "value": "v", "timestamp": 5}])
    topic.scan(start_time=1).to_table()
    list(topic.records())
    topic.offsets_for_times(2)
    dumps = {True: io.BytesIO(), False: io.BytesIO()}
    for log, as_json in itertools.product(sys.argv[1:], dumps):
        for options in ({}, {"deep_iteration": True}, {"print_data_log": True, "skip_record_metadata": True}):
            dump([DumpedFile.at(log)], DumpOptions(**options), DumpOutput(dumps[as_json], dumps[as_json], as_json))
print(len(recorder.buffer))
"""
    logs = [golden.partitions()[name].logs[0] for name in ("first.codec-lz4-0", "first.txn-0", "logs.mixed-0")]
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, logs)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "0\n"
