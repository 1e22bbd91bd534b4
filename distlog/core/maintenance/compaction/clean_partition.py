"""Does one round of compaction over one partition, in one process (Kafka's `Cleaner`). Commits nothing."""

from __future__ import annotations

from dataclasses import dataclass

from distlog.core.maintenance.compaction.batch_verdicts import judge
from distlog.core.maintenance.compaction.cleaning_plan import CleaningPlan
from distlog.core.maintenance.compaction.group_rewrite import RewrittenGroup, rewrite_group
from distlog.core.maintenance.compaction.key_hash import SECRET_BYTES
from distlog.core.maintenance.compaction.offset_map import OffsetMap
from distlog.core.maintenance.compaction.record_keys import build_map
from distlog.core.maintenance.compaction.survivors import MapSurvivors
from distlog.core.topic_handle import TopicHandle

#: Kafka's log.cleaner.dedupe.buffer.size: memory for the keys of one round, 24 bytes each.
DEDUPE_BUFFER_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class CleanedRange:
    """The result of a round over a partition: the keys of [start_offset, end_offset) were looked for in `groups`."""

    partition: int
    start_offset: int
    end_offset: int
    groups: tuple[RewrittenGroup, ...]


def clean_partition(
    handle: TopicHandle, plan: CleaningPlan, dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
) -> CleanedRange:
    """Do what `plan` says, up to the offset at which the memory for keys is full.

    Raises CorruptRecordError, and InvalidConfigError if there is no memory for a single key.
    """
    # a clock that is ahead would drop tombstones before their time
    now_ms = handle.trusted_ms()
    verdicts = judge(handle.reader, plan.segments, now_ms)
    keys = OffsetMap.within(dedupe_buffer_bytes, plan.dirty_records)
    secret = handle.random.randbytes(SECRET_BYTES)
    build_map(handle.reader, plan.dirty, plan.start_offset, plan.end_offset, verdicts, keys, secret)
    survivors, end = MapSurvivors(keys, secret), keys.latest_offset + 1
    groups = (rewrite_group(handle, group, survivors) for group in plan.groups(verdicts, now_ms, end))
    return CleanedRange(plan.partition, plan.start_offset, end, tuple(groups))
