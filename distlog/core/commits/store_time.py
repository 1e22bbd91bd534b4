"""This process's time, unless its clock is far ahead of the store's: one bad clock must not damage a topic.

A clock that is behind does no harm: the times of commits only increase. The store is asked for its time only if the
clock is far ahead of a time that is known to have passed. So a busy writer never asks.
"""

from __future__ import annotations

import dataclasses
import logging

from distlog.core import paths
from distlog.core.commits.format.actions import Action, Add
from distlog.core.storage.storage import Storage

#: A clock is trusted up to this far ahead of a time that has passed, or of the store's time.
AHEAD_MS = 5 * 60_000

_log = logging.getLogger(__name__)


def trusted_ms(now_ms: int, storage: Storage, passed_ms: int = 0) -> int:
    """`now_ms`, or the store's own time, with a warning, if `now_ms` is more than AHEAD_MS ahead of it.

    `storage` is a topic's. It is not asked if `now_ms` is at most AHEAD_MS after `passed_ms`, which has passed.
    """
    if now_ms <= passed_ms + AHEAD_MS:
        return now_ms
    store_ms = storage.now_ms(paths.COMMITS_DIR)
    if now_ms <= store_ms + AHEAD_MS:
        return now_ms
    ahead_s = (now_ms - store_ms) // 1000
    _log.warning(
        "this computer's clock is %d s ahead of the storage's: set it; until then the storage's time is used", ahead_s
    )
    return store_ms


def not_after(timestamp_ms: int, action: Action) -> Action:
    """`action` for a commit of `timestamp_ms`: a segment with a later time, of a bad clock, gets that time.

    Retention uses this time if the records' own times are in the future.
    """
    if not isinstance(action, Add) or action.segment.created_ms <= timestamp_ms:
        return action
    return dataclasses.replace(action, segment=dataclasses.replace(action.segment, created_ms=timestamp_ms))
