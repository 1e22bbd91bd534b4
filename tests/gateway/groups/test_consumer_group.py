"""Groups of the newer protocol (KIP-848): the coordinator assigns, and each member follows by its heartbeats."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from consumer_groups import GROUP, RETENTION_MS
from consumer_members import CLICKS, SESSION_MS, Consumer, ConsumerGateway, partition_set, with_partitions
from kio.schema.errors import ErrorCode

from distlog.core.read.kafka_offsets import Position
from distlog.gateway.config import GroupSettings
from distlog.gateway.groups.classic_group import GroupPhase
from distlog.gateway.groups.offsets_format import MemberState
from distlog.gateway.topics.topic_index import TopicSummary

ALL = partition_set(0, 1, 2, 3)


def two(gateway: ConsumerGateway) -> tuple[Consumer, Consumer]:
    first, other = gateway.consumer("a"), gateway.consumer("b")
    first.goes_on()
    other.goes_on()
    first.goes_on()
    first.goes_on()
    other.goes_on()
    assert gateway.group.phase is GroupPhase.STABLE
    return first, other


def test_the_first_member_gets_all_partitions_at_once() -> None:
    gateway = ConsumerGateway()
    member = gateway.consumer("a")
    assert member.goes_on() == ALL
    assert member.epoch == gateway.group.epoch == 1
    assert gateway.group.phase is GroupPhase.STABLE
    previous = len(gateway.store.changes)
    reply = member.beat()
    assert (reply.epoch, reply.assigned) == (1, None) if reply else False
    assert len(gateway.store.changes) == previous


def test_a_partition_moves_after_its_member_released_it() -> None:
    gateway = ConsumerGateway()
    first, other = gateway.consumer("a"), gateway.consumer("b")
    first.goes_on()
    assert other.goes_on() == partition_set()
    assert gateway.group.phase is GroupPhase.RECONCILING
    # it keeps two, has not yet released the others, and stays in its epoch
    reply = first.beat(owned=ALL)
    assert reply is not None
    assert reply.assigned is not None
    assert len(reply.assigned) == 2
    assert reply.epoch == 1
    assert other.goes_on() == partition_set()
    assert first.beat(owned=None).epoch == 1  # type: ignore[union-attr]
    assert other.goes_on() == partition_set()
    first.has = reply.assigned
    first.goes_on()
    assert first.epoch == 2
    assert other.goes_on() == ALL - first.has
    assert gateway.group.phase is GroupPhase.STABLE


def test_members_keep_their_partitions_when_another_leaves_or_dies() -> None:
    gateway = ConsumerGateway()
    first, other = two(gateway)
    retained = first.has
    assert other.code(epoch=-1) is ErrorCode.none
    assert first.goes_on() == ALL > retained
    third = gateway.consumer("c")
    third.goes_on()
    first.goes_on()
    first.goes_on()
    third.goes_on()
    gateway.at_time(SESSION_MS - 1)
    first.goes_on()
    gateway.at_time(1)
    assert [*gateway.group.members] == ["a"]
    assert first.goes_on() == ALL
    assert third.code() is ErrorCode.unknown_member_id


def test_a_member_that_keeps_its_partitions_for_too_long_is_removed() -> None:
    gateway = ConsumerGateway()
    first, other = gateway.consumer("a", rebalance_timeout_ms=20_000), gateway.consumer("b")
    first.goes_on()
    other.goes_on()
    first.beat(owned=ALL)
    gateway.at_time(19_999)
    first.beat(owned=ALL)
    other.goes_on()
    gateway.at_time(1)
    assert first.code() is ErrorCode.unknown_member_id
    assert other.goes_on() == ALL


def test_wrong_epochs_are_fenced_and_a_lost_response_is_repeated() -> None:
    gateway = ConsumerGateway()
    first, _ = two(gateway)
    epoch, has = first.epoch, first.has
    assert first.code(epoch=epoch + 1) is ErrorCode.fenced_member_epoch
    assert first.code(epoch=epoch - 1, owned=None) is ErrorCode.fenced_member_epoch
    assert first.code(epoch=epoch - 1, owned=ALL) is ErrorCode.fenced_member_epoch
    reply = first.beat(epoch=epoch - 1, owned=has, topics=("clicks",), rebalance_timeout_ms=60_000)
    assert reply is not None
    assert (reply.error, reply.epoch, reply.assigned) == (ErrorCode.none, epoch, has)
    # a member that joins again with its id starts again
    first.epoch = 0
    assert first.goes_on() == has


def test_subscriptions_and_topics_that_change_begin_an_epoch() -> None:
    gateway = ConsumerGateway()
    first, other = two(gateway)
    with_partitions(gateway.topics, 6)
    for member in (first, other, first, other):
        member.goes_on()
    assert first.has | other.has == partition_set(0, 1, 2, 3, 4, 5)
    assert len(first.has) == len(other.has) == 3
    views = uuid.UUID(int=2)
    gateway.topics.by_name["views"] = TopicSummary("views", str(views), 1)
    first.goes_on(topics=("views",))
    for member in (first, other, first):
        member.goes_on()
    assert first.has == partition_set(0, topic=views)
    assert other.has == partition_set(0, 1, 2, 3, 4, 5)
    del gateway.topics.by_name["clicks"]
    assert other.goes_on() == partition_set()


def test_positions_of_a_pattern_do_not_expire_before_a_new_gateway_knows_its_topics() -> None:
    gateway = ConsumerGateway()
    member = gateway.consumer("a", topics=(), pattern="cl.*")
    member.goes_on()
    position = Position(7, commit_ms=gateway.now)
    gateway.offsets.commit(GROUP, {("clicks", 0): position}, lambda _: None, member_id="a", generation=member.epoch)
    gateway.now += RETENTION_MS
    now, gateway = gateway.now, gateway.restart()
    gateway.now = now
    gateway.offsets.expire()
    assert gateway.offsets.fetch(GROUP, None) == {("clicks", 0): position}
    member.gateway = gateway
    member.goes_on()
    gateway.offsets.expire()
    assert gateway.offsets.fetch(GROUP, None) == {("clicks", 0): position}


def test_a_pattern_is_of_the_topics_that_there_are_at_a_time() -> None:
    gateway = ConsumerGateway()
    member = gateway.consumer("a", topics=(), pattern="cl.*")
    assert member.goes_on() == ALL
    clocks = uuid.UUID(int=3)
    gateway.topics.by_name["clocks"] = TopicSummary("clocks", str(clocks), 1)
    gateway.topics.by_name["sclocks"] = TopicSummary("sclocks", str(uuid.UUID(int=4)), 1)
    assert member.goes_on() == ALL | partition_set(0, topic=clocks)
    assert member.goes_on(pattern="") == partition_set()
    assert gateway.consumer("b", pattern="(").code() is ErrorCode.invalid_regular_expression


def test_the_most_frequent_assignor_is_used() -> None:
    gateway = ConsumerGateway()
    first, other = (gateway.consumer(name, assignor="range") for name in "ab")
    for member in (first, other, first, first, other):
        member.goes_on()
    assert (first.has, other.has) == (partition_set(0, 1), partition_set(2, 3))
    assert gateway.group.assignor == "range"
    assert gateway.consumer("c", assignor="sticky").code() is ErrorCode.unsupported_assignor


def test_a_static_member_that_comes_back_has_its_partitions_again() -> None:
    gateway = ConsumerGateway()
    first, other = gateway.consumer("a", instance_id="one"), gateway.consumer("b")
    for member in (first, other, first, first, other):
        member.goes_on()
    again = gateway.consumer("a2", instance_id="one")
    assert again.code() is ErrorCode.unreleased_instance_id
    assert first.code(epoch=-2) is ErrorCode.none
    epoch = gateway.group.epoch
    assert again.goes_on() == first.has
    assert gateway.group.epoch == epoch == again.epoch
    assert first.code() is ErrorCode.fenced_instance_id
    assert gateway.consumer("x", instance_id="nobody").code(epoch=5) is ErrorCode.unknown_member_id
    assert again.code(epoch=-2) is ErrorCode.none
    for _ in range(2):
        gateway.at_time(SESSION_MS // 2)
        other.goes_on()
    gateway.at_time(SESSION_MS // 2)
    assert other.goes_on() == ALL


@pytest.mark.parametrize(
    "fields",
    [
        {"epoch": -3},
        {"member_id": ""},
        {"instance_id": ""},
        {"epoch": -2},
        {"rebalance_timeout_ms": -1},
        {"owned": None},
        {"owned": ALL},
        {"topics": None},
        {"client_id": "c" * 40_000},
    ],
)
def test_invalid_heartbeats_are_refused(fields: dict[str, Any]) -> None:
    gateway = ConsumerGateway()
    assert gateway.consumer("a").code(**fields) is ErrorCode.invalid_request
    assert gateway.groups.names() == []


def test_a_full_group_refuses_members() -> None:
    gateway = ConsumerGateway(GroupSettings(max_size=1))
    first = gateway.consumer("a")
    first.goes_on()
    assert gateway.consumer("b").code() is ErrorCode.group_max_size_reached
    assert first.goes_on() == ALL


def test_members_continue_after_a_restart_in_their_epoch() -> None:
    gateway = ConsumerGateway()
    first, other = two(gateway)
    later = gateway.restart()
    first, other = first.again_as(later), other.again_as(later)
    previous = len(later.store.changes)
    assert (first.goes_on(), other.goes_on()) == (first.has, other.has)
    assert len(later.store.changes) == previous
    assert later.group.epoch == gateway.group.epoch
    last = later.restart()
    with_partitions(last.topics, 5)
    first, other = first.again_as(last), other.again_as(last)
    for member in (first, other, first, other):
        member.goes_on()
    assert first.has | other.has == partition_set(0, 1, 2, 3, 4)


def test_a_restart_amid_a_rebalance_gives_no_partition_to_two_members() -> None:
    gateway = ConsumerGateway()
    first, other = gateway.consumer("a"), gateway.consumer("b")
    first.goes_on()
    other.goes_on()
    reply = first.beat(owned=ALL)
    assert reply is not None
    later = gateway.restart()
    assert later.group.members["a"].current.state is MemberState.UNREVOKED_PARTITIONS
    first, other = first.again_as(later), other.again_as(later)
    assert other.goes_on() == partition_set()
    first.has = reply.assigned or partition_set()
    first.goes_on()
    assert other.goes_on() == ALL - first.has


def test_members_keep_their_partitions_while_topics_are_unreadable() -> None:
    gateway = ConsumerGateway()
    first, other = two(gateway)
    later = gateway.restart()
    first, other, third = first.again_as(later), other.again_as(later), later.consumer("c")
    cached, later.topics.by_name, later.topics.are_known = later.topics.by_name, {}, False
    had = first.has
    assert first.goes_on() == had
    assert third.code() is ErrorCode.coordinator_load_in_progress
    assert other.code(epoch=-1) is ErrorCode.none
    assert first.goes_on() == had
    later.topics.by_name, later.topics.are_known = cached, True
    assert first.goes_on() == ALL


def test_responses_wait_for_durability_and_failures_are_retried() -> None:
    gateway = ConsumerGateway()
    gateway.store.held = True
    first = gateway.consumer("a")
    assert first.beat() is None
    gateway.store.code = ErrorCode.coordinator_not_available
    gateway.store.release()
    assert first.reply is not None
    assert first.reply.error is ErrorCode.coordinator_not_available
    gateway.store.held, gateway.store.code = False, ErrorCode.none
    assert first.goes_on() == ALL
    later = gateway.restart()
    assert first.again_as(later).goes_on() == ALL
    assert later.group.epoch == 1


def test_a_heartbeat_without_changes_waits_for_earlier_stores() -> None:
    gateway = ConsumerGateway()
    first = gateway.consumer("a")
    first.goes_on()
    gateway.store.held = True
    other = gateway.consumer("b")
    assert other.beat() is None
    assert first.beat(owned=ALL) is None
    again = first.again_as(gateway)
    assert again.beat(owned=ALL) is None, "there is nothing to store, but the state that it reports is not durable"
    gateway.store.release()
    assert [member.reply.error for member in (other, first, again) if member.reply] == 3 * [ErrorCode.none]


def test_a_removed_member_stays_removed_at_the_next_gateway() -> None:
    gateway = ConsumerGateway()
    gateway.consumer("a").goes_on()
    gateway.store.code = ErrorCode.coordinator_not_available
    gateway.at_time(SESSION_MS)
    assert not gateway.group.members
    gateway.store.code = ErrorCode.none
    assert gateway.consumer("b").goes_on() == ALL
    assert [*gateway.restart().group.members] == ["b"]


def test_positions_are_committed_and_read_with_the_epoch_of_a_member() -> None:
    gateway = ConsumerGateway()
    first, _ = two(gateway)
    codes = list[ErrorCode]()

    def commits(member: str, epoch: int) -> ErrorCode:
        changes = {("clicks", 0): Position(5)}
        gateway.offsets.commit(GROUP, changes, codes.append, member_id=member, generation=epoch)
        return codes[-1]

    assert commits("a", first.epoch) is ErrorCode.none
    assert commits("a", first.epoch - 1) is ErrorCode.stale_member_epoch
    assert commits("nobody", first.epoch) is ErrorCode.unknown_member_id
    assert commits("", -1) is ErrorCode.unknown_member_id

    def reads(**fields: Any) -> Any:
        return gateway.offsets.fetch(GROUP, [("clicks", 0)], **fields)

    assert reads()["clicks", 0].offset == reads(member_id="a", epoch=first.epoch)["clicks", 0].offset == 5
    for fields, code in (
        ({"epoch": 1}, ErrorCode.stale_member_epoch),
        ({"member_id": "x"}, ErrorCode.unknown_member_id),
    ):
        with pytest.raises(Exception, match=code.name):
            reads(**{"member_id": "a", "epoch": 1, **fields})


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets() -> None:
    gateway = ConsumerGateway()
    gateway.offsets.commit(GROUP, {("clicks", 0): Position(7)}, lambda code: None)
    classic = gateway.member("old")
    classic.join()
    gateway.at_time(0)
    classic.join()
    assert classic.join_error is None or classic.join_error is ErrorCode.none
    new = gateway.consumer("a")
    assert new.code() is ErrorCode.group_id_not_found
    classic.leave()
    gateway.at_time(60_000)
    assert new.goes_on() == ALL
    old = gateway.member("old")
    assert old.join().join_error is ErrorCode.inconsistent_group_protocol
    for gateway_now in (gateway, gateway.restart()):
        position = gateway_now.offsets.fetch(GROUP, [("clicks", 0)])["clicks", 0]
        assert isinstance(position, Position)
        assert position.offset == 7
        assert [(group.phase.value, group.type) for group in gateway_now.coordinator.descriptions()] == [
            ("Stable", "consumer")
        ]
        assert gateway_now.coordinator.describe(GROUP).phase is GroupPhase.DEAD
    assert new.code(epoch=-1) is ErrorCode.none
    assert gateway.member("old").join().join_error in (None, ErrorCode.member_id_required, ErrorCode.none)
    assert [group.type for group in gateway.restart().coordinator.descriptions()] == ["classic"]


def test_an_empty_group_is_deleted_with_its_records() -> None:
    gateway = ConsumerGateway()
    first, other = two(gateway)
    codes = list[ErrorCode]()
    gateway.coordinator.delete(GROUP, codes.append)
    assert codes == [ErrorCode.non_empty_group]
    for member in (first, other):
        member.code(epoch=-1)
    gateway.coordinator.delete(GROUP, codes.append)
    assert codes[-1] is ErrorCode.none
    assert gateway.groups.names() == gateway.restart().groups.names() == []


def test_a_description_has_targets_and_what_members_have() -> None:
    gateway = ConsumerGateway()
    first, other = two(gateway)
    actual = gateway.consumers.describe(GROUP)
    assert (actual.phase, actual.epoch, actual.target_epoch, actual.assignor) == (GroupPhase.STABLE, 2, 2, "uniform")
    assert {id: (current.assigned, target) for id, _, current, target in actual.members} == {
        "a": (first.has, first.has),
        "b": (other.has, other.has),
    }
    assert {partition[0] for partition in first.has} == {CLICKS}
