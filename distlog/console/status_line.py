"""A service's output: lines on standard output, and on a terminal a last line that shows how things are."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from distlog.console import output


class StatusLine(logging.Handler):
    """Prints lines above a status line, which is shown on a terminal only. Warnings go to standard error, as lines.

    `status` gives the text of the status line. Safe between threads.
    """

    def __init__(self, program: str, status: Callable[[], str]) -> None:
        super().__init__(logging.WARNING)
        self._program, self._status = program, status
        self._turn = threading.RLock()
        self.is_visible = sys.stderr.isatty()

    def draw(self) -> None:
        """Show the status as it is now."""
        if self.is_visible:
            with self._turn:
                sys.stderr.write(f"\r{output.text(self._status())}\x1b[K")
                sys.stderr.flush()

    def clear(self) -> None:
        """Remove the status line."""
        if self.is_visible:
            with self._turn:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()

    def print(self, line: str) -> None:
        """Print a line on standard output, and flush it."""
        with self._turn:
            self.clear()
            print(output.text(line), flush=True)
            self.draw()

    def print_json(self, event: dict[str, object]) -> None:
        """Print one JSON object as a line on standard output, and flush it."""
        with self._turn:
            self.clear()
            output.print_json(event)
            sys.stdout.flush()
            self.draw()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning on one line of standard error; if nobody reads that any more, who logs it goes on."""
        with suppress(BrokenPipeError), self._turn:
            self.clear()
            text = output.text(" ".join(record.getMessage().split()))
            print(f"{self._program}: {text}", file=sys.stderr, flush=True)
            self.draw()
