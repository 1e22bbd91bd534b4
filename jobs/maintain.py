"""Run retention, compaction and vacuum, in this order: spark-submit jobs/maintain.py --root URL."""

import sys

from distlog.spark.jobs.maintenance_job import compaction_parser, maintain_topic, run_maintenance

parser = compaction_parser(__doc__)

if __name__ == "__main__":
    sys.exit(run_maintenance(parser, maintain_topic))
