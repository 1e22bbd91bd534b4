"""Check every checksum, record, index and commit: spark-submit jobs/verify.py --topic URL."""

import sys

from distlog.jobs.maintenance import verify

if __name__ == "__main__":
    sys.exit(verify.main())
