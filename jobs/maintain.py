"""Do all that the topics' settings ask for, in the right order: spark-submit jobs/maintain.py --root URL."""

import sys

from distlog.spark.maintenance_job import maintain_topic, maintenance_parser, run_maintenance

parser = maintenance_parser(__doc__)

if __name__ == "__main__":
    sys.exit(run_maintenance(parser, maintain_topic))
