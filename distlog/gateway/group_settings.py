"""The settings of consumer groups, by Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass

from distlog.core.broker_setting import broker_setting
from distlog.core.config import MAX_INT


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The broker's settings of groups, by Kafka's names (`group.initial.rebalance.delay.ms`, ...) and defaults."""

    initial_rebalance_delay_ms: int = broker_setting(
        "group.initial.rebalance.delay.ms", 3000, "how long a new group waits for more members", most=MAX_INT
    )
    min_session_timeout_ms: int = broker_setting(
        "group.min.session.timeout.ms", 6000, "the least that a member's `session.timeout.ms` may be", most=MAX_INT
    )
    max_session_timeout_ms: int = broker_setting(
        "group.max.session.timeout.ms",
        1_800_000,
        "the most that a member's `session.timeout.ms` may be",
        most=MAX_INT,
    )
    max_size: int = broker_setting("group.max.size", MAX_INT, "members of a group", least=1, most=MAX_INT)
