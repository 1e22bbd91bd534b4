"""Logs summaries of events and failures, since clients may cause them at any rate."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from distlog.core.display import text
from distlog.core.errors import DistlogError

_log = logging.getLogger("distlog.gateway")
#: In this time, at most one summary of events and one failure with the same text are logged.
_PERIOD_S = 60.0
#: The most sources that are counted, the most that a line shows, and the most characters of a source or a detail.
_MAX_SOURCES, _MAX_SHOWN_SOURCES, _MAX_CHARACTERS = 1000, 5, 200
_MAX_FAILURES = 1000
#: The source that stands for all sources after the first _MAX_SOURCES.
_OTHER_SOURCES = "others"


class EventLog:
    """Counts events by source, and logs a summary: the first event at once, then at most a line a minute."""

    def __init__(
        self, events: str, clock_s: Callable[[], float] = time.monotonic, level: int = logging.WARNING
    ) -> None:
        self._events, self._clock_s, self._level, self._lock = events, clock_s, level, threading.Lock()
        self._logged_s = float("-inf")
        self._counts, self._examples = Counter[str](), dict[str, str]()
        self.total = 0

    def note(self, source: str, detail: str) -> None:
        """Count an event. Both texts are cut, since they may come from a client."""
        source, detail = source[:_MAX_CHARACTERS], detail[:_MAX_CHARACTERS]
        with self._lock:
            self.total += 1
            name = source if source in self._counts or len(self._counts) < _MAX_SOURCES else _OTHER_SOURCES
            self._counts[name] += 1
            self._examples[name] = detail
        self.log()

    def log(self, *, is_last: bool = False) -> None:
        """Log the events since the last line, if that line is _PERIOD_S old, or if this line `is_last`."""
        with self._lock:
            now_s = self._clock_s()
            if not self._counts or (now_s - self._logged_s < _PERIOD_S and not is_last):
                return
            shown = self._counts.most_common(_MAX_SHOWN_SOURCES)
            # `text` escapes control characters, such as the ends of lines
            source_texts = [f"{text(name)} ({count}, last: {text(self._examples[name])})" for name, count in shown]
            count, other_sources = self._counts.total(), len(self._counts) - len(shown)
            self._logged_s, self._counts, self._examples = now_s, Counter(), {}
        remainder = f", and {other_sources} more" if other_sources else ""
        _log.log(self._level, "%s: %d by %s%s", self._events, count, ", ".join(source_texts), remainder)


class FailureLog:
    """Logs failures, the same text at most once a minute, since clients and tasks retry."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s, self._lock = clock_s, threading.Lock()
        self._logged_s: dict[str, float] = {}  # by text: when it was last logged, the oldest first

    def note(self, subject: str, error: BaseException) -> None:
        failure, now_s = f"{subject} failed: {error}", self._clock_s()
        with self._lock:
            if now_s - self._logged_s.get(failure, -_PERIOD_S) < _PERIOD_S:
                return
            self._logged_s.pop(failure, None)
            self._logged_s[failure] = now_s
            if len(self._logged_s) > _MAX_FAILURES:
                del self._logged_s[next(iter(self._logged_s))]
        _log.error("%s", failure, exc_info=None if isinstance(error, DistlogError) else error)


FAILURES = FailureLog()
