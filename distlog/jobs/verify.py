"""Check every checksum, record, index and commit."""

import sys
from functools import partial

from distlog.spark.jobs.maintenance_job import maintenance_parser, run_maintenance, verify_topic

parser = maintenance_parser(__doc__, read_only=True)

main = partial(run_maintenance, parser, verify_topic)

if __name__ == "__main__":
    sys.exit(main())
