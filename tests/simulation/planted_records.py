"""Known bugs of what readers get: compaction, retention, old versions, times, and transactions."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

from distlog.core import topic as topics
from distlog.core.commits import snapshot_loader
from distlog.core.commits.snapshot import commits_kept_ms
from distlog.core.maintain import compaction, retention
from distlog.core.read import lookup, scan
from distlog.gateway.topics import partition


def tombstones_go_at_once() -> Any:
    """A tombstone's horizon is zero when compaction first meets it."""
    real = compaction.BatchFilter

    def batch_filter(*arguments: Any) -> Any:
        return dataclasses.replace(real(*arguments), delete_retention_ms=0)

    return mock.patch.object(compaction, "BatchFilter", batch_filter)


def young_records_are_compacted() -> Any:
    """Compaction ignores `min.compaction.lag.ms`."""

    def end(state: Any, start: int, config: Any, now_ms: int, last_stable_offset: int) -> int:
        return min(last_stable_offset, state.log_end_offset)

    return mock.patch.object(compaction, "_first_uncleanable_offset", end)


def retention_takes_too_much() -> Any:
    """Retention by size deletes until the log is smaller than `retention.bytes`."""
    real = retention._ends

    def ends(columns: Any, starts: Any, config: Any, now_ms: int) -> Any:
        less = max(config.retention_bytes - 100, 0) if config.retention_bytes >= 0 else -1
        return real(columns, starts, dataclasses.replace(config, retention_bytes=less), now_ms)

    return mock.patch.object(retention, "_ends", ends)


def a_time_opens_the_version_after() -> Any:
    """The version at a time is the first one after it."""
    real = snapshot_loader.SnapshotLoader.load_at

    def load_at(self: Any, timestamp_ms: int) -> Any:
        return real(self, timestamp_ms + 3_000)

    return mock.patch.object(snapshot_loader.SnapshotLoader, "load_at", load_at)


def a_time_is_passed_over() -> Any:
    """A search for a time starts after that time."""
    real = lookup.offset_for_time

    def offset_for_time(reader: Any, state: Any, timestamp_ms: int) -> Any:
        return real(reader, state, timestamp_ms + 1 if timestamp_ms > 0 else timestamp_ms)

    return mock.patch.object(lookup, "offset_for_time", offset_for_time)


def undecided_records_are_shown() -> Any:
    """Readers of committed records get records of open transactions."""

    def end(reader: Any, state: Any) -> int:
        return int(state.log_end_offset)

    return mock.patch.multiple(scan, last_stable_offset=end)


def aborted_records_are_fetched() -> Any:
    """A fetch names no aborted transaction."""
    real = partition.Partition.fetch

    def fetch(*arguments: Any, **named: Any) -> Any:
        return real(*arguments, **named)._replace(aborted=())

    return mock.patch.object(partition.Partition, "fetch", fetch)


def settings_begin_at_once() -> Any:
    """A lowered `commit.retention.ms` applies to earlier commits."""
    return mock.patch.object(topics.Snapshot, "commits_kept_ms", property(lambda self: commits_kept_ms(self.config)))
