"""Compacts the partitions of all topics, the dirtiest first (Kafka's `LogCleaner`), and merges small segments.

A partition that cannot be cleaned is put aside for a while. Kafka puts it aside until the broker is started again.
Each root has a cleaner, so the dirtiest partition of all is never behind one that a slow root holds up.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from distlog.core.log_manager.log_directory import LogDirectory
from distlog.core.log_manager.task_run import TaskRun
from distlog.core.maintenance.compaction.cleanable import plan_compaction
from distlog.core.maintenance.compaction.compact import compact
from distlog.core.maintenance.compaction.report import CompactionReport
from distlog.core.maintenance.merging.merge import merge
from distlog.core.maintenance.merging.merge_plan import plan_merge
from distlog.core.maintenance.merging.merge_report import MergeReport
from distlog.core.topics.topic import Topic


class _DirtyLog(NamedTuple):
    """A partition that is due, with the name of its topic's folder."""

    dirty_ratio: float
    name: str
    topic: Topic
    partition: int


class _PutAside(NamedTuple):
    """Until when a partition is not cleaned, and why."""

    until_ms: int
    error: str


class LogCleaner:
    """The cleaner of one root. A partition that fails is left alone for `retry_ms`."""

    def __init__(self, directory: LogDirectory, retry_ms: int) -> None:
        self._directory, self._retry_ms = directory, retry_ms
        # by the topic's URL and the partition
        self._put_aside: dict[tuple[str, int], _PutAside] = {}

    def clean_logs(self, run: TaskRun) -> None:
        """`log-cleaner`: compact what is due by `min.cleanable.dirty.ratio` or `max.compaction.lag.ms`.

        It looks again as long as it finds something to clean.
        """
        self._forget_put_aside()
        while self._clean_pass(run) and not self._directory.is_stopping():
            pass
        for (url, _), one in sorted(self._put_aside.items(), reverse=True):
            known = run.errors.get(url)
            run.errors[url] = one.error if known in (None, one.error) else f"{one.error}; {known}"

    def merge_segments(self, run: TaskRun) -> None:
        """`segment-merge`: make large segments of small ones, in topics that are not compacted."""

        def merge_small(topic: Topic) -> None:
            if plan_merge(topic.refresh().snapshot):
                report, after = merge(topic.handle, topic.snapshot)
                topic.advance(after)
                _note_merged(run, topic, report)

        self._directory.each_topic(run, merge_small)

    def _clean_pass(self, run: TaskRun) -> bool:
        """Clean each partition that is due, once; returns whether any of them is cleaner than before."""
        cleaned = False
        for log in self._filthiest_first(run):
            if self._directory.is_stopping():
                break
            cleaned |= self._clean(run, log)
        return cleaned

    def _filthiest_first(self, run: TaskRun) -> list[_DirtyLog]:
        due: list[_DirtyLog] = []

        def look(name: str, topic: Topic) -> None:
            dirty = plan_compaction(topic.refresh().snapshot, self._directory.clock())
            due.extend(
                _DirtyLog(one.dirty_ratio, name, topic, one.partition)
                for one in dirty
                if (topic.url, one.partition) not in self._put_aside
            )

        for name, topic in self._compacted().items():
            self._directory.attempt(run, name, topic, partial(look, name))
        return sorted(due, key=lambda log: -log.dirty_ratio)

    def _clean(self, run: TaskRun, log: _DirtyLog) -> bool:
        """Clean one partition; returns whether it is cleaner than before. One that fails is put aside."""
        cleaned, own = list[bool](), TaskRun(run.task, run.root, run.started_ms)

        def clean(topic: Topic) -> None:
            report, after = compact(topic.handle, topic.snapshot, partitions=[log.partition])
            topic.advance(after)
            cleaned.append(_note_cleaned(own, topic, report))

        self._directory.attempt(own, log.name, log.topic, clean)
        run.done += own.done
        for error in own.errors.values():
            until_ms = self._directory.clock() + self._retry_ms
            self._put_aside[log.topic.url, log.partition] = _PutAside(until_ms, error)
        return any(cleaned)

    def _compacted(self) -> dict[str, Topic]:
        topics = self._directory.topics
        return {name: topic for name, topic in topics.items() if "compact" in topic.config.cleanup_policy}

    def _forget_put_aside(self) -> None:
        """Forget the partitions whose time is over, and those that are to be cleaned no more."""
        urls, now_ms = {topic.url for topic in self._compacted().values()}, self._directory.clock()
        self._put_aside = {
            log: one for log, one in self._put_aside.items() if log[0] in urls and now_ms < one.until_ms
        }


def _note_cleaned(run: TaskRun, topic: Topic, report: CompactionReport) -> bool:
    """Count what the report says; returns whether a partition was cleaned."""
    for failed in report.partitions:
        if failed.error is not None:
            run.failed(topic.url, f"cannot clean partition {failed.partition}: {failed.error}")
    facts, cleaned = report.to_dict(), [one for one in report.partitions if one.rounds and one.error is None]
    run.add(cleaned_partitions=len(cleaned))
    run.add(deleted_records=facts["records_before"] - facts["records_after"])
    run.add(cleaned_bytes=sum(one.bytes_before for one in cleaned))
    run.add(freed_bytes=facts["bytes_before"] - facts["bytes_after"])
    return bool(cleaned)


def _note_merged(run: TaskRun, topic: Topic, report: MergeReport) -> None:
    if not report.ok:
        run.failed(topic.url, str(report))
    facts = report.to_dict()
    run.add(merged_segments=facts["segments_before"], segments_made=facts["segments_after"])
    run.add(merged_bytes=facts["bytes"])
