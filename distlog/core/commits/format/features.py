"""Named features: what a library must know before it reads or writes a topic.

A commit with something that an older library would get wrong names the feature in `requires`. From then on the name
is in the topic's state and in every checkpoint. A library that does not know it raises an error with its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from distlog.core.commits.format import fields
from distlog.core.commits.format.fields import Text, stored
from distlog.core.errors import UnsupportedVersionError

#: Records of a segment have the time of its commit (SegmentInfo.append_time_ms), whatever its batches say.
APPEND_TIME = "append-time"

#: The actions of a commit may be in a manifest.
MANIFEST = "manifest"

#: Partitions may have active segments: whoever adds a segment behind one seals it first, under the partition's lock.
ACTIVE_SEGMENTS = "active-segments"

#: A segment may be a part of a bundle (SegmentInfo.log_position).
BUNDLES = "bundles"

#: Many actions of a commit may be one, in columns.
COLUMNS = "columns"

#: Transactions in place may be decided, but not finished: whoever ends one reads its decision in the commit log.
PRODUCER_TRANSACTIONS = "producer-transactions"

KNOWN = frozenset({APPEND_TIME, MANIFEST, ACTIVE_SEGMENTS, BUNDLES, COLUMNS, PRODUCER_TRANSACTIONS})

FEATURE = Text("[A-Za-z0-9_.-]{1,100}")
_MOST = 1000


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MOST:
        raise ValueError("must be a list of features")
    return tuple(sorted({FEATURE(name) for name in value}))


@dataclass(frozen=True, slots=True)
class Requires:
    """The features that a reader must know, and those that only a writer must know; sorted."""

    reader: tuple[str, ...] = stored(_names, default=())
    writer: tuple[str, ...] = stored(_names, default=())

    @classmethod
    def of(cls, value: Any) -> Requires:
        """The features that the JSON object `value` names; raises ValueError."""
        return fields.read(cls, value)

    def also(self, other: Requires) -> Requires:
        """These features and those of `other`."""
        return (
            self
            if other == NOTHING
            else Requires(_sorted(self.reader, other.reader), _sorted(self.writer, other.writer))
        )

    def beyond(self, other: Requires) -> Requires:
        """These features without those of `other`."""
        reader, writer = set(self.reader) - set(other.reader), set(self.writer) - set(other.writer)
        return Requires(tuple(sorted(reader)), tuple(sorted(writer)))

    def check_readable(self, file: str) -> None:
        """Raise UnsupportedVersionError, with their names, if this library lacks features that a reader needs."""
        self._check(self.reader, "read", file)

    def check_writable(self) -> None:
        """Raise UnsupportedVersionError, with their names, if this library lacks features that a writer needs."""
        self._check((*self.reader, *self.writer), "write to", None)

    def _check(self, names: Iterable[str], verb: str, file: str | None) -> None:
        lacking = sorted(set(names) - KNOWN)
        if lacking:
            raise UnsupportedVersionError(
                f"a newer distlog wrote this topic with {', '.join(lacking)}: upgrade to {verb} it", file=file
            )


NOTHING = Requires()


def _sorted(left: Iterable[str], right: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*left, *right}))
