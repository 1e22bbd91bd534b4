"""Delete the files that no reader or writer can need: python jobs/vacuum.py --root URL."""

import sys

from distlog.jobs.vacuum import main

if __name__ == "__main__":
    sys.exit(main())
