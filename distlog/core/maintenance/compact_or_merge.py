"""What `compact` means for a topic: the last record of each key, or, where it is not compacted, larger segments."""

from __future__ import annotations

from collections.abc import Callable

from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.maintenance.compaction.compact import compact
from distlog.core.maintenance.compaction.report import CompactionReport
from distlog.core.maintenance.merge import merge
from distlog.core.maintenance.reports import MergeReport
from distlog.core.reading.segment_reader import SegmentReader

CompactReport = CompactionReport | MergeReport


def compact_or_merge(
    reader: SegmentReader, log: CommitLog, snapshot: Snapshot, clock: Callable[[], int], *, dry_run: bool = False
) -> tuple[CompactReport, Snapshot]:
    """Compact, or where `cleanup.policy` has no compact, merge small segments; what was done, and the new state.

    Errors are those of `compact` and `merge`.
    """
    snapshot = log.refresh(snapshot)
    if "compact" in snapshot.config.cleanup_policy:
        return compact(reader, log, snapshot, clock, dry_run=dry_run)
    return merge(reader, log, snapshot, clock, dry_run=dry_run)
