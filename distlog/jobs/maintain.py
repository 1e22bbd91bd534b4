"""Run retention, compaction and vacuum, in this order."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from distlog.console.output import Report
from distlog.core.errors import TopicNotFoundError
from distlog.jobs.compact import compact_topic
from distlog.jobs.maintenance import compaction_parser, run_maintenance
from distlog.jobs.retention import retain
from distlog.jobs.vacuum import vacuum_topic


@dataclass(frozen=True, slots=True)
class MaintenanceReports:
    """The reports of the operations on a topic, by the operation's name, in the order in which they ran."""

    reports: Mapping[str, Report]

    def __str__(self) -> str:
        return "; ".join(str(report) for report in self.reports.values())

    def to_dict(self) -> dict[str, Any]:
        """The facts of each operation, by its name, and whether all of them went well."""
        facts = {name: report.to_dict() for name, report in self.reports.items()}
        return {**facts, "ok": all(each.get("ok", True) for each in facts.values())}


def maintain_topic(url: str, chosen: argparse.Namespace) -> MaintenanceReports:
    """Do all maintenance that a topic's config asks for.

    Retention comes first, so that no segment is compacted that retention deletes. Vacuum comes last, and deletes the
    files of segments that were removed more than `file.delete.delay.ms` ago. A dropped topic is only vacuumed.
    """
    try:
        done: dict[str, Report] = {"retention": retain(url, chosen), "compact": compact_topic(url, chosen)}
    except TopicNotFoundError:
        done = {}
    return MaintenanceReports({**done, "vacuum": vacuum_topic(url, chosen)})


parser = compaction_parser(__file__, __doc__)
main = partial(run_maintenance, parser, maintain_topic)

if __name__ == "__main__":
    sys.exit(main())
