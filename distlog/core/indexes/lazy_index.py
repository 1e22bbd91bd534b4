"""An index that is opened, and downloaded if necessary, on its first use (Kafka's `LazyIndex`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from distlog.core.indexes.mapped_index import MappedIndex
from distlog.core.locks import ProcessLock

IndexT = TypeVar("IndexT", bound=MappedIndex)


class LazyIndex(Generic[IndexT]):
    """Calls `open_index` once, on the first `get` of any thread; it can be pickled if `open_index` can.

    If `open_index` raises, `get` raises the same, and the next `get` tries again.
    """

    def __init__(self, open_index: Callable[[], IndexT]) -> None:
        self._open_index = open_index
        self._index: IndexT | None = None
        self._lock = ProcessLock()
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyIndex, (self._open_index,)

    def get(self) -> IndexT:
        """The index; ValueError after `close`."""
        index = self._index
        if index is not None:
            return index
        with self._lock:
            if self._closed:
                raise ValueError("the index is closed")
            if self._index is None:
                self._index = self._open_index()
            return self._index

    def close(self) -> None:
        """Close the index if it was used."""
        with self._lock:
            self._closed = True
            if self._index is not None:
                self._index.close()
            self._index = None
