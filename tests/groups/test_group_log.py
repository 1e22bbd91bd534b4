"""A group's versions: each put applies once, with late writers and any response of the storage."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from commits import put_state
from crc32c import crc32c
from faulty_storage import FaultyStorage
from hypothesis import given
from hypothesis import strategies as st

from distlog.core import paths
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptMetadataError,
    InvalidConfigError,
    UnsupportedVersionError,
)
from distlog.core.read import consumer_group
from distlog.core.read.consumer_group import RETAINED_VERSIONS, GroupLog, GroupState, Member
from distlog.core.storage.storage import Storage

TOPIC = "12345678-1234-1234-1234-123456789abc"
MEMBER = "ab" * 16


def log_on(storage: Any, group: str = "jobs") -> GroupLog:
    return GroupLog(storage, TOPIC, group, random=random.Random(0), sleep=lambda _: None)


def further(state: GroupState) -> GroupState:
    return dataclasses.replace(state, partitions=1, positions={0: state.positions.get(0, 0) + 1})


def versions(storage: Storage) -> list[int]:
    names = (file.name.rpartition("/")[2] for file in storage.list(paths.group_folder(TOPIC, "jobs")))
    return sorted(int(name[:20]) for name in names)


def file_of(version: int) -> str:
    return f"{paths.group_folder(TOPIC, 'jobs')}/{version:020d}.json"


def test_states_follow_each_other_and_only_the_newest_are_kept(storage_url: Address) -> None:
    storage = Storage(*storage_url)
    log, reader = log_on(storage), log_on(storage)
    state = log.load()
    assert (state.version, state.exists) == (-1, False)
    newer = reader.newest_after(state)
    for count in range(1, 2 * RETAINED_VERSIONS + 20):
        state = put_state(log, state, further)
        assert (state.version, state.positions) == (count - 1, {0: count})
        if count % 20 == 0:
            newer = reader.newest_after(newer)
            assert newer == state
    assert log_on(storage).load() == state
    assert versions(storage)[-RETAINED_VERSIONS:] == list(
        range(state.version - RETAINED_VERSIONS + 1, state.version + 1)
    )
    assert len(versions(storage)) < 2 * RETAINED_VERSIONS


def test_the_loser_of_a_race_plans_again_from_the_newest_state(storage: Storage) -> None:
    log, other = log_on(storage), log_on(storage)
    state = log.load()
    for _ in range(3):
        put_state(log, log.load(), further)
    assert put_state(other, state, further).positions == {0: 4}


@pytest.mark.parametrize(
    "late_by",
    [
        1,
        RETAINED_VERSIONS - 2,
        RETAINED_VERSIONS - 1,
        RETAINED_VERSIONS,
        RETAINED_VERSIONS + 1,
        2 * RETAINED_VERSIONS,
        2 * RETAINED_VERSIONS + 1,
        3 * RETAINED_VERSIONS + 5,
    ],
)
def test_a_late_put_of_a_deleted_name_is_ignored(late_by: int, storage: Storage) -> None:
    log, late = log_on(storage), log_on(storage)
    for _ in range(5):
        stale = put_state(log, log.load(), further)
    for _ in range(late_by):
        newest = put_state(log, log.load(), further)
    assert put_state(late, stale, further).positions == {0: newest.positions[0] + 1}
    assert log.load().positions == {0: newest.positions[0] + 1}


def test_a_put_on_top_of_an_ignored_one_is_ignored(storage: Storage) -> None:
    log = log_on(storage)
    for _ in range(5):
        stale = put_state(log, log.load(), further)
    for _ in range(3 * RETAINED_VERSIONS):
        newest = put_state(log, log.load(), further)
    # a member that was late put this, and died before the check
    ghost = dataclasses.replace(further(stale), version=stale.version + 1)
    storage.put(file_of(ghost.version), ghost.encode())
    late = log_on(storage)
    assert late.newest_after(stale) == ghost
    assert put_state(late, ghost, further).positions == {0: newest.positions[0] + 1}
    assert log.load() == late.load()


@pytest.mark.parametrize("operation", range(4))
@pytest.mark.parametrize("is_before", [True, False])
def test_an_unknown_outcome_can_be_retried(operation: int, is_before: bool, storage: Storage) -> None:
    state = put_state(log_on(storage), log_on(storage).load(), further)
    faulty = FaultyStorage(storage, operation, fails_before=is_before)
    log = log_on(faulty)

    def plan(state: GroupState) -> GroupState:
        return dataclasses.replace(state, positions={0: max(7, state.positions[0])})

    try:
        put_state(log, state, plan)
    except (CommitStateUnknownError, OSError):
        put_state(log, state, plan)
    assert log_on(storage).load().positions == {0: 7}


def test_a_commit_is_a_put_and_a_list_and_a_refresh_is_two_gets(storage: Storage) -> None:
    log = log_on(storage)
    state = put_state(log, log.load(), further)
    counters = storage.counters
    old_counters = (counters.gets, counters.puts, counters.lists, counters.deletes)
    state = put_state(log, state, further)
    assert (counters.gets, counters.puts, counters.lists, counters.deletes) == (
        old_counters[0],
        old_counters[1] + 1,
        old_counters[2] + 1,
        old_counters[3],
    )
    log.newest_after(state)
    assert counters.gets == old_counters[0] + 2


def test_a_permanent_loser_gives_up_at_the_deadline(storage: Storage) -> None:
    class Time:
        now_s = 0.0

        def __call__(self) -> float:
            return self.now_s

        def sleep(self, seconds: float) -> None:
            self.now_s += 10

    time = Time()
    other, unlucky = log_on(storage), GroupLog(storage, TOPIC, "jobs", sleep=time.sleep, clock=time)

    def overtaken(state: GroupState) -> GroupState:
        put_state(other, other.load(), further)
        return further(state)

    with pytest.raises(CommitConflictError, match="other members were first"):
        put_state(unlucky, unlucky.load(), overtaken)
    assert other.load().positions == {0: int(consumer_group.TIMEOUT_S / 10) + 1}


@pytest.mark.parametrize(("members", "longest_s"), [(3, 0.05), (12, 0.6), (100, 1.0)])
def test_the_many_members_of_a_group_wait_longer_for_each_other(
    members: int, longest_s: float, storage: Storage
) -> None:
    """A hundred members that retry each twentieth of a second send 500 requests a commit. A lease is longer."""
    waits, crowd = list[float](), tuple(Member(id=f"{n:032x}", name="x", beat=0, lease_ms=1) for n in range(members))

    class Longest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    other = log_on(storage)
    late = GroupLog(storage, TOPIC, "jobs", random=Longest(), sleep=waits.append)

    def overtaken(state: GroupState) -> GroupState:
        if len(waits) < 8:
            put_state(other, other.load(), lambda state: dataclasses.replace(further(state), members=crowd))
        return dataclasses.replace(further(state), members=crowd)

    put_state(late, late.load(), overtaken)
    assert (waits[0], waits[-1]) == (0.05, pytest.approx(longest_s))


def state_of(**fields: Any) -> GroupState:
    member = Member(id=MEMBER, name="host:1", beat=3, lease_ms=1000, partitions=(0,))
    values = {"members": (member,), "owners": {0: MEMBER}, "positions": {0: 5, 1: 0}, "partitions": 2, **fields}
    return GroupState(version=4, id=TOPIC, topic_id=TOPIC, group="jobs", **values)


def test_a_state_round_trips() -> None:
    state = state_of()
    assert GroupState.decode(state.encode(), "f") == state


def body_of(state: GroupState) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(state.encode())
    del body["crc32c"]
    return body


def bytes_of(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, separators=(",", ":"))[:-1].encode()
    return text + b',"crc32c":%d}\n' % crc32c(text)


@pytest.mark.parametrize(
    "change",
    [
        {"version": -1},
        {"version": 1 << 63},
        {"id": ""},
        {"topic_id": "../../etc"},
        {"partitions": 3},
        {"partitions": -1},
        {"members": {}},
        {"members": [{}]},
        {"members": [], "owners": {"0": MEMBER}},
        {"owners": {"5": MEMBER}},
        {"owners": {"0": "x"}},
        {"positions": {"0": -1, "1": 0}},
        {"positions": {"x": 1}},
        {"positions": [1, 2]},
    ],
)
def test_stored_values_are_validated(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptMetadataError, match="not a group's state"):
        GroupState.decode(bytes_of({**body_of(state_of()), **change}), "f")


def test_a_changed_byte_is_detected_and_a_newer_format_is_named() -> None:
    data = state_of().encode()
    with pytest.raises(CorruptMetadataError, match="checksum"):
        GroupState.decode(data.replace(b'"beat":3', b'"beat":4'), "f")
    with pytest.raises(UnsupportedVersionError, match="newer distlog"):
        GroupState.decode(bytes_of({**body_of(state_of()), "format": 2}), "f")


def test_a_file_of_another_group_is_refused(storage: Storage) -> None:
    log = log_on(storage)
    put_state(log, log.load(), further)
    stray = dataclasses.replace(state_of(), group="others", version=1)
    storage.put(file_of(1), stray.encode())
    with pytest.raises(CorruptMetadataError, match="another group"):
        log_on(storage).load()


@given(st.text(min_size=1, max_size=60))
def test_any_name_round_trips_as_a_folder(group: str) -> None:
    try:
        folder = paths.group_folder(TOPIC, group)
    except InvalidConfigError:
        assert len(group.encode("utf-8", "surrogatepass")) * 3 > 249 or any("\ud800" <= c <= "\udfff" for c in group)
        return
    _, _, name = folder.rpartition("/")
    assert folder == f"_groups/{TOPIC}/{name}"
    assert name.isascii()
    assert not name.startswith(".")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-~")
    assert paths.parse_group_folder(name) == group


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "~zz", "~", "~61", "~ff", "é", ".a", "A~2"])
def test_other_folders_are_not_groups(name: str) -> None:
    assert paths.parse_group_folder(name) is None


@pytest.mark.parametrize("group", ["", "x" * 250, "é" * 50, "\ud800", 5, b"x"])
def test_an_invalid_name_is_refused(group: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="a group's name"):
        log_on(Storage(str(tmp_path)), group)


def test_a_case_insensitive_storage_refuses_names_that_differ_in_case(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    upper = log_on(storage, "Jobs")
    state = put_state(upper, upper.load(), further)
    shutil.copytree(tmp_path / "_groups" / TOPIC / "Jobs", tmp_path / "_groups" / TOPIC / "jobs")
    lower = log_on(storage)
    with pytest.raises(InvalidConfigError, match=r"differs in case alone.*group=jobs existing=Jobs"):
        put_state(lower, lower.load(), further)
    assert upper.load() == state
