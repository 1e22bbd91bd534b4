"""Members of a consumer group, each in its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from topic_consumers import Time, consume
from topics import TINY, topic_on, values

from distlog.core.read.consumer import Consumer
from distlog.core.read.consumer_group import GroupLog, GroupState
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

LEASE_S = 60.0


@pytest.fixture(params=["local", "memory"])
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> Topic:
    url = str(tmp_path / "topic") if request.param == "local" else f"memory://{tmp_path.name}/topic"
    topic = topic_on(Storage(url), 2, TINY)
    for partition in range(2):
        topic.append(values(range(6)), partition=partition)
    return topic


@pytest.fixture
def time() -> Time:
    return Time()


def joined(topic: Topic, time: Time, **options: Any) -> Consumer:
    return consume(topic_on(topic.storage), time, group="g", **{"timeout": 0, "lease": LEASE_S, **options})


def state(topic: Topic) -> GroupState:
    return GroupLog(topic.storage, topic.snapshot.topic_id, "g").load()


def ids(topic: Topic) -> list[str]:
    return [member.id for member in state(topic).members]


def live(time: Time, seconds: float, *members: Consumer, step_s: float = 1.0) -> None:
    """Let time pass while these members refresh the group and send heartbeats."""
    for _ in range(round(seconds / step_s)):
        time.now_s += step_s
        for member in members:
            member._assignment.renew()


def until_settled(time: Time, *members: Consumer) -> None:
    """Let members refresh the group until its assignment no longer changes."""
    live(time, 0.8 * LEASE_S, *members, step_s=LEASE_S / 20)
