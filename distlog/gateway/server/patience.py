"""How long a gateway waits for a client that does not go on."""

from __future__ import annotations

from collections.abc import Callable

from distlog.gateway.config import GatewayConfig

#: Who takes or sends a large one has a second more for each of these bytes.
BYTES_PER_S = 1 << 20


class Patience:
    """The times of one connection, by the event loop's clock, which gives seconds."""

    def __init__(self, clock_s: Callable[[], float], config: GatewayConfig) -> None:
        self._clock_s, self._config = clock_s, config
        self._made_s = self._touched_s = clock_s()
        self._due_s: float | None = None

    def touched(self) -> None:
        """The client has sent or taken something."""
        self._touched_s = self._clock_s()

    def begins(self, size: int) -> None:
        """It is the client's turn: to send the rest of a request of so many bytes, or to take such a response."""
        if size or self._due_s is None:
            self._due_s = self._clock_s() + self._config.request_timeout_ms / 1000 + size / BYTES_PER_S

    def ends(self) -> None:
        """It is not the client's turn any more."""
        self._due_s = None
        self.touched()

    def verdict(self, *, is_idle: bool, is_known: bool) -> str | None:
        """Why the connection must end now; None if it need not."""
        now_s, config = self._clock_s(), self._config
        silent_ms = 1000 * (now_s - self._touched_s)
        if self._due_s is not None and (now_s > self._due_s or silent_ms > config.request_timeout_ms):
            return "the client stopped, or is too slow, in the middle of a request or a response"
        waits = is_idle or self._due_s is not None
        if waits and not is_known and 1000 * (now_s - self._made_s) > config.authentication_timeout_ms:
            return "the client did not authenticate in time"
        if is_idle and silent_ms > config.connections_max_idle_ms:
            return "the client was idle for connections.max.idle.ms"
        return None
