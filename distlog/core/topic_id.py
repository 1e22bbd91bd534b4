"""A topic's id: which topics of a root have the same one, since one is a copy of another's folder; and a new one."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple

from distlog.core.commits.actions import SetTopicId
from distlog.core.log.active_partition import seal_all
from distlog.core.read import group_admin
from distlog.core.segments.topic_handle import TopicHandle


class NamedId(NamedTuple):
    """A topic of a root: the name of its folder, its id, and the name with which it was created."""

    name: str
    topic_id: str
    created_as: str


def copies(topics: Iterable[NamedId]) -> dict[str, str]:
    """The topics of a root whose id another one has too: by name, what to do about it.

    The topic with the name with which it was created is the original, and is left out.
    """
    by_id = dict[str, list[NamedId]]()
    for topic in topics:
        by_id.setdefault(topic.topic_id, []).append(topic)
    return {
        topic.name: copy_text(next(each.name for each in same if each is not topic))
        for same in by_id.values()
        if len(same) > 1
        for topic in same
        if topic.name != topic.created_as
    }


def copy_text(other: str) -> str:
    return (
        f"has the topic id of {other}, since one is a copy of the other: 'distlog alter URL --new-id' gives a copy "
        "its own"
    )


def assign_new_id(handle: TopicHandle) -> str:
    snapshot, topic_id = handle.log.load(), str(uuid.uuid4())
    former_id = snapshot.topic_id
    # before the commit, so that no member finds its group without positions; and after it, since until then they are
    # those of no topic, which vacuum deletes
    group_admin.carry_over(handle.storage, former_id, topic_id)
    seal_all(handle, snapshot, "new-id", [SetTopicId(topic_id)])
    group_admin.carry_over(handle.storage, former_id, topic_id)
    return topic_id
