"""`fold` and `apply`: how commits change a snapshot, and the invariants of commits.

Pure functions. A commit that breaks an invariant raises CorruptMetadataError: an error is better than a gap, an
overlap or a duplicate record. A writer runs `apply` before it commits, so it never writes such a commit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from distlog.core import paths
from distlog.core.commits.format import bundle_parts
from distlog.core.commits.format.actions import (
    Action,
    Active,
    Add,
    Cleaned,
    Create,
    Drop,
    GcFloor,
    Manifest,
    Pin,
    ProducerTransaction,
    Remove,
    Restore,
    Seal,
    SetConfig,
    SetLogStartOffset,
    SetPartitions,
    SetTransaction,
    UnknownAction,
    Unpin,
)
from distlog.core.commits.format.commit import Commit
from distlog.core.commits.format.features import NOTHING, Requires
from distlog.core.commits.state.partition_draft import PartitionDraft
from distlog.core.commits.state.producer_transactions import ProducerTransactionDraft
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.commits.state.transaction_columns import TransactionInfo
from distlog.core.commits.state.transaction_draft import TransactionDraft
from distlog.core.commits.state.transaction_table import EMPTY
from distlog.core.config import TopicConfig
from distlog.core.errors import CorruptMetadataError


def apply(snapshot: Snapshot | None, commit: Commit) -> Snapshot:
    """The state after `commit`; `snapshot` is the state before it, None for commit 0."""
    return fold(snapshot, [commit])


def fold(snapshot: Snapshot | None, commits: Iterable[Commit]) -> Snapshot:
    """The state after `commits`, which follow `snapshot` without a gap; each container is copied once.

    Raises CorruptMetadataError, with the commit's file, when a commit breaks an invariant, and
    UnsupportedVersionError when a newer library set a config that this one cannot keep.
    """
    draft = _Draft(snapshot)
    version = -1
    try:
        for commit in commits:
            version = commit.version
            draft.apply(commit)
        return draft.finish()
    except ValueError as error:
        file = paths.commit_file(max(version, 0))
        raise CorruptMetadataError(f"the commit cannot be applied: {error}", file=file) from error


class _Draft:
    """A private, mutable copy of a snapshot; every method raises ValueError when an invariant breaks."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._head = snapshot
        self._partitions = list(snapshot.partitions) if snapshot else []
        self._pins = dict(snapshot.pins) if snapshot else {}
        self._changed: dict[int, PartitionDraft] = {}
        self._touched: dict[int, PartitionDraft] = {}
        self._transactions = TransactionDraft(snapshot.transactions if snapshot else EMPTY)
        self._of_producers = ProducerTransactionDraft(snapshot.producer_transactions if snapshot else {})

    def apply(self, commit: Commit) -> None:
        head = self._follow(commit)
        for action in commit.actions:
            if head.dropped and not isinstance(action, GcFloor):
                raise ValueError("the topic was dropped")
            head = self._act(head, commit, action)
        bundle_parts.check_added(commit.actions)
        for draft in self._touched.values():
            draft.settle(head.gc_floor)
        self._touched = {}
        self._head = head

    def finish(self) -> Snapshot:
        if self._head is None:
            raise ValueError("there is no commit")
        for partition, draft in self._changed.items():
            self._partitions[partition] = draft.finish()
        return dataclasses.replace(
            self._head,
            partitions=tuple(self._partitions),
            pins=self._pins,
            transactions=self._transactions.finish(self._head.timestamp_ms),
            producer_transactions=self._of_producers.finish(),
        )

    def _follow(self, commit: Commit) -> Snapshot:
        """The head's scalars after `commit`, which must follow the head in version, chain and time."""
        head = self._head
        if (commit.version, commit.prev) != ((head.version + 1, head.commit_id) if head else (0, None)):
            raise ValueError("it does not follow the commit before it")
        if head and commit.timestamp_ms <= head.timestamp_ms:
            raise ValueError("time does not go forward")
        if commit.actions and isinstance(commit.actions[0], Create):
            head = self._create(commit, commit.actions[0])
        if head is None or commit.topic_id != head.topic_id:
            raise ValueError("it belongs to another topic")
        return dataclasses.replace(
            head,
            version=commit.version,
            commit_id=commit.id,
            timestamp_ms=commit.timestamp_ms,
            commit_bytes=head.commit_bytes + commit.size,
            requires=head.requires.also(commit.requires),
        )

    def _create(self, commit: Commit, action: Create) -> Snapshot:
        head = self._head
        if head and (not head.dropped or commit.topic_id == head.topic_id):
            raise ValueError("the topic exists")
        return Snapshot(
            version=commit.version,
            commit_id=commit.id,
            topic_id=commit.topic_id,
            name=paths.check_topic_name(action.name),
            timestamp_ms=commit.timestamp_ms,
            config=TopicConfig(),
            partitions=(),
            transactions=EMPTY,
            gc_floor=head.gc_floor if head else 0,
            pins={},
            requires=head.requires if head else NOTHING,
            unknown=head.unknown if head else "",
            commit_bytes=head.commit_bytes if head else 0,
        )

    def _act(self, head: Snapshot, commit: Commit, action: Action) -> Snapshot:
        match action:
            case Create():
                if action is not commit.actions[0]:
                    raise ValueError("a topic is created by a commit's first action")
            case Drop():
                return self._drop(head)
            case SetPartitions(count):
                self._set_partitions(count)
            case SetConfig(settings):
                return dataclasses.replace(head, config=_stored(settings, head.config))
            case SetTransaction():
                self._record(commit, action)
            case ProducerTransaction():
                self._of_producers.change(action, commit.timestamp_ms, len(self._partitions))
            case GcFloor(version):
                _check_past(version, commit)
                return dataclasses.replace(head, gc_floor=max(head.gc_floor, version))
            case Pin(name, version):
                _check_past(version, commit)
                self._pins[name] = action
            case Unpin(name):
                self._pins.pop(name, None)
            case Manifest():
                raise ValueError("its manifest was not read")
            case UnknownAction(kind):
                return dataclasses.replace(head, requires=head.requires.also(Requires(writer=(kind,))))
            case Restore(_, _, version) if version < head.gc_floor or version >= commit.version:
                raise ValueError(f"the files of version {version} are not kept")
            case _:
                self._act_on_partition(action)
        return head

    def _act_on_partition(self, action: Add | Remove | SetLogStartOffset | Restore | Cleaned | Active | Seal) -> None:
        draft = self._partition(action.segment.partition if isinstance(action, Add) else action.partition)
        match action:
            case Add(segment):
                draft.add(segment)
            case Remove():
                draft.remove(action.stem)
            case SetLogStartOffset():
                draft.set_log_start_offset(action.offset)
            case Restore():
                draft.restore(action.offset)
            case Cleaned():
                draft.set_first_dirty_offset(action.first_dirty_offset)
            case Active():
                draft.open(action)
            case Seal():
                draft.seal(action.stem)

    def _partition(self, partition: int) -> PartitionDraft:
        if partition not in self._changed:
            if partition >= len(self._partitions):
                raise ValueError(f"there is no partition {partition}")
            self._changed[partition] = PartitionDraft(self._partitions[partition])
        self._touched[partition] = self._changed[partition]
        return self._changed[partition]

    def _drop(self, head: Snapshot) -> Snapshot:
        self._partitions, self._pins, self._changed, self._touched = [], {}, {}, {}
        self._transactions, self._of_producers = TransactionDraft(EMPTY), ProducerTransactionDraft({})
        return dataclasses.replace(head, dropped=True, transactions=EMPTY)

    def _set_partitions(self, count: int) -> None:
        if count < len(self._partitions):
            raise ValueError("the number of partitions cannot shrink")
        self._partitions += [PartitionState()] * (count - len(self._partitions))

    def _record(self, commit: Commit, action: SetTransaction) -> None:
        if any(partition >= len(self._partitions) for partition in action.offsets):
            raise ValueError("a transaction names a partition that does not exist")
        in_order = action.in_order and isinstance(action.batch_id, int)
        info = TransactionInfo(commit.version, commit.timestamp_ms, action.offsets, action.unknown, in_order)
        before_ms = self._head.timestamp_ms if self._head else 0
        self._transactions.record(action.app_id, action.batch_id, info, before_ms)


def _check_past(version: int, commit: Commit) -> None:
    if version > commit.version:
        raise ValueError(f"version {version} is in the future")


def _stored(settings: Mapping[str, str], before: TopicConfig) -> TopicConfig:
    config = TopicConfig.stored(settings)
    return config.with_defaults(dict(before.defaults)) if before.defaults else config
