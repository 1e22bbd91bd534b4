"""Sends fetched batches to a socket as it takes them, from the page cache (sendfile) where they are in a file.

A run of batches that are stored with the offsets that readers see is one slice of the file. A batch whose offset is
another one is two pieces: a prefix with the offset, and the slice behind it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import NamedTuple


class Part(NamedTuple):
    """What is sent: first `prefix`, then the bytes from `start` (in) to `end` (out) of the fetched data."""

    prefix: bytes
    start: int
    end: int


class Sending:
    """The parts of a fetch on their way to a socket; `sent` counts the bytes that the socket has taken.

    `data` is what the parts are slices of. The local file `path` holds it from `file_position` on; None if no file
    does. Close it, or use it as a context manager.
    """

    def __init__(self, parts: Iterable[Part], data: memoryview, path: str | None, file_position: int) -> None:
        self._parts, self._data = iter(parts), data
        self._file = -1 if path is None else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._file_position = file_position
        self._prefix = memoryview(b"")
        self._start = self._end = self.sent = 0

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def send(self, receiver: socket.socket) -> bool:
        """Send what `receiver`, a socket without encryption, takes now; returns whether all is sent.

        After False call it again when the socket can be written to. A blocking socket takes all. Raises OSError if
        the connection is broken (BrokenPipeError, ConnectionResetError), or the file is shorter than it was.
        """
        try:
            while self._has_more():
                self.sent += self._send_prefix(receiver) if self._prefix else self._send_slice(receiver)
        except BlockingIOError:
            return False
        return True

    def _has_more(self) -> bool:
        while not self._prefix and self._start == self._end:
            part = next(self._parts, None)
            if part is None:
                return False
            self._prefix, self._start, self._end = memoryview(part.prefix), part.start, part.end
        return True

    def _send_prefix(self, receiver: socket.socket) -> int:
        # what follows is sent at once, so the prefix waits for it rather than become a packet of its own
        count = receiver.send(self._prefix, socket.MSG_MORE if self._start < self._end else 0)
        self._prefix = self._prefix[count:]
        return count

    def _send_slice(self, receiver: socket.socket) -> int:
        if self._file < 0:
            count = receiver.send(self._data[self._start : self._end])
        else:
            position, size = self._file_position + self._start, self._end - self._start
            count = os.sendfile(receiver.fileno(), self._file, position, size)
            if count == 0:
                raise OSError("the log file ended while it was sent")
        self._start += count
        return count
