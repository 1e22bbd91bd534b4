"""Compiled kernels stay between processes until the source of any kernel changes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import golden
import pytest
from forked_programs import Program, run
from full_disk import disk as disk
from full_disk import fill

import distlog
from distlog.core.format.kernels.native import distrust

pytestmark = pytest.mark.long

INNER = """
from distlog.core.format.kernels.native import inlined

@inlined
def number():
    return {number}
"""
OUTER = """
from distlog.core.format.kernels.inner import number
from distlog.core.format.kernels.native import fill_kernel

@fill_kernel
def fill(out):
    out[0] = number()

@fill_kernel
def give():
    return number()
"""
FORKED = """
import os, sys
import numba
sys.path.insert(0, os.environ["PYTHONPATH"])
numba.core.config.reload_config()
"""
PROGRAM = """
import numpy as np
from distlog.core.format.kernels.outer import fill, give

out = np.zeros(1, np.int64)
fill(out)
print(out[0], give(), *(sum(one.stats.cache_hits.values()) for one in (fill, give)))
"""


UNPRIVILEGED = ["setpriv", "--reuid=65534", "--clear-groups"]


def _cannot_drop_rights() -> bool:
    if os.geteuid() != 0:
        return False
    command = [*UNPRIVILEGED, sys.executable, "-c", ""]
    return shutil.which("setpriv") is None or subprocess.run(command, capture_output=True).returncode != 0


class Copy:
    """A copy of the library with two more kernels, one inlined in the other from another file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.said = ""
        self.kernels = folder / "distlog" / "core" / "format" / "kernels"
        source = Path(str(distlog.__file__)).parent
        shutil.copytree(source, folder / "distlog", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "distlog" / "__init__.py").write_text("")
        (self.kernels / "outer.py").write_text(OUTER)
        self.change(1)

    def change(self, number: int) -> None:
        (self.kernels / "inner.py").write_text(INNER.format(number=number))
        # Python's bytecode cache compares the size and the second of a file
        os.utime(self.kernels / "inner.py", (10**9 + number, 10**9 + number))

    def comment(self, name: str) -> None:
        with (self._folder / "distlog" / "core" / name).open("a") as file:
            file.write("# new\n")

    def run(self, program: str = PROGRAM, **environment: str) -> list[int]:
        """Run a new process; return the results of both callers, and the number of cache hits."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
        settings = {**inherited, "PYTHONPATH": str(self._folder), **environment}
        ran = run(FORKED + program, env=settings, cwd="/", check=True, has_distlog=False)
        self.said = ran.stderr
        return [int(part) for part in ran.stdout.split()]

    def files(self) -> set[str]:
        return {str(path) for path in self._folder.rglob("*")}

    def run_unprivileged(self, temporary: Path) -> tuple[list[int], str]:
        """As `run`, by a user who can write only in `temporary`; also return its standard error."""
        settings = {
            **os.environ,
            "PYTHONPATH": str(self._folder),
            "HOME": "/nonexistent",
            "TMPDIR": str(temporary),
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
    with tempfile.TemporaryDirectory(prefix="distlog-copy-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Copy(Path(folder))


def test_machine_code_is_kept_until_an_inlined_source_changes(copy: Copy) -> None:
    assert copy.run() == [1, 1, 0, 0]
    assert copy.run() == [1, 1, 1, 1]
    copy.change(2)
    assert copy.run() == [2, 2, 0, 0]
    assert copy.run() == [2, 2, 1, 1]


def test_the_users_cache_depends_on_signatures_and_versions(copy: Copy, tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    assert copy.run(NUMBA_CACHE_DIR=folder) == [1, 1, 0, 0]
    assert copy.run(NUMBA_CACHE_DIR=folder) == [1, 1, 1, 1]
    for name in ("format/kernels/batch_scan.py", "format/kernels/native.py"):
        copy.comment(name)
        assert copy.run(NUMBA_CACHE_DIR=folder) == [1, 1, 0, 0]


@pytest.mark.parametrize("length", [0, 100, -1], ids=["nothing", "the beginning", "zeros"])
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_code_damaged_by_a_power_loss_is_compiled_again(copy: Copy, tmp_path: Path, suffix: str, length: int) -> None:
    folder = tmp_path / "cache"
    assert copy.run(NUMBA_CACHE_DIR=str(folder)) == [1, 1, 0, 0]
    for file in folder.rglob(f"*{suffix}"):
        data = file.read_bytes()
        file.write_bytes(bytes(len(data)) if length < 0 else data[:length])
    assert copy.run(NUMBA_CACHE_DIR=str(folder)) == [1, 1, 0, 0]
    assert copy.run(NUMBA_CACHE_DIR=str(folder)) == [1, 1, 1, 1]


def test_another_folder_keeps_the_code_that_a_full_disk_cannot(copy: Copy, disk: Path) -> None:
    fill(disk)
    assert copy.run(NUMBA_CACHE_DIR=str(disk)) == [1, 1, 0, 0]
    assert copy.run(NUMBA_CACHE_DIR=str(disk)) == [1, 1, 1, 1]
    assert copy.said == ""


@pytest.fixture
def temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="distlog-copy-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@pytest.mark.skipif(_cannot_drop_rights(), reason="root can write anywhere")
def test_code_next_to_a_read_only_library_is_used(copy: Copy, temporary: Path) -> None:
    """The installing user compiles; a container without a writable home loads the code."""
    assert copy.run() == [1, 1, 0, 0]
    files = copy.files()
    assert copy.run_unprivileged(temporary) == ([1, 1, 1, 1], "")
    assert copy.files() == files
    assert list(temporary.iterdir()) == []


def test_an_archive_of_the_library_uses_the_code_of_another_archive_with_the_same_sources(
    copy: Copy, tmp_path: Path
) -> None:
    """Spark puts an archive of `--py-files` in a folder per application."""
    first = shutil.make_archive(str(tmp_path / "first" / "library"), "zip", copy.kernels.parents[3])
    second = shutil.copy(first, tmp_path / "second.zip")
    caches = str(tmp_path / "caches")
    assert copy.run(XDG_CACHE_HOME=caches, PYTHONPATH=first) == [1, 1, 0, 0]
    os.utime(second, (5, 5))
    assert copy.run(XDG_CACHE_HOME=caches, PYTHONPATH=str(second)) == [1, 1, 1, 1]


def test_processes_that_start_at_once_all_compile_and_leave_code_for_the_next(copy: Copy, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy.kernels.parents[3]), "NUMBA_CACHE_DIR": str(tmp_path)}
    waits = f"{FORKED}sys.stdin.read()\n{PROGRAM}"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    programs = [Program(waits, env=environment, cwd="/", has_distlog=False, **streams) for _ in range(3)]
    for process in programs:
        assert process.stdin
        process.stdin.close()
    results = [[int(part) for part in process.stdout.read().split()][:2] for process in programs if process.stdout]
    assert [process.wait() for process in programs] == [0, 0, 0]
    assert results == [[1, 1]] * 3
    assert copy.run(NUMBA_CACHE_DIR=str(tmp_path)) == [1, 1, 1, 1]


def test_code_in_a_world_writable_folder_is_ignored(copy: Copy, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert copy.run(NUMBA_CACHE_DIR=str(folder)) == [1, 1, 0, 0]
    (cached,) = {path.parent for path in folder.rglob("outer.*.nbi")}
    cached.chmod(0o777)
    assert copy.run(NUMBA_CACHE_DIR=str(folder)) == [1, 1, 0, 0]
    assert f"other users may write {cached}; set NUMBA_CACHE_DIR to a folder that only you can write" in copy.said
    cached.chmod(0o755)
    assert copy.run(NUMBA_CACHE_DIR=str(folder)) == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("name", "mode", "reason"),
    [
        ("", 0o755, None),
        ("", 0o777, "other users may write .*/open/code$"),
        ("", 0o1777, "other users may write .*/open/code$"),
        ("a.nbi", 0o666, "other users may write .*a.nbi"),
        ("a.1.nbc", 0o622, "other users may write .*a.1.nbc"),
        ("a.txt", 0o666, None),
        ("..", 0o777, "other users may write .*/open$"),
        ("..", 0o1777, None),
    ],
)
def test_a_folder_of_code_writable_by_others_is_ignored(
    name: str, mode: int, reason: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "open" / "code"
    folder.mkdir(parents=True, mode=0o755)
    if name not in ("", ".."):
        (folder / name).touch()
    (folder / name).resolve().chmod(mode)
    (tmp_path / "link").symlink_to(folder)
    assert (distrust(tmp_path / "link", tmp_path / "library") is None) == (reason is None)
    output = distrust(folder, tmp_path / "library")
    assert output is None if reason is None else re.search(reason, str(output))
    assert distrust(tmp_path / "none", tmp_path / "library") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", [".", "a.nbi", "link"])
def test_a_folder_of_code_is_not_used_if_something_in_it_is_of_another_user(name: str, tmp_path: Path) -> None:
    folder, other = tmp_path / "code", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (folder / "a.nbi").touch()
    (tmp_path / "link").symlink_to(folder)
    path = tmp_path / "link" if name == "link" else folder
    assert distrust(path, tmp_path / "library") is None
    os.chown(path if name == "link" else folder / name, 65534, 65534, follow_symlinks=False)
    assert "belongs to user 65534" in str(distrust(path, tmp_path / "library"))
    os.chown(other, 65534, 65534)
    assert distrust(path, other) is None


@pytest.mark.skipif(_cannot_drop_rights(), reason="root can write anywhere")
def test_a_missing_cache_is_reported_once_with_advice(copy: Copy, temporary: Path) -> None:
    user = 65534 if os.geteuid() == 0 else os.geteuid()
    (temporary / f"distlog-kernels-{user}").mkdir(mode=0o555)
    result, said = copy.run_unprivileged(temporary)
    assert result == [1, 1, 0, 0]
    assert said.count("\n") == 1
    assert "set NUMBA_CACHE_DIR to a writable folder" in said


def test_a_warm_up_leaves_nothing_to_compile_for_the_usual_work() -> None:
    program = """
import io, itertools, sys
import distlog
from distlog.core.kafka.dump import DumpedFile, DumpOptions, DumpOutput, dump
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
            output = DumpOutput(dumps[as_json], dumps[as_json], as_json)
            dump([DumpedFile.from_address(log)], DumpOptions(**options), output)
print(len(recorder.buffer))
"""
    logs = [golden.partitions()[name].logs[0] for name in ("first.codec-lz4-0", "first.txn-0", "logs.mixed-0")]
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, logs)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "0\n"


FIRST_USE = """
import distlog
from distlog.core.format.kernels import native
native._WORTH_A_LINE_S = 0.0
distlog.create("memory://first/clicks").append([{"value": "v"}])
"""


def test_a_first_append_logs_its_compilation(tmp_path: Path) -> None:
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", FIRST_USE]
    ran = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
    assert ran.stderr.count("\n") == 1
    assert "once for this version; cached in" in ran.stderr


#: Interrupts the compilation of a kernel at its start, and calls the kernel again.
INTERRUPTED = """
import os, signal, threading
import numpy as np
from numba.core import event
from distlog.core.format.kernels.outer import fill

threads = []

class Interrupts(event.Listener):
    def on_start(self, event):
        threads.append(threading.current_thread())
        if len(threads) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    def on_end(self, event):
        pass

event.register("numba:compile", Interrupts())
out = np.zeros(1, np.int64)
try:
    fill(out)
except KeyboardInterrupt:
    print(out[0], int(threading.main_thread() in threads))
fill(out)
print(out[0])
"""


#: A signal handler calls a kernel during the compilation of another function.
NESTED = """
import faulthandler, os, signal
import numba
import numpy as np
from numba.core import event
from distlog.core.format.kernels.outer import fill, give

faulthandler.dump_traceback_later(20, exit=True)
out = np.zeros(1, np.int64)

class Signals(event.Listener):
    def on_start(self, event):
        if signal.getsignal(signal.SIGUSR1) is fill_now:
            os.kill(os.getpid(), signal.SIGUSR1)

    def on_end(self, event):
        pass

def fill_now(*_):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    fill(out)

@numba.njit
def twice():
    return 2 * give()

signal.signal(signal.SIGUSR1, fill_now)
event.register("numba:compile", Signals())
print(twice(), out[0])
"""


def test_a_first_call_amid_a_compilation_of_the_users_own_does_not_wait_for_that(copy: Copy) -> None:
    assert copy.run(NESTED) == [2, 1]


def test_an_interrupt_of_a_first_call_leaves_the_compiler_free_for_the_next(copy: Copy) -> None:
    """In the thread that compiles it would hold a lock of LLVM, for which the others would wait without end."""
    assert copy.run(INTERRUPTED) == [0, 0, 1]
