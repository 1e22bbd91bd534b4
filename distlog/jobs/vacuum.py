"""Delete the files that no reader or writer can need."""

import sys
from functools import partial

from distlog.spark.jobs.maintenance_job import maintenance_parser, run_maintenance, vacuum_topic

parser = maintenance_parser(__doc__)

main = partial(run_maintenance, parser, vacuum_topic)

if __name__ == "__main__":
    sys.exit(main())
