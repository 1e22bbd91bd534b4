"""Delete files that nothing refers to."""

import argparse
import sys
from collections.abc import Sequence

from distlog.core.maintain.vacuum import VacuumReport, vacuum
from distlog.core.segments.topic_handle import topic_log
from distlog.core.storage.storage import Storage
from distlog.jobs.maintenance import maintenance_parser, run_maintenance


def vacuum_topic(url: str, options: argparse.Namespace) -> VacuumReport:
    """Delete files that nothing refers to, also of a dropped topic."""
    storage = Storage(url, dict(options.storage))
    return vacuum(storage, topic_log(storage), dry_run=options.dry_run)


parser = maintenance_parser(__file__, __doc__)


def main(argv: Sequence[str] | None = None) -> int:
    return run_maintenance(parser, vacuum_topic, argv)


if __name__ == "__main__":
    sys.exit(main())
