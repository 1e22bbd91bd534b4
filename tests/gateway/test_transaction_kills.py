"""A gateway that is killed before each step of a transaction over two topics and a position."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from transaction_parts import ID, Killed, Parts, killed_before

import distlog
from distlog.gateway.transactions.transaction_state import ProducerId, Status

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


@pytest.fixture(scope="module")
def left_by_another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root on which a transaction has been committed."""
    root = tmp_path_factory.mktemp("root")
    for name in ("clicks", "views", "__transaction_state", "__consumer_offsets"):
        distlog.create(str(root / name))
    parts = Parts(root)
    producer = parts.begin()
    transaction(parts, producer, (b"first", b"first"), 1)
    parts.coordinator.end(ID, producer, is_committed=True)
    assert parts.seen() == NOTHING
    parts.close()
    return root


def is_killed(parts: Parts, step: int, monkeypatch: pytest.MonkeyPatch, *, is_committed: bool) -> bool:
    """Do a transaction, with a kill before this step, if there are so many."""
    with killed_before(step, monkeypatch):
        try:
            producer = parts.begin()
            transaction(parts, producer, (b"a", b"b"), 5)
            parts.coordinator.end(ID, producer, is_committed=is_committed)
        except Killed:
            return True
    return False


@pytest.mark.parametrize("is_committed", [True, False])
def test_whatever_step_it_is_killed_before_all_of_the_transaction_is_seen_or_nothing(
    is_committed: bool, left_by_another: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, was_killed = list[str](), True
    while was_killed:
        root = tmp_path / str(len(found))
        shutil.copytree(left_by_another, root)
        parts = Parts(root)
        was_killed = is_killed(parts, len(found), monkeypatch, is_committed=is_committed)
        parts = parts.killed()
        parts.coordinator.tick()
        (state,) = parts.coordinator.states([ID])
        was_decided = state.status in (Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)
        found.append("end" if was_decided and state.producer.epoch == 1 else state.status.name)
        expected = ALL if is_committed and found[-1] == "end" else NOTHING
        assert parts.seen() == expected
        # the next producer ends what is open, and goes on
        producer = parts.begin()
        assert parts.seen() == expected
        transaction(parts, producer, (b"c", b"d"), 9)
        parts.coordinator.end(ID, producer, is_committed=True)
        assert parts.seen() == ([*expected[0], b"c"], [*expected[1], b"d"], 9)
        parts.close()
    assert list(dict.fromkeys(found)) == ["COMPLETE_COMMIT", "EMPTY", "ONGOING", "end"]
    # kills before the markers, between them, and behind them
    assert found.count("end") > 6
