"""Commits an append: adds the segments that an Appender has written, all in one commit.

The two halves are separate, since a Spark job runs the first in its tasks and the second in its driver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from distlog.core.commits.format import fields
from distlog.core.commits.format.actions import Action, Add, SetTransaction
from distlog.core.commits.format.commit import UNNAMED, Origin
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.display.shown import Shown
from distlog.core.errors import CommitConflictError, InvalidRecordError
from distlog.core.log.sealed_commit import sealed_commit
from distlog.core.maintenance.retention import records_beyond
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.appending.placement import offsets_of, place

BatchId = int | str

#: How many partitions the text of a result names.
_SPANS = 4


@dataclass(frozen=True, slots=True, repr=False)
class AppendResult(Shown):
    """The result of an append: the version of its commit and, by partition, the (first, end) offsets it got.

    `replayed` says that this (app_id, batch_id) was committed before; the result is that of the first commit.
    `version` is None when nothing was committed, as in place. `expired` counts the records that are older than
    `retention.ms`: the next retention deletes them.
    """

    version: int | None
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    replayed: bool = False
    expired: int = field(default=0, compare=False)

    @property
    def record_count(self) -> int:
        """How many records were appended."""
        return sum(end - first for first, end in self.offsets.values())

    def __str__(self) -> str:
        version = "" if self.version is None else f", version {self.version}"
        spans = [f"{number}: {first:,} to {end:,}" for number, (first, end) in list(self.offsets.items())[:_SPANS]]
        more = ["..."] if len(self.offsets) > _SPANS else []
        again = "appended before" if self.replayed else "appended"
        return f"{again} {self.record_count:,} records{version}; offsets {', '.join([*spans, *more]) or 'none'}"

    def to_table(self) -> pa.Table:
        """A row per partition: the offsets from `start_offset` (in) to `end_offset` (out)."""
        firsts, ends = ([span[side] for span in self.offsets.values()] for side in (0, 1))
        columns = {"partition": list(self.offsets), "start_offset": firsts, "end_offset": ends}
        return pa.table({name: pa.array(column, pa.int64()) for name, column in columns.items()})


def commit_append(
    handle: TopicHandle,
    snapshot: Snapshot,
    segments: Sequence[SegmentInfo],
    *,
    read_version: int | None,
    app_id: str | None = None,
    batch_id: BatchId | None = None,
    in_order: bool = False,
    origin: Origin = UNNAMED,
    written_by: TopicConfig | None = None,
    check: Callable[[Snapshot], None] | None = None,
    settle: Callable[[Sequence[SegmentInfo]], Sequence[SegmentInfo]] | None = None,
) -> tuple[AppendResult, Snapshot]:
    """Add `segments` behind the log ends, all or none, in one commit that has `origin`.

    `written_by` are the settings by which their records were checked; without, they suit any topic. `check` gets each
    snapshot behind which they may be committed; what it raises is raised, and nothing was committed. After it,
    `settle` gets the segments at their offsets, and may tell more of them.

    Their partitions' active segments are sealed in the same commit. If the same (app_id, batch_id) was committed
    before, or `in_order` a later one, this is a replay (see `replayed`), and nothing is sealed. Raises
    CommitConflictError if the topic was dropped, or is compacted and was not then, TransactionTooOldError if the
    files are too old, StorageError if a partition's lock is not free in time, CommitStateUnknownError.
    """
    check_batch(app_id, batch_id)
    partitions = {segment.partition for segment in segments}
    placed: list[SegmentInfo] = []

    def before(current: Snapshot) -> AppendResult | None:
        return replayed(current, app_id, batch_id, in_order=in_order)

    def needed(current: Snapshot) -> Collection[int]:
        return () if before(current) else partitions

    def plan(current: Snapshot) -> list[Action] | None:
        placed.clear()
        if before(current):
            return None
        if written_by is not None:
            _check_keyed(current.config, written_by)
        if check is not None:
            check(current)
        found = place(current, segments)
        placed.extend(settle(found) if settle is not None else found)
        actions: list[Action] = [Add(segment) for segment in placed]
        if app_id is not None and batch_id is not None:
            actions.append(SetTransaction(app_id, batch_id, offsets_of(placed), in_order))
        return actions or None

    commit, snapshot = sealed_commit(
        handle, snapshot, "append", plan, needed, read_version=read_version, origin=origin
    )
    if commit is None:
        return before(snapshot) or AppendResult(None), snapshot
    expired = records_beyond(placed, snapshot.config, commit.timestamp_ms)
    return AppendResult(commit.version, offsets_of(placed), expired=expired), snapshot


def _check_keyed(config: TopicConfig, written_by: TopicConfig) -> None:
    """Compaction deletes records without a key, and nobody has looked for such records."""
    if "compact" in config.cleanup_policy and "compact" not in written_by.cleanup_policy:
        raise CommitConflictError(
            "nothing was committed: the topic is compacted since the records were written, so each needs a key; "
            "write again"
        )


def replayed(
    snapshot: Snapshot, app_id: str | None, batch_id: BatchId | None, *, in_order: bool = False
) -> AppendResult | None:
    """The result of the first commit of (app_id, batch_id); None if it was not committed before.

    `in_order` says that the application numbers its batches, and commits them one after the other. Then a batch below
    its newest was committed too, if it had rows; the result has no version and no offsets if it is forgotten. Such a
    batch is a replay without `in_order` too.
    """
    if app_id is None or batch_id is None:
        return None
    is_numbered = in_order and isinstance(batch_id, int)
    if is_numbered and _is_next(snapshot.transactions.newest(app_id), batch_id):
        return None
    found = snapshot.transaction(app_id, batch_id)
    if found is None:
        is_before = is_numbered or snapshot.transactions.is_forgotten(app_id, batch_id)
        return AppendResult(None, replayed=True) if is_before else None
    return AppendResult(found.version, found.offsets, replayed=True)


def _is_next(newest: int | None, batch_id: BatchId) -> bool:
    return newest is None or (isinstance(batch_id, int) and newest < batch_id)


def check_batch(app_id: str | None, batch_id: BatchId | None) -> None:
    """Raise InvalidRecordError unless both or neither are given, of types that a commit can hold."""
    if app_id is None and batch_id is None:
        return
    try:
        fields.NAME(app_id).encode()
        str(fields.batch_id(batch_id)).encode()
    except ValueError:
        raise InvalidRecordError(
            "give app_id and batch_id together: text of 1 to 1000 characters, or for batch_id an integer, at least 0",
            app_id=ascii(app_id)[:100],
            batch_id=ascii(batch_id)[:100],
        ) from None
