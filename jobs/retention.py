"""Delete old segments, by each topic's retention.ms and retention.bytes: python jobs/retention.py --root URL."""

import sys

from distlog.spark.jobs.maintenance_job import maintenance_parser, retain, run_maintenance

parser = maintenance_parser(__doc__)

if __name__ == "__main__":
    sys.exit(run_maintenance(parser, retain))
