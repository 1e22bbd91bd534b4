"""Writers that hold records which nobody has flushed yet: what becomes of them when the process ends, or forks."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import warnings
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distlog.core.topics.writer import Writer

_log = logging.getLogger("distlog")


class LeftOpen:
    """The writers with something to commit or to tell; they live as long as they are here, whoever forgets them."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Writer] = weakref.WeakSet()
        self._writers: set[Writer] = set()
        self._committed: dict[Writer, int] = {}

    def know(self, writer: Writer) -> None:
        """Have a writer begin anew in forked children, as long as it lives."""
        self._known.add(writer)

    def add(self, writer: Writer) -> None:
        """Remember a writer that took a record."""
        self._writers.add(writer)

    def discard(self, writer: Writer) -> None:
        """Forget a writer: it holds nothing, and its caller knows of its error."""
        self._writers.discard(writer)

    def commit(self) -> None:
        """Commit what all of them hold; an error, which nobody would be told, is logged."""
        for writer in list(self._writers):
            count, error = writer.commit_at_exit()
            self._committed[writer] = count
            if error is not None:
                _log.error("%r was not closed, and its last commit failed: %s", writer, error, exc_info=error)

    def warn(self) -> None:
        """Commit the rest, and warn of each writer that should have been closed."""
        self.commit()
        for writer, count in self._committed.items():
            if not writer.is_closed:
                text = f"{writer!r} was not closed; {count} records were left to exit: close it, or use a with block"
                warnings.warn(text, ResourceWarning, source=writer, stacklevel=2)

    def forget_parents(self) -> None:
        """Give up, in a forked child, what its parent will commit."""
        for writer in self._known:
            writer.begin_empty()
        self._writers.clear()
        self._committed.clear()


def left_open() -> LeftOpen:
    """The writers of this process, with what happens to them at its end set up."""
    made = LeftOpen()
    os.register_at_fork(after_in_child=made.forget_parents)
    # Twice: while there can still be threads, which clients of object stores need, and when the last one has ended.
    # A child of multiprocessing knows the first end only; Python has no public name for it.
    getattr(threading, "_register_atexit", lambda call: None)(made.commit)
    atexit.register(made.warn)
    return made
