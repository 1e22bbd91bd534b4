"""Delete old segments, by each topic's retention.ms and retention.bytes: python jobs/retention.py --root URL."""

import sys

from distlog.jobs.maintenance import retention

if __name__ == "__main__":
    sys.exit(retention.main())
