"""What Kafka's clients have committed last in a partition, and which of that a group of followers has seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from distlog.core.commits.format.fields import LONG


class Committed(NamedTuple):
    """A position of Kafka's clients, committed at `commit_ms` (since 1970). The two together tell it from others."""

    offset: int
    commit_ms: int


#: Gives what Kafka's clients of a group have committed, by partition.
KafkaCommits = Callable[[], Mapping[int, Committed]]


def committed(value: Any) -> Committed:
    """Check: `[offset, commit_ms]`."""
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("must be [offset, commit_ms]")
    return Committed(*map(LONG, value))
