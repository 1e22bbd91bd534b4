"""Positions of groups: who may commit, what is seen when, and when it is forgotten."""

from __future__ import annotations

import pytest
from consumer_groups import GROUP, RETENTION_MS, Gateway, MemoryStore, stable
from kio.schema.errors import ErrorCode

from distlog.core.kafka.transactions import TopicPartition
from distlog.core.read.kafka_offsets import OffsetKey, Position
from distlog.gateway.groups.classic_group import GroupPhase
from distlog.gateway.protocol.error_codes import CoordinatorError

CLICKS, VIEWS = ("clicks", 0), ("views", 1)
SUBSCRIBED = b"\0\0" + b"\0\0\0\1" + b"\0\6clicks" + b"\xff\xff\xff\xff"


class Codes(list[ErrorCode]):
    __call__ = list.append


def commit(gateway: Gateway, partition: TopicPartition = CLICKS, offset: int = 7, **by: object) -> ErrorCode:
    reply, position = Codes(), Position(offset, metadata="m", commit_ms=gateway.now)
    gateway.offsets.commit(GROUP, {partition: position}, reply, **by)  # type: ignore[arg-type]
    (code,) = reply
    return code


def position(gateway: Gateway, partition: TopicPartition = CLICKS) -> int | None:
    actual = gateway.offsets.fetch(GROUP, [partition])[partition]
    return actual.offset if actual else None


def test_any_client_commits_to_a_group_without_members() -> None:
    gateway = Gateway()
    assert position(gateway) is None
    assert gateway.offsets.fetch(GROUP, None) == {}
    assert commit(gateway) is ErrorCode.none
    assert position(gateway) == 7
    assert list(gateway.offsets.fetch(GROUP, None)) == [CLICKS]
    assert [described.phase for described in gateway.coordinator.descriptions()] == [GroupPhase.EMPTY]


def test_a_group_with_members_takes_commits_of_its_members_and_generation_alone() -> None:
    gateway = Gateway()
    member = gateway.member("a")
    stable(gateway, member)
    assert commit(gateway) is ErrorCode.unknown_member_id
    assert commit(gateway, member_id=member.id, generation=member.generation) is ErrorCode.none
    assert commit(gateway, member_id=member.id, generation=member.generation - 1) is ErrorCode.illegal_generation
    assert commit(gateway, member_id="nobody", generation=member.generation) is ErrorCode.unknown_member_id


def test_a_generation_of_a_missing_group_is_illegal() -> None:
    assert commit(Gateway(), member_id="a", generation=1) is ErrorCode.illegal_generation


def test_members_commit_during_a_join_and_not_during_an_assignment() -> None:
    gateway = Gateway()
    first, second = gateway.member("a"), gateway.member("b")
    stable(gateway, first)
    second.join()
    assert commit(gateway, member_id=first.id, generation=first.generation) is ErrorCode.none
    first.join()
    assert commit(gateway, member_id=first.id, generation=first.generation) is ErrorCode.rebalance_in_progress


def test_a_committed_offset_is_visible_when_durable() -> None:
    gateway, reply = Gateway(), Codes()
    gateway.store.held = True
    gateway.offsets.commit(GROUP, {CLICKS: Position(7)}, reply)
    assert (reply, position(gateway)) == ([], None)
    gateway.store.release()
    assert (reply, position(gateway)) == ([ErrorCode.none], 7)


def test_a_failed_commit_is_not_visible() -> None:
    gateway = Gateway()
    commit(gateway)
    gateway.store.code = ErrorCode.coordinator_not_available
    assert commit(gateway, offset=9) is ErrorCode.coordinator_not_available
    assert position(gateway) == 7


def test_too_long_metadata_is_refused() -> None:
    gateway, reply = Gateway(), Codes()
    gateway.offsets.commit(GROUP, {CLICKS: Position(7, metadata="ä" * 2049)}, reply)
    gateway.offsets.commit(GROUP, {CLICKS: Position(7, metadata="ä" * 2048)}, reply)
    assert reply == [ErrorCode.offset_metadata_too_large, ErrorCode.none]


def test_positions_and_members_survive_the_gateway() -> None:
    gateway = Gateway()
    first, second = gateway.member("a"), gateway.member("b")
    stable(gateway, first)
    second.join(), first.join()
    second.sync()
    first.sync(a=b"0", b=b"1")
    commit(gateway, member_id=first.id, generation=first.generation)
    next_one = gateway.restart()
    first.gateway = second.gateway = next_one
    assert position(next_one) == 7
    assert (first.beat(), second.beat()) == (ErrorCode.none, ErrorCode.none)
    assert second.sync().synced
    assert second.synced
    assert second.synced.assignment == b"1"
    next_one.at_time(9_999)
    first.beat()
    next_one.at_time(1)
    assert second.beat() is ErrorCode.unknown_member_id
    assert first.beat() is ErrorCode.rebalance_in_progress


def test_positions_of_an_empty_group_expire_by_the_time_since_it_is_empty() -> None:
    gateway = Gateway()
    member = gateway.member("a")
    stable(gateway, member)
    commit(gateway, member_id=member.id, generation=member.generation)
    gateway.now += 10 * RETENTION_MS
    gateway.offsets.expire()
    assert position(gateway) == 7
    member.leave()
    gateway.now += RETENTION_MS - 1
    gateway.offsets.expire()
    assert position(gateway) == 7
    gateway.now += 1
    gateway.offsets.expire()
    assert position(gateway) is None


def test_a_group_without_members_and_positions_is_forgotten_for_good() -> None:
    gateway = Gateway()
    commit(gateway)
    gateway.now += RETENTION_MS
    gateway.offsets.expire()
    gateway.offsets.expire()
    assert list(gateway.coordinator.descriptions()) == []
    assert gateway.coordinator.describe(GROUP).phase is GroupPhase.DEAD
    assert list(gateway.restart().coordinator.descriptions()) == []


def test_a_group_with_members_keeps_its_positions_in_the_topics_that_they_read() -> None:
    gateway = Gateway()
    member = gateway.member("a", protocols=(("range", SUBSCRIBED),))
    stable(gateway, member)
    by = {"member_id": member.id, "generation": member.generation}
    assert commit(gateway, CLICKS, **by) is commit(gateway, VIEWS, **by) is ErrorCode.none
    gateway.now += RETENTION_MS
    gateway.offsets.expire()
    assert (position(gateway, CLICKS), position(gateway, VIEWS)) == (7, None)


def test_positions_are_deleted_but_in_topics_that_members_read() -> None:
    gateway, reply = Gateway(), Codes()
    member = gateway.member("a", protocols=(("range", SUBSCRIBED),))
    stable(gateway, member)
    by = {"member_id": member.id, "generation": member.generation}
    commit(gateway, CLICKS, **by), commit(gateway, VIEWS, **by)
    codes: dict[TopicPartition, ErrorCode] = {}
    gateway.offsets.delete(GROUP, [CLICKS, VIEWS], codes, reply)
    assert codes == {CLICKS: ErrorCode.group_subscribed_to_topic, VIEWS: ErrorCode.none}
    assert reply == [ErrorCode.none]
    assert (position(gateway, CLICKS), position(gateway, VIEWS)) == (7, None)
    with pytest.raises(CoordinatorError, match="group_id_not_found"):
        gateway.offsets.delete("no-group", [CLICKS], {}, reply)


def test_offsets_of_members_with_unknown_topics_are_not_deleted() -> None:
    gateway = Gateway()
    stable(gateway, gateway.member("a"))
    with pytest.raises(CoordinatorError, match="non_empty_group"):
        gateway.offsets.delete(GROUP, [CLICKS], {}, Codes())


def test_a_group_is_deleted_when_it_has_no_members() -> None:
    gateway, reply = Gateway(), Codes()
    member = gateway.member("a")
    stable(gateway, member)
    commit(gateway, member_id=member.id, generation=member.generation)
    gateway.coordinator.delete(GROUP, reply)
    member.leave()
    gateway.coordinator.delete(GROUP, reply)
    gateway.coordinator.delete(GROUP, reply)
    assert reply == [ErrorCode.non_empty_group, ErrorCode.none, ErrorCode.group_id_not_found]
    assert position(gateway) is None
    assert position(gateway.restart()) is None


@pytest.mark.parametrize("is_first", [False, True])
def test_a_commit_under_way_does_not_bring_back_a_group_that_was_deleted(is_first: bool) -> None:
    gateway, reply = Gateway(), Codes()
    if not is_first:
        commit(gateway)
    gateway.store.held = True
    gateway.offsets.commit(GROUP, {CLICKS: Position(8)}, reply)
    gateway.coordinator.delete(GROUP, reply)
    gateway.store.release()
    assert reply == [ErrorCode.none, ErrorCode.none]
    assert position(gateway) is None
    assert position(gateway.restart()) is None


def test_a_group_is_not_forgotten_while_its_first_commit_is_under_way() -> None:
    gateway, reply = Gateway(), Codes()
    gateway.store.held = True
    gateway.offsets.commit(GROUP, {CLICKS: Position(7, commit_ms=gateway.now)}, reply)
    gateway.offsets.expire()
    gateway.store.release()
    assert reply == [ErrorCode.none]
    assert position(gateway) == position(gateway.restart()) == 7


def test_an_old_position_does_not_expire_while_a_newer_one_is_under_way() -> None:
    gateway, reply = Gateway(), Codes()
    commit(gateway)
    gateway.now += RETENTION_MS
    gateway.store.held = True
    gateway.offsets.commit(GROUP, {CLICKS: Position(8, commit_ms=gateway.now)}, reply)
    gateway.offsets.expire()
    gateway.store.release()
    assert reply == [ErrorCode.none]
    assert position(gateway) == position(gateway.restart()) == 8


def test_a_first_commit_under_way_does_not_bring_back_a_position_in_a_topic_that_was_dropped() -> None:
    gateway, reply = Gateway(), Codes()
    gateway.store.held = True
    gateway.offsets.commit(GROUP, {CLICKS: Position(7), VIEWS: Position(8)}, reply)
    gateway.offsets.delete_topic("clicks")
    gateway.store.release()
    assert reply == [ErrorCode.none]
    assert (position(gateway, CLICKS), position(gateway, VIEWS)) == (None, 8)
    assert (position(gateway.restart(), CLICKS), position(gateway.restart(), VIEWS)) == (None, 8)


def test_a_stopping_gateway_answers_waiting_members() -> None:
    gateway = Gateway()
    stable(gateway, gateway.member("a"))
    waiting = gateway.member("b").join()
    gateway.groups.stop()
    assert waiting.join_error is ErrorCode.not_coordinator
    # a member that joins now is refused, too: its response would never come
    assert gateway.member("c").join().join_error is ErrorCode.not_coordinator
    assert commit(gateway) is ErrorCode.not_coordinator
    with pytest.raises(CoordinatorError, match="not_coordinator"):
        gateway.offsets.fetch(GROUP, [CLICKS])


def test_offsets_of_a_group_without_a_name_are_ignored() -> None:
    store = MemoryStore()
    # Kafka has these groups, of clients that only store offsets
    store.changes = [(OffsetKey("", "clicks", 0), Position(1)), (OffsetKey(GROUP, "clicks", 0), Position(7))]
    assert position(Gateway(store=store)) == 7
