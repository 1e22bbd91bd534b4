"""Whatever producers with transactional ids do beside each other, readers of committed records see what a model says.

Producers begin, append, commit, abort, and are fenced by others with their ids; timeouts pass; segments roll and are
sealed by appends in bulk; everything is closed and opened again; pages of state and snapshots of producers are lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from partition_logs import Process, append, commit_sealed, new_topic
from searches import examples
from topics import Clock
from transacting import TIMEOUT_MS, Sender, end_all, seen

from distlog.core import paths
from distlog.core.errors import ProducerFencedError, TransactionAbortedError

PARTITIONS, IDS = 2, ("payments", "refunds")


class World:
    """The topic, its producers, and what ought to be in it: values, with the number of their transaction or None."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.folder = new_topic(folder, PARTITIONS, internal_segment_bytes=400)
        self.senders: dict[int, Sender] = {}
        # kept, since a killed process closes nothing
        self.gone: list[Sender | None] = []
        self.log: list[list[tuple[bytes, int | None]]] = [[] for _ in range(PARTITIONS)]
        self.outcomes: dict[int, bool | None] = {}
        #: By number of the producer, and by transactional id: the transaction under way, and when it began.
        self.under_way: dict[int, int] = {}
        self.ongoing: dict[int, tuple[int, int]] = {}

    def process(self) -> Process:
        return Process(self.folder, clock=self.clock)

    def value(self) -> bytes:
        return b"%d" % sum(map(len, self.log))

    def sender(self, which: int) -> Sender:
        """Producers 0 and 2 have the same id, and so have 1 and 3: they fence each other."""
        if which not in self.senders:
            self.senders[which] = Sender(self.process(), IDS[which % len(IDS)])
            self.end(which, is_committed=False)
        return self.senders[which]

    def end(self, which: int, *, is_committed: bool) -> None:
        number, _ = self.ongoing.pop(which % len(IDS), (None, 0))
        if number is not None:
            self.outcomes[number] = is_committed

    def is_mine(self, which: int) -> bool:
        number = self.under_way.get(which)
        return number is not None and self.ongoing.get(which % len(IDS), (None, 0))[0] == number

    def begin(self, which: int, _: int) -> None:
        if which in self.under_way:
            return
        with self.ended_by_others(which):
            self.sender(which).begin()
            self.under_way[which] = len(self.outcomes)
            self.outcomes[len(self.outcomes)] = None

    def send(self, which: int, partition: int) -> None:
        number = self.under_way.get(which)
        with self.ended_by_others(which):
            value = self.value()
            self.sender(which).send(partition, value)
            self.log[partition].append((value, number))
            if number is not None:
                self.ongoing.setdefault(which % len(IDS), (number, self.clock.now_ms))

    def work(self, which: int, partition: int) -> None:
        self.begin(which, partition)
        self.send(which, partition)

    def commit(self, which: int, _: int) -> None:
        if which in self.under_way:
            with self.ended_by_others(which):
                self.senders[which].commit()
                if self.is_mine(which):
                    self.end(which, is_committed=True)
                del self.under_way[which]

    def abort(self, which: int, _: int) -> None:
        if which in self.under_way:
            self.senders[which].abort()
            if self.is_mine(which):
                self.end(which, is_committed=False)
            del self.under_way[which]

    def ended_by_others(self, which: int) -> suppress:
        return _Ending(self, which)

    def forget(self, which: int) -> None:
        """The producer is no more; what it left open stays open."""
        self.gone.append(self.senders.pop(which, None))
        self.under_way.pop(which, None)

    def plain(self, _: int, partition: int) -> None:
        value = self.value()
        append(self.process()[partition], value)
        self.log[partition].append((value, None))

    def bulk(self, _: int, partition: int) -> None:
        commit_sealed(self.process(), partitions=(partition,))

    def roll(self, _: int, partition: int) -> None:
        self.process()[partition].roll()

    def reopen(self, which: int, _: int) -> None:
        for number in list(self.senders):
            self.forget(number)

    def tick(self, which: int, _: int) -> None:
        # more than a half, by more than commits of one moment step forward, each by a millisecond
        self.clock.now_ms += TIMEOUT_MS * 7 // 10
        end_all(self.process(), self.clock.now_ms)
        for place, (number, began_ms) in list(self.ongoing.items()):
            if self.clock.now_ms - began_ms > TIMEOUT_MS:
                self.outcomes[number] = False
                del self.ongoing[place]

    def lose_page(self, _: int, partition: int) -> None:
        self.lose(partition, paths.LOCK_FILE)

    def lose_snapshots(self, _: int, partition: int) -> None:
        self.lose(partition, "*.snapshot")

    def lose(self, partition: int, pattern: str) -> None:
        for path in self.process().folder(partition).glob(pattern):
            os.unlink(path)

    def committed(self) -> dict[int, list[bytes]]:
        """What readers of committed records ought to see: up to the first value that is undecided."""
        found: dict[int, list[bytes]] = {}
        for partition, entries in enumerate(self.log):
            found[partition] = []
            for value, number in entries:
                if number is not None and self.outcomes[number] is None:
                    break
                if number is None or self.outcomes[number]:
                    found[partition].append(value)
        return found

    def check(self) -> None:
        topic = self.process().topic()
        assert seen(topic) == self.committed()
        everything = {partition: [value for value, _ in entries] for partition, entries in enumerate(self.log)}
        assert seen(topic, "read_uncommitted") == everything


class _Ending(suppress):
    """In this block a producer may learn that it or its transaction was ended, as the model knows."""

    def __init__(self, world: World, which: int) -> None:
        super().__init__(ProducerFencedError, TransactionAbortedError)
        self._world, self._which = world, which

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:  # type: ignore[override]
        if isinstance(error, ProducerFencedError | TransactionAbortedError):
            assert not self._world.is_mine(self._which)
            self._world.forget(self._which)
            return True
        return False


ACTIONS: dict[str, Callable[[World, int, int], None]] = {
    "begin": World.begin,
    "send": World.send,
    "work": World.work,
    "work more": World.work,
    "commit": World.commit,
    "abort": World.abort,
    "plain": World.plain,
    "bulk": World.bulk,
    "roll": World.roll,
    "reopen": World.reopen,
    "tick": World.tick,
    "lose page": World.lose_page,
    "lose snapshots": World.lose_snapshots,
}
STEPS = st.lists(
    st.tuples(st.sampled_from(list(ACTIONS)), st.integers(0, 2 * len(IDS) - 1), st.integers(0, PARTITIONS - 1)),
    min_size=12,
    max_size=40,
)


@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_readers_of_committed_records_see_exactly_these(
    steps: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("model") / "events")
    for action, which, partition in steps:
        ACTIONS[action](world, which, partition)
        if action not in ("begin", "plain", "roll", "reopen"):
            world.check()
    world.tick(0, 0)
    world.tick(0, 0)
    world.check()
    assert world.process().anomalies() == ()
