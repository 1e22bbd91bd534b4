"""Keep the last record of each key, or merge small segments: spark-submit jobs/compact.py --topic URL."""

import sys

from distlog.jobs.compact import main

if __name__ == "__main__":
    sys.exit(main())
