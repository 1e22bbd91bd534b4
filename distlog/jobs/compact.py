"""Keep the last record of each key, or merge small segments."""

import sys
from functools import partial

from distlog.spark.jobs.maintenance_job import compact_topic, compaction_parser, run_maintenance

parser = compaction_parser(__doc__)

main = partial(run_maintenance, parser, compact_topic)

if __name__ == "__main__":
    sys.exit(main())
