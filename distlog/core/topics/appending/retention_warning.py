"""Warns who appends records that retention is to delete at once, as after a backfill."""

from __future__ import annotations

import warnings

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.display.units import counted
from distlog.core.errors import RetentionWarning

#: From the caller of `Topic.append`, by the transaction's end and commit, to here.
_CALLS = 5


def expiry_text(expired: int, retention_ms: object) -> str:
    """What to tell people about `expired` records."""
    verb = "is" if expired == 1 else "are"
    return (
        f"{counted(expired, 'record')} {verb} older than retention.ms={retention_ms}, so the next retention deletes "
        "them: to keep them, set retention.ms higher, or to -1"
    )


def warn_of_retention(expired: int, snapshot: Snapshot) -> None:
    """Give a RetentionWarning if an append to `snapshot` had records that are too old already."""
    if expired:
        text = expiry_text(expired, snapshot.config.retention_ms)
        warnings.warn(f"{snapshot.name}: {text}", RetentionWarning, stacklevel=_CALLS)
