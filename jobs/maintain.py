"""Run retention, compaction and vacuum, in this order: spark-submit jobs/maintain.py --root URL."""

import sys

from distlog.jobs.maintain import main

if __name__ == "__main__":
    sys.exit(main())
