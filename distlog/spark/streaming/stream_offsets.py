"""The offsets of a stream as JSON, which Spark keeps in the checkpoint and compares as text.

    {"version": 1, "topicId": "...", "offsets": {"clicks": {"0": 23, "1": 7}}, "starts": {"clicks": {"0": 0, "1": 0}}}

`offsets` has the shape of Spark's Kafka source: for each partition the next offset to read. `starts` is where those
partitions begin that the offset before this one does not have: all of them at the end of a stream's first batch. So a
batch that is replayed reads the same records, whatever its options mean by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distlog.core.errors import InvalidConfigError, UnsupportedVersionError

FORMAT = 1
#: What a stream starts from. A constant, since Spark asks for it several times, also after a restart.
INITIAL: Mapping[str, Any] = {"version": FORMAT, "initial": True}


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a stream has read: by partition, the next offset; see the module's head for `starts`."""

    topic: str
    topic_id: str
    offsets: Mapping[int, int]
    starts: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON object; equal offsets give equal texts."""
        found = {"version": FORMAT, "topicId": self.topic_id, "offsets": _by_partition(self.topic, self.offsets)}
        return {**found, "starts": _by_partition(self.topic, self.starts)} if self.starts else found

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> StreamOffset | None:
        """The offset in a JSON object; None for INITIAL.

        Raises UnsupportedVersionError for an offset of a newer library, and InvalidConfigError for any other JSON.
        """
        if value == INITIAL:
            return None
        version = value.get("version")
        if type(version) is int and version > FORMAT:
            raise UnsupportedVersionError("a newer distlog wrote this checkpoint: upgrade", version=version)
        topic_id = value.get("topicId")
        if version != FORMAT or not isinstance(topic_id, str):
            raise _foreign(value)
        topic, offsets = _parsed(value.get("offsets"), value)
        starts = _parsed(value["starts"], value)[1] if "starts" in value else {}
        return cls(topic, topic_id, offsets, starts)


def _by_partition(topic: str, offsets: Mapping[int, int]) -> dict[str, dict[str, int]]:
    return {topic: {str(number): offsets[number] for number in sorted(offsets)}}


def _parsed(found: Any, value: Mapping[str, Any]) -> tuple[str, dict[int, int]]:
    if not isinstance(found, dict) or len(found) != 1:
        raise _foreign(value)
    ((topic, offsets),) = found.items()
    if not isinstance(offsets, dict) or not all(_is_entry(*entry) for entry in offsets.items()):
        raise _foreign(value)
    return topic, {int(number): offset for number, offset in offsets.items()}


def _is_entry(partition: str, offset: object) -> bool:
    return partition.isascii() and partition.isdecimal() and type(offset) is int and offset >= 0


def _foreign(value: Mapping[str, Any]) -> InvalidConfigError:
    return InvalidConfigError(
        "the checkpoint holds no offset of a distlog stream: choose another checkpointLocation",
        offset=str(value)[:200],
    )
