"""Changes that count when the transactions that brought them are committed, as Kafka's group coordinator has them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class WaitingChanges(Generic[Key, Value]):
    """By key, then by producer id, in the order of the log: of two that are committed, the later one counts."""

    def __init__(self) -> None:
        self._by_key = dict[Key, dict[int, Value]]()

    def __bool__(self) -> bool:
        return bool(self._by_key)

    @property
    def keys(self) -> frozenset[Key]:
        """The keys whose values depend on how transactions end."""
        return frozenset(self._by_key)

    def __iter__(self) -> Iterator[tuple[int, Key, Value]]:
        for key, waiting in self._by_key.items():
            for producer_id, value in waiting.items():
                yield producer_id, key, value

    def add(self, producer_id: int, key: Key, value: Value) -> None:
        """Take a change that comes behind all others."""
        waiting = self._by_key.setdefault(key, {})
        waiting.pop(producer_id, None)
        waiting[producer_id] = value

    def supersede(self, key: Key) -> None:
        """A change outside of transactions came behind all others: it counts, however they end."""
        self._by_key.pop(key, None)

    def end(self, producer_id: int, *, is_committed: bool) -> dict[Key, Value]:
        """The changes that count now that this producer's transaction ended."""
        found = dict[Key, Value]()
        for key, waiting in list(self._by_key.items()):
            if producer_id not in waiting:
                continue
            value = waiting.pop(producer_id) if not is_committed else _taken(waiting, producer_id)
            if is_committed:
                found[key] = value
            if not waiting:
                del self._by_key[key]
        return found


def _taken(waiting: dict[int, Value], producer_id: int) -> Value:
    """Take the producer's change, and drop those before it."""
    while True:
        first = next(iter(waiting))
        value = waiting.pop(first)
        if first == producer_id:
            return value
