"""The administration of groups: lists, descriptions, new positions, deletion."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from distlog.core import paths
from distlog.core.arrays import table_of_rows
from distlog.core.commits.fields import UUID
from distlog.core.commits.snapshot import Snapshot
from distlog.core.display import Listing
from distlog.core.errors import CommitConflictError, GroupNotFoundError
from distlog.core.read.group_log import GroupLog, GroupRace, GroupState
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import FileInfo, Storage

T = TypeVar("T")

_TABLE = pa.schema(
    [
        *(("group", pa.string()), ("partition", pa.int32())),
        *((name, pa.int64()) for name in ("position", "log_end_offset", "lag")),
        *(("member", pa.string()), ("name", pa.string())),
    ]
)


def group_states(storage: Storage, topic_id: str) -> list[GroupState]:
    folders = storage.list_folders(f"{paths.GROUPS_DIR}/{topic_id}")
    names = sorted(filter(None, (paths.parse_group_folder(paths.last_part(folder)) for folder in folders)))
    states = _each(storage, lambda name: GroupLog(storage, topic_id, name).load(), names)
    return [state for state in states if state.exists]


def group_table(storage: Storage, snapshot: Snapshot) -> Listing:
    """A row per group and partition; a dead member stays until another member has watched its lease run out."""
    rows = [row for state in group_states(storage, snapshot.topic_id) for row in _rows(state, snapshot)]
    return Listing(table_of_rows(rows, _TABLE), "groups and partitions")


def _rows(state: GroupState, snapshot: Snapshot) -> list[dict[str, object]]:
    rows = []
    for number, partition in enumerate(snapshot.partitions):
        position, owner = state.positions.get(number), state.member(state.owners.get(number, ""))
        rows.append(
            {
                "group": state.group,
                "partition": number,
                "position": position,
                "log_end_offset": partition.log_end_offset,
                "lag": None if position is None else max(0, partition.log_end_offset - position),
                "member": owner.id if owner else None,
                "name": owner.name if owner else None,
            }
        )
    return rows


def reset(log: GroupLog, positions: Mapping[int, int], missing: Mapping[int, int], *, is_empty: bool) -> GroupState:
    """Set the positions of some partitions, and end all memberships; a group that does not exist is made.

    A live member learns of it at its next commit or look, and joins again, at these positions. A new group gets
    `missing` positions, which are of all partitions of the topic, where it has none; an existing group has read
    nothing of partitions that were added since. Raises CommitConflictError if `is_empty`, and it has members.
    """
    first = log.load()
    race = GroupRace(log, first)
    for state in race:
        if is_empty and state.members:
            raise CommitConflictError(
                "the group has members: end them before; a dead member counts until another one has joined, or "
                "until the group's positions are set in another way",
                group=log.group,
            )
        count = max(len(missing), state.partitions)
        added = {number: 0 if state.exists else missing[number] for number in range(state.partitions, count)}
        moved = dict(sorted({**state.positions, **added, **positions}.items()))
        race.put(dataclasses.replace(state, partitions=count, members=(), owners={}, positions=moved))
    log.forget({member.id for member in first.members})
    return race.after


def delete(log: GroupLog) -> None:
    """Forget a group's positions and members; raises GroupNotFoundError.

    A live member joins again, and makes a new group. A few small files stay: to put the name of a deleted version
    again would succeed.
    """
    first = log.load()
    race = GroupRace(log, first)
    for state in race:
        if not state.exists:
            raise GroupNotFoundError("consumer group not found", group=log.group)
        race.put(dataclasses.replace(state, partitions=0, members=(), owners={}, positions={}))
    log.forget({member.id for member in first.members})


def carry_over(storage: Storage, topic_id: str, new_id: str) -> None:
    for state in group_states(storage, topic_id):
        log = GroupLog(storage, new_id, state.group)
        if not log.load().exists:
            reset(log, state.positions, state.positions, is_empty=False)


def group_folders(storage: Storage) -> list[str]:
    """The folders of all groups, also of topics that were dropped at this address."""
    topics = (
        name for name in storage.list_folders(paths.GROUPS_DIR) if re.fullmatch(UUID.pattern, paths.last_part(name))
    )
    return [folder for topic in topics for folder in storage.list_folders(topic)]


def group_files(
    storage: Storage, folders: Iterable[str], topic_id: str | None
) -> tuple[list[FileInfo], list[FileInfo]]:
    """The files of these groups: of the topic with this id, only on a local disk; and of dropped topics."""
    live = f"{paths.GROUPS_DIR}/{topic_id}/"
    files: tuple[list[FileInfo], list[FileInfo]] = [], []
    listed_folders = [folder for folder in folders if storage.is_local or not folder.startswith(live)]
    for folder, listed in zip(listed_folders, _each(storage, storage.list, listed_folders), strict=True):
        files[not folder.startswith(live)].extend(listed)
    return files


def _each(storage: Storage, work: Callable[[str], T], names: Sequence[str]) -> list[T]:
    return list(map(work, names)) if storage.is_local else in_parallel(work, names)
