"""Run retention, compaction and vacuum, in this order."""

import argparse
import sys
from collections.abc import Sequence

from distlog.console.output import Report, Summary
from distlog.core.errors import TopicNotFoundError
from distlog.jobs.compact import compact_topic
from distlog.jobs.maintenance import compaction_parser, run_maintenance
from distlog.jobs.retention import retain
from distlog.jobs.vacuum import vacuum_topic


def maintain_topic(url: str, options: argparse.Namespace) -> Summary:
    """Do all maintenance that a topic's config requires.

    Retention comes first, so that no segment is compacted that retention deletes. Vacuum comes last, and deletes the
    files of segments that were removed more than `file.delete.delay.ms` ago. A dropped topic is only vacuumed.
    """
    try:
        reports: dict[str, Report] = {"retention": retain(url, options), "compact": compact_topic(url, options)}
    except TopicNotFoundError:
        reports = {}
    reports["vacuum"] = vacuum_topic(url, options)
    fields = {name: report.to_dict() for name, report in reports.items()}
    is_ok = all(report.get("ok", True) for report in fields.values())
    return Summary("; ".join(map(str, reports.values())), {**fields, "ok": is_ok})


parser = compaction_parser(__file__, __doc__)


def main(argv: Sequence[str] | None = None) -> int:
    return run_maintenance(parser, maintain_topic, argv)


if __name__ == "__main__":
    sys.exit(main())
