"""Whoever committed last, a follower, one of Kafka's clients or a person: that is where everybody goes on."""

from __future__ import annotations

import uuid

from followers import Time, drained, follow
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kafka_commits import KafkaCommits
from searches import examples
from topics import TINY, topic_on, values

from distlog.core.consumer_offsets.kafka_positions import KafkaPositions
from distlog.core.errors import InvalidConfigError
from distlog.core.following.follower import Follower
from distlog.core.groups import admin
from distlog.core.groups.group_log import GroupLog
from distlog.core.storage.storage import Storage

RECORDS, MOST, LEASE_S = 6, 4, 10.0
OFFSET = st.integers(0, RECORDS)
PARTITION = st.integers(0, MOST - 1)
#: How many records the followers commit in each partition.
STEPS = st.lists(st.integers(0, 3), min_size=MOST, max_size=MOST)


class SharedPositions(RuleBasedStateMachine):
    """`model` has the position that counts in each partition; a partition that nobody has one in is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.topic = topic_on(Storage(f"memory://{uuid.uuid4().hex}/topic"), 2, TINY)
        for partition in range(2):
            self.topic.append(values(range(RECORDS)), partition=partition)
        self.kafka, self.time = KafkaCommits(self.topic), Time()
        self.dead: list[Follower] = []
        self.model: dict[int, int] = {}
        # Kafka's clients have positions of their own, which an expiry takes away
        self.of_kafka: dict[int, int] = {}

    @rule(positions=st.dictionaries(st.integers(0, 1), OFFSET, min_size=1))
    def kafkas_clients_commit(self, positions: dict[int, int]) -> None:
        self.kafka(positions)
        self.model |= positions
        self.of_kafka |= positions

    @rule(positions=st.dictionaries(st.integers(0, 1), OFFSET, min_size=1), steps=STEPS)
    def kafkas_clients_go_on_where_a_follower_died(self, positions: dict[int, int], steps: list[int]) -> None:
        self.followers_read_on(steps, 0, True)
        self.kafkas_clients_commit(positions)

    @rule(
        steps=STEPS,
        start=st.sampled_from([0, RECORDS]),
        dies=st.booleans(),
    )
    def followers_read_on(self, steps: list[int], start: int, dies: bool) -> None:
        count = self.topic.refresh().partitions
        begun = {n: self.model.get(n, self.begin(n, start)) for n in range(count)}
        # long enough to take over from one that died
        follower = follow(self.topic, self.time, group="g", lease=LEASE_S, timeout=1.5 * LEASE_S, start=start)
        expected = [(n, offset) for n, first in begun.items() for offset in range(first, RECORDS)]
        assert sorted(drained(follower)) == expected
        self.model = {n: min(RECORDS, first + steps[n]) for n, first in begun.items()}
        follower.commit(self.model)
        if dies:
            self.dead.append(follower)
        else:
            follower.close()

    def begin(self, partition: int, start: int) -> int:
        """A partition that came after the group is read from its start."""
        state = GroupLog(self.topic.storage, self.topic.snapshot.topic_id, "g").load()
        return 0 if state.exists and partition >= state.partitions else start

    @rule(partition=PARTITION, offset=OFFSET)
    def somebody_resets(self, partition: int, offset: int) -> None:
        count = self.topic.refresh().partitions
        if partition < count:
            found = self.topic.reset_group("g", {partition: offset})
            # a group gets a position everywhere when it is made
            self.model = {**{n: self.model.get(n, found[n]) for n in range(count)}, partition: offset}
            assert found == self.model

    @rule()
    def somebody_deletes(self) -> None:
        try:
            self.topic.delete_group("g")
        except InvalidConfigError:
            assert not self.model
        self.model = {}

    @rule(partition=PARTITION)
    def somebody_forgets_a_position(self, partition: int) -> None:
        """As a gateway does it: on both sides, and not while a follower is in the group."""
        log = GroupLog(self.topic.storage, self.topic.snapshot.topic_id, "g")
        if not log.load().members:
            self.kafka({partition: None})
            self.of_kafka.pop(partition, None)
            admin.forget(log, [partition])
            self.model.pop(partition, None)

    @rule()
    def a_partition_is_added(self) -> None:
        if self.topic.refresh().partitions < MOST:
            self.topic.create_partitions(self.topic.partitions + 1)
            self.topic.append(values(range(RECORDS)), partition=self.topic.partitions - 1)

    @invariant()
    def everybody_is_told_the_same(self) -> None:
        shown = [row["position"] for row in self.topic.refresh().groups().to_pylist()]
        assert shown in ([], [self.model.get(n) for n in range(self.topic.partitions)])
        assert shown or not self.model
        # what a gateway tells Kafka's clients
        state = GroupLog(self.topic.storage, self.topic.snapshot.topic_id, "g").load()
        kafka = KafkaPositions(self.topic.handle).of_group("g")
        assert {n: each.offset for n, each in kafka.items()} == self.of_kafka
        told = {n: state.position(n, kafka.get(n)) for n in range(self.topic.partitions)}
        assert {n: at for n, at in told.items() if at is not None} == self.model


TestSharedPositions = SharedPositions.TestCase
TestSharedPositions.settings = examples(20, stateful_step_count=10)
