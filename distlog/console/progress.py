"""Shows the progress of a long operation: one line on a terminal, nothing in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


class Progress:
    """Shows rows and bytes done, the rate, and the time left if `total_bytes` is known. Use it in a `with` block.

    It redraws its line at most every `interval_s` seconds, on `stream` (default: standard error), and only if that is
    a terminal. `clock` gives seconds.
    """

    def __init__(
        self,
        label: str,
        *,
        total_bytes: int | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 0.2,
    ) -> None:
        self._label, self._total = label, total_bytes
        self._stream = sys.stderr if stream is None else stream
        self._clock, self._interval = clock, interval_s
        self._visible = self._stream.isatty()
        self._started = self._drawn = clock()
        self.rows = 0
        self.bytes = 0

    def add(self, rows: int, size: int) -> None:
        """Count `rows` rows of `size` bytes as done."""
        self.rows += rows
        self.bytes += size
        if self._visible and self._clock() - self._drawn >= self._interval:
            self._draw()

    def line(self) -> str:
        """The line that the terminal shows."""
        seconds = max(self._clock() - self._started, 1e-9)
        rate = self.bytes / seconds
        parts = [self._label, f"{self.rows:,} rows", size_text(self.bytes), f"{size_text(rate)}/s"]
        if self._total and rate:
            left = max(self._total - self.bytes, 0) / rate
            parts.append(f"{min(100 * self.bytes // self._total, 100)}%")
            parts.append(f"{duration_text(left)} left")
        return "  ".join(parts)

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._stream.write(f"\r{self.line()}\x1b[K")
        self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._visible:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def size_text(size: float) -> str:
    """A number of bytes for people, in powers of 1000: `12.3 MB`."""
    power = 0
    while size >= 999.95 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}" if power else f"{size:.0f} B"


def duration_text(seconds: float) -> str:
    """A duration for people: `42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
