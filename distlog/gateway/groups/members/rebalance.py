"""How long a group waits for its members to join."""

from __future__ import annotations

from dataclasses import dataclass

#: Members that give no time at all get this much, in ms: else one that is away would keep the timer busy for ever.
SHORTEST_MS = 100


@dataclass(slots=True)
class Rebalance:
    """Members join until `deadline`, by the coordinator's clock, in ms.

    The first one of an empty group (Kafka's InitialDelayedJoin, KIP-134) always takes its delay. If somebody came
    meanwhile it waits as long again, up to `left_ms` more, so that members that start together are one generation.
    """

    deadline: float
    is_first: bool = False
    delay_ms: int = 0
    left_ms: int = 0
    has_newcomers: bool = False

    @classmethod
    def first(cls, now: float, delay_ms: int, timeout_ms: int) -> Rebalance:
        """Of a group that was empty."""
        return cls(now + delay_ms, True, delay_ms, max(0, timeout_ms - delay_ms))

    @classmethod
    def again(cls, now: float, timeout_ms: int) -> Rebalance:
        """Of a group that had members: it is over when all of them have joined."""
        return cls(now + max(timeout_ms, SHORTEST_MS))

    def is_due(self, now: float) -> bool:
        """Whether the group goes on with those that are there; a first one with newcomers waits longer instead."""
        if now < self.deadline:
            return False
        if self.has_newcomers and self.left_ms > 0:
            more = min(self.delay_ms, self.left_ms)
            self.deadline, self.left_ms, self.has_newcomers = now + more, self.left_ms - more, False
            return more == 0
        return True
