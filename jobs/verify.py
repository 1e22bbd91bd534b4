"""Check every checksum, record, index and commit: spark-submit jobs/verify.py --topic URL."""

import sys

from distlog.jobs.verify import main

if __name__ == "__main__":
    sys.exit(main())
