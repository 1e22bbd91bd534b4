"""Bounds the records in responses that clients have not taken yet."""

from __future__ import annotations

import threading


class FetchMemory:
    """`limit` bytes, for many threads."""

    def __init__(self, limit: int) -> None:
        self._limit, self.used, self._lock = limit, 0, threading.Lock()

    @property
    def free(self) -> int:
        """How many bytes may be read now; 0 if slow clients have taken all."""
        return max(self._limit - self.used, 0)

    def take(self, size: int) -> None:
        """Count bytes that were read."""
        with self._lock:
            self.used += size

    def give_back(self, size: int) -> None:
        """Count bytes that were sent."""
        with self._lock:
            self.used -= size
