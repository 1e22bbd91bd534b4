"""Members of a crowd that were late: what they want waits as a file's name, and the next version takes it along."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from conftest import Address
from hypothesis import given
from hypothesis import strategies as st

from distlog.core import paths
from distlog.core.config import MAX_INT, MAX_LONG
from distlog.core.errors import CommitStateUnknownError, FencedMemberError, StorageError
from distlog.core.groups import group_log
from distlog.core.groups.group_log import GroupLog, GroupState, Member, WaitingChange
from distlog.core.storage.backend import FileInfo
from distlog.core.storage.storage import Storage

TOPIC = "12345678-1234-1234-1234-123456789abc"
CROWD = 20
IDS = [f"{number:032x}" for number in range(CROWD)]


def begun(state: GroupState) -> GroupState:
    """A crowd, of which each member has the partition of its number, at position 10; and a free partition."""
    members = tuple(Member(id=each, name="host:1", beat=3, lease_ms=60_000) for each in IDS)
    positions = dict.fromkeys(range(CROWD + 1), 10)
    owners = dict(enumerate(IDS))
    return dataclasses.replace(state, partitions=CROWD + 1, members=members, owners=owners, positions=positions)


def moved(number: int, offset: int, beat: int = 1) -> Callable[[GroupState], GroupState]:
    """The plan of a member that has come to an offset in its partition."""

    def plan(state: GroupState) -> GroupState:
        members = [
            dataclasses.replace(each, beat=each.beat + beat * (each.id == IDS[number])) for each in state.members
        ]
        return dataclasses.replace(state, members=tuple(members), positions={**state.positions, number: offset})

    return plan


class Crowd:
    """A group of a crowd. While a member that was late sleeps, others do what a test says."""

    def __init__(self, address: Address) -> None:
        self.storage, self.now_s = Storage(*address), 0.0
        self.other = self.log(lambda _: None)
        self.other.commit(self.other.load(), begun)

    def log(self, sleep: Callable[[float], object]) -> GroupLog:
        return GroupLog(self.storage, TOPIC, "jobs", random=random.Random(0), sleep=sleep, clock=lambda: self.now_s)

    def late(
        self, change: WaitingChange | None, meanwhile: Callable[[], object], plan: Callable[[GroupState], GroupState]
    ) -> tuple[GroupState, int]:
        """The state that a commit of `plan` gives whose first put is too late, and how often it planned."""
        planned = 0

        def overtaken(state: GroupState) -> GroupState:
            nonlocal planned
            planned += 1
            if planned == 1:
                self.other.commit(state, moved(0, 20 + planned))
            return plan(state)

        log = self.log(lambda _: meanwhile())
        return log.commit(log.load(), overtaken, lambda _: change), planned

    def files(self) -> list[str]:
        names = [file.name.rpartition("/")[2] for file in self.storage.list(paths.group_folder(TOPIC, "jobs"))]
        return [name for name in names if name.endswith(".wait")]

    def take_along(self) -> None:
        """Another member is late too: it lists, and its version takes along what waits."""
        others = self.other.load()

        def overtaken(state: GroupState) -> GroupState:
            if state.version == others.version:
                self.log(lambda _: None).commit(state, moved(1, 30))
            return moved(2, 40)(state)

        self.other.commit(others, overtaken)


@pytest.fixture
def crowd(storage_url: Address) -> Crowd:
    return Crowd(storage_url)


def test_the_positions_of_a_late_member_are_taken_along_by_another(crowd: Crowd) -> None:
    waiting = list[list[str]]()

    def meanwhile() -> None:
        waiting.append(crowd.files())
        crowd.take_along()

    state, planned = crowd.late(WaitingChange(IDS[5], 3, {5: 15}), meanwhile, moved(5, 15))
    assert (planned, len(waiting[0])) == (1, 1), "it put no version of its own"
    assert (state.positions[5], state.positions[2], state.member(IDS[5]).beat) == (15, 40, 4)  # type: ignore[union-attr]
    assert crowd.other.load() == state
    assert crowd.files() == []


def test_a_late_member_takes_its_own_along_if_no_other_does(crowd: Crowd) -> None:
    state, planned = crowd.late(WaitingChange(IDS[5], 3, {5: 15}), lambda: None, moved(5, 15))
    assert (planned, state.positions[5]) == (2, 15)
    assert state.member(IDS[5]).beat == 4  # type: ignore[union-attr]
    assert crowd.files() == []


def test_a_member_that_joins_is_taken_along_and_gets_what_is_free(crowd: Crowd) -> None:
    new = WaitingChange("f" * 32, -1, {}, 30_000, "host \u00e9:7")
    state, planned = crowd.late(new, crowd.take_along, lambda state: moved(5, 15)(state))
    assert planned == 1
    assert state.member("f" * 32) == Member(id="f" * 32, name="host \u00e9:7", beat=0, lease_ms=30_000)
    assert state.owners[CROWD] == "f" * 32
    assert crowd.files() == []


@pytest.mark.parametrize(
    "change",
    [
        WaitingChange(IDS[5], 2, {5: 99}),
        WaitingChange(IDS[5], 3, {6: 99}),
        WaitingChange(IDS[5], 3, {5: 99, CROWD + 9: 99}),
        WaitingChange("e" * 32, 3, {5: 99}),
        WaitingChange(IDS[5], -1, {}, 1, "again"),
    ],
    ids=["of an earlier beat", "of another's partition", "of no partition", "of no member", "of one that has joined"],
)
def test_what_is_out_of_date_is_not_made(crowd: Crowd, change: WaitingChange) -> None:
    before = crowd.other.load()
    name = change.file_name()
    assert name is not None
    crowd.storage.put(f"{paths.group_folder(TOPIC, 'jobs')}/{name}", b".")
    crowd.take_along()
    after = crowd.other.load()
    assert {**after.positions, 1: 10, 2: 10} == before.positions
    assert (after.member(IDS[5]), after.owners) == (before.member(IDS[5]), before.owners)
    may_be_made_later = change.member == IDS[5] and change.beat == 3
    assert crowd.files() == [name] * may_be_made_later


def test_positions_never_go_back_by_a_change_that_waited(crowd: Crowd) -> None:
    state, _ = crowd.late(WaitingChange(IDS[5], 3, {5: 7}), crowd.take_along, moved(5, 7))
    assert state.positions[5] == 10


def test_a_member_that_is_late_for_too_long_leaves_no_change_behind(crowd: Crowd) -> None:
    def meanwhile() -> None:
        crowd.now_s += 30
        crowd.other.commit(crowd.other.load(), moved(0, 20, 0))

    def overtaken(state: GroupState) -> GroupState:
        meanwhile()
        return moved(5, 15)(state)

    log = crowd.log(lambda _: None)
    with pytest.raises(CommitStateUnknownError, match="may have taken this change along"):
        log.commit(log.load(), overtaken, lambda _: WaitingChange(IDS[5], 3, {5: 15}))
    assert crowd.files() == []


def test_a_commit_is_done_only_when_a_version_has_its_own_positions(crowd: Crowd) -> None:
    earlier = WaitingChange(IDS[5], 3, {5: 12}).file_name()

    def meanwhile() -> None:
        # an earlier commit of the member failed after it had left this, and a member takes it along first
        crowd.storage.delete([f"{paths.group_folder(TOPIC, 'jobs')}/{name}" for name in crowd.files()])
        crowd.storage.put(f"{paths.group_folder(TOPIC, 'jobs')}/{earlier}", b".")
        crowd.take_along()

    state, planned = crowd.late(WaitingChange(IDS[5], 3, {5: 15}), meanwhile, moved(5, 15))
    assert (planned, state.positions[5]) == (2, 15)
    assert crowd.other.load() == state


def test_after_a_commit_that_failed_nothing_waits_before_the_newest_state_is_known(crowd: Crowd) -> None:
    waiting = list[list[str]]()
    failing = mock.patch.object(Storage, "list", side_effect=StorageError("no answer"))
    log = crowd.log(lambda _: waiting.append(crowd.files()))
    before = log.load()
    with failing, pytest.raises(StorageError):
        log.commit(before, moved(5, 12))
    beats = list[int]()

    def change(state: GroupState) -> WaitingChange:
        member = state.member(IDS[5])
        assert member is not None
        beats.append(member.beat)
        return WaitingChange(IDS[5], member.beat, {5: 15})

    state = log.commit(before, moved(5, 15), change)
    assert (beats, waiting) == ([], [[]]), "its put had got in: its beat is one more than it knew"
    assert (state.positions[5], crowd.other.load()) == (15, state)


def test_a_member_that_is_fenced_after_its_change_waited_does_not_claim_that_nothing_was_committed(
    crowd: Crowd,
) -> None:
    def taken_for_dead(state: GroupState) -> GroupState:
        members = tuple(member for member in state.members if member.id != IDS[5])
        owners = {number: owner for number, owner in state.owners.items() if owner != IDS[5]}
        return dataclasses.replace(state, members=members, owners=owners)

    def meanwhile() -> None:
        crowd.take_along()
        crowd.other.commit(crowd.other.load(), taken_for_dead)

    def plan(state: GroupState) -> GroupState:
        if state.member(IDS[5]) is None:
            raise FencedMemberError("nothing was committed")
        return moved(5, 15)(state)

    with pytest.raises(CommitStateUnknownError, match="maybe after it committed"):
        crowd.late(WaitingChange(IDS[5], 3, {5: 15}), meanwhile, plan)
    assert crowd.other.load().positions[5] == 15
    with pytest.raises(FencedMemberError, match="nothing was committed"):
        crowd.late(WaitingChange(IDS[5], 3, {5: 16}), lambda: None, plan)


def test_a_store_that_refuses_what_waits_refuses_no_commit(crowd: Crowd) -> None:
    with mock.patch.object(Storage, "put", side_effect=StorageError("the key is too long")):
        state, planned = crowd.late(WaitingChange(IDS[5], 3, {5: 15}), lambda: None, moved(5, 15))
    assert (planned, state.positions[5]) == (2, 15)


def test_an_interrupt_leaves_no_change_behind(crowd: Crowd) -> None:
    def meanwhile() -> None:
        assert len(crowd.files()) == 1
        raise KeyboardInterrupt

    crowd.other.commit(crowd.other.load(), moved(0, 20))
    with pytest.raises(KeyboardInterrupt):
        crowd.late(WaitingChange(IDS[5], 3, {5: 15}), meanwhile, moved(5, 15))
    assert crowd.files() == []


def test_a_member_that_joined_long_ago_joins_no_more(crowd: Crowd) -> None:
    folder = paths.group_folder(TOPIC, "jobs")
    name = WaitingChange("f" * 32, -1, {}, 30_000, "host:7").file_name()
    crowd.storage.put(f"{folder}/{name}", b".")
    listed = Storage.list

    def aged(self: Storage, folder: str) -> list[FileInfo]:
        age_ms = int(2000 * group_log.TIMEOUT_S + 60_000)
        return [
            dataclasses.replace(file, modified_ms=file.modified_ms - age_ms * file.name.endswith(".wait"))
            for file in listed(self, folder)
        ]

    with mock.patch.object(Storage, "list", aged):
        crowd.take_along()
    assert crowd.other.load().member("f" * 32) is None
    assert crowd.files() == []


def test_few_members_and_long_names_wait_by_no_file(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()
    many = WaitingChange(IDS[5], 3, dict.fromkeys(range(100), MAX_LONG))
    crowd.late(many, lambda: seen.append(crowd.files()), moved(5, 15))
    monkeypatch.setattr(group_log, "_CROWD", CROWD)
    crowd.late(WaitingChange(IDS[5], 4, {5: 16}), lambda: seen.append(crowd.files()), moved(5, 16))
    assert seen == [[], []]


@given(
    st.integers(0, 2**128 - 1),
    st.integers(-1, 2**53),
    st.dictionaries(st.integers(0, MAX_INT), st.integers(0, MAX_LONG), max_size=5),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    st.integers(1, group_log.LONGEST_LEASE_MS),
)
def test_a_change_is_what_its_name_says(
    member: int, beat: int, places: dict[int, int], name: str, lease: int
) -> None:
    joins = beat < 0
    change = WaitingChange(f"{member:032x}", beat, {} if joins else places, lease * joins, name if joins else "")
    told = change.file_name()
    if told is None:
        assert len(name.encode()) > 80 or len(places) > 3
    else:
        assert WaitingChange.parse(told) == change


@pytest.mark.parametrize(
    "name",
    [
        f"{IDS[1]}.beat",
        f"{0:020d}.json",
        f"{IDS[1]}.4.1-2...wait.x",
        f"{IDS[1]}.4.1-2-3...wait",
        f"{IDS[1]}.4.1...wait",
        f"{IDS[1]}.4.1-zzzzzzzzzzzzzzzz...wait",
        f"{IDS[1]}.0.1-2.5.YQ==.wait",
        f"{IDS[1]}.0..5..wait",
        f"{IDS[1]}.0..zzzzzz.YQ==.wait",
        f"{IDS[1]}.0..5._w==.wait",
        f"{IDS[1]}.0..0.YQ==.wait",
        f"{IDS[1]}.0...wait",
        f"{IDS[1]}.4.1-2.5.YQ==.wait",
    ],
)
def test_another_name_is_no_change(name: str) -> None:
    assert WaitingChange.parse(name) is None
