"""Keep the last record of each key, or merge small segments: spark-submit jobs/compact.py --topic URL."""

import sys

from distlog.spark.jobs.maintenance_job import compact_topic, compaction_parser, run_maintenance

parser = compaction_parser(__doc__)

if __name__ == "__main__":
    sys.exit(run_maintenance(parser, compact_topic))
