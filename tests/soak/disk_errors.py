"""Full disks and failing syncs in a real system: they raise errors, lose nothing, and the log continues afterwards.

- "full": from some call on, calls that need space in the topic's folder fail (a shim loaded before libc).
- "tmpfs": a small file system in memory, which one file fills but for a few pages.
- "sync": one or more syncs fail. The segment is sealed at its flushed offset, and waiting writers get the error.

Each history runs in its own process, since a write to a map without space is a signal.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from soak.history import Faults, History
from soak.tally import Tally, demand, skipped

KINDS = ("full", "tmpfs", "sync")
_SPACE, _SYNCS = 1, 2
_TMPFS_BYTES = 2 << 20
_PAGE = 4096


class Shim:
    def __init__(self, folder: Path, chance: random.Random, kind: str) -> None:
        self.loses = kind == "sync"
        self._folder, self._chance = os.fsencode(folder), chance
        self._fail = ctypes.CDLL(None).fail_disk
        self._fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int]

    def begin(self) -> None:
        spared = self._chance.randrange(12)
        if self.loses:
            self._fail(self._folder, _SYNCS, spared, self._chance.choice([1, 1, 2, 5]), errno.EIO)
        else:
            self._fail(self._folder, _SPACE, spared, 1 << 40, errno.ENOSPC)

    def end(self) -> None:
        self._fail(self._folder, 0, 0, 0, 0)


class FilledTmpfs:
    """Fills the file system but for a few pages."""

    loses = False

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder, self._chance = folder, chance

    def begin(self) -> None:
        with suppress(OSError), (self._folder / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(_PAGE)):
                pass
        size = (self._folder / "filler").stat().st_size
        os.truncate(self._folder / "filler", max(size - _PAGE * self._chance.randrange(10), 0))

    def end(self) -> None:
        (self._folder / "filler").unlink()


def run(folder: Path, seed: int, kind: str, histories: int) -> Tally:
    """Run `histories` histories with faults of one kind; returns an empty tally if this machine cannot make them."""
    root = folder / f"{kind} {seed}"
    root.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        if kind == "tmpfs":
            if not _mounted(root):
                return skipped(kind, "only a user who may mount a file system can fill one")
        else:
            shim = _shim(folder)
            if shim is None:
                return skipped(kind, "there is no C compiler")
            environment["LD_PRELOAD"] = str(shim)
        command = [sys.executable, "-m", "soak.disk_errors", str(root), str(seed), kind, str(histories)]
        process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    finally:
        subprocess.run(["umount", "-l", str(root)], capture_output=True, check=False)
        shutil.rmtree(root, ignore_errors=True)
    demand(process.returncode == 0, f"{kind}, seed {seed}: ended with {process.returncode}: {process.stderr[-4000:]}")
    return Tally(_counts(process.stdout))


def _counts(text: str) -> dict[str, int]:
    lines = (line.partition(" ") for line in text.splitlines())
    return {name: int(count) for count, _, name in lines}


def _mounted(root: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={_TMPFS_BYTES}", "tmpfs", str(root)]
    return (
        shutil.which("mount") is not None and not subprocess.run(command, capture_output=True, check=False).returncode
    )


def _shim(folder: Path) -> Path | None:
    compiler, shim = shutil.which("cc"), folder / "failing_disk.so"
    if compiler and not shim.exists():
        source = Path(__file__).with_name("failing_disk.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"], check=True)
    return shim if compiler else None


def _play(root: Path, seed: int, kind: str, histories: int) -> Tally:
    tally = Tally()
    for number in range(histories):
        chance, folder = random.Random(f"{kind} {seed} {number}"), root / str(number)
        folder.mkdir()
        faults: Faults = FilledTmpfs(root, chance) if kind == "tmpfs" else Shim(folder, chance, kind)
        history = History(folder, chance, tally)
        history.begin()
        for _ in range(chance.randint(5, 60)):
            history.act(faults if chance.random() < 0.3 else None)
        history.processes[0][0].roll()
        demand(history.processes[0].anomalies() == (), f"verify finds {history.processes[0].anomalies()}")
        tally["records verified"] += len(history.check())
        tally["histories"] += 1
        history.end()
        shutil.rmtree(folder)
    return tally


if __name__ == "__main__":
    for _name, _count in _play(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])).items():
        print(_count, _name)
