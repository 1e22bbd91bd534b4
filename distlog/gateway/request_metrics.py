"""Counts requests by their API, as Kafka's RequestMetrics do."""

from __future__ import annotations

import threading
from collections import Counter

from distlog.core.log_manager.metrics import Metric


class RequestMetrics:
    """How many requests there were, and how long handlers worked on them; for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._seconds = Counter[str](), Counter[str]()

    @property
    def total(self) -> int:
        """All requests so far."""
        return sum(self._count.values())

    def note(self, api: str, seconds: float) -> None:
        """Count a request that a handler has worked on; one that was put off counts each time."""
        with self._lock:
            self._count[api] += 1
            self._seconds[api] += seconds  # type: ignore[assignment]

    def metrics(self) -> list[Metric]:
        """The counters as they are now."""
        with self._lock:
            count, seconds = sorted(self._count.items()), sorted(self._seconds.items())
        return [
            Metric(
                "distlog_gateway_requests",
                "counter",
                "requests that handlers worked on; a fetch that waited counts again",
                [({"api": api}, float(value)) for api, value in count],
            ),
            Metric(
                "distlog_gateway_request_seconds",
                "counter",
                "how long handlers worked on requests",
                [({"api": api}, float(value)) for api, value in seconds],
            ),
        ]
