"""Fetching what will be wanted next while what is here is decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from distlog.core.storage import Storage

T = TypeVar("T")

#: One GET of a remote file that is read from end to end.
WINDOW_BYTES = 8 << 20
#: GETs under way ahead of the reader; memory of a task is bounded by this many windows.
DEPTH = 3


def in_order(tasks: Iterable[Callable[[], T]], depth: int = DEPTH) -> Iterator[T]:
    """The results of `tasks` in their order, up to `depth` of them running ahead in threads."""
    pool = ThreadPoolExecutor(depth)
    running: deque[Future[T]] = deque()
    try:
        for task in tasks:
            running.append(pool.submit(task))
            if len(running) > depth:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class LogFile:
    """The bytes of one log file between `start` and `end`, read forward: a map of a local file, or windows ahead."""

    def __init__(self, storage: Storage, name: str, start: int, end: int) -> None:
        self._storage, self._name, self._end = storage, name, end
        self._map: memoryview | None = storage.map(name) if storage.is_local else None
        edges = range(start, end, WINDOW_BYTES)
        self._windows = in_order(self._fetch(low, min(low + WINDOW_BYTES, end)) for low in edges)
        self._held = memoryview(b"")
        self._position = start

    def _fetch(self, low: int, high: int) -> Callable[[], bytes]:
        return lambda: self._storage.read(self._name, low, high)

    def read(self, start: int, end: int) -> memoryview:
        """Bytes [start, end), fewer where the file ends; `start` never goes back."""
        if self._map is not None:
            return self._map[start:end]
        if end > self._end:
            return memoryview(self._storage.read(self._name, start, end))
        while self._position + len(self._held) < end:
            window = next(self._windows, None)
            if window is None:
                break
            kept = self._held[max(0, start - self._position) :]
            self._position += len(self._held) - len(kept)
            self._held = memoryview(b"".join([kept, window])) if kept else memoryview(window)
        return self._held[start - self._position : end - self._position]

    def close(self) -> None:
        """Stop what runs ahead."""
        self._windows.close()  # type: ignore[attr-defined]
