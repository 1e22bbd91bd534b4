"""The state of a topic at one version, and `fold`, which applies commits to it and checks their invariants."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distlog.core import paths
from distlog.core.arrays import booleans, join, no_rows, numbers_of
from distlog.core.commits.actions import (
    CREATE,
    NO_FEATURES,
    Action,
    Active,
    Add,
    AddTable,
    Cleaned,
    Commit,
    Create,
    Drop,
    ProducerBatches,
    Remove,
    RemoveTable,
    Requires,
    Restore,
    Seal,
    SetConfig,
    SetLogHorizon,
    SetLogStartOffset,
    SetPartitions,
    SetTopicId,
    SetTransaction,
    SetVacuumHorizon,
    check_added,
    each_action,
    first_stem_below,
)
from distlog.core.commits.deduplication import (
    MAX_PRODUCER_PAUSE_MS,
    NO_PRODUCERS,
    NO_TRANSACTIONS,
    ProducerBatch,
    TransactionInfo,
    TransactionTable,
)
from distlog.core.commits.partition_table import NO_PARTITIONS, PartitionTable
from distlog.core.commits.partition_table import PartitionState as PartitionState
from distlog.core.commits.segment_table import REMOVED_SCHEMA, SCHEMA, SegmentInfo, check_append_times
from distlog.core.config import COMMIT_RETENTION_DELAYS, COMMIT_RETENTION_MS, TopicConfig
from distlog.core.errors import CorruptMetadataError, TopicNotFoundError

_PartitionAction = Add | Remove | SetLogStartOffset | Restore | Cleaned | Active | Seal
#: The clocks of a store's servers are assumed to differ by less.
MAX_CLOCK_DIFFERENCE_MS = 10_000
#: The most former ids that a topic remembers.
MAX_FORMER_IDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A topic at `version`; immutable, so it is shared, kept and pickled freely.

    `name` is the prefix of the partition folders: the topic's name when it was created. `gc_floor` is the vacuum
    horizon: files that were started below this version may be deleted, and no commit may add them. `commit_bytes` is
    the size of all commits so far. `passed_ms` is the sum of the pauses between commits, each of which counts as
    MAX_PRODUCER_PAUSE_MS at most: producers expire by this time.

    `log_floor` is the log retention horizon: commits below this version may be deleted. If version
    `former_retention_version` lowered `commit.retention.ms`, the former value is `former_retention_ms`. It applies
    until the horizon is above that version. `replaced_ms` is the time of the topic's creation if it was created empty
    in place of a dropped one, otherwise 0. `former_ids` are its earlier ids, oldest first. `seen_ms` is a time on the
    store's clock at which the next version did not exist, or 0 if unknown; it is not stored.
    """

    version: int
    commit_id: str
    topic_id: str
    name: str
    timestamp_ms: int
    config: TopicConfig
    partitions: PartitionTable
    transactions: TransactionTable
    gc_floor: int = 0
    log_floor: int = 0
    former_retention_ms: int = 0
    former_retention_version: int = 0
    replaced_ms: int = 0
    former_ids: tuple[str, ...] = ()
    dropped: bool = False
    requires: Requires = NO_FEATURES
    commit_bytes: int = 0
    passed_ms: int = 0
    seen_ms: int = field(default=0, compare=False)

    @property
    def commits_kept_ms(self) -> int | None:
        """The time for which vacuum keeps commits, in ms; None for no limit. A lower setting applies with a delay."""
        kept_ms = commits_kept_ms(self.config)  # by the current setting
        return None if kept_ms is None else max(kept_ms, self.former_retention_ms)

    def note_seen(self, time_ms: int) -> None:
        """Note that the next version did not exist at `time_ms`: the only change to a snapshot."""
        if time_ms > self.seen_ms:
            object.__setattr__(self, "seen_ms", time_ms)

    def continues(self, earlier: Snapshot) -> bool:
        """True if this is the same topic as in the `earlier` snapshot, and it was not dropped in between."""
        return self.topic_id == earlier.topic_id and (earlier.dropped or not self.dropped)

    def is_fresh_at(self, time_ms: int) -> bool:
        """True if vacuum cannot have deleted the next commit by `time_ms` of the store's clock.

        So if the next version has no commit then, it was never written. A next commit is newer than `seen_ms`, and
        vacuum keeps it for `commit.retention.ms`. Half of this time is a reserve for clocks and slow requests.
        """
        age_ms = time_ms - self.seen_ms
        has_times = self.seen_ms > 0 and time_ms > 0
        return has_times and -MAX_CLOCK_DIFFERENCE_MS <= age_ms < least_retention_ms(self.config) // 2

    @property
    def active_partitions(self) -> list[int]:
        # other partitions, whose states are only in columns, have no active segment
        return sorted(number for number, state in self.partitions.own_states.items() if state.active is not None)


def least_retention_ms(config: TopicConfig) -> int:
    """Return the shortest time for which vacuum keeps a commit after the next commit was written.

    All processes must agree on it, so a default that a caller passed does not apply. It is COMMIT_RETENTION_MS if the
    topic has no setting of its own, or keeps all commits (-1).
    """
    from_caller = "commit.retention.ms" in dict(config.defaults) and "commit.retention.ms" not in config.names
    return COMMIT_RETENTION_MS if from_caller or config.commit_retention_ms == -1 else config.commit_retention_ms


def commits_kept_ms(config: TopicConfig) -> int | None:
    """Return how long vacuum keeps commits, None for no limit; never shorter than `least_retention_ms`."""
    if config.commit_retention_ms == -1:
        return None
    least_ms = COMMIT_RETENTION_DELAYS * config.file_delete_delay_ms
    return max(config.commit_retention_ms, least_retention_ms(config), least_ms)


class PartitionDraft:
    """A private, mutable copy of a PartitionState; every method raises ValueError when an invariant breaks."""

    def __init__(self, state: PartitionState) -> None:
        self._log_start_offset = state.log_start_offset
        self._log_end_offset = state.log_end_offset
        self._first_dirty_offset = state.first_dirty_offset
        self._active = state.active
        self._segments = state.segments
        self._producers = state.producers
        #: The segments that earlier commits have added at the log's end, and that are not in `_segments` yet.
        self._appended: list[SegmentInfo] = []
        self._start_commit()

    def _start_commit(self) -> None:
        #: The segments that this commit adds at the log's end, and those that it puts into holes.
        self._new: list[SegmentInfo] = []
        self._replacements: list[SegmentInfo] = []
        self._removed: set[str] = set()
        self._restored_from: int | None = None
        self._former_end = self._log_end_offset
        self._has_batches = False

    def apply(self, action: _PartitionAction) -> None:
        match action:
            case Add(segment):
                self.add(segment)
            case Remove(_, stem):
                if stem in self._removed:
                    raise ValueError(f"segment {stem} is removed twice")
                self._removed.add(stem)
            case SetLogStartOffset(_, offset):
                self.set_log_start_offset(offset)
            case Restore(_, offset, _):
                self._log_start_offset = min(self._log_start_offset, offset)
                # the same commit may add segments from this offset on, which were removed before
                self._restored_from = offset
            case Cleaned(_, offset):
                if offset > self._log_end_offset:
                    raise ValueError(f"cleaned up to {offset}, past the log end {self._log_end_offset}")
                self._first_dirty_offset = offset
            case Active(_, stem, base_offset):
                self._check_at_end(stem, base_offset)
                if self._segments.common_stems([stem]):
                    raise ValueError(f"segment {stem} is sealed already")
                self._active = action
            case Seal(_, stem):
                self.seal(stem)

    def add(self, segment: SegmentInfo) -> None:
        """Add `segment` at the log's end or, if it begins earlier, in a hole that the commit makes."""
        segment.check()
        if segment.base_offset < self._log_end_offset:
            self._replacements.append(segment)
            return
        self._check_at_end(segment.stem, segment.base_offset)
        if segment.append_time_ms >= 0:
            previous = (self._new or self._appended or self._segments[-1:])[-1:]
            if previous and segment.append_time_ms < previous[0].append_time_ms:
                raise ValueError(f"segment {segment.stem} was appended before the previous segment")
        self._new.append(segment)
        self._log_end_offset = segment.next_offset

    def set_log_start_offset(self, offset: int) -> None:
        if offset > self._log_end_offset:
            if self._active or self._new or self._appended or len(self._segments):
                raise ValueError(f"the log start {offset} is past the log end {self._log_end_offset}")
            self._log_end_offset = offset
        self._log_start_offset = max(self._log_start_offset, offset)

    def seal(self, stem: str) -> None:
        if not self._active or self._active.stem != stem:
            raise ValueError(f"segment {stem} is not active")
        self._active = None

    def add_producers(self, batches: Sequence[ProducerBatch], passed_ms: int) -> None:
        """Add the commit's batches of producers; its segments must have been added before."""
        # the first commit that records producers may also have batches of earlier segments
        first_offset = self._former_end if self._producers else 0
        for batch in batches:
            is_after_start = first_offset <= batch.last_offset - batch.offset_delta <= batch.last_offset
            if not is_after_start or batch.last_offset >= self._log_end_offset:
                raise ValueError(f"producer {batch.producer_id} has a batch that the commit does not add")
        self._producers = self._producers.updated(batches, passed_ms)
        self._has_batches = True

    def end_commit(self) -> None:
        """End the commit: remove segments, and put the replacements into the holes."""
        if not self._has_batches and any(segment.has_producers or segment.has_transactions for segment in self._new):
            # The commit has segments with producers, but not their batches, as after direct appends (to an active
            # segment, without commits). So the recorded producers are too old
            self._producers = NO_PRODUCERS
        if self._removed or self._replacements:
            segments = self._segments.appended(self._appended)
            # a restore may also add segments before the first one
            front = None if self._restored_from is None else (self._restored_from, self._log_end_offset)
            self._segments = segments.replaced(self._removed, self._replacements, front)
            self._appended = []
            if any(segment.append_time_ms >= 0 for segment in self._replacements):
                times = self._segments.array("append_time_ms")
                check_append_times(np.zeros(len(times), np.int64), times)
        self._appended += self._new
        self._start_commit()

    def finish(self) -> PartitionState:
        return PartitionState(
            log_start_offset=self._log_start_offset,
            log_end_offset=self._log_end_offset,
            segments=self._segments.appended(self._appended),
            first_dirty_offset=self._first_dirty_offset,
            active=self._active,
            producers=self._producers,
        )

    def _check_at_end(self, stem: str, base_offset: int) -> None:
        if self._active:
            raise ValueError(f"the active segment {self._active.stem} must be sealed first")
        if base_offset != self._log_end_offset:
            raise ValueError(f"segment {stem} begins at {base_offset}, not at the log end {self._log_end_offset}")


# A commit that breaks an invariant raises CorruptMetadataError: an error is better than a gap, an overlap or a
# duplicate record. A writer calls `apply` before it puts a commit, so it puts no invalid one.
def apply(snapshot: Snapshot | None, commit: Commit) -> Snapshot:
    """The state after `commit`; `snapshot` is the state before it, None for commit 0."""
    return fold(snapshot, [commit])


def fold(snapshot: Snapshot | None, commits: Iterable[Commit]) -> Snapshot:
    """The state after `commits`, which follow `snapshot` without a gap; CorruptMetadataError for an invalid one."""
    draft = _Draft(snapshot)
    version = -1
    try:
        for commit in commits:
            version = commit.version
            draft.apply(commit)
        return draft.finish()
    except ValueError as error:
        file = paths.commit_file(max(version, 0))
        text = f"the commit cannot be applied: {error}; restore the file from a copy"
        raise CorruptMetadataError(text, file=file) from error


class _Draft:
    """A private, mutable copy of a snapshot; every method raises ValueError when an invariant breaks."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._head = snapshot
        self._partitions = snapshot.partitions if snapshot else NO_PARTITIONS
        #: The partitions that changed since `snapshot`, and since the start of the commit.
        self._changed: dict[int, PartitionDraft] = {}
        self._changed_by_commit: dict[int, PartitionDraft] = {}
        self._transactions = snapshot.transactions if snapshot else NO_TRANSACTIONS

    def apply(self, commit: Commit) -> None:
        head = self._head_at(commit)
        tables = [action for action in commit.actions if isinstance(action, AddTable | RemoveTable)]
        starts = self._starts_after_tables(commit.actions) if tables else None
        # None: all actions apply in order, tables row by row. A list: tables apply after other actions, then `starts`
        row_by_row = bool(tables) and starts is None
        for action in each_action(commit.actions) if row_by_row else commit.actions:
            if head.dropped and not isinstance(action, SetVacuumHorizon | SetLogHorizon):
                raise ValueError("the topic was dropped")
            if starts is None or not isinstance(action, SetLogStartOffset):
                head = self._act(head, commit, action)
        if starts is not None:
            self._apply_tables(tables)
            self._raise_log_starts(starts)
        head = self._with_former_retention(head)
        check_added(commit.actions)
        if stem := first_stem_below(commit.actions, head.gc_floor):
            text = f"segment {stem} was started below the vacuum horizon {head.gc_floor}"
            raise ValueError(f"{text}: vacuum may have deleted it")
        for draft in self._changed_by_commit.values():
            draft.end_commit()
        self._changed_by_commit = {}
        self._head = head

    def _starts_after_tables(self, actions: Sequence[Action]) -> list[SetLogStartOffset] | None:
        """The log starts to set after a commit's tables; None if all its actions must be applied one by one."""
        starts = [action for action in actions if isinstance(action, SetLogStartOffset)]
        if len(starts) < sum(isinstance(action, _PartitionAction | ProducerBatches) for action in actions):
            return None  # the commit has other actions on partitions, too
        if not starts:
            return []
        first = actions.index(starts[0])
        if any(isinstance(action, AddTable | RemoveTable | SetPartitions | Create) for action in actions[first:]):
            return None  # the log starts must be set before these actions
        numbers, offsets = np.array([(start.partition, start.offset) for start in starts]).T
        ends = self._partitions.log_end_offsets
        if numbers.max() >= len(ends) or not self._changed.keys().isdisjoint(numbers.tolist()):
            return None  # a partition does not exist (its action raises the error), or has left the columns
        return starts if (offsets <= ends[numbers]).all() else None

    def _raise_log_starts(self, starts: Sequence[SetLogStartOffset]) -> None:
        own_states, starts_in_columns = self._partitions.own_states, dict[int, int]()
        for action in starts:
            if action.partition in own_states:
                self._act_on_partition(action)
            else:
                start = starts_in_columns.get(action.partition, 0)
                starts_in_columns[action.partition] = max(action.offset, start)
        self._partitions = self._partitions.with_starts(starts_in_columns)

    def finish(self) -> Snapshot:
        if self._head is None:
            raise ValueError("there is no commit")
        changed = {partition: draft.finish() for partition, draft in self._changed.items()}
        transactions = self._transactions
        if transactions is not NO_TRANSACTIONS:
            transactions = transactions.updated({}, self._head.timestamp_ms)  # drops old batches
        return dataclasses.replace(
            self._head, partitions=self._partitions.with_states(changed), transactions=transactions
        )

    def _head_at(self, commit: Commit) -> Snapshot:
        """The snapshot after `commit`, still without its actions; ValueError unless it follows the head."""
        head = self._head
        expected = (head.version + 1, head.commit_id) if head else (0, None)
        if (commit.version, commit.prev) != expected:
            raise ValueError("it does not follow the commit of the version before")
        if head and commit.timestamp_ms <= head.timestamp_ms:
            raise ValueError("its time is not after the time of the commit before")
        if commit.actions and isinstance(commit.actions[0], Create):
            head = self._create(commit, commit.actions[0])
        if head is None or commit.topic_id != head.topic_id:
            raise ValueError("it belongs to another topic")
        pause_ms = min(commit.timestamp_ms - head.timestamp_ms, MAX_PRODUCER_PAUSE_MS)
        return dataclasses.replace(
            head,
            version=commit.version,
            commit_id=commit.id,
            timestamp_ms=commit.timestamp_ms,
            commit_bytes=head.commit_bytes + commit.size,
            requires=head.requires.union(commit.requires),
            passed_ms=head.passed_ms + pause_ms,
        )

    def _with_former_retention(self, head: Snapshot) -> Snapshot:
        """Note a retention of commits that the commit has lowered, since it still applies to older commits."""
        former_ms = least_retention_ms(self._head.config) if self._head else 0
        if former_ms <= least_retention_ms(head.config):
            return head
        former_ms = max(former_ms, head.former_retention_ms)
        return dataclasses.replace(head, former_retention_ms=former_ms, former_retention_version=head.version)

    def _create(self, commit: Commit, action: Create) -> Snapshot:
        head = self._head
        if head and (not head.dropped or commit.topic_id == head.topic_id):
            raise ValueError("the topic exists")
        fields_at_start: dict[str, Any] = {
            "version": commit.version,
            "commit_id": commit.id,
            "topic_id": commit.topic_id,
            "name": paths.check_topic_name(action.name),
            "timestamp_ms": commit.timestamp_ms,
            "config": TopicConfig(),
            "partitions": NO_PARTITIONS,
            "transactions": NO_TRANSACTIONS,
        }
        if head is None:
            return Snapshot(**fields_at_start)
        # an import may bring the dropped topic back with its records, and then replaces no topic
        replaced_ms = commit.timestamp_ms if commit.operation == CREATE else 0
        return dataclasses.replace(head, **fields_at_start, dropped=False, replaced_ms=replaced_ms, former_ids=())

    def _act(self, head: Snapshot, commit: Commit, action: Action) -> Snapshot:
        match action:
            case Create():
                if action is not commit.actions[0]:
                    raise ValueError("only a commit's first action may create a topic")
            case Drop():
                self._partitions, self._changed, self._changed_by_commit = NO_PARTITIONS, {}, {}
                self._transactions = NO_TRANSACTIONS
                return dataclasses.replace(head, dropped=True, transactions=NO_TRANSACTIONS)
            case SetTopicId(topic_id):
                former_ids = (*head.former_ids, head.topic_id)[-MAX_FORMER_IDS:]
                return dataclasses.replace(head, topic_id=topic_id, former_ids=former_ids)
            case SetPartitions(count):
                if count < len(self._partitions):
                    raise ValueError("the number of partitions can only grow")
                self._partitions = self._partitions.extended(count)
            case SetConfig(settings):
                config = TopicConfig.stored(settings)
                if head.config.defaults:
                    config = config.with_defaults(dict(head.config.defaults))
                return dataclasses.replace(head, config=config)
            case SetTransaction():
                self._record(commit, action)
            case ProducerBatches(batches):
                for partition, partition_batches in batches.items():
                    self._partition(partition).add_producers(partition_batches, head.passed_ms)
            case SetVacuumHorizon(version):
                if version > commit.version:
                    raise ValueError(f"version {version} is in the future")
                return dataclasses.replace(head, gc_floor=max(head.gc_floor, version))
            case SetLogHorizon(version):
                if version > head.gc_floor:
                    text = f"the log retention horizon {version} is above the vacuum horizon {head.gc_floor}"
                    raise ValueError(text)
                if version > head.former_retention_version:
                    head = dataclasses.replace(head, former_retention_ms=0, former_retention_version=0)
                return dataclasses.replace(head, log_floor=max(head.log_floor, version))
            case AddTable() | RemoveTable():
                return head  # `_apply_tables` applies them together
            case Restore(_, _, version) if version < head.gc_floor or version >= commit.version:
                raise ValueError(f"vacuum may have deleted files of version {version}")
            case _:
                self._act_on_partition(action)
        return head

    def _act_on_partition(self, action: _PartitionAction) -> None:
        self._partition(action.segment.partition if isinstance(action, Add) else action.partition).apply(action)

    def _partition(self, partition: int) -> PartitionDraft:
        if partition not in self._changed:
            if partition >= len(self._partitions):
                raise ValueError(f"there is no partition {partition}")
            self._changed[partition] = PartitionDraft(self._partitions[partition])
        self._changed_by_commit[partition] = self._changed[partition]
        return self._changed[partition]

    def _apply_tables(self, tables: Sequence[AddTable | RemoveTable]) -> None:
        """Add and remove the segments in `tables`: in columns, or one by one for partitions with their own state."""
        added = join([no_rows(SCHEMA), *(table.rows for table in tables if isinstance(table, AddTable))])
        removed = join([no_rows(REMOVED_SCHEMA), *(table.rows for table in tables if isinstance(table, RemoveTable))])
        partitions = np.concatenate([numbers_of(rows["partition"]) for rows in (added, removed)])
        count = len(self._partitions)
        if partitions.max() >= count:
            raise ValueError(f"there is no partition {partitions.max()}")
        # partitions with their own state go back into columns if they are many
        self._partitions = self._partitions.absorbed(partitions)
        has_state = np.zeros(count, bool)
        has_state[[*self._partitions.own_states, *self._changed]] = True
        added_flags, removed_flags = (has_state[numbers_of(rows["partition"])] for rows in (added, removed))
        if added_flags.any() or removed_flags.any():
            added_rows, removed_rows = added.filter(booleans(added_flags)), removed.filter(booleans(removed_flags))
            for action in each_action([AddTable(added_rows), RemoveTable(removed_rows)]):
                if isinstance(action, Add | Remove):
                    self._act_on_partition(action)
            added, removed = added.filter(booleans(~added_flags)), removed.filter(booleans(~removed_flags))
        if len(added) or len(removed):
            self._partitions = self._partitions.changed(added, removed)

    def _record(self, commit: Commit, action: SetTransaction) -> None:
        if any(partition >= len(self._partitions) for partition in action.offsets):
            raise ValueError("a transaction names a partition that does not exist")
        in_order = action.in_order and isinstance(action.batch_id, int)
        info = TransactionInfo(commit.version, commit.timestamp_ms, action.offsets, in_order)
        last_commit_ms = self._head.timestamp_ms if self._head else 0
        self._transactions = self._transactions.recorded((action.app_id, action.batch_id), info, last_commit_ms)


def check_partition(partition: int, count: int) -> None:
    if not 0 <= partition < count:
        raise TopicNotFoundError(f"the partition does not exist: give one from 0 to {count - 1}", partition=partition)
