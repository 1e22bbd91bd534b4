"""Compaction: keeps the last record of each key, at its offset (Kafka's `LogCleaner`).

It works in rounds, and each round is one commit. A round collects the keys of a partition's dirty range, as many as
fit in memory. Then it rewrites all segments up to there, and drops the records that a later one supersedes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.maintenance.compaction.clean_partition import DEDUPE_BUFFER_BYTES, CleanedRange, clean_partition
from distlog.core.maintenance.compaction.cleanable import Cleanable, first_dirty_offset, plan_compaction
from distlog.core.maintenance.compaction.cleaning_plan import CleaningPlan
from distlog.core.maintenance.compaction.commit_compaction import commit_compaction
from distlog.core.maintenance.compaction.report import (
    CompactionReport,
    PartitionCompaction,
    Uncleanable,
    done_or_reason,
    unless_uncleanable,
)
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.stable_offset import last_stable_offset
from distlog.core.topic_handle import TopicHandle

#: One round over at least one of the partitions that are due, in this process or in tasks.
Clean = Callable[[Snapshot, Sequence[Cleanable]], Sequence[CleanedRange | Uncleanable]]


def compact(
    handle: TopicHandle,
    snapshot: Snapshot,
    clean: Clean | None = None,
    *,
    partitions: Collection[int] | None = None,
    dry_run: bool = False,
) -> tuple[CompactionReport, Snapshot]:
    """Compact the partitions that are due by the topic's config; returns the report and the new state.

    `partitions` are those to look at, by default all. Each takes as many rounds of `clean` as it needs, by default
    alone and in this process. A partition that cannot be cleaned is left as it is and named in the report. Raises
    CommitConflictError when the topic was dropped, TransactionTooOldError when a round took longer than vacuum waits,
    and CommitStateUnknownError.
    """
    clean = clean or partial(clean_dirtiest, handle)
    before = after = handle.log.refresh(snapshot)
    wanted = range(len(before.partitions)) if partitions is None else partitions
    stable, failed = _last_stable_offsets(handle.reader, before, wanted)
    due = [one for one in plan_compaction(before, handle.trusted_ms(), stable) if one.partition in wanted]
    rounds = _Rounds(due, failed)
    while not dry_run and (dirty := rounds.dirty(after)):
        done = clean(after, dirty)
        cleaned = [one for one in done if isinstance(one, CleanedRange)]
        left_out, after = commit_compaction(handle, after, cleaned)
        rounds.add(cleaned, left_out, [one for one in done if isinstance(one, Uncleanable)])
    return CompactionReport(tuple(rounds.results(before, after)), dry_run), after


def clean_dirtiest(
    handle: TopicHandle,
    snapshot: Snapshot,
    due: Sequence[Cleanable],
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
) -> list[CleanedRange | Uncleanable]:
    """One round over the dirtiest partition that is due, in this process. It gets all the memory for keys."""
    work = partial(clean_partition, handle, dedupe_buffer_bytes=dedupe_buffer_bytes)
    return [done_or_reason(work, CleaningPlan.of(snapshot, due[0]))]


def _last_stable_offsets(
    reader: SegmentReader, snapshot: Snapshot, partitions: Iterable[int]
) -> tuple[dict[int, int], dict[int, str]]:
    """The last stable offset by partition, and by partition the reason if it cannot be known."""
    stable, failed = dict[int, int](), dict[int, str]()
    for number in partitions:
        state = snapshot.partitions[number]
        found = unless_uncleanable(number, partial(last_stable_offset, reader, state))
        if isinstance(found, Uncleanable):
            failed[number] = found.reason
        else:
            stable[number] = found
    return stable, failed


class _Rounds:
    """The partitions that are due, and the rounds that were done for each."""

    def __init__(self, due: Sequence[Cleanable], failed: Mapping[int, str]) -> None:
        self._due, self._failed = due, dict(failed)
        self._done: dict[int, list[CleanedRange]] = {one.partition: [] for one in due}
        self._skipped = dict.fromkeys(self._done, 0)

    def add(
        self, cleaned: Sequence[CleanedRange], left_out: Mapping[int, int], failed: Sequence[Uncleanable]
    ) -> None:
        """Note a round, and how many groups its commit left out."""
        for one in cleaned:
            self._done[one.partition].append(one)
            self._skipped[one.partition] += left_out[one.partition]
        self._failed |= {one.partition: one.reason for one in failed}

    def dirty(self, snapshot: Snapshot) -> list[Cleanable]:
        """The partitions that have more to clean and whose last round made progress."""
        return [one for one in self._due if one.partition not in self._failed and self._is_dirty(snapshot, one)]

    def _is_dirty(self, snapshot: Snapshot, due: Cleanable) -> bool:
        dirty, done = first_dirty_offset(snapshot.partitions[due.partition]), self._done[due.partition]
        return dirty < due.first_uncleanable_offset and (not done or dirty > done[-1].start_offset)

    def results(self, before: Snapshot, after: Snapshot) -> Iterator[PartitionCompaction]:
        """The result for each partition that was due."""
        for due in self._due:
            number, end = due.partition, due.first_uncleanable_offset
            old, new = (_totals(snapshot.partitions[number], end) for snapshot in (before, after))
            yield PartitionCompaction(
                partition=number,
                end_offset=end,
                segments_before=old[0],
                segments_after=new[0],
                bytes_before=old[1],
                bytes_after=new[1],
                records_before=old[2],
                records_after=new[2],
                rounds=len(self._done[number]),
                unkeyed_records=sum(group.unkeyed for one in self._done[number] for group in one.groups),
                skipped_groups=self._skipped[number],
                error=self._failed.get(number),
            )


def _totals(state: PartitionState, end_offset: int) -> tuple[int, int, int]:
    table = state.segments
    below = table.base_offsets < end_offset
    return int(below.sum()), int(table.log_bytes[below].sum()), int(table.record_counts[below].sum())
