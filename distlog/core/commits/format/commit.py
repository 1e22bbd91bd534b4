"""A commit and its JSON: the only thing that ever changes a topic.

A commit file is one JSON object. Its last member is the CRC-32C of the bytes before it:

    {"format":1,"version":7,"id":"<uuid>","prev":"<uuid>","topic_id":"<uuid>","timestamp_ms":1700000000000,
     "operation":"append","writer":"distlog 0.1.0 ...","actions":[{"add":{...}},...],"crc32c":2882343476}

A commit that needs named features has a member `requires` (see `features`). Unknown members are ignored. `write_id`
and `run_id` are optional: they say which write made the commit, if that must be recognised.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from distlog.core.commits.format import fields, json_text
from distlog.core.commits.format.action_json import read_actions, write_items
from distlog.core.commits.format.actions import Action
from distlog.core.commits.format.features import NOTHING, Requires
from distlog.core.commits.format.fields import LONG, NAME, UUID, Integer, Text, optional, stored
from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptMetadataError, UnsupportedVersionError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """The write that made a commit, if that must be recognised.

    There is one `write_id` per write, so that a repeated commit finds the first one. There is one `run_id` per start
    of the streaming query that the write is a batch of.
    """

    write_id: str | None = None
    run_id: str | None = None


#: For a commit whose write need not be known again.
UNNAMED = Origin()


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version of a topic: what was done, by whom, when, and after which commit (`prev`)."""

    version: int = stored(LONG)
    id: str = stored(UUID)
    prev: str | None = stored(optional(UUID))
    topic_id: str = stored(UUID)
    timestamp_ms: int = stored(Integer(0, MAX_LONG - 1))
    operation: str = stored(Text("[a-z-]{1,64}"))
    writer: str = stored(NAME)
    actions: tuple[Action, ...] = stored(read_actions)
    # What is asked of readers and writers from this version on.
    requires: Requires = stored(Requires.of, default=NOTHING)
    # How long its writer tried before, since others were first: those who wait for less let it go first.
    waited_ms: int = stored(LONG, default=0)
    # See Origin.
    write_id: str | None = stored(optional(NAME), default=None)
    run_id: str | None = stored(optional(NAME), default=None)
    # The size of its file, which says when the next checkpoint is due; 0 until it was read from one.
    size: int = dataclasses.field(default=0, compare=False)

    def encode(self) -> bytes:
        """The bytes of the commit file."""
        facts = {name: value for name, value in fields.write(self).items() if value != _DEFAULTS[name]}
        body = {"format": FORMAT, **facts, "actions": list(write_items(self.actions))}
        return json_text.write(body, fields.write)

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


#: What is not written where it says nothing.
_DEFAULTS = {spec.name: spec.default for spec in dataclasses.fields(Commit)}


def _parse(data: bytes, file: str) -> Any:
    body = json_text.parse(data)
    if not isinstance(body, dict):
        raise ValueError("a commit must be an object")
    if fields.LONG(body.get("format")) > FORMAT:
        raise UnsupportedVersionError("a newer distlog wrote this topic: upgrade", file=file, format=body["format"])
    json_text.check_sum(data)
    # before the rest: a reader that lacks the feature may not be able to make sense of that
    Requires.of(body.get("requires", {})).check_readable(file)
    return body
