"""The writers that hold uncommitted records: at exit these are committed, and a forked child starts without them."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import warnings
import weakref
from typing import Protocol

_log = logging.getLogger("distlog")


class ExitingWriter(Protocol):
    """What a writer must know for the end of its process, and for forks."""

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more records."""
        ...

    def commit_at_exit(self) -> tuple[int, BaseException | None]:
        """Commit the records it holds; returns their number, and the error that its caller has not seen."""
        ...

    def begin_empty(self) -> None:
        """Become empty."""
        ...


class UnclosedWriters:
    """The writers of this process that have records to commit or an error to raise.

    They are kept alive as long as they are here, even if the program has dropped them.
    """

    def __init__(self) -> None:
        self._all: weakref.WeakSet[ExitingWriter] = weakref.WeakSet()
        self._writers: set[ExitingWriter] = set()
        self._committed: dict[ExitingWriter, int] = {}

    def empty_in_children(self, writer: ExitingWriter) -> None:
        """Empty `writer` in forked children, as long as it lives."""
        self._all.add(writer)

    def add(self, writer: ExitingWriter) -> None:
        """Remember a writer that took a record."""
        self._writers.add(writer)

    def discard(self, writer: ExitingWriter) -> None:
        """Forget a writer: it holds nothing, and its caller has seen its error."""
        self._writers.discard(writer)

    def commit(self) -> None:
        """Commit what all of them hold; an error is logged, since no caller is left to raise it to."""
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
        """Drop, in a forked child, the records that its parent will commit."""
        for writer in self._all:
            writer.begin_empty()
        self._writers.clear()
        self._committed.clear()


def unclosed_writers() -> UnclosedWriters:
    """The writers of this process, committed at its end and emptied in its forked children."""
    made = UnclosedWriters()
    os.register_at_fork(after_in_child=made.forget_parents)
    # Twice: while there can still be threads, which clients of object stores need, and when the last one has ended.
    # A child of multiprocessing runs only the first call; Python has no public name for that one.
    getattr(threading, "_register_atexit", lambda call: None)(made.commit)
    atexit.register(made.warn)
    return made
