"""Keep the last record of each key, or merge small segments: spark-submit jobs/compact.py --topic URL."""

import sys

from distlog.jobs.maintenance import compact

if __name__ == "__main__":
    sys.exit(compact.main())
