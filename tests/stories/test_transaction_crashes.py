"""A producer is killed before each of its steps: the next one finds each transaction whole or missing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from partition_logs import Killed, Killer, Process, new_topic
from transacting import Producing, committed

pytestmark = pytest.mark.long

#: The records of each transaction by partition, and whether it is committed.
PLAN = (
    ({0: [b"a0"], 1: [b"a1"]}, True),
    ({0: [b"b0"], 1: [b"b1"]}, False),
    ({1: [b"c1", b"c2"], 0: [b"c0"]}, True),
)


def run(sender: Producing, ended: list[int]) -> None:
    """Run the PLAN; `ended` gets the number of each acknowledged transaction."""
    for number, (records, is_committed) in enumerate(PLAN):
        sender.begin()
        for partition, values in records.items():
            sender.send(partition, *values)
        sender.commit() if is_committed else sender.abort()
        ended.append(number)


def expected(count: int) -> dict[int, list[bytes]]:
    """Return the committed records of the first `count` transactions."""
    committed: dict[int, list[bytes]] = {0: [], 1: []}
    for records, is_committed in PLAN[:count]:
        for partition, values in records.items() if is_committed else ():
            committed[partition] += values
    return committed


def killed(killer: Killer, steps: int, work: Callable[[], object]) -> bool:
    """Do the work, and end the process before step `steps`; return whether the work has more steps."""
    with killer.killing(steps), suppress(Killed):
        work()
    return len(killer.steps) > steps


def test_killed_before_any_step_each_transaction_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, is_killed = 0, True
    with monkeypatch.context() as patches:
        killer = Killer(patches)
        while is_killed:
            folder = new_topic(tmp_path / str(steps) / "events", 2)
            sender, ended = Producing(Process(folder)), list[int]()
            sender.send(1, b"plain")
            is_killed = killed(killer, steps, lambda sender=sender, ended=ended: run(sender, ended))  # type: ignore[misc]
            values = committed(folder)
            assert values[1].pop(0) == b"plain"
            assert values in (expected(len(ended)), expected(len(ended) + 1)), steps
            Producing(Process(folder)).begin().send(0, b"d0").commit()
            assert committed(folder) == {0: [*values[0], b"d0"], 1: [b"plain", *values[1]]}
            assert Process(folder).anomalies() == ()
            steps += 1
    assert steps > 30
