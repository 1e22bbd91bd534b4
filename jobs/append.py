"""Append files to a topic: spark-submit jobs/append.py --input FILE --topic URL."""

import sys

from distlog.jobs.append import main

if __name__ == "__main__":
    sys.exit(main())
