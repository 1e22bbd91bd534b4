"""The job that appends files to a topic; `distlog.jobs.append` is its command line."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from distlog.console.report import Summary
from distlog.core.display.units import counted
from distlog.core.errors import InvalidConfigError
from distlog.core.topics.appending.append_commit import AppendResult
from distlog.core.topics.appending.retention_warning import expiry_text
from distlog.core.topics.open_topic import open as open_topic
from distlog.core.topics.open_topic import open_or_create
from distlog.spark.frame_write import append_to
from distlog.spark.jobs.job_inputs import BAD, Input


def append_files(spark: SparkSession, chosen: argparse.Namespace) -> Summary:
    """Append the files that the arguments name, all in one commit. With --create, create the topic first."""
    started = time.monotonic()
    if (chosen.app_id is None) != (chosen.batch_id is None):
        raise InvalidConfigError("give --app-id and --batch-id together: one alone prevents no duplicates")
    storage = dict(chosen.storage)
    created = open_or_create(chosen.topic, chosen.partitions, dict(chosen.config), storage) if chosen.create else None
    source = Input(
        paths=chosen.input,
        format=chosen.format,
        key=chosen.key,
        value=chosen.value,
        timestamp=chosen.timestamp,
        pattern=chosen.pattern,
        time_format=chosen.time_format,
    )
    checked = check_lines(source.rows(spark), skip=chosen.bad_lines == "skip")
    topic = created or open_topic(chosen.topic, storage_options=storage)
    result = append_to(
        topic,
        checked.rows,
        shuffle=chosen.shuffle,
        storage_options=storage,
        app_id=chosen.app_id,
        batch_id=chosen.batch_id,
        compression=chosen.compression,
    )
    return _summary(chosen.topic, topic.config.retention_ms, result, checked.skipped(), time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class Checked:
    """Rows without bad lines. `seen` counts the bad lines, and is known once the rows have been read."""

    rows: DataFrame
    seen: Observation | None

    def skipped(self) -> int:
        """How many bad lines were left out."""
        return 0 if self.seen is None else int(self.seen.get["skipped"] or 0)


def check_lines(rows: DataFrame, *, skip: bool) -> Checked:
    """Leave bad lines out and count them, or fail the job at the first one with the line in the message."""
    bad = F.col(BAD)
    if skip:
        seen = Observation("lines")
        watched = rows.observe(seen, F.count_if(bad.isNotNull()).alias("skipped"))
        return Checked(watched.where(bad.isNull()).drop(BAD), seen)
    value = F.when(bad.isNotNull(), F.raise_error(F.concat(bad, F.lit(" (--bad-lines skip leaves such lines out)"))))
    return Checked(rows.withColumn("value", value.otherwise(F.col("value"))).drop(BAD), None)


def _summary(url: str, retention_ms: int, result: AppendResult, skipped: int, seconds: float) -> Summary:
    records = result.record_count
    facts: dict[str, Any] = {
        "topic": url,
        "version": result.version,
        "records": records,
        "offsets": {str(partition): list(span) for partition, span in sorted(result.offsets.items())},
        "replayed": result.replayed,
        "skipped": skipped,
        "expired": result.expired,
        "seconds": round(seconds, 3),
    }
    verb = "had appended" if result.replayed else "appended"
    lines = [f"{verb} {counted(records, 'record')} to {url} as version {result.version} in {seconds:.1f} s"]
    lines += [
        f"partition {number}: offsets {first} to {end}" for number, (first, end) in sorted(result.offsets.items())
    ]
    if skipped:
        lines.append(f"left out {counted(skipped, 'bad line')}")
    if result.expired:
        lines.append(expiry_text(result.expired, retention_ms))
    return Summary("\n".join(lines), facts)
