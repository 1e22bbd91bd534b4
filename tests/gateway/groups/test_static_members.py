"""Static members (KIP-345): an instance that restarts gets its partitions again, without a rebalance."""

from __future__ import annotations

from consumer_groups import GROUP, Client, Gateway, stable
from kio.schema.errors import ErrorCode

from distlog.gateway.config import GroupSettings
from distlog.gateway.groups.classic_group import GroupPhase


def joined() -> tuple[Gateway, Client, Client]:
    gateway = Gateway(GroupSettings(initial_rebalance_delay_ms=10))
    first, second = gateway.member("a", instance_id="one"), gateway.member("b", instance_id="two")
    first.join(), second.join()
    gateway.at_time(10)
    gateway.at_time(10)
    first.sync(one=b"0", two=b"1")
    return gateway, first, second


def pair() -> tuple[Gateway, Client, Client]:
    gateway, first, second = joined()
    second.sync()
    return gateway, first, second


def test_a_restarted_instance_keeps_its_assignment_without_a_rebalance() -> None:
    gateway, first, second = pair()
    again = gateway.member("b", instance_id="two").join()
    assert again.join_error is ErrorCode.none
    assert again.generation == second.generation
    assert again.id != second.id
    assert again.sync().synced
    assert again.synced
    assert again.synced.assignment == b"1"
    assert first.beat() is ErrorCode.none
    assert gateway.coordinator.describe(GROUP).phase is GroupPhase.STABLE


def test_the_old_one_of_an_instance_is_fenced() -> None:
    gateway, _, second = pair()
    gateway.member("b", instance_id="two").join()
    assert second.beat() is ErrorCode.fenced_instance_id
    assert second.join().join_error is ErrorCode.fenced_instance_id
    assert second.leave() is ErrorCode.fenced_instance_id


def test_a_restarted_leader_skips_the_assignment() -> None:
    gateway, first, _ = pair()
    old = gateway.member("a", instance_id="one").join()
    assert old.joined
    assert not old.leads
    assert old.joined.leader == first.id
    assert old.joined.members == ()
    new = gateway.member("a", instance_id="one").join(may_skip_assignment=True)
    assert new.joined
    assert new.leads
    assert new.joined.skip_assignment
    assert len(new.joined.members) == 2


def test_an_instance_with_another_subscription_begins_another_generation() -> None:
    gateway, first, _ = pair()
    again = gateway.member("b", instance_id="two", protocols=(("range", b"other"),)).join()
    assert again.join_error is None
    assert first.beat() is ErrorCode.rebalance_in_progress
    assert first.join().generation == again.generation == 2


def test_static_members_that_are_away_stay_members_until_their_session_ends() -> None:
    gateway, first, second = pair()
    first.join(protocols=(("range", b"other"),))
    for _ in range(7):
        gateway.at_time(9_000)
        second.beat()
    assert first.join_error is ErrorCode.none
    assert first.joined
    assert len(first.joined.members) == 2
    first.sync(one=b"0", two=b"1")
    gateway.at_time(10_000)
    assert second.beat() is ErrorCode.unknown_member_id


def test_a_join_that_waits_is_answered_when_a_newer_one_of_the_instance_comes() -> None:
    gateway, _, second = pair()
    third = gateway.member("c").join()
    second.join()
    assert second.join_error is None
    gateway.member("b", instance_id="two").join()
    assert second.join_error is ErrorCode.fenced_instance_id
    assert third.join_error is None


def test_an_instance_gets_an_error_if_its_member_cannot_be_stored() -> None:
    gateway, _, _ = pair()
    gateway.store.code = ErrorCode.coordinator_not_available
    assert gateway.member("b", instance_id="two").join().join_error is ErrorCode.coordinator_not_available


def test_an_administrator_removes_an_instance_by_name() -> None:
    gateway, first, second = pair()
    assert gateway.coordinator.leave(GROUP, "", "two") is ErrorCode.none
    assert second.beat() is ErrorCode.unknown_member_id
    assert first.beat() is ErrorCode.rebalance_in_progress
    assert gateway.coordinator.leave(GROUP, "", "nobody") is ErrorCode.unknown_member_id


def test_an_instance_that_starts_again_while_partitions_are_assigned_begins_another_generation() -> None:
    gateway, first, second = pair()
    first.join(protocols=(("range", b"other"),))
    second.join()
    assert first.generation == second.generation == 2
    again = gateway.member("b", instance_id="two").join()
    assert again.join_error is None
    first.join()
    assert again.generation == first.generation == 3


def test_an_instance_that_starts_again_before_it_asked_for_its_part_is_still_waited_for() -> None:
    gateway, first, _ = joined()
    again = gateway.member("b", instance_id="two").join()
    assert again.join_error is ErrorCode.none
    for _ in range(7):
        gateway.at_time(9_000)
        first.beat(), again.beat()
        # nothing is left that is due: a timer that finds something at each look serves nobody else
        assert gateway.groups.next_deadline > gateway.now
    assert again.beat() is ErrorCode.unknown_member_id


def test_an_instance_that_started_again_and_asked_for_its_part_stays() -> None:
    gateway, first, _ = joined()
    again = gateway.member("b", instance_id="two").join().sync()
    for _ in range(7):
        gateway.at_time(9_000)
        assert (first.beat(), again.beat()) == (ErrorCode.none, ErrorCode.none)


def test_instances_that_are_away_and_give_no_time_for_joining_do_not_keep_the_timer_busy() -> None:
    gateway = Gateway()
    first = gateway.member("a", instance_id="one")
    stable(gateway, first)
    first.join(rebalance_timeout_ms=0).sync(a=b"0")
    with gateway.groups.locked(GROUP) as group:
        group.membership.prepare_rebalance()
    gateway.at_time(1)
    assert gateway.groups.next_deadline > gateway.now
