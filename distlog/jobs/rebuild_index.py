"""Rebuild bad and missing index files from the logs."""

import sys
from functools import partial

from distlog.spark.jobs.maintenance_job import maintenance_parser, rebuild_topic, run_maintenance

parser = maintenance_parser(__doc__)
parser.add_argument(
    "--force",
    action="store_true",
    help="also rebuild good indexes that the topic's present settings would make differently",
)

main = partial(run_maintenance, parser, rebuild_topic)

if __name__ == "__main__":
    sys.exit(main())
