"""Parses and formats offsets by partition as JSON, as Spark's Kafka source: {"clicks": {"0": 23, "1": -2}}."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from distlog.core.errors import InvalidConfigError

_EXAMPLE = '{"topic": {"0": 23, "1": -2}}'


@dataclass(frozen=True, slots=True)
class ByPartition:
    """A number for each partition of one topic: offsets, or times in ms."""

    topic: str
    numbers: Mapping[int, int]

    def check(self, topic: str, partitions: Collection[int], option: str) -> None:
        """Raise InvalidConfigError unless this is about `topic` and has a number for exactly `partitions`."""
        if self.topic != topic:
            raise InvalidConfigError(f"option {option} is about another topic", topic=self.topic, expected=topic)
        if set(self.numbers) != set(partitions):
            raise InvalidConfigError(
                f"option {option} must give a number for every partition; as an offset, -1 is latest, -2 is earliest",
                given=sorted(self.numbers),
                partitions=sorted(partitions),
            )


def parse_offsets(text: str, option: str) -> ByPartition:
    """The numbers in `text`, JSON like {"topic": {"0": 23, "1": -2}}. Raises InvalidConfigError for other text."""
    topic, numbers = _one_topic(text, option, f"earliest, latest, or JSON like {_EXAMPLE}")
    if not isinstance(numbers, dict) or not all(_is_entry(*entry) for entry in numbers.items()):
        raise InvalidConfigError(f"option {option} must be JSON like {_EXAMPLE}", value=text)
    return ByPartition(topic, {int(partition): number for partition, number in numbers.items()})


def parse_assign(text: str) -> ByPartition:
    """The partitions in `text`, JSON like {"topic": [0, 1]}, each with the number 0."""
    topic, partitions = _one_topic(text, "assign", 'JSON like {"topic": [0, 1]}')
    if not isinstance(partitions, list) or not partitions or not all(_is_entry(str(each), 0) for each in partitions):
        raise InvalidConfigError('option assign must be JSON like {"topic": [0, 1]}', value=text)
    return ByPartition(topic, dict.fromkeys(partitions, 0))


def format_offsets(topic: str, offsets: Mapping[int, int]) -> str:
    """Offsets by partition as JSON, ordered by partition."""
    return json.dumps({topic: {str(partition): offsets[partition] for partition in sorted(offsets)}})


def format_assign(topic: str, partitions: Collection[int]) -> str:
    """Some partitions of a topic as JSON."""
    return json.dumps({topic: sorted(partitions)})


def _one_topic(text: str, option: str, expected: str) -> tuple[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or len(parsed) != 1:
        raise InvalidConfigError(f"option {option} must be {expected}, about one topic", value=text)
    return next(iter(parsed.items()))


def _is_entry(partition: str, number: object) -> bool:
    return partition.isascii() and partition.isdecimal() and type(number) is int
