"""Delete old segments, by each topic's retention.ms and retention.bytes: python jobs/retention.py --root URL."""

import sys

from distlog.jobs.retention import main

if __name__ == "__main__":
    sys.exit(main())
