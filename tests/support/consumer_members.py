"""Members of groups of the newer protocol (KIP-848), which keep the answers to their heartbeats."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from typing import Any

from consumer_groups import GROUP, Gateway, MemoryStore
from kio.schema.errors import ErrorCode

from distlog.gateway.groups.consumer_group import ConsumerGroup, ConsumerHeartbeat, HeartbeatReply, matches
from distlog.gateway.groups.coordinator import ConsumerCoordinator
from distlog.gateway.groups.offsets_format import TopicIdPartition
from distlog.gateway.topics.topic_index import TopicSummary

CLICKS = uuid.UUID(int=1)
SESSION_MS = 45_000
PartitionSet = frozenset[TopicIdPartition]


def partition_set(*numbers: int, topic: uuid.UUID = CLICKS) -> PartitionSet:
    return frozenset((topic, number) for number in numbers)


class Topics:
    """Topics that are known at once; `clicks` has four partitions."""

    def __init__(self) -> None:
        self.are_known = True
        self.by_name = {"clicks": TopicSummary("clicks", str(CLICKS), 4)}

    def summary(self, name: str) -> TopicSummary | None:
        return self.by_name.get(name)

    def matching(self, pattern: str) -> Iterable[str]:
        return matches(pattern, self.by_name)

    def has_read(self, names: Collection[str], patterns: Collection[str]) -> bool:
        return self.are_known

    def when_known(self, names: Collection[str], patterns: Collection[str], work: Callable[[], None]) -> None:
        work()

    def refresh(self, names: Collection[str], patterns: Collection[str]) -> None:
        pass


class ConsumerGateway(Gateway):
    """The groups of a gateway with members of the newer protocol; `restart` begins another one."""

    def __init__(self, settings: Any = None, store: MemoryStore | None = None, topics: Topics | None = None) -> None:
        super().__init__(settings, store)
        self.topics = topics or Topics()
        self.consumers = ConsumerCoordinator(self.groups, self.topics)  # type: ignore[arg-type]

    def restart(self) -> ConsumerGateway:
        return ConsumerGateway(self.settings, self.store, self.topics)

    def consumer(self, name: str, **fields: Any) -> Consumer:
        return Consumer(self, name, **fields)

    @property
    def group(self) -> ConsumerGroup:
        with self.groups.locked(GROUP) as entry:
            assert isinstance(entry.membership, ConsumerGroup)
            return entry.membership


class Consumer:
    """A member that follows its assignment: `has` are its partitions, and it revokes all others at once."""

    def __init__(self, gateway: ConsumerGateway, name: str, **fields: Any) -> None:
        self.gateway, self.id, self.epoch, self.has = gateway, name, 0, partition_set()
        self.reply: HeartbeatReply | None = None
        self.settings = {"topics": ("clicks",), "rebalance_timeout_ms": 60_000, **fields}

    def beat(self, **fields: Any) -> HeartbeatReply | None:
        """Send a heartbeat, with everything in the first one; returns the answer, if any."""
        first = {**self.settings, "owned": partition_set()} if self.epoch == 0 else {"owned": self.has}
        if "instance_id" in self.settings:
            first["instance_id"] = self.settings["instance_id"]
        fields = {"member_id": self.id, "epoch": self.epoch, **first, **fields}
        self.reply = None
        self.gateway.consumers.heartbeat(GROUP, ConsumerHeartbeat(**fields), 1, self._note)
        return self.reply

    def _note(self, reply: HeartbeatReply) -> None:
        assert self.reply is None
        self.reply = reply

    def goes_on(self, **fields: Any) -> PartitionSet:
        """Send a heartbeat, follow the assignment, and return the partitions."""
        reply = self.beat(**fields)
        assert reply is not None
        assert reply.error is ErrorCode.none
        self.epoch = reply.epoch
        if reply.assigned is not None:
            self.has = reply.assigned
        return self.has

    def code(self, **fields: Any) -> ErrorCode:
        reply = self.beat(**fields)
        assert reply is not None
        return reply.error

    def again_as(self, gateway: ConsumerGateway) -> Consumer:
        other = Consumer(gateway, self.id, **self.settings)
        other.epoch, other.has = self.epoch, self.has
        return other


def with_partitions(topics: Topics, count: int) -> None:
    topics.by_name["clicks"] = topics.by_name["clicks"]._replace(partitions=count)
