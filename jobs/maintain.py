"""Run retention, compaction and vacuum, in this order: spark-submit jobs/maintain.py --root URL."""

import sys

from distlog.jobs.maintenance import maintain

if __name__ == "__main__":
    sys.exit(maintain.main())
