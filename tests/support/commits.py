"""One commit of given actions, through a race for the next version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from distlog.core.commits.actions import Action, Commit
from distlog.core.commits.commit_log import CommitLog, CommitRace
from distlog.core.commits.snapshot import Snapshot
from distlog.core.log.active_partition import ActiveSeals
from distlog.core.read.consumer_group import GroupLog, GroupRace, GroupState
from distlog.core.segments.segment_reader import TopicHandle


def put_commit(
    log: CommitLog,
    snapshot: Snapshot,
    operation: str,
    plan: Callable[[Snapshot], Sequence[Action] | None],
    **options: Any,
) -> tuple[Commit | None, Snapshot]:
    """Commit what `plan` makes of each head, or nothing if that is None; the commit and the state after it."""
    with CommitRace(log, snapshot, operation, **options) as race:
        for head in race:
            actions = plan(head)
            if actions is None:
                break
            race.put(actions)
    return race.commit, race.snapshot


def put_sealed(
    handle: TopicHandle,
    snapshot: Snapshot,
    plan: Callable[[Snapshot], Sequence[Action] | None],
    partitions: Collection[int],
    **options: Any,
) -> Snapshot:
    """Like `put_commit`, with the active segments of the partitions sealed in the commit."""
    with CommitRace(handle.log, snapshot, "config") as race, ActiveSeals(handle, race, **options) as seals:
        for head in race:
            sealed = seals.seal(head, partitions)
            if sealed is None:
                continue
            actions = plan(sealed)
            if actions is None:
                break
            race.put([*seals.actions, *actions])
    return race.snapshot


def put_state(log: GroupLog, state: GroupState, plan: Callable[[GroupState], GroupState]) -> GroupState:
    """Put the next version of a group, which `plan` makes of the newest one; that version."""
    race = GroupRace(log, state)
    for current in race:
        race.put(plan(current))
    return race.state
