"""Records that wait to be committed: one buffer fills while one thread commits the buffer before it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from distlog.core.topics.rows import FIELDS


class Accumulator:
    """A buffer that is sent, in order, by one thread: when it is full, when it has lingered, or when it is drained.

    `send` gets all fields of a buffer's records and raises nothing; `idle` is called whenever nothing is left. There
    are at most two buffers, each of about `buffer_bytes`: the one that fills, and the one that is being sent. The
    thread lives while there are records. Where no thread can be started, the caller sends.

    Records are taken without a lock, which would cost half as much as all else: a record is one `fields += (...)`,
    which no other thread can interrupt, then `bytes += size`, then `advance` where `bytes` are not below `limit`.
    That is 0 while the buffer is empty, so its first record calls `advance`, too. Threads that race for `bytes` can
    only make one buffer a little larger or smaller.
    """

    def __init__(
        self, send: Callable[[list[Any]], None], idle: Callable[[], None], *, linger_s: float, buffer_bytes: int
    ) -> None:
        self._send, self._idle, self._linger_s, self._buffer_bytes = send, idle, linger_s, buffer_bytes
        self.fields: list[Any] = []
        self.bytes = self.limit = 0
        self._changed = threading.Condition()
        self._sending: list[Any] | None = None
        self._handed = self._sent = 0
        self._deadline = 0.0
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """How many records are not sent yet."""
        return (len(self.fields) + len(self._sending or ())) // FIELDS

    @property
    def is_sender(self) -> bool:
        """Whether this thread is the one that sends."""
        return self._thread is threading.current_thread()

    def advance(self, begin: Callable[[], None]) -> None:
        """Have the buffer sent if it is full, else when it has lingered; `begin` is called where it was empty.

        Waits while the buffer before it is being sent and it is full; not in the thread that sends.
        """
        with self._changed:
            if self.fields and self.limit == 0:
                begin()
                self._deadline = time.monotonic() + self._linger_s
                self.limit = self._buffer_bytes
            while self._is_full() and self._sending is not None and not self.is_sender:
                self._changed.wait()
            if self._is_full() and self._sending is None:
                self._hand_over()
            is_sent_here = bool(self.fields or self._sending) and not self._wake()
        if is_sent_here:
            self._send_here()

    def drain(self) -> None:
        """Send what was taken so far, and wait until that is done; the thread that sends must not call it."""
        with self._changed:
            last = self._handed + bool(self.fields)
        while self._is_before(last):
            self._send_here()

    def take(self) -> list[Any]:
        """All fields of the records in the buffer, which is empty then."""
        with self._changed:
            # the limit first: a record that comes too late to be taken finds it, and calls `advance`
            self.limit = self.bytes = 0
            count = len(self.fields)
            taken = self.fields[:count]
            del self.fields[:count]
            return taken

    def _is_full(self) -> bool:
        return bool(self.fields) and self.bytes >= self._buffer_bytes

    def _is_before(self, last: int) -> bool:
        """Wait until so many buffers were sent; True where the caller must send, as no thread can."""
        with self._changed:
            while self._sent < last and (self._sending is not None or self.fields):
                if self._sending is None:
                    self._hand_over()
                if not self._wake():
                    return True
                self._changed.wait()
        return False

    def _hand_over(self) -> None:
        self._sending = self.take()
        self._handed += 1

    def _wake(self) -> bool:
        """Have a thread at work; False where there can be none, and the caller is to `_send_here`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="distlog-writer", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # there can be no more threads, or the interpreter is ending
                self._thread = threading.current_thread()
                return False
        self._changed.notify_all()
        return True

    def _send_here(self) -> None:
        self._deadline = 0.0
        self._run()

    def _run(self) -> None:
        while (sending := self._next()) is not None:
            self._send(sending)
            del sending
            with self._changed:
                self._sending = None
                self._sent += 1
                if not self.fields:
                    self._idle()
                self._changed.notify_all()

    def _next(self) -> list[Any] | None:
        """Wait until a buffer is due, and return it; None when nothing is left, and the thread ends."""
        with self._changed:
            while self._sending is None:
                if not self.fields:
                    self._thread = None
                    return None
                left = self._deadline - time.monotonic()
                if left > 0 and not self._is_full():
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                else:
                    self._hand_over()
            return self._sending
