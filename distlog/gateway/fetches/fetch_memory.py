"""Bounds the records in responses that clients have not taken yet."""

from __future__ import annotations

import threading

#: Who takes records gets at most this share of what is left, or these bytes: some slow clients cannot have all.
_SHARE = 4
_SMALLEST_BYTES = 64 << 10


class FetchMemory:
    """`limit` bytes, for many threads."""

    def __init__(self, limit: int) -> None:
        self._limit, self.used, self._lock = limit, 0, threading.Lock()

    def take(self, wanted: int) -> int:
        """Take up to so many bytes before they are read; returns how many: 0 if slow clients have all."""
        with self._lock:
            left = max(self._limit - self.used, 0)
            taken = min(wanted, max(left // _SHARE, min(left, _SMALLEST_BYTES)))
            self.used += taken
            return taken

    def give_back(self, size: int) -> None:
        """Give back what was taken and not read, or was sent. Negative: more was read, as one large batch."""
        with self._lock:
            self.used -= size
