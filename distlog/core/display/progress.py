"""Shows the progress of a long operation on a terminal or in a notebook, and nothing in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TextIO

import pyarrow as pa

from distlog.core.display.screens import Screen, screen_of
from distlog.core.display.units import duration_text, size_text

#: Who did not ask for progress sees it only of what takes longer, in seconds.
PATIENCE_S = 1.0


class Progress:
    """Shows rows and bytes done, the rate, and the time left if a total is known. Use it in a `with` block.

    It shows itself after `delay_s` seconds and then at most every `interval_s` seconds, on the screen of this process
    (see `screen_of`): with `shown` None only to people who type. `clock` gives seconds.
    """

    def __init__(
        self,
        label: str,
        *,
        total_bytes: int | None = None,
        total_rows: int | None = None,
        shown: bool | None = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 0.2,
    ) -> None:
        self._label, self._total_bytes, self._total_rows = label, total_bytes, total_rows
        self._screen: Screen | None = screen_of(shown, stream)
        self._clock, self._interval = clock, interval_s
        self._started = clock()
        self._next = self._started + (PATIENCE_S if shown is None else interval_s)
        self._is_drawn = False
        self.rows = 0
        self.bytes = 0

    def add(self, rows: int, size: int = 0) -> None:
        """Count `rows` rows of `size` bytes as done."""
        self.rows += rows
        self.bytes += size
        if self._screen and self._clock() >= self._next:
            self._next = self._clock() + self._interval
            self._is_drawn = True
            self._screen.draw(self.line(), self._share())

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, counted as done when they are taken."""
        with self:
            for batch in batches:
                yield batch
                self.add(batch.num_rows, batch.nbytes if self._screen else 0)

    def line(self) -> str:
        """The line that is shown."""
        seconds, share = self._seconds(), self._share()
        parts = [self._label, f"{self.rows:,} rows"]
        if self.bytes:
            parts += [size_text(self.bytes), f"{size_text(self.bytes / seconds)}/s"]
        if share:
            parts += [f"{int(100 * share)}%", f"{duration_text(seconds / share - seconds)} left"]
        return "  ".join(parts)

    def _share(self) -> float | None:
        done, total = (self.rows, self._total_rows) if self._total_rows else (self.bytes, self._total_bytes)
        return min(done / total, 1.0) if total else None

    def _seconds(self) -> float:
        return max(self._clock() - self._started, 1e-9)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._screen and self._is_drawn:
            size = f"  {size_text(self.bytes)}" if self.bytes else ""
            self._screen.close(f"{self._label}  {self.rows:,} rows{size}  {duration_text(self._seconds())}")
