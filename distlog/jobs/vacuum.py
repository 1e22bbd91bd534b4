"""Delete the files that no reader or writer can need."""

import argparse
import sys
from functools import partial

from distlog.core.maintenance.vacuum import VacuumReport, vacuum
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import topic_log
from distlog.jobs.maintenance import maintenance_parser, run_maintenance


def vacuum_topic(url: str, chosen: argparse.Namespace) -> VacuumReport:
    """Delete the files that no reader or writer can need, also of a dropped topic."""
    storage = Storage(url, dict(chosen.storage))
    return vacuum(storage, topic_log(storage), dry_run=chosen.dry_run)


parser = maintenance_parser(__file__, __doc__)
main = partial(run_maintenance, parser, vacuum_topic)

if __name__ == "__main__":
    sys.exit(main())
