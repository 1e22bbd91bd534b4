"""Delete old segments, by each topic's retention.ms and retention.bytes."""

import sys
from functools import partial

from distlog.spark.jobs.maintenance_job import maintenance_parser, retain, run_maintenance

parser = maintenance_parser(__doc__)

main = partial(run_maintenance, parser, retain)

if __name__ == "__main__":
    sys.exit(main())
