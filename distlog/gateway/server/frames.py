"""Cuts what a connection receives into frames: a length, and as many bytes, as Kafka's protocol has them.

What is received goes into a buffer that all connections share; only a frame that is larger than that, or not all
there, has memory of its own. So an idle connection has none, and a length alone costs no memory either: pages of a
large frame that were not written to are only an address, and memory is asked for as the frame comes.
"""

from __future__ import annotations

import numpy as np

from distlog.gateway.protocol.invalid_request import InvalidRequestError

_LENGTH = 4
#: What is asked for at first; then as much as there is already.
_STEP = 64 << 10


class Frames:
    """The frames of one connection. `largest` bounds their length; it may be changed between frames."""

    def __init__(self, shared: memoryview, largest: int) -> None:
        self._shared, self.largest = shared, largest
        self._rest = b""
        self._frame: memoryview | None = None
        self._filled = self._granted = 0

    @property
    def wanted(self) -> int:
        """For how many bytes more the present frame needs memory now; 0 if it needs none."""
        if self._frame is None or self._filled < self._granted:
            return 0
        return min(max(2 * self._filled, _STEP), len(self._frame)) - self._granted

    @property
    def missing(self) -> int:
        """How many bytes of the present frame are not there."""
        return 0 if self._frame is None else len(self._frame) - self._filled

    @property
    def is_begun(self) -> bool:
        """Whether a part of a frame is there, and the rest is missing."""
        return self._frame is not None or bool(self._rest)

    @property
    def held(self) -> int:
        """How many bytes are there that belong to no frame yet."""
        return len(self._rest)

    def room(self) -> memoryview:
        """Where to put what is received next."""
        return self._shared if self._frame is None else self._frame[self._filled : self._granted]

    def grant(self, size: int) -> None:
        """Take memory for so many bytes more."""
        self._granted += size

    def received(self, count: int) -> None:
        """Take `count` bytes that were put there."""
        if self._frame is None:
            self._rest += bytes(self._shared[:count])
        else:
            self._filled += count

    def begin(self) -> int:
        """Begin the next frame if its length is there; returns the length, or 0 if no frame was begun.

        Raises InvalidRequestError for a length that cannot be.
        """
        if self._frame is not None or len(self._rest) < _LENGTH:
            return 0
        length = int.from_bytes(self._rest[:_LENGTH], "big", signed=True)
        if not 0 < length <= self.largest:
            raise InvalidRequestError("a request has an impossible length", length=length, largest=self.largest)
        part, self._rest = self._rest[_LENGTH : _LENGTH + length], self._rest[_LENGTH + length :]
        self._filled, self._granted = len(part), 0
        if self._filled == length:
            self._frame = memoryview(part)
        else:
            self._frame = np.empty(length, np.uint8).data
            self._frame[: self._filled] = part
        return length

    def next(self) -> memoryview | None:
        """The frame that was begun, without its length, if all of it is there."""
        if self._frame is None or self._filled < len(self._frame):
            return None
        frame, self._frame, self._filled = self._frame.toreadonly(), None, 0
        return frame
