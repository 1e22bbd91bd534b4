"""Rebuild bad and missing index files from the logs: spark-submit jobs/rebuild_index.py --topic URL."""

import sys

from distlog.jobs.maintenance import rebuild_index

if __name__ == "__main__":
    sys.exit(rebuild_index.main())
