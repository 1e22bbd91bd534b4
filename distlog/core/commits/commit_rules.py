"""What a writer checks before it commits, beside the invariants that `fold` holds."""

from __future__ import annotations

from collections.abc import Sequence

from distlog.core import paths
from distlog.core.commits.actions import Action, Add, Remove, Seal
from distlog.core.commits.features import APPEND_TIME, NOTHING, Requires
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import TransactionTooOldError


def is_gone(head: Snapshot, snapshot: Snapshot) -> bool:
    """Whether the topic of `snapshot` has ended by `head`."""
    return head.topic_id != snapshot.topic_id or (head.dropped and not snapshot.dropped)


def check_writable(head: Snapshot, begin: int | None) -> None:
    """Raise UnsupportedVersionError where a newer library owns the topic; also what `check_begin` raises."""
    head.requires.check_writable()
    check_begin(head, begin)


def check_begin(head: Snapshot, begin: int | None) -> None:
    """Raise TransactionTooOldError for files that were begun at version `begin`, where vacuum may delete them."""
    if begin is not None and begin < head.gc_floor:
        raise TransactionTooOldError(
            "the data files are too old to be committed: write them again", begin=begin, gc_floor=head.gc_floor
        )


def features(actions: Sequence[Action]) -> Requires:
    """What a library must know to make sense of `actions`."""
    has_append_time = any(isinstance(action, Add) and action.segment.append_time_ms >= 0 for action in actions)
    return Requires(reader=(APPEND_TIME,)) if has_append_time else NOTHING


def oldest_begin(actions: Sequence[Action]) -> int | None:
    """The oldest version at which a file that `actions` bring in was begun."""
    known = {action.stem for action in actions if isinstance(action, (Remove, Seal))}
    added = {action.segment.stem for action in actions if isinstance(action, Add)} - known
    return min((begin for begin in map(paths.stem_begin, added) if begin is not None), default=None)
