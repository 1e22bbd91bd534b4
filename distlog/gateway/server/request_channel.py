"""The queue between the network's thread and the threads that handle requests: Kafka's RequestChannel.

It is bounded: a connection whose request does not fit waits, and reads no further meanwhile.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable

from distlog.gateway.server.request import Request


class RequestChannel:
    """At most `capacity` requests wait. `offer` and `admit` are for the network's thread, `receive` for handlers."""

    def __init__(self, capacity: int, wake: Callable[[Callable[[], None]], None]) -> None:
        self._capacity, self._wake = capacity, wake
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._blocked: deque[Request] = deque()

    def __len__(self) -> int:
        return self._queue.qsize() + len(self._blocked)

    def offer(self, request: Request) -> None:
        """Queue the request, or have it wait for a place."""
        if self._blocked or self._queue.qsize() >= self._capacity:
            self._blocked.append(request)
        else:
            self._queue.put(request)

    def admit(self) -> None:
        """Queue what waits for a place, as far as there is room."""
        while self._blocked and self._queue.qsize() < self._capacity:
            self._queue.put(self._blocked.popleft())

    def again(self, request: Request) -> None:
        """Queue a request that was put off, from any thread; it had its place before."""
        self._queue.put(request)

    def receive(self) -> Request | None:
        """The next request; waits for one. None tells a handler to end."""
        request = self._queue.get()
        if self._blocked:
            self._wake(self.admit)
        return request

    def end(self, handlers: int) -> None:
        """Tell so many handlers to end, after what is queued."""
        for _ in range(handlers):
            self._queue.put(None)
