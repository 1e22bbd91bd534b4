"""A gateway is killed before each step of a transaction over two topics; `make soak` tries every step."""

from __future__ import annotations

import shutil
from pathlib import Path

import memory_files
import pytest
from addresses import Address, S3Server
from searches import stride
from transaction_parts import ID, Killed, Parts, killed_before

import distlog
from distlog.core.kafka.transactions import ProducerId, TransactionStatus

pytestmark = pytest.mark.long

NOTHING, ALL = ([b"first"], [b"first"], 1), ([b"first", b"a"], [b"first", b"b"], 5)


def transaction(parts: Parts, producer: ProducerId, values: tuple[bytes, bytes], offset: int) -> None:
    parts.coordinator.add_partitions(ID, producer, [("clicks", 0), ("views", 0)])
    parts.send(producer, values[0])
    parts.send(producer, values[1], "views")
    parts.commit_offset(producer, offset)


def step_by_step(parts: Parts, *, is_committed: bool) -> None:
    producer = parts.begin()
    transaction(parts, producer, (b"a", b"b"), 5)
    parts.coordinator.end(ID, producer, is_committed=is_committed)


def prepared(address: Address) -> Address:
    for name in ("clicks", "views", "__transaction_state", "__consumer_offsets"):
        distlog.create(f"{address.url}/{name}", storage_options=address.options)
    parts = Parts(address)
    producer = parts.begin()
    transaction(parts, producer, (b"first", b"first"), 1)
    parts.coordinator.end(ID, producer, is_committed=True)
    assert parts.values() == NOTHING
    parts.close()
    return address


@pytest.fixture(scope="module")
def left_by_another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(prepared(Address(str(tmp_path_factory.mktemp("root")), {})).url)


def is_killed(parts: Parts, step: int, monkeypatch: pytest.MonkeyPatch, *, is_committed: bool) -> bool:
    """Do a transaction, with a kill before this step, if it has that many."""
    with killed_before(step, monkeypatch, is_local=parts.broker.metadata.root.is_local_disk):
        try:
            step_by_step(parts, is_committed=is_committed)
        except Killed:
            return True
    return False


def check_step(address: Address, step: int, monkeypatch: pytest.MonkeyPatch, *, is_committed: bool) -> str:
    """Kill a gateway before this step, and have another one continue; returns how far the transaction was."""
    parts = Parts(address)
    was_killed = is_killed(parts, step, monkeypatch, is_committed=is_committed)
    parts = parts.killed()
    parts.coordinator.run_timers()
    (state,) = parts.coordinator.states([ID])
    was_decided = state.status in (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)
    actual = "end" if was_decided and state.producer.epoch == 1 else state.status.name
    expected = ALL if is_committed and actual == "end" else NOTHING
    assert parts.values() == expected
    producer = parts.begin()
    assert parts.values() == expected
    transaction(parts, producer, (b"c", b"d"), 9)
    parts.coordinator.end(ID, producer, is_committed=True)
    assert parts.values() == ([*expected[0], b"c"], [*expected[1], b"d"], 9)
    parts.close()
    return actual if was_killed else f"{actual} "


def check_all(states_at_kills: list[str]) -> None:
    """There were kills at each state, and before, between and after the markers."""
    states = list(dict.fromkeys(state.strip() for state in states_at_kills))
    assert states[-3:] == ["EMPTY", "ONGOING", "end"]
    assert stride(2) > 1 or states == ["COMPLETE_COMMIT", "EMPTY", "ONGOING", "end"]
    assert states_at_kills.count("end") > 5 // stride(2)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_kill_before_any_step_leaves_all_of_the_transaction_or_nothing(
    is_committed: bool, left_by_another: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual, step = [""], is_committed % stride(2)
    while not actual[-1].endswith(" "):
        root = tmp_path / str(step)
        shutil.copytree(left_by_another, root)
        address = Address(str(root), {})
        actual.append(check_step(address, step, monkeypatch, is_committed=is_committed))
        step += stride(2)
    check_all(actual[1:])


@pytest.mark.parametrize("is_committed", [True, False])
def test_the_same_holds_for_each_write_to_an_object_store(
    is_committed: bool, memory_url: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = prepared(memory_url)
    actual, step, remaining = [""], is_committed % stride(2), memory_files.held()
    while not actual[-1].endswith(" "):
        memory_files.hold(remaining)
        actual.append(check_step(address, step, monkeypatch, is_committed=is_committed))
        step += stride(2)
    check_all(actual[1:])


@pytest.mark.s3
def test_a_kill_between_the_decision_and_the_markers_on_s3(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_step(prepared(s3_server.address()), 14, monkeypatch, is_committed=True) == "end"
