"""Compaction: of each key the last record stays, at its offset (Kafka's `LogCleaner`).

A round goes over one partition: the keys of its dirty range into an offset map, as many as there is memory for, then
all segments up to there rewritten against it, group by group, then one commit. The parts are functions of their
arguments, so that tasks elsewhere can do the same: `keyed_records` gives what to shuffle, `rewrite_group` takes the
survivors of one group, `commit_compaction` puts the results in place.
"""

from __future__ import annotations

import dataclasses
import secrets
import uuid
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from distlog.core.commits.actions import Action, Add, Cleaned, Remove
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.commits.store_time import trusted_ms
from distlog.core.maintenance.compaction.batch_filter import BatchFilter
from distlog.core.maintenance.compaction.batch_verdicts import judge
from distlog.core.maintenance.compaction.cleanable import (
    Cleanable,
    first_dirty_offset,
    group_segments,
    plan_compaction,
)
from distlog.core.maintenance.compaction.group_rewrite import RewrittenGroup, rewrite_group
from distlog.core.maintenance.compaction.key_hash import SECRET_BYTES
from distlog.core.maintenance.compaction.offset_map import OffsetMap
from distlog.core.maintenance.compaction.record_keys import build_map
from distlog.core.maintenance.compaction.report import (
    CompactionReport,
    PartitionCompaction,
    Uncleanable,
    unless_uncleanable,
)
from distlog.core.maintenance.compaction.survivors import MapSurvivors
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.reading.stable_offset import last_stable_offset

#: Kafka's log.cleaner.dedupe.buffer.size: memory for the keys of one round, 24 bytes each.
DEDUPE_BUFFER_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class CleanedRange:
    """What a round makes of a partition: keys of [start_offset, end_offset) were looked for in all of `groups`."""

    partition: int
    start_offset: int
    end_offset: int
    groups: tuple[RewrittenGroup, ...]


def compact(
    reader: SegmentReader,
    log: CommitLog,
    snapshot: Snapshot,
    clock: Callable[[], int],
    *,
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
    dry_run: bool = False,
) -> tuple[CompactionReport, Snapshot]:
    """Compact the partitions that the topic's config says are due, and the new state.

    Partition after partition, each in as many rounds as `dedupe_buffer_bytes` need, a commit per round; one that
    cannot be cleaned is left as it is, and named in the report. Raises CommitConflictError when the topic was
    dropped, TransactionTooOldError when a round took longer than vacuum waits, CommitStateUnknownError.
    """

    def clean(current: Snapshot, due: Sequence[Cleanable]) -> list[CleanedRange | Uncleanable]:
        one = due[0]
        work = partial(clean_partition, reader, current, one, clock, new_id, random_bytes, dedupe_buffer_bytes)
        return [unless_uncleanable(one.partition, work)]

    return compact_rounds(reader, log, snapshot, clock, clean, dry_run=dry_run)


def compact_rounds(
    reader: SegmentReader,
    log: CommitLog,
    snapshot: Snapshot,
    clock: Callable[[], int],
    clean: Callable[[Snapshot, Sequence[Cleanable]], Sequence[CleanedRange | Uncleanable]],
    *,
    dry_run: bool = False,
) -> tuple[CompactionReport, Snapshot]:
    """`compact` with rounds that are done by `clean`: of the partitions it gets, all or some, here or elsewhere.

    A round is one commit.
    """
    before = after = log.refresh(snapshot)
    stable, failed = _last_stable_offsets(reader, before)
    due = plan_compaction(before, log.trusted_ms(clock()), stable)
    rounds: dict[int, list[CleanedRange]] = {one.partition: [] for one in due}
    skipped = dict.fromkeys(rounds, 0)
    while not dry_run and (dirty := _dirty(after, due, rounds, failed)):
        done = clean(after, dirty)
        failed |= {one.partition: one.reason for one in done if isinstance(one, Uncleanable)}
        cleaned = [one for one in done if isinstance(one, CleanedRange)]
        left_out, after = commit_compaction(log, after, cleaned, begin=after.version)
        for one in cleaned:
            rounds[one.partition].append(one)
            skipped[one.partition] += left_out[one.partition]
    results = [_describe(one, before, after, rounds[one.partition], skipped[one.partition]) for one in due]
    told = (dataclasses.replace(one, error=failed.get(one.partition)) for one in results)
    return CompactionReport(tuple(told), dry_run), after


def _last_stable_offsets(reader: SegmentReader, snapshot: Snapshot) -> tuple[dict[int, int], dict[int, str]]:
    """By partition, where it is stable up to, or why that cannot be known."""
    stable, failed = dict[int, int](), dict[int, str]()
    for number, state in enumerate(snapshot.partitions):
        found = unless_uncleanable(number, partial(last_stable_offset, reader, state))
        if isinstance(found, Uncleanable):
            failed[number] = found.reason
        else:
            stable[number] = found
    return stable, failed


def _dirty(
    snapshot: Snapshot,
    due: Sequence[Cleanable],
    rounds: Mapping[int, Sequence[CleanedRange]],
    failed: Container[int],
) -> list[Cleanable]:
    """Of what was due, where there is more to clean, and the last round got on with it."""
    left = (one for one in due if one.partition not in failed)
    return [one for one in left if _is_dirty(snapshot, one, rounds[one.partition])]


def _is_dirty(snapshot: Snapshot, due: Cleanable, rounds: Sequence[CleanedRange]) -> bool:
    dirty = first_dirty_offset(snapshot.partitions[due.partition])
    return dirty < due.first_uncleanable_offset and (not rounds or dirty > rounds[-1].start_offset)


def clean_partition(
    reader: SegmentReader,
    snapshot: Snapshot,
    due: Cleanable,
    clock: Callable[[], int],
    new_id: Callable[[], str],
    random_bytes: Callable[[int], bytes],
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
) -> CleanedRange:
    """One round over one partition, up to where it is cleanable or the memory is full; nothing is committed.

    `random_bytes` gives the secret that keys are hashed under: nobody else may know it, so it must be unpredictable.
    Raises CorruptRecordError, InvalidConfigError where there is no memory for a single key.
    """
    state, config = snapshot.partitions[due.partition], snapshot.config
    # a clock that is ahead would drop tombstones before their time
    now_ms = trusted_ms(clock(), reader.storage)
    start, end = first_dirty_offset(state), due.first_uncleanable_offset
    segments = state.segments[state.segments.find(state.log_start_offset) :]
    verdicts = judge(reader, segments, now_ms)
    dirty = [segment for segment in segments if segment.next_offset > start and segment.base_offset < end]
    keys = OffsetMap.within(dedupe_buffer_bytes, sum(segment.record_count for segment in dirty))
    secret = random_bytes(SECRET_BYTES)
    build_map(reader, dirty, start, end, verdicts, keys, secret)
    batch_filter = BatchFilter(MapSurvivors(keys, secret), verdicts, end, now_ms, config.delete_retention_ms)
    groups = group_segments((one for one in segments if one.base_offset <= keys.latest_offset), config)
    rewritten = tuple(
        rewrite_group(reader, group, config, batch_filter, begin=snapshot.version, clock=clock, new_id=new_id)
        for group in groups
    )
    return CleanedRange(due.partition, start, keys.latest_offset + 1, rewritten)


def commit_compaction(
    log: CommitLog, snapshot: Snapshot, cleaned: Sequence[CleanedRange], *, begin: int
) -> tuple[dict[int, int], Snapshot]:
    """Put rewritten groups in the place of their inputs, in one commit; how many were left out, and the new state.

    They are counted by partition. A group of which an input is gone is left out, and its partition stays dirty from
    there. Nothing is committed where the topic is not compacted any more.
    """
    skipped: dict[int, int] = {}

    def plan(current: Snapshot) -> list[Action] | None:
        if "compact" not in current.config.cleanup_policy:
            skipped.update({one.partition: len(one.groups) for one in cleaned})
            return None
        parts = [(one.partition, *_replace(current.partitions[one.partition], one)) for one in cleaned]
        skipped.update({partition: left_out for partition, _, left_out in parts})
        return [action for _, actions, _ in parts for action in actions] or None

    _, after = log.commit(snapshot, "compact", plan, begin=begin)
    return skipped, after


def _replace(state: PartitionState, cleaned: CleanedRange) -> tuple[list[Action], int]:
    """The actions for one partition, and how many groups are left out."""
    # what lies below the log start is not brought back, and need not be clean
    groups = [one for one in cleaned.groups if one.next_offset > state.log_start_offset]
    live = state.segments.live({segment.stem for group in groups for segment in group.inputs})
    stale = [one for one in groups if not live.issuperset(segment.stem for segment in one.inputs)]
    # in a stale group the keys of the range were not looked for: it is dirty from there, if not from before
    clean = min([cleaned.end_offset, *(group.base_offset for group in stale)])
    dirty = max(clean, first_dirty_offset(state))
    # where nothing is clean, offsets that no segment holds would look like a loss
    gaps = [one for one in groups if not one.outputs and one.next_offset > dirty]
    # and a segment before it would say again that a transaction is open, of which the marker is gone
    markers = [one for one in groups if one.forgets_transactions and one.base_offset > dirty]
    left_out = {group.base_offset for group in (*stale, *gaps, *markers)}
    actions: list[Action] = []
    for group in groups:
        if group.changed and group.base_offset not in left_out:
            actions += [Remove(group.partition, segment.stem) for segment in group.inputs]
            actions += [Add(segment) for segment in group.outputs]
    if clean > first_dirty_offset(state):
        actions.append(Cleaned(cleaned.partition, clean))
    return actions, len(left_out)


def _describe(
    due: Cleanable, before: Snapshot, after: Snapshot, rounds: Sequence[CleanedRange], skipped: int
) -> PartitionCompaction:
    end = due.first_uncleanable_offset
    old, new = _totals(before.partitions[due.partition], end), _totals(after.partitions[due.partition], end)
    return PartitionCompaction(
        partition=due.partition,
        end_offset=end,
        segments_before=old[0],
        segments_after=new[0],
        bytes_before=old[1],
        bytes_after=new[1],
        records_before=old[2],
        records_after=new[2],
        rounds=len(rounds),
        unkeyed_records=sum(group.unkeyed for one in rounds for group in one.groups),
        skipped_groups=skipped,
    )


def _totals(state: PartitionState, end_offset: int) -> tuple[int, int, int]:
    table = state.segments
    below = table.base_offsets < end_offset
    return int(below.sum()), int(table.log_bytes[below].sum()), int(table.record_counts[below].sum())
