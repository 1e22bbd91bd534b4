"""Whatever gateways of a root do, pause and forget: an acknowledged position is there, and never goes back."""

from __future__ import annotations

import itertools
import uuid
from queue import SimpleQueue

import memory_files
import pytest
from followers import Time
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kio.schema.errors import ErrorCode
from searches import examples

from distlog.core.consumer_offsets import Position
from distlog.core.storage.storage import Storage
from distlog.gateway.cluster import GatewayLease
from distlog.gateway.config import GroupSettings
from distlog.gateway.groups.classic_group import GroupRefusedError
from distlog.gateway.groups.committed_offsets import CommittedOffsets, EndedPositions
from distlog.gateway.groups.coordination import Coordination
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.groups.registry import GroupRegistry

LEASE_S, PARTITIONS, PLACE = 9.0, 4, ("clicks", 0)
GROUPS = [f"group-{n}" for n in range(4)]
WHO = st.integers(0, 2)


class Gateway:
    """A gateway without threads and sockets; its clock stands still while it is `frozen`."""

    def __init__(self, url: str, time: Time, ids: itertools.count[int], port: int) -> None:
        self.time, self.frozen_at = time, -1.0
        self.lease = GatewayLease(Storage(url), None, LEASE_S, clock=self.clock, new_id=lambda: f"{next(ids):032x}")
        self.lease.be_at("127.0.0.1", port, "a")
        self.store = OffsetsTopic(url, linger_ms=0, partitions=PARTITIONS)
        self.coordination = Coordination(self.lease, self.store)
        self.groups = GroupRegistry(self.store, GroupSettings(), check=self.coordination.check)
        ended = EndedPositions(self.groups, self.store)
        self.offsets = CommittedOffsets(self.groups, ended, retention_ms=1 << 40)

    def clock(self) -> float:
        return self.frozen_at if self.frozen_at >= 0 else self.time.now_s

    def look(self) -> None:
        """What its threads do when they run."""
        if self.lease.due_s(self.coordination.loaded) <= 0:
            self.lease.sync(self.store.open, self.coordination.loaded)
        try:
            self.coordination.step(self.groups)
        except GroupRefusedError:
            return

    def commit(self, group: str, offset: int) -> ErrorCode:
        told: SimpleQueue[ErrorCode] = SimpleQueue()
        self.offsets.commit(group, {PLACE: Position(offset)}, told.put)
        return told.get(timeout=60)

    def position(self, group: str) -> int | None:
        """The position that it tells; GroupRefusedError if it does not answer for the group."""
        found = self.offsets.fetch(group, [PLACE])[PLACE]
        return found.offset if found else None


class Gateways(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        memory_files.hold()
        self.url, self.time, self.ids = f"memory://{uuid.uuid4().hex}/root", Time(), itertools.count(1)
        self.offsets = itertools.count(1)
        self.acknowledged: dict[str, int] = {}
        self.gateways = [Gateway(self.url, self.time, self.ids, 9092 + n) for n in range(3)]

    @rule(turns=st.sampled_from([1, 3, 25]), asleep=st.sets(WHO, max_size=2))
    def go_on(self, turns: int, asleep: set[int]) -> None:
        """Some time passes, in which all but those asleep do their work."""
        for _ in range(turns):
            self.time.now_s += LEASE_S / 20
            for who in set(range(3)) - asleep:
                if self.gateways[who].frozen_at < 0:
                    self.gateways[who].look()

    @rule(who=WHO)
    def freeze(self, who: int) -> None:
        """It is stopped behind its look at the lease, so what it does next is what it meant to do then."""
        self.gateways[who].frozen_at = self.time.now_s

    @rule(who=WHO)
    def thaw(self, who: int) -> None:
        self.gateways[who].frozen_at = -1.0

    @rule(who=WHO)
    def look(self, who: int) -> None:
        self.gateways[who].look()

    @rule(who=WHO, cleanly=st.booleans())
    def begin_again(self, who: int, cleanly: bool) -> None:
        before = self.gateways[who]
        before.store.close()
        if cleanly:
            before.lease.leave()
        self.gateways[who] = Gateway(self.url, self.time, self.ids, 9092 + who)

    @rule(who=WHO, group=st.sampled_from(GROUPS))
    def commit(self, who: int, group: str) -> None:
        offset = next(self.offsets)
        if self.gateways[who].commit(group, offset) is ErrorCode.none:
            self.acknowledged[group] = offset

    @rule(group=st.sampled_from(GROUPS))
    def commit_where_a_client_would(self, group: str) -> None:
        for gateway in self.gateways:
            node = gateway.lease.holder(gateway.store.partition_of(group))
            if node is not None:
                self.commit(node.port - 9092, group)
                return

    @invariant()
    def who_answers_knows_what_was_acknowledged(self) -> None:
        for gateway in self.gateways:
            for group in GROUPS if gateway.frozen_at < 0 else ():
                try:
                    told = gateway.position(group)
                except GroupRefusedError:
                    continue
                assert told == self.acknowledged.get(group)

    @invariant()
    def no_two_hold_one_partition(self) -> None:
        held = [gateway.lease.held_partitions for gateway in self.gateways if gateway.frozen_at < 0]
        assert sum(map(len, held)) == len(frozenset().union(*held))

    def teardown(self) -> None:
        """When all are well, each group has a gateway that answers, and takes commits."""
        for who in range(3):
            self.thaw(who)
        for _ in range(5):
            self.go_on(10, set())
        self.who_answers_knows_what_was_acknowledged()
        for group in GROUPS:
            codes = [gateway.commit(group, next(self.offsets)) for gateway in self.gateways]
            assert sorted(code is ErrorCode.none for code in codes) == [False, False, True], (group, codes)
        for gateway in self.gateways:
            gateway.store.close()


TestGateways = pytest.mark.long(Gateways.TestCase)
TestGateways.settings = examples(10, stateful_step_count=20)
