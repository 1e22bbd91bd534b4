"""The lease of a gateway: its partitions, its expiry, and the answers of a machine that slept."""

from __future__ import annotations

import itertools

import pytest
from topic_consumers import Time

from distlog.core.read.consumer_group import FREQUENT, GroupLog, Membership
from distlog.core.storage.storage import Storage
from distlog.gateway.cluster import (
    GATEWAYS_GROUP,
    ROOT_ID,
    GatewayLease,
    Node,
    advertised,
    assign_leaders,
    this_machine,
)

LEASE_S = 9.0
PARTITIONS = 10
OVER_S = LEASE_S * 1.1 + 0.5


class Gateways:
    """Gateways of one root; tests let their time pass."""

    def __init__(self, url: str) -> None:
        self.root, self.time, self.ids = Storage(url), Time(), itertools.count(1)

    def begin(
        self, port: int, node_id: int | None = None, machine: str = "a", host: str = "127.0.0.1"
    ) -> GatewayLease:
        lease = GatewayLease(self.root, node_id, LEASE_S, clock=self.time, new_id=lambda: f"{next(self.ids):032x}")
        lease.set_address(host, port, machine)
        lease.sync(lambda: PARTITIONS, ())
        return lease

    def go_on(self, *leases: GatewayLease, seconds: float = OVER_S, pending: set[int] | None = None) -> None:
        """Let time pass while these gateways renew their leases."""
        end = self.time.now_s + seconds
        while self.time.now_s < end:
            self.time.now_s += LEASE_S / 20
            for lease in leases:
                if lease.due_s(pending or ()) <= 0:
                    lease.sync(lambda: PARTITIONS, pending or ())


@pytest.fixture
def gateways(request: pytest.FixtureRequest, memory_url: object) -> Gateways:
    return Gateways(memory_url.url)  # type: ignore[attr-defined]


def test_the_first_gateway_holds_everything_and_is_broker_0(gateways: Gateways) -> None:
    lease = gateways.begin(9092)
    assert lease.held_partitions == set(range(PARTITIONS))
    assert [str(node) for node in lease.nodes] == ["gateway 0 at 127.0.0.1:9092 on a"]
    assert lease.holder(3) == lease.node


def test_two_gateways_share_and_each_names_the_same_holders(gateways: Gateways) -> None:
    first = gateways.begin(9092)
    two = gateways.begin(9093)
    assert two.held_partitions == set()
    gateways.go_on(first, two)
    assert len(first.held_partitions) == len(two.held_partitions) == PARTITIONS // 2
    assert not first.held_partitions & two.held_partitions
    assert [node.id for node in first.nodes] == [node.id for node in two.nodes] == [0, 1]
    for number in range(PARTITIONS):
        assert first.holder(number) == two.holder(number)
    assert first.leaders("topic", PARTITIONS) == two.leaders("topic", PARTITIONS)
    assert sorted(first.leaders("topic", PARTITIONS)) == PARTITIONS // 2 * [0] + PARTITIONS // 2 * [1]


@pytest.mark.parametrize("partitions", [1, 2, 7, 60, 1000])
@pytest.mark.parametrize("ids", [(4,), (0, 1), (0, 1, 2, 5, 9)])
def test_leaders_have_equal_parts_of_a_topic_and_few_move(partitions: int, ids: tuple[int, ...]) -> None:
    previous = assign_leaders("topic", partitions, ids)
    counts = [previous.count(number) for number in ids]
    assert len(previous) == partitions
    assert set(counts) <= {partitions // len(ids), -(-partitions // len(ids))}
    after = assign_leaders("topic", partitions, (*ids, 10))
    moved = sum(holder != next_holder for holder, next_holder in zip(previous, after, strict=True))
    # the minimum is the share of the new one; with few partitions, half may move
    assert moved <= max(2.2 * partitions / (len(ids) + 1), 1)


def test_topics_of_one_partition_are_shared_by_all_gateways() -> None:
    ids = tuple(range(5))
    assert {assign_leaders(f"topic {number}", 1, ids)[0] for number in range(100)} == set(ids)


def test_a_partition_is_not_released_while_requests_are_in_flight(gateways: Gateways) -> None:
    first, two = gateways.begin(9092), gateways.begin(9093)
    gateways.go_on(first, two, seconds=LEASE_S / 2, pending=set(range(PARTITIONS)))
    assert two.held_partitions == set()
    assert len(first.held_partitions) == PARTITIONS // 2
    gateways.go_on(first, two)
    assert len(two.held_partitions) == PARTITIONS // 2


def test_partitions_of_a_dead_gateway_move_after_its_lease(gateways: Gateways) -> None:
    first, two = gateways.begin(9092), gateways.begin(9093)
    gateways.go_on(first, two)
    held = first.held_partitions
    gateways.go_on(two, seconds=LEASE_S * 0.9)
    assert [node.id for node in two.nodes] == [0, 1]
    assert {two.holder(number) for number in held} == {Node(0, "127.0.0.1", 9092, "a")}
    gateways.go_on(two, seconds=OVER_S)
    assert two.held_partitions == set(range(PARTITIONS))
    assert [node.id for node in two.nodes] == [1]


def test_a_gateway_that_slept_holds_nothing_until_it_renewed_its_lease(gateways: Gateways) -> None:
    first, two = gateways.begin(9092), gateways.begin(9093)
    gateways.go_on(first, two)
    term, held = first.term, first.held_partitions
    gateways.go_on(two, seconds=2 * OVER_S)
    assert first.is_lapsed
    assert first.held_partitions == set()
    assert all(first.holder(number) is None for number in held)
    gateways.go_on(first, two)
    assert first.term > term
    assert len(first.held_partitions) == len(two.held_partitions) == PARTITIONS // 2


def test_a_restarted_gateway_waits_for_no_lease(gateways: Gateways) -> None:
    gateways.begin(9092)
    again = gateways.begin(9092)
    assert (again.held_partitions, again.node.id) == (set(range(PARTITIONS)), 0)
    elsewhere = gateways.begin(9092, machine="b")
    assert (elsewhere.held_partitions, elsewhere.node.id) == (set(), 1)


def test_a_leaving_gateway_releases_everything_at_once(gateways: Gateways) -> None:
    first, two = gateways.begin(9092), gateways.begin(9093)
    gateways.go_on(first, two)
    first.leave()
    assert first.held_partitions == set()
    gateways.go_on(two, seconds=LEASE_S / 20)
    assert two.held_partitions == set(range(PARTITIONS))


def test_ids_are_the_requested_or_the_lowest_free_ones(gateways: Gateways) -> None:
    first, seven, two = gateways.begin(1), gateways.begin(2, node_id=7), gateways.begin(3)
    again = gateways.begin(4, node_id=7)
    assert [lease.node.id for lease in (first, seven, two, again)] == [0, 7, 1, 2]
    gateways.go_on(first, seven, two, again, seconds=2 * LEASE_S)
    assert [lease.node.id for lease in (first, seven, two, again)] == [0, 7, 1, 2]


def test_a_gateway_detects_that_others_list_it(gateways: Gateways) -> None:
    first = gateways.begin(9092)
    assert first.unknown_s == 0
    two = gateways.begin(9093)
    assert [node.id for node in first.nodes] == [0]
    assert 0 < two.unknown_s < LEASE_S / 4
    gateways.go_on(first, seconds=two.unknown_s)
    assert two.unknown_s == 0
    assert [node.id for node in first.nodes] == [0, 1]


def test_live_gateways_at_one_address_do_not_replace_each_other(gateways: Gateways) -> None:
    first, two = gateways.begin(9092), gateways.begin(9092)
    gateways.go_on(first, two)
    terms, held = (first.term, two.term), (first.held_partitions, two.held_partitions)
    assert [len(numbers) for numbers in held] == [PARTITIONS // 2] * 2
    gateways.go_on(first, two, seconds=10 * LEASE_S)
    assert (first.term, two.term) == terms
    assert (first.held_partitions, two.held_partitions) == held


def test_clients_are_not_sent_to_a_loopback_address_of_another_machine(gateways: Gateways) -> None:
    mine, other = gateways.begin(9092), gateways.begin(9092, machine="b")
    reached = gateways.begin(9092, machine="c", host="gateway-c")
    gateways.go_on(mine, other, reached)
    assert [node.host for node in mine.nodes] == ["127.0.0.1", "gateway-c"]
    assert mine.nodes[0] == mine.node
    assert {mine.holder(number) for number in other.held_partitions} == {None}
    assert {mine.holder(number) for number in reached.held_partitions} == {reached.node}


def test_invalid_files_of_gateways_are_ignored(gateways: Gateways) -> None:
    lease = gateways.begin(9092)
    other = Membership(
        GroupLog(gateways.root, ROOT_ID, GATEWAYS_GROUP, clock=gateways.time),
        lambda _: "a consumer",
        None,
        LEASE_S,
        FREQUENT,
        gateways.time,
        lambda: f"{next(gateways.ids):032x}",
    )
    other.sync(lambda: PARTITIONS, lambda numbers, added: dict.fromkeys(numbers, 0), ())
    gateways.go_on(lease, seconds=1.0)
    assert [node.id for node in lease.nodes] == [0]
    assert Node.parse("gateway 1 at h:99999 on m") is None
    assert Node.parse(str(lease.node)) == lease.node


def test_a_wildcard_listener_is_advertised_by_its_hostname() -> None:
    assert advertised("0.0.0.0", 9092) == (this_machine(), 9092)
    assert advertised("127.0.0.1", 9092) == ("127.0.0.1", 9092)
