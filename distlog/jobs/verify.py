"""Check every checksum, record, index and commit."""

import argparse
import sys
from collections.abc import Sequence

from distlog.core.maintain.verify import VerifyReport
from distlog.core.opening import open as open_topic
from distlog.jobs.job import job_session
from distlog.jobs.maintenance import maintenance_parser, run_maintenance
from distlog.spark.executor import SparkExecutor


def verify_topic(url: str, options: argparse.Namespace) -> VerifyReport:
    topic = open_topic(url, storage_options=dict(options.storage))
    return topic.verify(executor=SparkExecutor(job_session("verify")))


parser = maintenance_parser(__file__, __doc__, read_only=True)


def main(argv: Sequence[str] | None = None) -> int:
    return run_maintenance(parser, verify_topic, argv)


if __name__ == "__main__":
    sys.exit(main())
