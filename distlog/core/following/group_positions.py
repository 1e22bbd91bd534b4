"""What people do with the positions of a group of followers: set them, to offsets or times, or forget them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.consumer_offsets.kafka_positions import KafkaPositions
from distlog.core.errors import InvalidConfigError
from distlog.core.following.start import Start, start_offset
from distlog.core.groups import admin
from distlog.core.groups.committed import Committed
from distlog.core.groups.group_log import GroupLog
from distlog.core.storage.parallel import in_parallel
from distlog.core.topic_handle import TopicHandle


def reset_group(handle: TopicHandle, snapshot: Snapshot, group: str, to: Start) -> dict[int, int]:
    """Set a group's positions, all or those of the partitions that `to` names; returns all its positions.

    Raises what `start_offset` and `GroupLog.commit` raise.
    """
    count = len(snapshot.partitions)
    starts = {number: start_offset(handle.reader, snapshot, number, to) for number in range(count)}
    given = {number: starts[number] for number in starts if not isinstance(to, Mapping) or number in to}
    log = GroupLog(handle.storage, snapshot.topic_id, group)
    kafka = partial(KafkaPositions(handle).of_group, group)
    return dict(admin.reset(log, given, count, starts, kafka).positions)


def delete_group(handle: TopicHandle, topic_id: str, group: str) -> None:
    """Forget a group's positions. Raises InvalidConfigError if there is no such group."""
    kafka = partial(KafkaPositions(handle).of_group, group)
    admin.delete(GroupLog(handle.storage, topic_id, group), kafka)


def forget_dropped(handle: TopicHandle, snapshot: Snapshot) -> None:
    """In a new topic, nobody goes on where Kafka's clients were in the dropped one: that would skip records.

    Raises DistlogError.
    """

    def forget(group: str, found: Mapping[int, Committed]) -> None:
        # no followers, so nothing to tell them, are in a group whose name is too long
        with suppress(InvalidConfigError):
            admin.delete(GroupLog(handle.storage, snapshot.topic_id, group), lambda: found)

    # the versions of a topic that has none before it begin at 0
    if snapshot.version > 0:
        in_parallel(lambda each: forget(*each), KafkaPositions(handle).by_group().items())
