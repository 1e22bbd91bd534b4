"""Loads what several threads want at the same time once, for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from distlog.core.errors import DistlogError

T = TypeVar("T")


class SharedLoads(Generic[T]):
    """The loads that are under way, by name; for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[T]] = {}

    def get(self, name: str, load: Callable[[], T]) -> T:
        """What `load` returns here, or in the thread that loads the same name now. Raises what it raises.

        A load that began before this call may have failed for a reason that is gone by now, so its error is not
        raised: then all that waited share another one.
        """
        found, is_own = self._joined(name)
        if not is_own:
            try:
                return found.result()
            except DistlogError:
                found, is_own = self._joined(name)
        return self._run(name, found, load) if is_own else found.result()

    def _joined(self, name: str) -> tuple[Future[T], bool]:
        """The load under way, or a new one that is the caller's to run."""
        with self._lock:
            found = self._under_way.get(name)
            if found is not None:
                return found, False
            own = self._under_way[name] = Future()
            return own, True

    def _run(self, name: str, own: Future[T], load: Callable[[], T]) -> T:
        try:
            loaded = load()
        except BaseException as error:
            self._over(name)
            own.set_exception(error)
            raise
        self._over(name)
        own.set_result(loaded)
        return loaded

    def _over(self, name: str) -> None:
        # before anybody is told: who asks then must not be given an answer from before
        with self._lock:
            del self._under_way[name]
