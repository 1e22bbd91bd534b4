"""Delete segments past retention.ms or retention.bytes."""

import argparse
import sys
from collections.abc import Sequence

from distlog.core.maintain.retention import RetentionReport
from distlog.core.opening import open as open_topic
from distlog.jobs.maintenance import maintenance_parser, run_maintenance


def retain(url: str, options: argparse.Namespace) -> RetentionReport:
    return open_topic(url, storage_options=dict(options.storage)).retention(dry_run=options.dry_run)


parser = maintenance_parser(__file__, __doc__)


def main(argv: Sequence[str] | None = None) -> int:
    return run_maintenance(parser, retain, argv)


if __name__ == "__main__":
    sys.exit(main())
