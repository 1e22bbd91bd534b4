"""Whatever producers with transactional ids do beside each other, readers see what a model says.

Producers begin, append, commit, abort, and are fenced by others with their ids; segments roll and are sealed by
appends in bulk; everything is closed and opened again; pages of state and snapshots of producers are lost.
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
from transacting import Producing, seen

from distlog.core import paths
from distlog.core.errors import ProducerFencedError

PARTITIONS, IDS = 2, ("payments", "refunds")


class World:
    """The topic, its producers, and what ought to be in it: values by partition, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = new_topic(folder, PARTITIONS, internal_segment_bytes=400)
        self.producers: dict[int, Producing] = {}
        # kept, since a killed process closes nothing
        self.gone: list[Producing] = []
        self.count = 0
        self.log: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        #: By number of the producer: what its transaction has sent, by partition.
        self.under_way: dict[int, list[tuple[int, bytes]]] = {}
        #: By transactional id: the producer that began last.
        self.newest: dict[str, int] = {}

    def value(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    def producer(self, which: int) -> Producing:
        """Producers 0 and 2 have the same id, and so have 1 and 3: they fence each other."""
        if which not in self.producers:
            name = IDS[which % len(IDS)]
            self.producers[which] = Producing(Process(self.folder), name)
            self.newest[name] = which
        return self.producers[which]

    def begin(self, which: int, _: int) -> None:
        if which not in self.under_way:
            with _Fenced(self, which):
                self.producer(which).begin()
                self.under_way[which] = []

    def send(self, which: int, partition: int) -> None:
        value = self.value()
        # what a transaction has sent waits: its producer learns of another one at the latest when it commits
        with _Fenced(self, which, may_be_later=which in self.under_way):
            self.producer(which).send(partition, value)
            if which in self.under_way:
                self.under_way[which].append((partition, value))
            else:
                self.log[partition].append(value)

    def work(self, which: int, partition: int) -> None:
        self.begin(which, partition)
        self.send(which, partition)

    def commit(self, which: int, _: int) -> None:
        if which in self.under_way:
            with _Fenced(self, which):
                self.producers[which].commit()
                for partition, value in self.under_way.pop(which):
                    self.log[partition].append(value)

    def abort(self, which: int, _: int) -> None:
        if which in self.under_way:
            self.producers[which].abort()
            del self.under_way[which]

    def forget(self, which: int) -> None:
        """The producer is no more."""
        self.gone.append(self.producers.pop(which))
        self.under_way.pop(which, None)

    def plain(self, _: int, partition: int) -> None:
        value = self.value()
        append(Process(self.folder)[partition], value)
        self.log[partition].append(value)

    def bulk(self, _: int, partition: int) -> None:
        commit_sealed(Process(self.folder), partitions=(partition,))

    def roll(self, _: int, partition: int) -> None:
        Process(self.folder)[partition].roll()

    def merge(self, *_: int) -> None:
        Process(self.folder).topic().compact()

    def reopen(self, *_: int) -> None:
        for number in list(self.producers):
            self.forget(number)

    def lose_page(self, _: int, partition: int) -> None:
        self.lose(partition, paths.LOCK_FILE)

    def lose_snapshots(self, _: int, partition: int) -> None:
        self.lose(partition, "*.snapshot")

    def lose(self, partition: int, pattern: str) -> None:
        for path in Process(self.folder).folder(partition).glob(pattern):
            os.unlink(path)

    def check(self) -> None:
        topic = Process(self.folder).topic()
        for isolation in ("read_committed", "read_uncommitted"):
            assert seen(topic, isolation) == dict(enumerate(self.log))


class _Fenced(suppress):
    """In this block a producer learns that another one has its id, if that is so, and is forgotten."""

    def __init__(self, world: World, which: int, *, may_be_later: bool = False) -> None:
        super().__init__(ProducerFencedError)
        self._world, self._which, self._may_be_later = world, which, may_be_later

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:  # type: ignore[override]
        is_fenced = self._world.newest.get(IDS[self._which % len(IDS)]) != self._which
        if error is None and self._may_be_later:
            return False
        assert isinstance(error, ProducerFencedError) is is_fenced, error
        if is_fenced:
            self._world.forget(self._which)
        return is_fenced


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
    "merge": World.merge,
    "lose page": World.lose_page,
    "lose snapshots": World.lose_snapshots,
}
STEPS = st.lists(
    st.tuples(st.sampled_from(list(ACTIONS)), st.integers(0, 2 * len(IDS) - 1), st.integers(0, PARTITIONS - 1)),
    min_size=12,
    max_size=40,
)


@pytest.mark.long
@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_readers_see_exactly_what_was_committed(
    steps: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("model") / "events")
    for action, which, partition in steps:
        ACTIONS[action](world, which, partition)
        if action not in ("begin", "plain", "roll", "reopen"):
            world.check()
    world.check()
    assert Process(world.folder).anomalies() == ()
