"""Rebuild bad and missing indexes from the logs."""

import argparse
import sys
from collections.abc import Sequence

from distlog.core.maintain.repair import RebuildReport
from distlog.core.opening import open as open_topic
from distlog.jobs.job import job_session
from distlog.jobs.maintenance import maintenance_parser, run_maintenance
from distlog.spark.executor import SparkExecutor


def rebuild_topic(url: str, options: argparse.Namespace) -> RebuildReport:
    topic = open_topic(url, storage_options=dict(options.storage))
    executor = SparkExecutor(job_session("rebuild_index"))
    return topic.rebuild_indexes(force=options.force, dry_run=options.dry_run, executor=executor)


parser = maintenance_parser(__file__, __doc__)
parser.add_argument(
    "--force",
    action="store_true",
    help="also rebuild valid indexes that differ from the topic's current settings",
)


def main(argv: Sequence[str] | None = None) -> int:
    return run_maintenance(parser, rebuild_topic, argv)


if __name__ == "__main__":
    sys.exit(main())
