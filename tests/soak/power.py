"""Power losses in random histories: durable records survive, and the log continues.

The power fails before any system call. The next folder has the synced data and a random part of the rest. The page of
the lock stays, gets lost, empty, garbled, or old. Then the history continues in that folder.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from partition_logs import Process

from distlog.core import paths
from distlog.core.storage.locks_and_pages import PAGE_BYTES
from soak.history import ACTIONS, History
from soak.lossy_disk import LossyDisk, PowerLossError
from soak.tally import Tally, demand

DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "kept": lambda page, chance: page,
    "lost": lambda page, chance: b"",
    "zeros": lambda page, chance: bytes(PAGE_BYTES),
    "garbled": lambda page, chance: chance.randbytes(PAGE_BYTES),
    "half": lambda page, chance: page[:2048].ljust(PAGE_BYTES, b"\0"),
}


class FailingSyncs:
    loses = True

    def __init__(self, disk: LossyDisk, chance: random.Random) -> None:
        self._disk, self._chance = disk, chance

    def begin(self) -> None:
        self._disk.failing_syncs = self._chance.choice([1, 1, 2, 3])

    def end(self) -> None:
        self._disk.failing_syncs = 0


class Lives:
    """A history with power losses: each life of the machine has its own folder."""

    def __init__(self, root: Path, chance: random.Random, tally: Tally) -> None:
        self._root, self._chance, self._tally, self._boot = root, chance, tally, 0
        self._folder.mkdir(parents=True)
        self._history = History(self._folder, chance, tally)

    @property
    def _folder(self) -> Path:
        return self._root / str(self._boot)

    def live(self, actions: int) -> None:
        """Do up to `actions` actions, lose the power, and check what survived."""
        history, folder = self._history, self._folder
        with self._booted() as patches:
            disk = LossyDisk(patches, folder, self._chance)
            faults = FailingSyncs(disk, self._chance)
            history.begin()
            pages = [self._page()]
            for _ in range(self._chance.randint(1, actions)):
                if self._chance.random() < 0.15:
                    self._kill(disk)
                else:
                    history.act(faults if self._chance.random() < 0.08 else None)
                pages.append(self._page())
            with suppress(PowerLossError), disk.power_until(self._chance.choice([0, self._chance.randrange(40)])):
                history.do(self._chance.choice(ACTIONS))
            pages.append(self._page())
            self._boot += 1
            disk.after_power_loss(self._folder)
            disk.close()
            history.end()
        self._damage(pages)
        shutil.rmtree(folder)
        history.topic = self._folder / "events"
        self._tally["power losses"] += 1
        with self._booted():
            self._check_survivors()

    def _kill(self, disk: LossyDisk) -> None:
        may_lose = self._chance.random() < 0.4
        disk.failing_syncs = may_lose and 1
        self._history.killed(disk.killed_after(self._chance.randrange(40)), may_lose=may_lose)
        disk.failing_syncs = 0
        self._tally["kills"] += 1

    @contextmanager
    def _booted(self) -> Iterator[pytest.MonkeyPatch]:
        boot = self._boot.to_bytes(16, "big")
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr("distlog.core.log.partition_files.boot_id", lambda: boot)
            # these short logs need recovery points with records after them
            patches.setattr("distlog.core.log.partition_log._RECOVERY_BYTES", self._chance.choice([1, 300, 1 << 24]))
            yield patches

    def _check_survivors(self) -> None:
        history = self._history
        values = history.check()
        expected = [*history.values, *history.unsure][history.start :]
        demand(values == expected[: len(values)], "the surviving records are not a prefix of the appended ones")
        promised = history.flushed - history.start
        demand(len(values) >= promised, f"of {promised} durable records {len(values)} survived")
        process = Process(history.topic)
        end_offset = process[0].end().end_offset
        demand(end_offset == history.start + len(values), "writers and readers find different ends")
        demand(process.record(0) is not None, "the page of the lock stays invalid")
        demand(process.anomalies() == (), f"verify finds {process.anomalies()}")
        process.close()
        history.values[history.start :] = values
        history.unsure, history.pending, history.flushed = [], [], len(history.values)
        self._tally["records verified"] += len(values)

    def _page(self) -> bytes:
        path = self._folder / "events" / "events-0" / paths.LOCK_FILE
        return path.read_bytes() if path.exists() else b""

    def _damage(self, pages: list[bytes]) -> None:
        path = self._folder / "events" / "events-0" / paths.LOCK_FILE
        if path.parent.exists() and self._chance.random() < 0.8:
            page = self._chance.choice([pages[-1], pages[-1], self._chance.choice(pages)])
            path.write_bytes(DAMAGES[self._chance.choice(sorted(DAMAGES))](page, self._chance))


def run(folder: Path, seed: int, lives: int = 4) -> Tally:
    """Run a history of `lives` lives, which depends on `seed` alone."""
    tally, root = Tally(), folder / f"power {seed}"
    try:
        history = Lives(root, random.Random(seed), tally)
        for _ in range(lives):
            history.live(actions=12)
    except BaseException:
        print(f"power: seed {seed} failed", file=sys.stderr)
        raise
    shutil.rmtree(root)
    tally["histories"] += 1
    return tally
