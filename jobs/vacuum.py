"""Delete the files that no reader or writer can need: python jobs/vacuum.py --root URL."""

import sys

from distlog.spark.jobs.maintenance_job import maintenance_parser, run_maintenance, vacuum_topic

parser = maintenance_parser(__doc__)

if __name__ == "__main__":
    sys.exit(run_maintenance(parser, vacuum_topic))
