"""Keep the last record of each key, or merge small segments."""

import argparse
import sys
from collections.abc import Sequence

from distlog.console.output import Report
from distlog.core.opening import open as open_topic
from distlog.jobs.job import job_session
from distlog.jobs.maintenance import compaction_parser, run_maintenance
from distlog.spark.executor import SparkExecutor


def compact_topic(url: str, options: argparse.Namespace) -> Report:
    """Compact a topic, or merge its small segments, by Spark tasks."""
    return open_topic(url, storage_options=dict(options.storage)).compact(
        dry_run=options.dry_run,
        executor=SparkExecutor(job_session("compact")),
        dedupe_buffer_bytes=options.dedupe_buffer_size,
        memory=options.memory,
    )


parser = compaction_parser(__file__, __doc__)


def main(argv: Sequence[str] | None = None) -> int:
    return run_maintenance(parser, compact_topic, argv)


if __name__ == "__main__":
    sys.exit(main())
