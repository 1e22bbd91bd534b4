"""Keep the last record of each key, or merge small segments."""

import argparse
import sys
from functools import partial

from distlog.core.maintain.merge import CompactReport
from distlog.jobs.job import job_session
from distlog.jobs.maintenance import compaction_parser, run_maintenance
from distlog.spark.frames import compact


def compact_topic(url: str, options: argparse.Namespace) -> CompactReport:
    """Compact a topic, or merge its small segments, by Spark tasks."""
    return compact(
        job_session("compact"),
        url,
        dry_run=options.dry_run,
        dedupe_buffer_bytes=options.dedupe_buffer_size,
        memory=options.memory,
        storage_options=dict(options.storage),
    )


parser = compaction_parser(__file__, __doc__)
main = partial(run_maintenance, parser, compact_topic)

if __name__ == "__main__":
    sys.exit(main())
