"""Check every checksum, record, index and commit: spark-submit jobs/verify.py --topic URL."""

import sys

from distlog.spark.jobs.maintenance_job import maintenance_parser, run_maintenance, verify_topic

parser = maintenance_parser(__doc__, read_only=True)

if __name__ == "__main__":
    sys.exit(run_maintenance(parser, verify_topic))
