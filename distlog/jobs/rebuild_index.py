"""Rebuild bad and missing indexes from the logs."""

import argparse
import sys
from functools import partial

from distlog.core.maintain.rebuild import RebuildReport
from distlog.jobs.job import job_session
from distlog.jobs.maintenance import maintenance_parser, run_maintenance
from distlog.spark.frames import rebuild_indexes


def rebuild_topic(url: str, options: argparse.Namespace) -> RebuildReport:
    return rebuild_indexes(
        job_session("rebuild_index"),
        url,
        force=options.force,
        dry_run=options.dry_run,
        storage_options=dict(options.storage),
    )


parser = maintenance_parser(__file__, __doc__)
parser.add_argument(
    "--force",
    action="store_true",
    help="also rebuild valid indexes that differ from the topic's current settings",
)
main = partial(run_maintenance, parser, rebuild_topic)

if __name__ == "__main__":
    sys.exit(main())
