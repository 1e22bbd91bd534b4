"""Records that wait to be committed: one buffer fills while one thread commits the buffer before it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from distlog.core.topics.appending.rows import FIELDS


class Accumulator:
    """A buffer that one thread sends, in order: when it is full, when it has lingered, or when it is drained.

    `send` gets all fields of a buffer's records and raises nothing; `idle` is called whenever nothing is left. There
    are at most two buffers, each of about `buffer_bytes`: the one that fills, and the one that is being sent. The
    thread lives while there are records. No other thread takes them out, since a thread that puts records in or
    waits for them may be interrupted anywhere. If no thread can be started, the caller sends.

    Records are put in without a lock, since a lock would cost half as much as all else. The writer calls `put` with
    the FIELDS of one, which no other thread can interrupt, then does `bytes += size`, then `advance` if `bytes` is
    not below `limit`. The limit is 0 while the buffer is empty, so its first record calls `advance` too. Threads that
    race for `bytes` can only make one buffer a little larger or smaller.
    """

    def __init__(
        self, send: Callable[[list[Any]], None], idle: Callable[[], None], *, linger_s: float, buffer_bytes: int
    ) -> None:
        self._send, self._idle, self._linger_s, self._buffer_bytes = send, idle, linger_s, buffer_bytes
        self.fields: list[Any] = []
        self.put: Callable[[tuple[Any, ...]], None] = self.fields.extend
        self.begin_empty()

    def begin_empty(self) -> None:
        """Become empty, as after a fork: the parent has the records and their thread."""
        # the same list stays, since an append that the fork interrupted already refers to it
        self.fields.clear()
        self.bytes = self.limit = 0
        # unlike its condition, it is entered and left in one step, so an interrupt cannot leave it locked
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sending: list[Any] | None = None
        self._handed = self._wanted = 0
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
        """Let the buffer be sent: now if it is full, else when it has lingered. Calls `begin` if it was empty.

        Waits while it is full, that is while the buffer before it is being sent; the thread that sends does not wait.
        """
        with self._lock:
            if self.fields and self.limit == 0:
                begin()
                self._deadline = time.monotonic() + self._linger_s
                if self._has_thread():  # else the next record is to come here, too
                    self.limit = self._buffer_bytes
        self._wait_while(self._is_full)

    def drain(self) -> None:
        """Send all records put in so far, and wait until that is done; the thread that sends must not call it."""
        with self._lock:
            last = self._handed + bool(self.fields)
            self._wanted = max(self._wanted, last)
        self._wait_while(lambda: self._sent < last)

    def idle_if_empty(self) -> None:
        """Call `idle` if nothing is left, now that something else has changed."""
        with self._lock:
            if not self.fields and self._sending is None:
                self._idle()

    def take(self) -> list[Any]:
        """Empty the buffer, and return all fields of its records; for the thread that sends."""
        with self._lock:
            # the limit first: a record that comes too late to be taken finds it, and calls `advance`
            self.limit = self.bytes = 0
            count = len(self.fields)
            taken = self.fields[:count]
            del self.fields[:count]
            return taken

    @property
    def _sent(self) -> int:
        return self._handed - (self._sending is not None)

    def _is_full(self) -> bool:
        return bool(self.fields) and self.bytes >= self._buffer_bytes

    def _wait_while(self, is_waited: Callable[[], bool]) -> None:
        """Have the records sent, and wait while `is_waited`; if there can be no thread, send them here."""
        while self._lacks_thread(is_waited):
            self._send_here()

    def _lacks_thread(self, is_waited: Callable[[], bool]) -> bool:
        with self._lock:
            # only once, or waiting threads would wake each other for ever
            self._changed.notify_all()
            while self.fields or self._sending is not None:
                if not self._has_thread():
                    return True
                if self.is_sender or not is_waited():
                    return False
                # with a timeout, or Ctrl-C could not end it where a library has waits restarted, as polars does
                self._changed.wait(threading.TIMEOUT_MAX)
        return False

    def _has_thread(self) -> bool:
        """Start the thread unless there is one; False if there can be none."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="distlog-writer", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there can be no more threads, or the interpreter is ending
                return False
            self._thread = thread
        return True

    def _send_here(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.current_thread()
        self._run(lingers=False)

    def _run(self, *, lingers: bool = True) -> None:
        try:
            while (sending := self._next(lingers)) is not None:
                try:
                    self._send(sending)
                finally:
                    del sending
                    self._end()
        finally:
            with self._lock:
                if self.is_sender:  # only after an interrupt: the next thread sends what is left
                    self._thread = None

    def _next(self, lingers: bool) -> list[Any] | None:
        """Wait until a buffer is due, and return it; None when nothing is left, and the thread ends.

        Also None in a child that the sending thread forked: the buffer that is being sent belongs to the parent.
        """
        with self._lock:
            while self.is_sender and self._sending is None:
                if not self.fields:
                    self._thread = None
                    return None
                left = self._deadline - time.monotonic() if lingers and self._wanted <= self._handed else 0
                if left > 0 and not self._is_full():
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                else:
                    self._sending = self.take()
                    self._handed += 1
                    self._changed.notify_all()
            return self._sending if self.is_sender else None

    def _end(self) -> None:
        with self._lock:
            if self.is_sender:
                self._sending = None
                if not self.fields:
                    self._idle()
                self._changed.notify_all()
