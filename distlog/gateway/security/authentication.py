"""SASL as Kafka's clients speak it: one exchange for each connection, by the users of a file."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from distlog.core.log_manager.metrics import Metric, Value
from distlog.gateway.security.credentials import (
    MECHANISMS,
    PLAIN,
    AuthenticationFailedError,
    Proved,
    ScramExchange,
    check_plain,
    new_nonce,
)
from distlog.gateway.security.users import Users
from distlog.gateway.security.users_file import UsersFile


class Authentication:
    """What all connections of a gateway share; for many threads. `mechanisms`: Kafka's `sasl.enabled.mechanisms`."""

    def __init__(
        self,
        users: UsersFile,
        mechanisms: Sequence[str] = MECHANISMS,
        nonce: Callable[[], str] = new_nonce,
    ) -> None:
        self.users, self.mechanisms, self.nonce = users, tuple(mechanisms), nonce
        self._lock = threading.Lock()
        self._count = Counter[tuple[str, str]]({(mechanism, "ok"): 0 for mechanism in mechanisms})

    def note(self, mechanism: str, result: str) -> None:
        """Count an exchange that has ended."""
        with self._lock:
            self._count[mechanism, result] += 1

    def metrics(self) -> list[Metric]:
        """The counters as they are now."""
        with self._lock:
            count = sorted(self._count.items())
        values: list[Value] = [({"mechanism": each[0], "result": each[1]}, float(value)) for each, value in count]
        return [Metric("distlog_gateway_authentications", "counter", "exchanges of SASL: ok, or failed", values)]


class SaslExchange:
    """Who is at the other end of one connection; its requests come one after the other."""

    def __init__(self, authentication: Authentication) -> None:
        self._all = authentication
        self._mechanism = ""
        self._scram: ScramExchange | None = None
        self._proved: Proved | None = None
        #: Whether the next frame is a bare token, without Kafka's head: the client began with SaslHandshake 0.
        self.takes_tokens = False

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """What a client may choose from."""
        return self._all.mechanisms

    @property
    def expects_handshake(self) -> bool:
        """Whether the client has not chosen a mechanism yet."""
        return not self._mechanism

    @property
    def mechanism(self) -> str:
        """What the client chose."""
        return self._mechanism

    def choose(self, mechanism: str, *, by_tokens: bool) -> bool:
        """Begin by a mechanism; False if the gateway does not have it."""
        if mechanism not in self._all.mechanisms:
            self._all.note("other", "failed")
            return False
        self._mechanism, self.takes_tokens = mechanism, by_tokens
        return True

    def step(self, token: bytes) -> tuple[bytes, str | None]:
        """The answer to a client's token, and the user's name if it is proved now.

        Raises AuthenticationFailedError; then the connection is of no use any more.
        """
        try:
            answer, self._proved = self._step(token)
        except AuthenticationFailedError:
            self._all.note(self._mechanism, "failed")
            raise
        if self._proved is None:
            return answer, None
        self.takes_tokens = False
        self._all.note(self._mechanism, "ok")
        return answer, self._proved.name

    def is_revoked(self, users: Users) -> bool:
        """Whether the user was proved, and was deleted since, or has another password."""
        if self._proved is None:
            return False
        return self._proved.secret not in users.secrets.get(self._proved.name, {}).values()

    def _step(self, token: bytes) -> tuple[bytes, Proved | None]:
        if self._mechanism == PLAIN:
            return b"", check_plain(token, self._all.users.current())
        if self._scram is None:
            self._scram = ScramExchange(self._mechanism, self._all.users.current(), self._all.nonce)
            return self._scram.first(token), None
        return self._scram.last(token)
