"""A simulated week of an append a second over many partitions, with merges on a schedule: do the plans keep up?

The planner and the tables are the real ones; only the files are not there. All partitions get the same, so one stands
for all of them. `merging` does the same for real, for minutes, and its first plans are these.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from pathlib import Path

from distlog.core import paths
from distlog.core.commits.segment_info import OWN_FILE, SegmentInfo
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.commits.transaction_table import NO_TRANSACTIONS
from distlog.core.config import TopicConfig
from distlog.core.maintenance.group_rewrite import SegmentGroup
from distlog.core.maintenance.merge_plan import plan_merge
from soak.tally import Tally, demand

#: What an append puts into a partition, and how often `maintain` runs.
PART_BYTES, RECORDS, EVERY_S = 5_000, 50, 60
#: Live segments that a partition may have: those since the last run, and a few of each size.
MOST_SEGMENTS = EVERY_S + 40

DAY_S = 86_400
#: How often a plan is measured.
PLANS = 100


def run(folder: Path, seed: int, *, seconds: int = 7 * DAY_S, every_s: int = EVERY_S) -> Tally:
    """Append every second, merge every `every_s`; raises Violation if the segments of a partition become many."""
    tally, state, base = Tally(), PartitionState(), 0
    for second in range(0, seconds, every_s):
        appended = [_part(base + RECORDS * number, second + number) for number in range(every_s)]
        base += RECORDS * every_s
        table = state.segments.appended(appended)
        state = PartitionState(log_end_offset=base, segments=table)
        tally["segments at most"] = max(tally["segments at most"], len(table))
        demand(len(table) <= every_s + MOST_SEGMENTS - EVERY_S, f"{len(table)} segments after {second} s")
        groups = plan_merge(_snapshot(state))
        state = PartitionState(log_end_offset=base, segments=_merged(state.segments, groups))
        tally["merges"] += len(groups)
        tally["bytes copied"] += sum(group.log_bytes for group in groups)
        tally["segments read"] += sum(len(group.segments) for group in groups)
    tally["appends"] += seconds
    tally["bytes appended"] += seconds * PART_BYTES
    demand(int(state.segments.log_bytes.sum()) == seconds * PART_BYTES, "bytes were lost")
    tally["segments at the end"] += len(state.segments)
    tally["microseconds to plan at the end"] += _plan_us(state, base, seconds)
    return tally


def _plan_us(state: PartitionState, base: int, seconds: int) -> int:
    """How long a plan takes at the end, for one partition with as much to merge as at any time."""
    appended = [_part(base + RECORDS * number, seconds + number) for number in range(EVERY_S)]
    table = state.segments.appended(appended)
    full = _snapshot(PartitionState(log_end_offset=base + RECORDS * EVERY_S, segments=table))
    begin = time.thread_time()
    for _ in range(PLANS):
        demand(bool(plan_merge(full)), "nothing to merge")
    return int((time.thread_time() - begin) / PLANS * 1e6)


def _part(base_offset: int, second: int) -> SegmentInfo:
    """The part of a bundle that an append makes."""
    time_ms = 1_700_000_000_000 + 1000 * second
    return SegmentInfo(
        partition=0,
        stem=paths.new_stem(second, uuid.UUID(int=second + 1).hex),
        base_offset=base_offset,
        next_offset=base_offset + RECORDS,
        stored_base_offset=0,
        record_count=RECORDS,
        log_bytes=PART_BYTES,
        offset_index_bytes=0,
        time_index_bytes=12,
        txn_index_bytes=0,
        first_timestamp=time_ms,
        max_timestamp=time_ms + 999,
        offset_of_max_timestamp=base_offset,
        compression="none",
        created_ms=time_ms + 999,
        crc32c=0,
        min_timestamp=time_ms,
        log_position=0,
        time_index_position=PART_BYTES,
    )


def _merged(table: SegmentTable, groups: list[SegmentGroup]) -> SegmentTable:
    """The table with a segment of its own files in the place of each group."""
    gone = {stem for group in groups for stem in group.stems}
    made = []
    for group in groups:
        first, last = group.segments[0], group.segments[-1]
        made.append(
            dataclasses.replace(
                first,
                stem=paths.new_stem(0, uuid.uuid4().hex),
                next_offset=last.next_offset,
                record_count=group.records,
                log_bytes=group.log_bytes,
                max_timestamp=last.max_timestamp,
                created_ms=last.created_ms,
                log_position=OWN_FILE,
                time_index_position=OWN_FILE,
            )
        )
    return table.replaced(gone, made) if groups else table


def _snapshot(state: PartitionState) -> Snapshot:
    return Snapshot(
        version=1,
        commit_id=str(uuid.UUID(int=1)),
        topic_id=str(uuid.UUID(int=2)),
        name="t",
        timestamp_ms=0,
        config=TopicConfig(),
        partitions=(state,),
        transactions=NO_TRANSACTIONS,
        pins={},
    )
