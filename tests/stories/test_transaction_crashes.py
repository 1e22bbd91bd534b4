"""A producer is killed before each of its steps: whoever comes next finds each transaction whole, or nothing of it.

1. A producer commits a transaction over two partitions, aborts one, and commits one that rolls a segment.
2. It is killed before one of the steps that change a file, whichever that is.
3. A producer with its id comes, or the timeout passes and maintenance runs; it may be killed in turn.
4. Readers see what was committed, nothing of what was not, and of the transaction under way all or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from partition_logs import Killed, Killer, Process, new_topic
from topics import NOW
from transacting import TIMEOUT_MS, Sender, committed, end_all

from distlog.core.commits.format.actions import ONGOING

pytestmark = pytest.mark.long

#: What each transaction sends, by partition, and whether it is to be committed.
PLAN = (
    ({0: [b"a0"], 1: [b"a1"]}, True),
    ({0: [b"b0"], 1: [b"b1"]}, False),
    ({1: [b"c1", b"c2"], 0: [b"c0"]}, True),
)


def run(sender: Sender, ended: list[int]) -> None:
    """Do what the PLAN says; `ended` gets the number of each transaction whose end was acknowledged."""
    for number, (records, is_committed) in enumerate(PLAN):
        sender.begin()
        for partition, values in records.items():
            sender.send(partition, *values)
        sender.commit() if is_committed else sender.abort()
        ended.append(number)
    sender.close()


def expected(count: int) -> dict[int, list[bytes]]:
    """What is committed by the first `count` transactions."""
    found: dict[int, list[bytes]] = {0: [], 1: []}
    for records, is_committed in PLAN[:count]:
        for partition, values in records.items() if is_committed else ():
            found[partition] += values
    return found


def take_over(folder: Path) -> None:
    Sender(Process(folder)).close()


def time_out(folder: Path) -> None:
    assert end_all(Process(folder), NOW + TIMEOUT_MS + 1000) == []


def killed(killer: Killer, before: int, work: Callable[[], object]) -> bool:
    """Do the work, and end the process before that step; returns whether the work has so many steps."""
    with killer.killing(before), suppress(Killed):
        work()
    return len(killer.steps) > before


def test_killed_before_any_step_each_transaction_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, is_killed = 0, True
    with monkeypatch.context() as patches:
        killer = Killer(patches)
        while is_killed:
            folder = new_topic(tmp_path / str(before) / "events", 2, internal_segment_bytes=300)
            sender, ended = Sender(Process(folder)), list[int]()
            is_killed = killed(killer, before, lambda sender=sender, ended=ended: run(sender, ended))  # type: ignore[misc]
            # what a reader sees before anybody repairs anything
            early = committed(folder)
            assert all(values == expected(3)[partition][: len(values)] for partition, values in early.items())
            (take_over, time_out)[before % 2](folder)
            found = committed(folder)
            assert found in (expected(len(ended)), expected(len(ended) + 1)), before
            Sender(Process(folder)).begin().send(0, b"d0").commit()
            assert committed(folder)[0] == [*found[0], b"d0"]
            assert Process(folder).anomalies() == ()
            before += 1
    assert before > 80


@pytest.mark.parametrize("repair", [take_over, time_out])
@pytest.mark.parametrize("is_decided", [False, True])
def test_who_repairs_may_be_killed_before_any_step_too(
    repair: Callable[[Path], None], is_decided: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, is_killed = 0, True
    with monkeypatch.context() as patches:
        killer = Killer(patches)
        while is_killed:
            folder = new_topic(tmp_path / str(before) / "events", 2)
            sender = Sender(Process(folder)).begin().send(0, b"a0").send(1, b"a1")
            if is_decided:
                patches.setattr(sender.destination, "_finish", lambda: None)
                sender.commit()
            else:
                assert Process(folder).head().producer_transactions["payments"].state == ONGOING
            is_killed = killed(killer, before, lambda folder=folder: repair(folder))  # type: ignore[misc]
            repair(folder)
            assert committed(folder) == ({0: [b"a0"], 1: [b"a1"]} if is_decided else {0: [], 1: []}), before
            assert Process(folder).anomalies() == ()
            before += 1
    assert before > 10
