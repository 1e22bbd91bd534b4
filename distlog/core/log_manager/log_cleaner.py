"""Compacts topics, the one with the dirtiest partition first (Kafka's `LogCleaner`), and merges small segments.

A topic that cannot be cleaned is put aside for a while. Kafka puts it aside until the broker is started again.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from distlog.core.log_manager.log_directory import LogDirectory
from distlog.core.log_manager.task_run import TaskRun
from distlog.core.maintenance.compact_or_merge import CompactReport
from distlog.core.maintenance.compaction.cleanable import plan_compaction
from distlog.core.maintenance.compaction.report import CompactionReport
from distlog.core.maintenance.merge_plan import plan_merge
from distlog.core.topics.topic import Topic


class _PutAside(NamedTuple):
    """Until when a topic is not cleaned, and why."""

    until_ms: int
    error: str


class LogCleaner:
    """The cleaner of one root. A topic that fails is left alone for `retry_ms`."""

    def __init__(self, directory: LogDirectory, retry_ms: int) -> None:
        self._directory, self._retry_ms = directory, retry_ms
        self._put_aside: dict[str, _PutAside] = {}

    def clean_logs(self, run: TaskRun) -> None:
        """`log-cleaner`: compact what is due by `min.cleanable.dirty.ratio` or `max.compaction.lag.ms`.

        It looks again as long as it finds something to clean.
        """
        self._forget_put_aside()
        while self._clean_pass(run) and not self._directory.is_stopping():
            pass
        run.errors.update({url: one.error for url, one in self._put_aside.items()})

    def merge_segments(self, run: TaskRun) -> None:
        """`segment-merge`: make large segments of small ones, in topics that are not compacted."""

        def merge(topic: Topic) -> None:
            if plan_merge(topic.refresh().snapshot):
                self._note(run, topic, topic.compact())

        self._directory.each_topic(run, merge)

    def _clean_pass(self, run: TaskRun) -> bool:
        """Clean each topic that is due, once; returns whether any of them is cleaner than before."""
        cleaned = False
        for name, topic in self._filthiest_first(run):
            if self._directory.is_stopping():
                break
            cleaned |= self._clean(run, name, topic)
        return cleaned

    def _filthiest_first(self, run: TaskRun) -> list[tuple[str, Topic]]:
        due: list[tuple[float, str, Topic]] = []

        def look(name: str, topic: Topic) -> None:
            dirty = plan_compaction(topic.refresh().snapshot, self._directory.clock())
            if dirty:
                due.append((dirty[0].dirty_ratio, name, topic))

        for name, topic in self._compacted().items():
            if topic.url not in self._put_aside:
                self._directory.attempt(run, name, topic, partial(look, name))
        return [(name, topic) for _, name, topic in sorted(due, key=lambda one: -one[0])]

    def _clean(self, run: TaskRun, name: str, topic: Topic) -> bool:
        cleaned: list[bool] = []

        def compact(topic: Topic) -> None:
            cleaned.append(self._note(run, topic, topic.compact()))

        self._directory.attempt(run, name, topic, compact)
        if topic.url in run.errors:
            self._put_aside[topic.url] = _PutAside(self._directory.clock() + self._retry_ms, run.errors[topic.url])
        return any(cleaned)

    def _compacted(self) -> dict[str, Topic]:
        topics = self._directory.topics
        return {name: topic for name, topic in topics.items() if "compact" in topic.config.cleanup_policy}

    def _forget_put_aside(self) -> None:
        """Forget the topics whose time is over, and those that are to be cleaned no more."""
        urls, now_ms = {topic.url for topic in self._compacted().values()}, self._directory.clock()
        self._put_aside = {url: one for url, one in self._put_aside.items() if url in urls and now_ms < one.until_ms}

    def _note(self, run: TaskRun, topic: Topic, report: CompactReport) -> bool:
        """Count what the report says; returns whether a partition was cleaned."""
        if not report.ok:
            run.failed(topic.url, str(report))
        facts = report.to_dict()
        if not isinstance(report, CompactionReport):
            before, after = facts["segments_before"], facts["segments_after"]
            run.add(merged_segments=before, segments_made=after, merged_bytes=facts["bytes"])
            return bool(before)
        cleaned = [one for one in report.partitions if one.rounds and one.error is None]
        run.add(cleaned_partitions=len(cleaned))
        run.add(deleted_records=facts["records_before"] - facts["records_after"])
        run.add(cleaned_bytes=sum(one.bytes_before for one in cleaned))
        run.add(freed_bytes=facts["bytes_before"] - facts["bytes_after"])
        return bool(cleaned)
