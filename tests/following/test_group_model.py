"""Whatever members do, in whatever order: nothing is skipped, and no two live members have one partition."""

from __future__ import annotations

import dataclasses
import itertools
import uuid

import memory_files
import pytest
from followers import Time, follow, rows
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from searches import examples
from topics import TINY, topic_on, values

from distlog.core import paths
from distlog.core.commits.actions import SetPartitions
from distlog.core.errors import FencedMemberError
from distlog.core.following.follower import Follower
from distlog.core.groups import group_log
from distlog.core.groups.group_log import GroupLog
from distlog.core.groups.membership import FREQUENT, RARE, Membership, Pace
from distlog.core.storage.storage import Storage

LEASE_S = 60.0
WHO = st.integers(0, 3)


def membership_of(follower: Follower) -> Membership:
    return follower._assignment._member  # type: ignore[attr-defined,no-any-return]


class GroupMachine(RuleBasedStateMachine):
    @initialize(partitions=st.integers(1, 4), pace=st.sampled_from([FREQUENT, RARE]))
    def create(self, partitions: int, pace: Pace) -> None:
        self.pace = pace
        memory_files.hold()
        self.storage = Storage(f"memory://{uuid.uuid4().hex}/topic")
        self.topic = topic_on(self.storage, partitions, TINY)
        self.time, self.ids = Time(), itertools.count()
        self.members: dict[int, Follower] = {}
        self.prefixes: dict[int, str] = {}
        self.putting: set[int] = set()
        self.handed: set[tuple[int, int]] = set()
        self.best: dict[int, int] = {}
        for partition in range(partitions):
            self.append(partition, 9)
        for who in range(2):
            self.join(who, None)

    @rule(partition=st.integers(0, 4), count=st.integers(1, 12))
    def append(self, partition: int, count: int) -> None:
        self.topic.append(values(range(count)), partition=partition % self.topic.refresh().partitions)

    @precondition(lambda self: self.topic.partitions < 5)
    @rule()
    def add_a_partition(self) -> None:
        self.topic.refresh()
        count = self.topic.partitions + 1
        self.topic.log.commit(self.topic.snapshot, "config", lambda _: [SetPartitions(count)])
        self.topic.refresh()

    @rule(who=WHO, only=st.one_of(st.none(), st.just([0])))
    def join(self, who: int, only: list[int] | None) -> None:
        if who not in self.members:
            self.members[who], self.prefixes[who] = self.joined(only)

    def joined(self, only: list[int] | None = None) -> tuple[Follower, str]:
        """A new member, and how all of its ids begin; ids that count up make each run of the same rules the same."""
        topic, prefix = topic_on(self.storage), f"{next(self.ids):016x}"
        topic.handle = dataclasses.replace(topic.handle, new_id=lambda: f"{prefix}{next(self.ids):016x}")
        member = follow(topic, self.time, group="g", timeout=0, lease=LEASE_S, partitions=only)
        membership_of(member).pace = self.pace
        return member, prefix

    @rule(who=WHO, times=st.integers(1, 4))
    def take(self, who: int, times: int) -> None:
        for _ in range(times):
            batch = next(self.members[who], None) if who in self.members else None
            if batch is None:
                return
            self.handed.update(rows(batch))
            self.check_nobody_else_has({partition for partition, _ in rows(batch)}, who)

    def check_nobody_else_has(self, partitions: set[int], who: int) -> None:
        for other, member in self.members.items():
            if other != who and not member._assignment.is_lapsed:
                assert not partitions & member._assignment.wanted.keys(), (who, other)

    @rule(paused=st.sets(WHO, max_size=2), turns=st.sampled_from([1, 3, 6, 20, 25]), commits=st.booleans())
    def go_on(self, paused: set[int], turns: int, commits: bool) -> None:
        """Some time passes, in which all but the `paused` do their work, and those whose puts are on their way."""
        for turn in range(turns):
            self.time.now_s += LEASE_S / 20
            self.append(turn, 1)
            for who in self.members.keys() - paused - self.putting:
                self.take(who, 1)
                if commits:
                    self.commit(who)

    @rule(who=WHO, turns=st.sampled_from([3, 15, 25]), part=st.sampled_from([0.4, 0.6]))
    def beat_slowly(self, who: int, turns: int, part: float) -> None:
        """The put of its next heartbeat takes a while, in which the others go on; then it hands out what it has."""
        if who not in self.members:
            return
        log = membership_of(self.members[who]).log
        beat = type(log).beat

        def slow(member: str, count: int) -> None:
            del log.beat
            self.putting.add(who)
            self.go_on(set(), turns, True)
            self.putting.remove(who)
            beat(log, member, count)

        log.beat = slow  # type: ignore[method-assign]
        self.time.now_s += part * LEASE_S
        self.take(who, 1)

    @rule(who=WHO)
    def commit(self, who: int) -> None:
        if who not in self.members:
            return
        owned = self.members[who].position
        try:
            self.members[who].commit()
        except FencedMemberError:
            state = self.state()
            assert not any((state.owners.get(n) or "").startswith(self.prefixes[who]) for n in owned)

    @rule(who=WHO)
    def commit_half(self, who: int) -> None:
        if who in self.members:
            kept, position = self.state().positions, self.members[who].position
            half = {n: (at + min(at, kept.get(n, at))) // 2 for n, at in position.items()}
            try:
                self.members[who].commit(half)
            except FencedMemberError:
                return

    @rule(who=WHO, kills=st.booleans())
    def leave(self, who: int, kills: bool) -> None:
        member = self.members.pop(who, None)
        if member and not kills:
            member.close()

    @rule(seconds=st.sampled_from([1.0, 4.0, 25.0, 61.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.time.now_s += seconds

    def state(self) -> group_log.GroupState:
        return GroupLog(self.storage, self.topic.snapshot.topic_id, "g").load()

    @invariant()
    def positions_only_grow_and_all_below_was_handed_out(self) -> None:
        if not hasattr(self, "storage"):
            return
        positions = self.state().positions
        for partition, position in positions.items():
            assert position >= self.best.get(partition, 0)
            self.best[partition] = position
            assert all((partition, offset) in self.handed for offset in range(position))

    def teardown(self) -> None:
        """One member that lives gets all that the dead left, within the lease and a little."""
        if not hasattr(self, "storage"):
            return
        survivor, _ = self.joined()
        self.members = {9: survivor}
        for _ in range(30):
            self.take(9, 100)
            survivor.commit()
            self.time.now_s += LEASE_S / 10
        assert dict(self.state().positions) == self.topic.refresh().end_offsets()
        self.positions_only_grow_and_all_below_was_handed_out()
        assert len(self.state().members) == 1
        files = self.storage.list(paths.group_folder(self.topic.snapshot.topic_id, "g"))
        assert len([file for file in files if file.name.endswith(".beat")]) <= 1


GroupMachine.TestCase.settings = examples(8, stateful_step_count=20)
TestGroups = pytest.mark.long(GroupMachine.TestCase)
