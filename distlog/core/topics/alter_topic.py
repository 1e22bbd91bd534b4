"""Changes of a topic as a whole: its settings, and how many partitions it has."""

from __future__ import annotations

from collections.abc import Mapping

from distlog.core.commits.creation import check_partition_count
from distlog.core.commits.format.actions import Action, SetConfig, SetPartitions
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import InvalidPartitionsError
from distlog.core.log.sealed_commit import every_partition, sealed_commit
from distlog.core.topic_handle import TopicHandle


def alter_config(handle: TopicHandle, snapshot: Snapshot, settings: Mapping[str, object | None]) -> Snapshot:
    """Set some settings, or with None take them back; returns the snapshot behind the commit.

    So that every process learns of it, the active segments are sealed in the same commit.
    """

    def plan(current: Snapshot) -> list[Action]:
        return [SetConfig(current.config.changed(settings).overrides())]

    _, after = sealed_commit(handle, snapshot, "config", plan, every_partition)
    return after


def create_partitions(handle: TopicHandle, snapshot: Snapshot, count: int) -> Snapshot:
    """Raise the number of partitions to `count`; returns the snapshot behind the commit.

    Writers read the commit log before they choose partitions, so nothing needs to be sealed. Raises
    InvalidPartitionsError unless it becomes larger, and stays one that a topic may have.
    """
    check_partition_count(count)

    def plan(current: Snapshot) -> list[Action]:
        check_grows(current, count)
        return [SetPartitions(count)]

    _, after = handle.log.commit(snapshot, "partitions", plan)
    return after


def check_grows(snapshot: Snapshot, count: int) -> None:
    """Raise InvalidPartitionsError unless `count` is more than the partitions that there are."""
    if count <= len(snapshot.partitions):
        raise InvalidPartitionsError(
            "a topic's partitions can only become more", partitions=len(snapshot.partitions), asked=count
        )
