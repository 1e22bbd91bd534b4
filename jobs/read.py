"""Read a topic to the console, Parquet or JSON: spark-submit jobs/read.py --topic URL."""

import sys

from distlog.jobs.read import main

if __name__ == "__main__":
    sys.exit(main())
