"""Whatever two clients with stale snapshots do in turn, the log says what a list per partition says."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field

import memory_files
import pytest
from histories import Clock, commit_log, segment, topic_storage
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from searches import examples

from distlog.core import paths
from distlog.core.commits.actions import (
    Action,
    Add,
    Cleaned,
    Drop,
    GcFloor,
    Remove,
    SetConfig,
    SetLogStartOffset,
    SetPartitions,
    SetTransaction,
)
from distlog.core.commits.commit_json import Commit
from distlog.core.commits.commit_log import Plan
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CommitConflictError, TopicExistsError, TopicNotFoundError, TransactionTooOldError

CLIENTS = st.integers(0, 1)
PARTITIONS = st.integers(0, 3)
COUNTS = st.lists(st.integers(1, 5), min_size=1, max_size=3)
BATCHES = st.tuples(st.sampled_from(["a", "b"]), st.one_of(st.integers(0, 3), st.sampled_from(["0", "1"])))


@dataclass
class Partition:
    """What a partition should be."""

    segments: list[SegmentInfo] = field(default_factory=list)
    log_start_offset: int = 0
    log_end_offset: int = 0
    first_dirty_offset: int = 0

    def append(self, added: SegmentInfo) -> None:
        self.segments.append(added.at(self.log_end_offset))
        self.log_end_offset += added.next_offset - added.base_offset


@dataclass
class Model:
    """What the topic should be."""

    partitions: list[Partition] = field(default_factory=list)
    config: TopicConfig = field(default_factory=TopicConfig)
    batches: dict[tuple[str, int | str], dict[int, tuple[int, int]]] = field(default_factory=dict)
    gc_floor: int = 0
    dropped: bool = False
    life: int = 0


class CommitLogMachine(RuleBasedStateMachine):
    @initialize(partitions=st.integers(1, 3))
    def create_first(self, partitions: int) -> None:
        memory_files.hold()
        self.storage = topic_storage(f"memory://{uuid.uuid4().hex}")
        self.clock = Clock()
        self.logs = [commit_log(self.storage, self.clock, checkpoint_commits=count) for count in (3, 5)]
        self.model = Model()
        self.versions: list[tuple[int, str]] = []
        self.snapshots = [self.created(partitions)] * 2
        self.lives = [0, 0]

    def created(self, partitions: int) -> Snapshot:
        snapshot = self.logs[0].create(partitions, TopicConfig())
        self.versions.append((snapshot.timestamp_ms, snapshot.commit_id))
        self.model = Model(
            [Partition() for _ in range(partitions)], gc_floor=self.model.gc_floor, life=self.model.life
        )
        return snapshot

    def committed(self, client: int, operation: str, plan: Plan, read_version: int | None = None) -> bool:
        """Whether the plan of a client with its stale snapshot was committed, as the model says it must be."""
        gone = self.model.dropped or self.lives[client] != self.model.life
        try:
            commit, snapshot = self.logs[client].commit(
                self.snapshots[client], operation, plan, read_version=read_version
            )
        except TransactionTooOldError:
            assert gone or (read_version is not None and read_version < self.model.gc_floor)
            return False
        except CommitConflictError:
            assert gone
            return False
        assert commit is None or not gone
        self.snapshots[client] = snapshot
        return commit is not None and self.noted(commit)

    def noted(self, commit: Commit) -> bool:
        assert commit.version == len(self.versions)
        self.versions.append((commit.timestamp_ms, commit.id))
        return True

    @rule(client=CLIENTS, partition=PARTITIONS, counts=COUNTS)
    def append(self, client: int, partition: int, counts: list[int]) -> None:
        read_version = self.snapshots[client].version
        added = [segment(partition, 0, count, read_version=read_version) for count in counts]

        def plan(snapshot: Snapshot) -> list[Action] | None:
            return None if partition >= len(snapshot.partitions) else placed(snapshot, added)

        if self.committed(client, "append", plan, read_version):
            for info in added:
                self.model.partitions[partition].append(info)

    @rule(client=CLIENTS, count=st.integers(1, 3), batch=BATCHES)
    def append_batch(self, client: int, count: int, batch: tuple[str, int | str]) -> None:
        read_version = self.snapshots[client].version
        added = segment(0, 0, count, read_version=read_version)

        def plan(snapshot: Snapshot) -> list[Action] | None:
            if snapshot.transaction(*batch):
                return None
            end = snapshot.partitions[0].log_end_offset
            return [*placed(snapshot, [added]), SetTransaction(*batch, {0: (end, end + count)})]

        before = self.model.batches.get(batch)
        if self.committed(client, "append", plan, read_version):
            assert before is None
            end = self.model.partitions[0].log_end_offset
            self.model.batches[batch] = {0: (end, end + count)}
            self.model.partitions[0].append(added)

    @rule(client=CLIENTS, partition=PARTITIONS, count=st.integers(1, 3))
    def retain(self, client: int, partition: int, count: int) -> None:
        def plan(snapshot: Snapshot) -> list[Action] | None:
            expired = snapshot.partitions[partition].segments[:count] if partition < len(snapshot.partitions) else []
            if not expired:
                return None
            removed: list[Action] = [Remove(partition, info.stem) for info in expired]
            return [*removed, SetLogStartOffset(partition, expired[-1].next_offset)]

        if self.committed(client, "retention", plan):
            state = self.model.partitions[partition]
            state.log_start_offset = max(state.log_start_offset, state.segments[:count][-1].next_offset)
            del state.segments[:count]

    @rule(client=CLIENTS, partition=PARTITIONS, offset=st.integers(0, 30))
    def delete_records(self, client: int, partition: int, offset: int) -> None:
        def plan(snapshot: Snapshot) -> list[Action] | None:
            if partition >= len(snapshot.partitions):
                return None
            return [SetLogStartOffset(partition, min(offset, snapshot.partitions[partition].log_end_offset))]

        if self.committed(client, "delete-records", plan):
            state = self.model.partitions[partition]
            state.log_start_offset = max(state.log_start_offset, min(offset, state.log_end_offset))

    @rule(
        client=CLIENTS,
        partition=PARTITIONS,
        start=st.integers(0, 5),
        count=st.integers(1, 4),
        outputs=st.integers(1, 2),
    )
    def compact(self, client: int, partition: int, start: int, count: int, outputs: int) -> None:
        seen = self.snapshots[client]
        state = seen.partitions[partition] if partition < len(seen.partitions) else None
        inputs = state.segments[start : start + count] if state else []
        if not inputs:
            return
        new = merged(inputs, outputs, seen.version)
        stems = {info.stem for info in inputs}

        def plan(snapshot: Snapshot) -> list[Action] | None:
            if snapshot.partitions[partition].segments.live(stems) != stems:
                return None
            removed: list[Action] = [Remove(partition, stem) for stem in stems]
            return [*removed, *(Add(info) for info in new), Cleaned(partition, inputs[-1].next_offset)]

        if self.committed(client, "compact", plan, seen.version):
            model = self.model.partitions[partition]
            at = next(index for index, info in enumerate(model.segments) if info.stem == inputs[0].stem)
            model.segments[at : at + len(inputs)] = new
            model.first_dirty_offset = inputs[-1].next_offset

    @rule(client=CLIENTS, name=st.sampled_from(["retention.ms", "segment.ms"]), value=st.integers(1, 3))
    def configure(self, client: int, name: str, value: int) -> None:
        def plan(snapshot: Snapshot) -> list[Action]:
            return [SetConfig(snapshot.config.changed({name: value}).overrides())]

        if self.committed(client, "config", plan):
            self.model.config = self.model.config.changed({name: value})

    @rule(client=CLIENTS)
    def grow(self, client: int) -> None:
        def plan(snapshot: Snapshot) -> list[Action] | None:
            count = len(snapshot.partitions)
            return [SetPartitions(count + 1)] if count < 4 else None

        if self.committed(client, "config", plan):
            self.model.partitions.append(Partition())

    @rule(client=CLIENTS)
    def raise_gc_floor(self, client: int) -> None:
        floor = self.snapshots[client].version
        if self.committed(client, "gc", lambda snapshot: [GcFloor(floor)]):
            self.model.gc_floor = max(self.model.gc_floor, floor)

    @rule(client=CLIENTS)
    def refresh(self, client: int) -> None:
        gone = self.model.dropped or self.lives[client] != self.model.life
        try:
            self.snapshots[client] = self.logs[client].refresh(self.snapshots[client])
            assert not gone
        except TopicNotFoundError:
            assert gone

    @rule(client=CLIENTS)
    def open_again(self, client: int) -> None:
        try:
            self.snapshots[client] = self.logs[client].load()
            self.lives[client] = self.model.life
            assert not self.model.dropped
        except TopicNotFoundError:
            assert self.model.dropped

    @rule(client=CLIENTS)
    def drop(self, client: int) -> None:
        before = self.snapshots[client]
        if self.committed(client, "drop", lambda snapshot: [Drop()]):
            self.model.dropped = True
            self.snapshots[client] = before

    @rule(partitions=st.integers(1, 3))
    def create(self, partitions: int) -> None:
        if not self.model.dropped:
            try:
                self.logs[1].create(partitions, TopicConfig())
            except TopicExistsError:
                return
            raise AssertionError("created twice")
        self.model.life += 1
        self.created(partitions)

    @rule(passed_ms=st.integers(-10_000, 10_000))
    def time_passes(self, passed_ms: int) -> None:
        self.clock.now_ms += passed_ms

    @rule(kind=st.sampled_from(["hint", "newest", "all", "corrupt"]))
    def lose_checkpoints(self, kind: str) -> None:
        names = sorted(
            info.name for info in self.storage.list(paths.COMMITS_DIR) if paths.parse_checkpoint_file(info.name)
        )
        if kind == "hint":
            self.storage.delete([paths.LAST_CHECKPOINT])
        elif kind == "corrupt":
            for name in names[-1:]:
                self.storage.put(name, self.storage.read(name)[:-1])
        else:
            self.storage.delete(names if kind == "all" else names[-1:])

    @precondition(lambda self: not self.model.dropped)
    @invariant()
    def the_log_says_what_the_model_says(self) -> None:
        snapshot = self.logs[0].load()
        assert snapshot.version == len(self.versions) - 1
        assert snapshot.commit_id == self.versions[-1][1]
        assert snapshot.config == self.model.config
        assert snapshot.gc_floor == self.model.gc_floor
        assert len(snapshot.transactions) == len(self.model.batches)
        for batch, offsets in self.model.batches.items():
            found = snapshot.transaction(*batch)
            assert found is not None
            assert found.offsets == offsets
        assert [
            Partition(list(state.segments), state.log_start_offset, state.log_end_offset, state.first_dirty_offset)
            for state in snapshot.partitions
        ] == self.model.partitions

    def teardown(self) -> None:
        history = self.logs[1].history()[::-1]
        assert [(commit.timestamp_ms, commit.id) for commit in history] == self.versions
        times = [timestamp_ms for timestamp_ms, _ in self.versions]
        assert times == sorted(set(times))
        for version, timestamp_ms in enumerate(times):
            assert self.logs[0].load(timestamp_ms=timestamp_ms, include_dropped=True).version == version
        self.storage.delete([info.name for info in self.storage.list(paths.COMMITS_DIR)])


def placed(snapshot: Snapshot, added: list[SegmentInfo]) -> list[Action]:
    """The segments behind the log end of their one partition."""
    actions: list[Action] = []
    end = snapshot.partitions[added[0].partition].log_end_offset
    for info in added:
        actions.append(Add(info.at(end)))
        end += info.next_offset - info.base_offset
    return actions


def merged(inputs: list[SegmentInfo], outputs: int, read_version: int) -> list[SegmentInfo]:
    """One or two segments in place of `inputs`, with the same ends."""
    start, end = inputs[0].base_offset, inputs[-1].next_offset
    cuts = [start, (start + end) // 2, end] if outputs == 2 and end - start > 1 else [start, end]
    return [
        segment(inputs[0].partition, low, high - low, read_version=read_version, record_count=1, compacted=True)
        for low, high in itertools.pairwise(cuts)
    ]


TestCommitLogModel = pytest.mark.long(CommitLogMachine.TestCase)
TestCommitLogModel.settings = examples(15, stateful_step_count=40)
