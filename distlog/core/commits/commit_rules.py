"""The checks of a writer before it commits, in addition to the invariants of `fold`."""

from __future__ import annotations

from collections.abc import Sequence

from distlog.core import paths
from distlog.core.commits.format.action_columns import uses_columns
from distlog.core.commits.format.actions import Action, Active, Add, ProducerTransaction, Remove, Restore, Seal
from distlog.core.commits.format.features import (
    ACTIVE_SEGMENTS,
    APPEND_TIME,
    BUNDLES,
    COLUMNS,
    PRODUCER_TRANSACTIONS,
    Requires,
)
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import TransactionTooOldError


def is_gone(head: Snapshot, snapshot: Snapshot) -> bool:
    """Whether the topic of `snapshot` has ended by `head`."""
    return head.topic_id != snapshot.topic_id or (head.dropped and not snapshot.dropped)


def check_writable(head: Snapshot, read_version: int | None) -> None:
    """Raise UnsupportedVersionError if only a newer library may write the topic; else as `check_read_version`."""
    head.requires.check_writable()
    check_read_version(head, read_version)


def check_read_version(head: Snapshot, read_version: int | None) -> None:
    """Raise TransactionTooOldError if `read_version`, at which the files were begun, is below the gc floor."""
    if read_version is not None and read_version < head.gc_floor:
        raise TransactionTooOldError(
            "the data files are too old to be committed: write them again",
            read_version=read_version,
            gc_floor=head.gc_floor,
        )


def features(actions: Sequence[Action]) -> Requires:
    """The features that a library must know to apply `actions`."""
    added = [action.segment for action in actions if isinstance(action, Add)]
    reader = (
        *((APPEND_TIME,) if any(segment.append_time_ms >= 0 for segment in added) else ()),
        *((BUNDLES,) if any(segment.is_bundled for segment in added) else ()),
        *((COLUMNS,) if uses_columns(actions) else ()),
        *((PRODUCER_TRANSACTIONS,) if any(isinstance(each, ProducerTransaction) for each in actions) else ()),
    )
    has_active = any(isinstance(action, Active) for action in actions)
    return Requires(reader=reader, writer=(ACTIVE_SEGMENTS,) if has_active else ())


def oldest_read_version(actions: Sequence[Action]) -> int | None:
    """The oldest read version of the files that `actions` add; None if there are none.

    Restored files do not count: their version is checked.
    """
    known = {(action.partition, action.stem) for action in actions if isinstance(action, (Remove, Seal))}
    restored = {action.partition for action in actions if isinstance(action, Restore)}
    segments = (action.segment for action in actions if isinstance(action, Add))
    added = {one.stem for one in segments if one.partition not in restored and (one.partition, one.stem) not in known}
    return min((version for version in map(paths.stem_read_version, added) if version is not None), default=None)
