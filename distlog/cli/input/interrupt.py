"""Ends the input of a command at a signal, instead of the command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class Interrupt:
    """A `with` block in which SIGINT and SIGTERM end the input. A second one raises KeyboardInterrupt.

    `signal` is the number of the first one that came, or 0.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._is_waiting = False

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._heard) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number: int, _: FrameType | None) -> None:
        is_second, self.signal = self.signal != 0, self.signal or number
        if is_second or self._is_waiting:
            raise KeyboardInterrupt

    def until(self, source: Iterator[T]) -> Iterator[T]:
        """What `source` gives until a signal comes. What it is about to give then is left."""
        while not self.signal:
            try:
                self._is_waiting = True
                found = next(source)
                self._is_waiting = False
            except (KeyboardInterrupt, StopIteration):
                self._is_waiting = False
                return
            yield found
