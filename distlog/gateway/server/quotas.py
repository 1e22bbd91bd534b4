"""Kafka's quotas: bytes and time that users and client ids may have in a second (KIP-13, KIP-55, KIP-124)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Quotas:
    """The limits of all clients and their debts, for many threads. `clock_s` is monotonic."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s, self._lock = clock_s, threading.Lock()
        #: The quotas that are set.
        self.limits: Limits = {}
        self._debts: dict[tuple[str, tuple[str, str]], _Debt] = {}

    def set(self, limits: Limits) -> None:
        """Have these quotas from now on."""
        with self._lock:
            self.limits, self._debts = dict(limits), self._debts if limits else {}

    def note(self, user: str, client_id: str, name: str, amount: float) -> None:
        """Count bytes, or seconds of a handler, for a client."""
        if not self.limits or amount <= 0:
            return
        limit, sharing = self._limit(user, client_id, name)
        if limit is None:
            return
        now_s, a_second = self._clock_s(), limit / 100 if name == REQUEST_PERCENTAGE else limit
        with self._lock:
            if len(self._debts) > _MANY:
                self._debts = {key: debt for key, debt in self._debts.items() if debt.left_s(now_s)}
            debt = self._debts.setdefault((name, sharing), _Debt())
            debt.seconds, debt.noted_s = debt.left_s(now_s) + amount / a_second, now_s

    def wait_s(self, user: str, client_id: str) -> float:
        """The time until the next request of a client may be read; mostly 0."""
        return max(self._wait_s(user, client_id, name) for name in NAMES) if self.limits else 0

    def _wait_s(self, user: str, client_id: str, name: str) -> float:
        limit, sharing = self._limit(user, client_id, name)
        if limit is None:
            return 0
        with self._lock:
            debt = self._debts.get((name, sharing))
            left_s = 0 if debt is None else debt.left_s(self._clock_s()) - _BURST_S
        return min(max(left_s, 0), _LONGEST_S.get(name, _LONGEST_FOR_BYTES_S))

    def _limit(self, user: str, client_id: str, name: str) -> tuple[float | None, tuple[str, str]]:
        limits = self.limits
        # a longer one has no quota of its own, but a client without a login may send it
        for entity, sharing in _entities(user, client_id[: MOST_NAME_BYTES + 1]):
            limit = limits.get(entity, {}).get(name)
            if limit is not None:
                return limit, sharing
        return None, ("", "")


PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
#: All quotas by Kafka's names: bytes in a second, and percent of the time of one handler.
NAMES = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
#: No name of a user or a client id with a quota is longer.
MOST_NAME_BYTES = 1 << 10
#: Stands for all names that have no quota of their own.
DEFAULT = None


class Entity(NamedTuple):
    """The clients that a quota is for: parts are (type, name) with the type user or client-id, sorted by type."""

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, parts: Mapping[str, str | None]) -> Entity:
        """The entity with these names by type."""
        return cls(tuple(sorted(parts.items())))


#: The types of entities.
USER, CLIENT_ID = "user", "client-id"
Limits = Mapping[Entity, Mapping[str, float]]


def _entities(user: str, client_id: str) -> Iterator[tuple[Entity, tuple[str, str]]]:
    """The entities of a client in Kafka's order, the first one with a quota counts; and all that share the quota."""
    for name in (user, DEFAULT):
        for client in (client_id, DEFAULT):
            yield Entity.of({USER: name, CLIENT_ID: client}), (user, client_id)
        yield Entity.of({USER: name}), (user, "")
    for client in (client_id, DEFAULT):
        yield Entity.of({CLIENT_ID: client}), ("", client_id)


# A use is a debt that the quota pays off as time passes. One second of debt may be open at any time, as in Kafka's
# windows; for more the client waits before its next request is read, and its response says how long.

_BURST_S = 1.0
#: Kafka's longest wait for handlers' time, and the longest one here for bytes, so that a client does not give up.
_LONGEST_S = {REQUEST_PERCENTAGE: 1.0}
_LONGEST_FOR_BYTES_S = 20.0
_MANY = 10_000


@dataclass(slots=True)
class _Debt:
    seconds: float = 0
    noted_s: float = 0

    def left_s(self, now_s: float) -> float:
        return max(self.seconds - (now_s - self.noted_s), 0)
