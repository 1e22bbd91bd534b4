"""What `compact` does: a compacted topic keeps the last record of each key, any other topic gets larger segments."""

from __future__ import annotations

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.maintenance.compaction.compact import Clean, compact
from distlog.core.maintenance.compaction.report import CompactionReport
from distlog.core.maintenance.merging.merge import merge
from distlog.core.maintenance.merging.merge_report import MergeReport
from distlog.core.maintenance.run import Run
from distlog.core.topic_handle import TopicHandle

CompactReport = CompactionReport | MergeReport


def compact_or_merge(
    handle: TopicHandle,
    snapshot: Snapshot,
    run: Run | None = None,
    clean: Clean | None = None,
    *,
    dry_run: bool = False,
) -> tuple[CompactReport, Snapshot]:
    """Compact the topic, or merge small segments if `cleanup.policy` has no compact.

    Returns the report and the new state. `clean` is for `compact`, `run` for `merge`; raises what these two raise.
    """
    snapshot = handle.log.refresh(snapshot)
    if "compact" in snapshot.config.cleanup_policy:
        return compact(handle, snapshot, clean, dry_run=dry_run)
    return merge(handle, snapshot, run, dry_run=dry_run)
