"""Two processes on one storage, of which one has a bad clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from store_clock import TimedStorage
from topics import NOW, Clock, topic_on, values

from distlog.core.arrays import MAX_LONG
from distlog.core.config import DAY_MS
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

MONTH_MS = 31 * DAY_MS


class TwoClocks:
    """A topic, the storage's clock, which is `good`'s too, and a `bad` one, a month ahead."""

    def __init__(self, storage: Storage, **config: object) -> None:
        self.store = Clock()
        self.bad = Clock(NOW + MONTH_MS)
        self.storage = TimedStorage(storage, self.store)
        settings: dict[str, object] = {name.replace("_", "."): value for name, value in config.items()}
        # which a slow clock would refuse
        settings.setdefault("message.timestamp.after.max.ms", MAX_LONG)
        self.good = topic_on(self.storage, 1, settings, self.store)

    def by(self, clock: Callable[[], int]) -> Topic:
        return topic_on(self.storage, clock=clock)


def believed(now: int, storage: Storage, passed_ms: int = 0) -> int:
    """As before clocks were checked."""
    return now


def poison(world: TwoClocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append by an older library on a bad clock."""
    with monkeypatch.context() as patch:
        patch.setattr("distlog.core.commits.commit_log.trusted_ms", believed)
        after = world.by(world.bad)
        after.append(values([99]))
    assert after.snapshot.timestamp_ms >= NOW + MONTH_MS
