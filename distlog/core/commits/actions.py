"""A commit and the actions it is made of, and their JSON: the only thing that ever changes a topic.

A commit file is one JSON object. Its last member is the CRC-32C of the bytes before it:

    {"format":1,"version":7,"id":"<uuid>","prev":"<uuid>","topic_id":"<uuid>","timestamp_ms":1700000000000,
     "operation":"append","writer":"distlog 0.1.0 ...","actions":[{"add":{...}},...],"crc32c":2882343476}

A commit that asks for named features says so in a member `requires` (see `features`). An action is an object
with one member. Whoever meets an action it does not know must not write; it must not read either, unless the
action says `"reader_safe":true`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crc32c import crc32c

from distlog.core import paths
from distlog.core.commits import fields, json_text
from distlog.core.commits.features import FEATURE, NOTHING, Requires
from distlog.core.commits.fields import LONG, NAME, PARTITION, STEM, UUID, Integer, Text, stored, unknown_fields
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptMetadataError, UnsupportedVersionError

FORMAT = 1
MAX_PARTITIONS = 100_000
#: About two million segments.
MAX_MANIFEST_BYTES = 1 << 30

_CHECKSUM = re.compile(rb',"crc32c":(\d{1,10})\}\n')


@dataclass(frozen=True, slots=True)
class Create:
    """Begins a topic: at version 0, or after a drop; `name` is the prefix of its partition folders."""

    name: str = stored(Text("[a-zA-Z0-9._-]{1,249}"))


@dataclass(frozen=True, slots=True)
class Drop:
    """Ends the topic; its segments are no longer referenced."""


@dataclass(frozen=True, slots=True)
class SetPartitions:
    """Raises the number of partitions to `count`."""

    count: int = stored(Integer(1, MAX_PARTITIONS))


@dataclass(frozen=True, slots=True)
class SetConfig:
    """Replaces the topic's settings; `settings` is what differs from the defaults (TopicConfig.overrides)."""

    settings: Mapping[str, str] = stored(fields.settings)


@dataclass(frozen=True, slots=True)
class Add:
    """Adds a sealed segment: at the log's end, or in the place of segments that the same commit removes."""

    segment: SegmentInfo


@dataclass(frozen=True, slots=True)
class Remove:
    """Takes a segment out of the snapshot; vacuum deletes its files later."""

    partition: int = stored(PARTITION)
    stem: str = stored(STEM)


@dataclass(frozen=True, slots=True)
class SetLogStartOffset:
    """Raises a partition's log start offset; above the log end only while the partition holds no segment."""

    partition: int = stored(PARTITION)
    offset: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class Transaction:
    """Records that an application's batch is in this commit, with the offsets it got per partition."""

    app_id: str = stored(NAME)
    batch_id: int | str = stored(fields.batch_id)
    offsets: Mapping[int, tuple[int, int]] = stored(fields.offset_ranges)
    unknown: str = unknown_fields()


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Compaction has cleaned the partition below `first_dirty_offset` (Kafka's cleaner-offset-checkpoint)."""

    partition: int = stored(PARTITION)
    first_dirty_offset: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class Active:
    """Opens a segment that `owner` appends to in place, from the partition's log end offset on."""

    partition: int = stored(PARTITION)
    stem: str = stored(STEM)
    base_offset: int = stored(LONG)
    owner: str = stored(NAME)
    epoch: int = stored(LONG)
    unknown: str = unknown_fields()


@dataclass(frozen=True, slots=True)
class Seal:
    """Closes the partition's active segment; unless it is empty, an Add of the same stem follows."""

    partition: int = stored(PARTITION)
    stem: str = stored(STEM)


@dataclass(frozen=True, slots=True)
class GcFloor:
    """Refuses files that were begun below `version` from here on, so that vacuum may delete them."""

    version: int = stored(LONG)


@dataclass(frozen=True, slots=True)
class Pin:
    """Asks vacuum to keep the files of `version` until the time `until_ms`, under a name."""

    name: str = stored(NAME)
    version: int = stored(LONG)
    until_ms: int = stored(LONG)
    unknown: str = unknown_fields()


@dataclass(frozen=True, slots=True)
class Unpin:
    """Takes a pin back."""

    name: str = stored(NAME)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Stands for the actions in a file, in the bytes of a commit alone: who reads the commit gets those."""

    file: str = stored(Text(paths.MANIFEST_PATTERN))
    size: int = stored(Integer(1, MAX_MANIFEST_BYTES))
    crc32c: int = stored(Integer(0, 2**32 - 1))


@dataclass(frozen=True, slots=True)
class UnknownAction:
    """An action of a newer library that changes nothing a reader sees: it stops writers only."""

    kind: str


Action = (
    Create
    | Drop
    | SetPartitions
    | SetConfig
    | Add
    | Remove
    | SetLogStartOffset
    | Transaction
    | Cleaned
    | Active
    | Seal
    | GcFloor
    | Pin
    | Unpin
    | Manifest
    | UnknownAction
)

_NAMES: dict[str, type] = {
    "create": Create,
    "drop": Drop,
    "partitions": SetPartitions,
    "config": SetConfig,
    "add": Add,
    "remove": Remove,
    "log_start_offset": SetLogStartOffset,
    "transaction": Transaction,
    "cleaned": Cleaned,
    "active": Active,
    "seal": Seal,
    "gc_floor": GcFloor,
    "pin": Pin,
    "unpin": Unpin,
    "manifest": Manifest,
}
_NAME_OF = {kind: name for name, kind in _NAMES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version of a topic: what was done, by whom, when, and on top of which commit (`prev`)."""

    version: int = stored(LONG)
    id: str = stored(UUID)
    prev: str | None = stored(lambda value: None if value is None else UUID(value))
    topic_id: str = stored(UUID)
    timestamp_ms: int = stored(Integer(0, MAX_LONG - 1))
    operation: str = stored(Text("[a-z-]{1,64}"))
    writer: str = stored(NAME)
    actions: tuple[Action, ...] = stored(lambda value: _read_actions(value))
    # What is asked of readers and writers from this version on.
    requires: Requires = stored(Requires.of, default=NOTHING)
    # How long its writer tried before, since others were first: those who wait for less let it go first.
    waited_ms: int = stored(LONG, default=0)
    # The size of its file, which says when the next checkpoint is due; 0 until it was read from one.
    size: int = dataclasses.field(default=0, compare=False)

    def encode(self) -> bytes:
        """The bytes of the commit file."""
        body = {"format": FORMAT, **fields.write(self), "actions": [write_action(action) for action in self.actions]}
        if self.requires == NOTHING:
            del body["requires"]
        if not self.waited_ms:
            del body["waited_ms"]
        text = json.dumps(body, default=fields.write, separators=(",", ":"), allow_nan=False)[:-1].encode()
        return text + b',"crc32c":%d}\n' % crc32c(text)

    @classmethod
    def decode(cls, data: bytes, file: str) -> Commit:
        """The commit that the bytes of `file` hold.

        Raises UnsupportedVersionError when a newer library wrote what this one must not ignore,
        CorruptMetadataError for anything else that is not a commit.
        """
        try:
            return dataclasses.replace(fields.read(cls, _parse(data, file)), size=len(data))
        except (ValueError, RecursionError) as error:
            raise CorruptMetadataError(f"not a commit: {error}; restore the file from a copy", file=file) from error


def _parse(data: bytes, file: str) -> Any:
    body = json_text.parse(data)
    if not isinstance(body, dict):
        raise ValueError("a commit must be an object")
    if fields.LONG(body.get("format")) > FORMAT:
        raise UnsupportedVersionError("a newer distlog wrote this topic: upgrade", file=file, format=body["format"])
    checksum = _CHECKSUM.search(data, max(0, len(data) - 32))
    if not checksum or checksum.end() != len(data) or int(checksum[1]) != crc32c(data[: checksum.start()]):
        raise ValueError("its checksum is wrong")
    # before the rest: a reader that lacks the feature may not be able to make sense of that
    Requires.of(body.get("requires", {})).check_readable(file)
    return body


def _read_actions(value: Any) -> tuple[Action, ...]:
    if not isinstance(value, list):
        raise ValueError("must be a list")
    return tuple(read_action(item) for item in value)


def read_action(item: Any) -> Action:
    """The action that the JSON object `item` describes; raises ValueError, and UnsupportedVersionError."""
    if not isinstance(item, dict) or len(item) != 1:
        raise ValueError("an action must be an object with one member")
    ((name, body),) = item.items()
    if name not in _NAMES:
        return _unknown_action(name, body)
    if name == "add":
        return Add(fields.read(SegmentInfo, body))
    action: Action = fields.read(_NAMES[name], body)
    return action


def _unknown_action(name: str, body: Any) -> UnknownAction:
    if isinstance(body, dict) and body.get("reader_safe") is True:
        return UnknownAction(FEATURE(name))
    raise UnsupportedVersionError(f"a newer distlog wrote the action {name[:100]!r}: upgrade")


def write_action(action: Action) -> dict[str, Any]:
    """The JSON object that `read_action` turns into an equal action."""
    if isinstance(action, UnknownAction):
        raise UnsupportedVersionError(f"the action {action.kind!r} cannot be written: upgrade")
    body = action.segment if isinstance(action, Add) else action
    return {_NAME_OF[type(action)]: fields.write(body)}
