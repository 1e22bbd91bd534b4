"""Members join and leave, and agree on generations: the cases of Kafka's JoinGroup and SyncGroup."""

from __future__ import annotations

from consumer_groups import GROUP, Client, Gateway, stable
from kio.schema.errors import ErrorCode

from distlog.gateway.config import GroupSettings
from distlog.gateway.groups.classic_group import GroupPhase


def pair() -> tuple[Gateway, Client, Client]:
    gateway = Gateway()
    first, second = gateway.member("a"), gateway.member("b")
    first.join()
    gateway.at_time(0)
    first.sync(a=b"all")
    second.join()
    assert (second.join_error, first.beat()) == (None, ErrorCode.rebalance_in_progress)
    first.join()
    assert (first.join_error, second.join_error) == (ErrorCode.none, ErrorCode.none)
    return gateway, first, second


def test_only_the_leader_gets_the_list_of_members() -> None:
    _, first, second = pair()
    assert first.leads
    assert first.joined
    assert first.generation == second.generation == 2
    assert [(member.id, member.subscription) for member in first.joined.members] == [
        (first.id, b"topics"),
        (second.id, b"topics"),
    ]
    assert second.joined
    assert (second.joined.leader, second.joined.members) == (first.id, ())


def test_members_get_their_assignment_from_the_leader() -> None:
    gateway, first, second = pair()
    second.sync()
    assert second.synced is None
    first.sync(a=b"0,1", b=b"2")
    assert first.synced
    assert first.synced.assignment == b"0,1"
    assert second.synced
    assert second.synced.assignment == b"2"
    assert gateway.coordinator.describe(GROUP).phase is GroupPhase.STABLE
    assert second.sync().synced == second.synced


def test_an_assignment_is_stored_before_it_is_returned() -> None:
    gateway, first, second = pair()
    gateway.store.held = True
    second.sync()
    first.sync(a=b"0", b=b"1")
    assert (first.synced, second.synced) == (None, None)
    gateway.store.release()
    assert first.synced
    assert second.synced
    assert second.synced.assignment == b"1"


def test_an_assignment_that_cannot_be_stored_is_refused_and_all_join_again() -> None:
    gateway, first, second = pair()
    gateway.store.code = ErrorCode.coordinator_not_available
    second.sync()
    first.sync(a=b"0", b=b"1")
    assert first.synced
    assert first.synced.error is ErrorCode.coordinator_not_available
    assert second.synced
    assert second.synced.error is ErrorCode.coordinator_not_available
    assert first.beat() is ErrorCode.rebalance_in_progress


def test_an_assignment_is_void_when_somebody_joined_before_it_was_stored() -> None:
    gateway, first, second = pair()
    gateway.store.held = True
    first.sync(a=b"0", b=b"1")
    third = gateway.member("c").join()
    assert first.synced
    assert first.synced.error is ErrorCode.rebalance_in_progress
    gateway.store.release()
    assert gateway.coordinator.describe(GROUP).phase is GroupPhase.PREPARING
    first.join(), second.join()
    assert third.generation == first.generation == 3


def test_members_of_a_group_that_was_empty_have_the_initial_delay_to_come() -> None:
    gateway = Gateway(GroupSettings(initial_rebalance_delay_ms=3000))
    first, second = gateway.member("a").join(), gateway.member("b")
    gateway.at_time(2900)
    second.join()
    gateway.at_time(200)  # somebody came: it waits as long again
    assert (first.join_error, second.join_error) == (None, None)
    gateway.at_time(2999)
    assert first.join_error is None
    gateway.at_time(1)
    assert first.join_error is second.join_error is ErrorCode.none
    assert first.generation == 1


def test_the_initial_delay_is_at_most_the_rebalance_timeout() -> None:
    gateway = Gateway(GroupSettings(initial_rebalance_delay_ms=3000))
    first = gateway.member("a", rebalance_timeout_ms=7000).join()
    for second in range(1, 7):
        gateway.at_time(1000)
        gateway.member(f"b{second}", rebalance_timeout_ms=7000).join()
    gateway.at_time(999)
    assert first.join_error is None
    gateway.at_time(1)
    assert first.join_error is ErrorCode.none
    assert first.joined
    assert len(first.joined.members) == 7


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    gateway, first, second = pair()
    stable_pair(first, second)
    third = gateway.member("c").join()
    for _ in range(7):  # the second beats, and does not join
        gateway.at_time(9000)
        second.beat()
        if first.join_error is not None and first.generation == 2:
            first.join()
    assert first.join_error is third.join_error is ErrorCode.none
    assert first.generation == 3
    assert second.beat() is ErrorCode.unknown_member_id


def stable_pair(first: Client, second: Client) -> None:
    second.sync()
    first.sync(a=b"0", b=b"1")


def test_the_partitions_of_a_leaving_member_are_shared() -> None:
    _, first, second = pair()
    stable_pair(first, second)
    assert second.leave() is ErrorCode.none
    assert first.beat() is ErrorCode.rebalance_in_progress
    assert first.join().generation == 3
    assert second.beat() is ErrorCode.unknown_member_id


def test_a_session_that_is_not_renewed_ends() -> None:
    gateway, first, second = pair()
    stable_pair(first, second)
    gateway.at_time(9_999)
    assert first.beat() is ErrorCode.none
    gateway.at_time(1)
    assert (first.beat(), second.beat()) == (ErrorCode.rebalance_in_progress, ErrorCode.unknown_member_id)


def test_a_waiting_member_does_not_expire() -> None:
    gateway, first, second = pair()
    stable_pair(first, second)
    first.join()
    for _ in range(5):
        gateway.at_time(9_000)
        second.beat()
    assert first.join_error is None
    second.join()
    assert first.join_error is ErrorCode.none


def test_when_the_leader_goes_another_member_leads() -> None:
    _, first, second = pair()
    stable_pair(first, second)
    first.leave()
    assert second.join().leads
    assert second.generation == 3


def test_a_member_that_does_not_sync_in_time_is_removed() -> None:
    gateway, first, second = pair()
    second.sync()
    for _ in range(7):
        gateway.at_time(9_000)
        first.beat()  # the leader lives, and never assigns
    assert second.synced
    assert second.synced.error is ErrorCode.rebalance_in_progress
    assert first.beat() is ErrorCode.unknown_member_id


def test_an_empty_group_continues_its_generations() -> None:
    gateway = Gateway()
    only = gateway.member("a")
    stable(gateway, only)
    only.leave()
    described = gateway.coordinator.describe(GROUP)
    assert (described.phase, described.members) == (GroupPhase.EMPTY, ())
    gateway.member("b").join()
    gateway.at_time(0)
    assert gateway.coordinator.describe(GROUP).phase is GroupPhase.COMPLETING
    later = gateway.member("c").join()
    assert later.join_error is None


def test_a_lost_join_response_is_repeated() -> None:
    _, first, second = pair()
    assert (first.join().generation, second.join().generation) == (2, 2)
    assert first.leads
    assert first.joined
    assert len(first.joined.members) == 2


def test_a_member_that_joins_again_unchanged_keeps_its_generation_and_a_leader_begins_another() -> None:
    gateway, first, second = pair()
    stable_pair(first, second)
    assert second.join().generation == 2
    first.join()
    assert first.join_error is None
    assert gateway.coordinator.describe(GROUP).phase is GroupPhase.PREPARING


def test_a_member_with_another_subscription_begins_another_generation() -> None:
    _, first, second = pair()
    stable_pair(first, second)
    second.join(protocols=(("range", b"other"),))
    assert second.join_error is None
    assert first.join().generation == 3
    assert first.joined
    assert [member.subscription for member in first.joined.members] == [b"topics", b"other"]


def test_the_protocol_is_the_common_one_with_the_most_votes() -> None:
    gateway = Gateway(GroupSettings(initial_rebalance_delay_ms=10))
    first = gateway.member("a", protocols=(("sticky", b"s"), ("range", b"r"))).join()
    two = gateway.member("b", protocols=(("range", b"r"), ("sticky", b"s"))).join()
    three = gateway.member("c", protocols=(("only-c", b"c"), ("range", b"R"), ("sticky", b"S"))).join()
    gateway.at_time(100)
    gateway.at_time(100)
    assert {member.joined.protocol for member in (first, two, three) if member.joined} == {"range"}
    assert first.joined
    assert [member.subscription for member in first.joined.members] == [b"r", b"r", b"R"]


def test_a_member_without_a_common_protocol_is_refused() -> None:
    gateway, _, _ = pair()
    assert gateway.member("c", protocols=(("alien", b""),)).join().join_error is ErrorCode.inconsistent_group_protocol
    assert gateway.member("c", protocol_type="connect").join().join_error is ErrorCode.inconsistent_group_protocol
    assert gateway.member("c", protocols=()).join().join_error is ErrorCode.inconsistent_group_protocol


def test_a_new_member_gets_its_id_before_it_joins() -> None:
    gateway = Gateway()
    client = gateway.member("a")
    assert client.join(must_know_id=True).join_error is ErrorCode.member_id_required
    assert client.id.startswith("a-")
    client.join(must_know_id=True)
    gateway.at_time(0)
    assert client.join_error is ErrorCode.none


def test_an_unused_id_expires_with_its_session() -> None:
    gateway, first, second = pair()
    stable_pair(first, second)
    promised = gateway.member("c").join(must_know_id=True)
    first.join()
    gateway.at_time(5_000)
    second.beat(), second.join()
    assert first.join_error is None  # the third may still come
    gateway.at_time(5_000)
    assert first.join_error is second.join_error is ErrorCode.none
    assert promised.join().join_error is ErrorCode.unknown_member_id


def test_a_group_has_at_most_its_maximum_size() -> None:
    gateway = Gateway(GroupSettings(initial_rebalance_delay_ms=0, max_size=1))
    first = gateway.member("a")
    stable(gateway, first)
    assert gateway.member("b").join().join_error is ErrorCode.group_max_size_reached
    assert first.join(protocols=(("range", b"more"),)).join_error is ErrorCode.none


def test_session_timeouts_have_bounds_and_names_are_needed() -> None:
    gateway = Gateway()
    assert gateway.member("a", session_timeout_ms=5999).join().join_error is ErrorCode.invalid_session_timeout
    assert gateway.member("a", session_timeout_ms=2**31 - 1).join().join_error is ErrorCode.invalid_session_timeout
    assert gateway.coordinator.heartbeat("", "a", None, 1) is ErrorCode.invalid_group_id
    assert gateway.coordinator.heartbeat("x" * 40_000, "a", None, 1) is ErrorCode.invalid_group_id
    assert gateway.member("c" * 40_000).join().join_error is ErrorCode.invalid_request


def test_unknown_members_and_old_generations_get_their_code() -> None:
    gateway, first, second = pair()
    stable_pair(first, second)
    coordinator = gateway.coordinator
    assert coordinator.heartbeat(GROUP, "nobody", None, 2) is ErrorCode.unknown_member_id
    assert coordinator.heartbeat(GROUP, first.id, None, 1) is ErrorCode.illegal_generation
    assert coordinator.heartbeat("no-group", first.id, None, 1) is ErrorCode.unknown_member_id
    assert coordinator.leave(GROUP, "nobody") is ErrorCode.unknown_member_id
    stranger = gateway.member("x")
    stranger.id = "nobody"
    assert stranger.join().join_error is ErrorCode.unknown_member_id


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    _, first, second = pair()
    stable_pair(first, second)
    second.join(protocols=(("range", b"other"),))
    assert second.leave() is ErrorCode.none
    assert second.join_error is ErrorCode.unknown_member_id
