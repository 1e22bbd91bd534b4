"""Rebuild bad and missing index files from the logs: spark-submit jobs/rebuild_index.py --topic URL."""

import sys

from distlog.jobs.rebuild_index import main

if __name__ == "__main__":
    sys.exit(main())
