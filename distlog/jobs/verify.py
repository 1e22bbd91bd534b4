"""Check every checksum, record, index and commit."""

import argparse
import sys
from functools import partial

from distlog.core.maintain.verify import VerifyReport
from distlog.jobs.job import job_session
from distlog.jobs.maintenance import maintenance_parser, run_maintenance
from distlog.spark.frames import verify


def verify_topic(url: str, options: argparse.Namespace) -> VerifyReport:
    return verify(job_session("verify"), url, storage_options=dict(options.storage))


parser = maintenance_parser(__file__, __doc__, read_only=True)
main = partial(run_maintenance, parser, verify_topic)

if __name__ == "__main__":
    sys.exit(main())
