"""Many concurrent writers of one topic, in simulated time: waits are bounded and similar."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from commits import put_commit
from histories import CONFIG, appending
from simulation.object_store import ObjectStore, connected
from simulation.world import World

from distlog.core import paths
from distlog.core.commits.actions import Action, SetLogStartOffset
from distlog.core.commits.commit_log import LONGEST_TURN_WAIT_S, PAUSE_S, CommitLog, RaceBackoff
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import CommitConflictError
from distlog.core.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class Outcome:
    """The seconds of each commit, ascending, and the commits per second while all writers were active."""

    took: list[float]
    per_second: float

    def part(self, share: float) -> float:
        return self.took[int(len(self.took) * share)]


def cheap(snapshot: Snapshot) -> list[Action]:
    return [SetLogStartOffset(0, 0)]


def race(writers: int, commits: int, seed: int) -> Outcome:
    """Return the outcome of `writers` that commit `commits` times each, with a refresh and two puts before each."""
    took, ends = list[float](), list[float]()
    with World(seed) as world:
        world.switching = 0.0
        store = ObjectStore(world, latency=latency)
        logs, heads, history = dict[int, CommitLog](), dict[int, Snapshot](), list[Any]()

        def begin(number: int) -> None:
            storage, source = Storage("s3://bucket/clicks"), random.Random(1_000 * seed + number)
            clock, author = lambda: int(world.now * 1000), f"writer {number}"
            logs[number] = CommitLog(storage, clock=clock, random=source, writer=author, checkpoint_commits=1_000_000)
            # before its first put, a process creates the folder
            storage.probe_put_if_absent(paths.COMMITS_DIR)

        def work(number: int) -> None:
            snapshot = heads[number]
            for _ in range(commits):
                world.pause(latency(world.random, True) + latency(world.random, True))
                snapshot = logs[number].refresh(snapshot)
                start = world.now
                commit, snapshot = put_commit(logs[number], snapshot, "append", cheap)
                assert commit is not None
                took.append(world.now - start)
                ends.append(world.now)

        with connected(store):
            processes = [world.process(f"writer {number}") for number in range(writers)]

            def all_do(action: Callable[[int], object]) -> None:
                for number, process in enumerate(processes):
                    process.start(partial(action, number))
                world.run()

            all_do(begin)
            processes[0].start(lambda: logs[0].create(1, CONFIG))
            world.run()
            all_do(lambda number: heads.update({number: logs[number].load()}))
            began = world.now
            all_do(work)
            processes[0].start(lambda: history.extend(logs[0].history()))
            world.run()
    assert world.errors == []
    assert len(took) == writers * commits
    assert len(history) == 1 + writers * commits
    half = len(ends) // 2
    return Outcome(sorted(took), half / (sorted(ends)[half] - began))


def latency(source: random.Random, writes: bool) -> float:
    return source.uniform(0.02, 0.1)


@pytest.mark.long
def test_many_writers_wait_about_equally_long() -> None:
    outcome = race(50, 5, seed=1)
    assert outcome.part(0.99) < 5 * outcome.part(0.5)
    assert outcome.per_second > 11


class Waits:
    """A race in which each try takes a second, and the waits in it."""

    def __init__(self, operation: str = "append", timeout_s: float = 100) -> None:
        self.now, self.pauses = 0.0, list[float]()
        source = random.Random(1)
        self._race = RaceBackoff(operation, timeout_s, clock=lambda: self.now, sleep=self._sleep, random=source)

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def lose(self, log: CommitLog, snapshot: Snapshot, waited_s: float, after_s: float = 1) -> float:
        """Lose `after_s` to a commit whose writer tried for `waited_s`; return the wait that follows."""
        commit, _ = put_commit(log, snapshot, "append", appending())
        assert commit is not None
        self.now += after_s
        self._race.note_loss(dataclasses.replace(commit, waited_ms=int(waited_s * 1000)))
        self._race.wait()
        return self.pauses[-1]


def test_a_loser_waits_only_if_the_winner_tried_for_longer(log: CommitLog) -> None:
    created = log.create(1, CONFIG)
    assert 0 < Waits().lose(log, log.load(), 0) < 0.05
    assert 0.5 < Waits().lose(log, log.load(), 4) < 1.4
    old = Waits()
    old.now = 10
    assert old.lose(log, log.load(), 4) == 0
    assert created.version == 0


def test_short_races_have_no_waits(log: CommitLog) -> None:
    log.create(1, CONFIG)
    assert Waits().lose(log, log.load(), 0.5, after_s=0.01) <= PAUSE_S
    assert Waits().lose(log, log.load(), 0.6, after_s=0.01) > PAUSE_S


def test_one_commit_delays_others_only_briefly(log: CommitLog) -> None:
    log.create(1, CONFIG)
    assert Waits().lose(log, log.load(), 10**9) <= LONGEST_TURN_WAIT_S
    assert Waits(timeout_s=2).lose(log, log.load(), 10**9) <= 1
    with pytest.raises(CommitConflictError, match="deadline"):
        Waits(timeout_s=1).lose(log, log.load(), 0)


def test_a_commit_records_the_time_of_its_tries_after_a_lost_race(log: CommitLog) -> None:
    commit, snapshot = put_commit(log, log.create(1, CONFIG), "append", appending())
    assert commit is not None
    assert commit.waited_ms == 0
    assert b"waited_ms" not in commit.encode()
    assert snapshot.version == 1
