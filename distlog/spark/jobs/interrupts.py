"""Ctrl-C in a finalizer, as py4j's objects have: Python drops what is raised there, and prints its stack."""

from __future__ import annotations

import signal
import sys
import threading
from types import TracebackType
from typing import Any

#: How long after it was dropped an interrupt comes again, in seconds: the finalizer has ended then.
AGAIN_S = 0.05


class NoInterruptLost:
    """A `with` block of the main thread in which an interrupt that Python dropped is quiet, and comes again."""

    def __init__(self) -> None:
        self.was_dropped = False
        self._again: threading.Timer | None = None

    def __enter__(self) -> NoInterruptLost:
        self._before, sys.unraisablehook = sys.unraisablehook, self._dropped
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.unraisablehook = self._before
        if self._again is not None:
            self._again.cancel()
            self._again.join()

    def _dropped(self, what: Any) -> None:
        if not isinstance(what.exc_value, KeyboardInterrupt):
            self._before(what)
            return
        self.was_dropped = True
        self._again = threading.Timer(AGAIN_S, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
        self._again.start()
