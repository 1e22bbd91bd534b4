"""Add the new records of a topic to a Parquet table, each record once: spark-submit jobs/to_table.py --topic URL."""

import sys

from distlog.jobs.to_table import main

if __name__ == "__main__":
    sys.exit(main())
