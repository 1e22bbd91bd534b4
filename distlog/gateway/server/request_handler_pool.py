"""The threads that take requests from the channel and handle them: Kafka's KafkaRequestHandlerPool."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from distlog.gateway.server.request import Request
from distlog.gateway.server.request_channel import RequestChannel

_log = logging.getLogger("distlog.gateway")


class KafkaRequestHandlerPool:
    """`size` threads with a `name`, each of which calls `handle` with one request after the other."""

    def __init__(self, channel: RequestChannel, handle: Callable[[Request], None], size: int, name: str) -> None:
        self._channel, self._handle = channel, handle
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(size)
        ]

    def start(self) -> None:
        """Begin the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End the threads when they have handled what is queued; False if some still run after `timeout_s`."""
        self._channel.end(len(self._threads))
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (request := self._channel.receive()) is not None:
            self._handle_one(request)

    def _handle_one(self, request: Request) -> None:
        try:
            self._handle(request)
        except Exception:
            # a handler tells its own errors in its response; here only the connection is left to end
            _log.exception("a request failed (api_key=%d)", request.head.api_key)
            request.hang_up("the request failed")
