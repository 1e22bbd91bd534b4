"""Random histories of members: each request is answered once, and the members of a generation agree."""

from __future__ import annotations

import pytest
from consumer_groups import GROUP, Gateway
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kio.schema.errors import ErrorCode
from searches import examples

from distlog.gateway.config import GroupSettings
from distlog.gateway.groups.classic_group import GroupPhase, JoinReply

clients = st.integers(0, 3)


class GroupStories(RuleBasedStateMachine):
    """Four clients, two static ones among them, act freely, well or badly; the gateway is killed now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.gateway = Gateway(GroupSettings(initial_rebalance_delay_ms=100))
        self.clients = [
            self.gateway.member(f"c{n}", instance_id=f"c{n}" if n > 1 else None, rebalance_timeout_ms=20_000)
            for n in range(4)
        ]

    @rule(client=clients, subscription=st.sampled_from([b"x", b"x", b"y"]), must_know=st.booleans())
    def join(self, client: int, subscription: bytes, must_know: bool) -> None:
        self.clients[client].join(protocols=(("range", subscription),), must_know_id=must_know)

    @rule(client=st.integers(2, 3))
    def start_again(self, client: int) -> None:
        self.clients[client] = self.gateway.member(f"c{client}", instance_id=f"c{client}")
        self.clients[client].join()

    @rule(client=clients)
    def sync(self, client: int) -> None:
        member = self.clients[client]
        if member.join_error is ErrorCode.none:
            member.sync(**{f"c{n}": f"c{n} of {member.generation}".encode() for n in range(4)})

    @rule(client=clients)
    def beat(self, client: int) -> None:
        if self.clients[client].joined:
            self.clients[client].beat()

    @rule(client=clients)
    def leave(self, client: int) -> None:
        self.clients[client].leave()

    @rule(ms=st.sampled_from([0, 50, 100, 5_000, 10_000, 20_000, 300_000]))
    def pass_time(self, ms: int) -> None:
        self.gateway.at_time(ms)

    @rule(holds=st.booleans(), fails=st.booleans())
    def trouble_the_store(self, holds: bool, fails: bool) -> None:
        store = self.gateway.store
        store.held = holds
        store.code = ErrorCode.coordinator_not_available if fails else ErrorCode.none
        if not holds:
            store.release()

    @precondition(lambda self: not self.gateway.store.held)
    @rule()
    def kill_the_gateway(self) -> None:
        self.gateway = self.gateway.restart()
        for client in self.clients:
            client.gateway = self.gateway
            # whoever waits loses its connection, and asks again
            client.joined = client.joined or JoinReply(error=ErrorCode.not_coordinator, member_id=client.id)

    @invariant()
    def who_is_told_its_part_is_told_the_part_of_its_generation(self) -> None:
        for n, client in enumerate(self.clients):
            reply = client.synced
            if reply and reply.error is ErrorCode.none and reply.assignment:
                assert reply.assignment.startswith(f"c{n} of ".encode())

    @invariant()
    def a_group_is_stable_only_with_an_assignment_that_is_stored(self) -> None:
        described = self.gateway.coordinator.describe(GROUP)
        assert (described.phase is GroupPhase.EMPTY) <= (not described.members)
        if described.phase is GroupPhase.STABLE:
            restarted = self.gateway.restart().coordinator.describe(GROUP)
            stored = {member.assignment for member in restarted.members}
            assert {member.assignment for member in described.members} <= stored | {b""}

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        described = self.gateway.coordinator.describe(GROUP)
        has_somebody = bool(described.members) or described.phase is GroupPhase.PREPARING
        if has_somebody and not self.gateway.store.held:
            assert self.gateway.groups.next_deadline <= self.gateway.now + 300_000

    def teardown(self) -> None:
        """After the store recovered and all sessions ended, no member is left, and all requests were answered."""
        self.gateway.store.held, self.gateway.store.code = False, ErrorCode.none
        self.gateway.store.release()
        for _ in range(100):
            self.gateway.at_time(10_000)
        assert self.gateway.coordinator.describe(GROUP).phase in {GroupPhase.EMPTY, GroupPhase.DEAD}


TestGroupStories = pytest.mark.long(GroupStories.TestCase)
TestGroupStories.settings = examples(60, stateful_step_count=40)
