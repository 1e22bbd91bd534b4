"""Many writers against a store that takes its time, in time that only the simulation knows: exact and repeatable."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Callable

from distlog.core.storage.storage import FileInfo


class Simulation:
    """Runs threads one at a time, each when the time comes that it sleeps until; `now` is in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, threading.Event]] = []
        self._idle = threading.Event()
        self._own = threading.local()
        self._errors: list[BaseException] = []

    def sleep(self, seconds: float) -> None:
        """Let the others go on for so long."""
        turn: threading.Event = self._own.turn
        heapq.heappush(self._waiting, (self.now + seconds, next(self._order), turn))
        self._idle.set()
        turn.wait()
        turn.clear()

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is one of the simulation's."""
        return hasattr(self._own, "turn")

    def run(self, workers: list[Callable[[], None]]) -> None:
        """Run all `workers` to their end."""
        threads = [threading.Thread(target=self._work, args=(worker,), daemon=True) for worker in workers]
        for thread in threads:
            self._idle.clear()
            thread.start()
            self._idle.wait()
        while self._waiting:
            self.now, _, turn = heapq.heappop(self._waiting)
            self._idle.clear()
            turn.set()
            self._idle.wait()
        for error in self._errors:
            raise error

    def _work(self, worker: Callable[[], None]) -> None:
        self._own.turn = threading.Event()
        try:
            self.sleep(0)
            worker()
        except BaseException as error:
            self._errors.append(error)
        self._idle.set()


class SimulatedStore:
    """What of a Storage the commit log asks for; each request takes `latency()` seconds, half of it on either way."""

    url = "memory://simulated/clicks"
    is_local = False

    def __init__(self, simulation: Simulation, latency: Callable[[], float]) -> None:
        self._simulation, self._latency = simulation, latency
        self._files: dict[str, bytes] = {}
        self._owed = 0.0
        self.requests = 0

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self.requests += 1
        if not self._simulation.is_inside:
            # one of several at the same time: whoever waits for all of them waits once
            self._owed = self._latency()
            return self._found(name)[start:end]
        self._travel()
        try:
            return self._found(name)[start:end]
        finally:
            self._travel()

    def _found(self, name: str) -> bytes:
        if name not in self._files:
            raise FileNotFoundError(name)
        return self._files[name]

    def put_if_absent(self, name: str, data: bytes, *, timeout_s: float = 0) -> bytes:
        self.requests += 1
        self._travel()
        standing = self._files.setdefault(name, data)
        self._travel()
        return standing if standing == data else self.read(name)

    def put(self, name: str, data: bytes) -> None:
        self.requests += 1
        self._travel()
        self._files[name] = data
        self._travel()

    def list(self, folder: str = "") -> list[FileInfo]:
        return [FileInfo(name, len(data)) for name, data in self._files.items()]

    def sync(self, folder: str) -> None:
        pass

    def probe_put_if_absent(self, folder: str) -> None:
        pass

    def _travel(self) -> None:
        if self._simulation.is_inside:
            owed, self._owed = self._owed, 0.0
            self._simulation.sleep(owed + self._latency() / 2)


def latency_of(seed: int, low_s: float = 0.02, high_s: float = 0.1) -> Callable[[], float]:
    """Latencies between `low_s` and `high_s` seconds."""
    source = random.Random(seed)
    return lambda: source.uniform(low_s, high_s)
