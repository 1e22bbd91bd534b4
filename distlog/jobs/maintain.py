"""Run retention, compaction and vacuum, in this order."""

import sys
from functools import partial

from distlog.spark.jobs.maintenance_job import compaction_parser, maintain_topic, run_maintenance

parser = compaction_parser(__doc__)

main = partial(run_maintenance, parser, maintain_topic)

if __name__ == "__main__":
    sys.exit(main())
