"""Offsets that Kafka clients commit, as a gateway stores them in `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Mapping

import distlog
from distlog.core.read.kafka_offsets import (
    OFFSETS_TOPIC,
    OffsetKey,
    Position,
    encode_offset_key,
    encode_position,
    offsets_partition,
)
from distlog.core.topic import Topic

PARTITIONS = 3


class KafkaCommits:
    """The commits of the Kafka clients of a group of `topic`, one in each millisecond."""

    def __init__(self, topic: Topic, group: str = "g") -> None:
        root, _, self._name = topic.url.rpartition("/")
        self._group, self._now_ms = group, 1_700_000_000_000
        self._offsets = distlog.open_or_create(
            f"{root}/{OFFSETS_TOPIC}", PARTITIONS, {"retention.ms": -1}, topic.storage.options
        )

    def __call__(self, positions: Mapping[int, int | None]) -> None:
        """Commit positions by partition, or delete them (None)."""
        self._now_ms += 1
        records = [
            {
                "key": encode_offset_key(OffsetKey(self._group, self._name, number)),
                "value": None if offset is None else encode_position(Position(offset, commit_ms=self._now_ms)),
            }
            for number, offset in positions.items()
        ]
        self._offsets.append(records, partition=offsets_partition(self._group, PARTITIONS))
