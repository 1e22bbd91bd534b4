"""Delete the files that no reader or writer can need: python jobs/vacuum.py --root URL."""

import sys

from distlog.jobs.maintenance import vacuum_files

if __name__ == "__main__":
    sys.exit(vacuum_files.main())
