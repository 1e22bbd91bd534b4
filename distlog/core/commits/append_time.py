"""LogAppendTime: records get the time of their commit, which is not known while they are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from distlog.core.commits.format.actions import Action, Add
from distlog.core.commits.format.segment_info import BY_COMMIT


def with_append_times(actions: Sequence[Action], time_ms: int) -> tuple[Action, ...]:
    """The `actions` of a commit of `time_ms`; segments that wait for the commit's time get it.

    The times of commits increase, so those of a partition's segments do too.
    """
    return tuple(_timed(action, time_ms) for action in actions)


def _timed(action: Action, time_ms: int) -> Action:
    if isinstance(action, Add) and action.segment.append_time_ms == BY_COMMIT:
        return dataclasses.replace(action, segment=action.segment.appended_at(time_ms))
    return action
