"""What people do with groups: list and describe them, set their positions, delete them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from distlog.core import paths
from distlog.core.commits.format.fields import UUID
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.display.listing import Listing
from distlog.core.errors import InvalidConfigError
from distlog.core.groups.committed import Committed, KafkaCommits
from distlog.core.groups.group_log import GroupLog
from distlog.core.groups.group_state import GroupState
from distlog.core.groups.take_over import taken_over, unseen, with_positions
from distlog.core.storage.storage import FileInfo, Storage

_TABLE = pa.schema(
    [
        ("group", pa.string()),
        ("partition", pa.int32()),
        ("position", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("lag", pa.int64()),
        ("member", pa.string()),
        ("name", pa.string()),
    ]
)


def group_states(storage: Storage, topic_id: str) -> list[GroupState]:
    """The groups of the topic with this id, by name, without those that were deleted."""
    return [state for state in _states(storage, topic_id) if state.exists]


def _states(storage: Storage, topic_id: str) -> Iterator[GroupState]:
    folders = storage.list_folders(f"{paths.GROUPS_DIR}/{topic_id}")
    names = sorted(filter(None, (paths.parse_group_folder(folder.rpartition("/")[2]) for folder in folders)))
    return (GroupLog(storage, topic_id, name).load() for name in names)


def group_table(storage: Storage, snapshot: Snapshot, kafka: Mapping[str, Mapping[int, Committed]]) -> Listing:
    """A row per group and partition: the group's position, the log end, the lag, and the member that owns it.

    `kafka` has what Kafka's clients have committed, by group and partition; of their members nothing is known. A
    member that died is shown until another member, or the next one that joins, has watched its lease run out.
    """
    states = {state.group: state for state in _states(storage, snapshot.topic_id)}
    names = sorted({*states, *kafka})
    rows = [
        row
        for name in names
        for row in _rows(states.get(name, GroupState.empty(snapshot.topic_id, name)), snapshot, kafka.get(name, {}))
    ]
    return Listing(pa.Table.from_pylist(rows, _TABLE), "groups and partitions")


def _rows(state: GroupState, snapshot: Snapshot, kafka: Mapping[int, Committed]) -> list[dict[str, object]]:
    positions = [state.position(number, kafka.get(number)) for number in range(len(snapshot.partitions))]
    if not state.exists and not any(position is not None for position in positions):
        return []
    rows = []
    for number, (partition, position) in enumerate(zip(snapshot.partitions, positions, strict=True)):
        owner = state.member(state.owners.get(number, ""))
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


def reset(
    log: GroupLog, positions: Mapping[int, int], partitions: int, missing: Mapping[int, int], kafka: KafkaCommits
) -> GroupState:
    """Set the positions of some partitions, and end all memberships; a group that does not exist is made.

    A member that lives learns of it at its next commit or look, and joins again, at these positions. In the other
    partitions of the topic's `partitions`, a group without a position gets that of Kafka's clients, or `missing`.
    """
    before, found = log.load(), kafka()

    def plan(state: GroupState) -> GroupState:
        new = unseen(state, before, found)
        count = max(partitions, state.partitions)
        without = {*state.forgotten, *range(state.partitions, count)}
        begun = {number: missing[number] for number in without if number < partitions}
        state = dataclasses.replace(with_positions(state, begun), partitions=count, members=(), owners={})
        return with_positions(taken_over(state, new), positions)

    return log.commit(before, plan)


def delete(log: GroupLog, kafka: KafkaCommits) -> None:
    """Forget a group's positions and members; raises InvalidConfigError if there is no such group.

    A member that lives joins again, and makes the group anew. What Kafka's clients have committed so far does not
    count any more. A few small files stay: to put the name of a deleted version again would succeed.
    """
    before, found = log.load(), kafka()

    def plan(state: GroupState) -> GroupState:
        if not state.exists and not unseen(state, before, found):
            raise InvalidConfigError("there is no such group", group=log.group)
        return dataclasses.replace(
            state, partitions=0, members=(), owners={}, positions={}, kafka=found, forgotten=()
        )

    log.commit(before, plan)


def forget(log: GroupLog, partitions: Iterable[int]) -> None:
    """Forget the positions in some partitions: who joins next begins there as a new group does.

    Those that a member has by now stay: it goes on from them, and would commit what does not count.
    """
    asked = {*partitions}

    def plan(state: GroupState) -> GroupState | None:
        gone = (asked & state.positions.keys()) - state.owners.keys() - {*state.forgotten}
        if not gone:
            return None
        return dataclasses.replace(state, forgotten=tuple(sorted({*state.forgotten, *gone})))

    log.commit(log.load(), plan)


def group_folders(storage: Storage) -> list[str]:
    """The folders of all groups, of the topics that were dropped at this address too."""
    topics = (name for name in storage.list_folders(paths.GROUPS_DIR) if _topic_id(name))
    return [folder for topic in topics for folder in storage.list_folders(topic)]


def group_files(
    storage: Storage, folders: Iterable[str], topic_id: str | None
) -> tuple[list[FileInfo], list[FileInfo]]:
    """The files of these groups: those of the topic with this id, and those of topics that were dropped.

    Only a local disk, where dead writers leave files, is asked for the first.
    """
    live = f"{paths.GROUPS_DIR}/{topic_id}/"
    found: tuple[list[FileInfo], list[FileInfo]] = [], []
    for folder in folders:
        is_dead = not folder.startswith(live)
        if is_dead or storage.is_local:
            found[is_dead].extend(storage.list(folder))
    return found


def _topic_id(folder: str) -> bool:
    return re.fullmatch(UUID.pattern, folder.rpartition("/")[2]) is not None
