"""This process's time, unless its clock is far ahead of the store's own: one bad clock must not poison a topic.

A clock that is behind does no harm here: the time of commits only goes forward. The store is asked only where the
clock is far ahead of a time that is known to have passed, so that a busy writer never asks.
"""

from __future__ import annotations

import dataclasses
import logging

from distlog.core import paths
from distlog.core.commits.actions import Action, Add
from distlog.core.storage.storage import Storage

#: How far ahead a clock may be, of what is known to have passed and of the store, before it is not believed.
AHEAD_MS = 5 * 60_000

_log = logging.getLogger(__name__)


def trusted_ms(now_ms: int, storage: Storage, passed_ms: int = 0) -> int:
    """`now_ms`, or the store's own time where that is more than AHEAD_MS behind it; then a warning says so.

    `storage` is a topic's. Nothing is asked of it up to AHEAD_MS after `passed_ms`, a time that has passed.
    """
    if now_ms <= passed_ms + AHEAD_MS:
        return now_ms
    store_ms = storage.now_ms(paths.COMMITS_DIR)
    if now_ms <= store_ms + AHEAD_MS:
        return now_ms
    ahead_s = (now_ms - store_ms) // 1000
    _log.warning("this computer's clock is %d s ahead of the storage's, whose time is used: set it", ahead_s)
    return store_ms


def not_after(timestamp_ms: int, action: Action) -> Action:
    """`action` as a commit of `timestamp_ms` has it: a segment that a bad clock made later is dated back to it.

    Retention counts from that date where the records' own times are in the future.
    """
    if not isinstance(action, Add) or action.segment.created_ms <= timestamp_ms:
        return action
    return dataclasses.replace(action, segment=dataclasses.replace(action.segment, created_ms=timestamp_ms))
