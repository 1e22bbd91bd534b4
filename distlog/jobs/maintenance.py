"""The jobs that maintain topics: retention, compaction, vacuum, all three, verify, and rebuilding of indexes.

Topics are maintained one after the other. A failure in one topic does not stop the next.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distlog.console.output import FAILED, SUCCESS, Report, Summary, print_failure, print_report, status_of
from distlog.core.display import counted
from distlog.core.errors import TopicNotFoundError
from distlog.core.maintain.compaction import DEDUPE_BUFFER_BYTES
from distlog.core.maintain.retention import RetentionReport
from distlog.core.maintain.vacuum import VacuumReport, vacuum
from distlog.core.maintain.verify import RebuildReport, VerifyReport
from distlog.core.opening import find_topics
from distlog.core.opening import open as open_topic
from distlog.core.segments.segment_reader import topic_log
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.jobs.job import JobParser, add_shared_arguments, argument, job_session, reason, run_program
from distlog.spark.executor import MERGE_MEMORY_BYTES, SparkExecutor

#: The minimum of --dedupe-buffer-size and --memory, as in Kafka: with far less, Spark could not plan all tasks.
_MIN_MEMORY_BYTES = 1 << 20

#: A function that maintains the topic at a URL as the arguments say.
Work = Callable[[str, argparse.Namespace], Report]


@dataclass(frozen=True, slots=True)
class MaintenanceJob:
    parser: argparse.ArgumentParser
    work: Work

    def main(self, argv: Sequence[str] | None = None) -> int:
        def run(options: argparse.Namespace) -> int:
            start_s = time.monotonic()
            urls = [options.topic] if options.topic else _urls_in(options.root, dict(options.storage))
            results = [result for url in urls if (result := self._run_on(url, options))]
            failed = sum(status != SUCCESS for _, status in results)
            if options.root or options.json:
                seconds = time.monotonic() - start_s
                fields = {"topics": [fields for fields, _ in results], "failed": failed, "seconds": round(seconds, 3)}
                text = f"{counted(len(results), 'topic')} in {seconds:.1f} s, {failed:,} failed"
                print_report(Summary(text, fields), as_json=options.json)
            if options.topic:
                # the only result; `_run_on` returns None only with --root
                return results[0][1]
            return FAILED if failed else SUCCESS

        return run_program(self.parser, run, argv)

    def _run_on(self, url: str, options: argparse.Namespace) -> tuple[dict[str, Any], int] | None:
        """Maintain a topic and print its report; returns its fields and status, None for a dropped topic."""
        try:
            report = self.work(url, options)
        except Exception as error:
            if options.root and isinstance(error, TopicNotFoundError):
                return None
            text = reason(error)
            return {"topic": url, "error": text}, print_failure(f"{self.parser.prog}: {url}", error, text)
        fields = {"topic": url, **report.to_dict()}
        if not options.json:
            print_report(Summary(f"{url}: {report}", fields), as_json=False)
        return fields, status_of(report)


def maintenance_parser(program: str, description: str, *, read_only: bool = False) -> argparse.ArgumentParser:
    """A parser with the arguments of maintenance jobs: --topic or --root, --storage, --json, and --dry-run."""
    parser = JobParser(program, description)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--topic", metavar="URL", help="path or URL of the topic")
    where.add_argument("--root", metavar="URL", help="maintain all topics in this folder")
    if not read_only:
        parser.add_argument("--dry-run", action="store_true", help="print what would change, and change nothing")
    add_shared_arguments(parser)
    return parser


def _compaction_parser(program: str, description: str) -> argparse.ArgumentParser:
    parser = maintenance_parser(program, description)
    parser.add_argument(
        "--dedupe-buffer-size",
        type=argument(_size),
        default=DEDUPE_BUFFER_BYTES,
        metavar="BYTES",
        help="use up to BYTES of memory for keys in a task; tasks share larger partitions (default: %(default)s)",
    )
    parser.add_argument(
        "--memory",
        type=argument(_size),
        default=MERGE_MEMORY_BYTES,
        metavar="BYTES",
        help="use up to BYTES of memory in a task that merges small segments (default: %(default)s)",
    )
    return parser


def _size(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= _MIN_MEMORY_BYTES):
        raise ValueError(f"must be a number of bytes, at least {_MIN_MEMORY_BYTES}, not {text!r}")
    return int(text)


def _urls_in(root: str, storage: dict[str, str]) -> list[str]:
    urls = [topic.url for topic in find_topics(Storage(root, storage))]
    if not urls:
        raise TopicNotFoundError("the folder has no topics: check the address", root=root)
    return urls


def _open(url: str, options: argparse.Namespace) -> Topic:
    return open_topic(url, storage_options=dict(options.storage))


def _retain(url: str, options: argparse.Namespace) -> RetentionReport:
    return _open(url, options).retention(dry_run=options.dry_run)


def _compact(url: str, options: argparse.Namespace) -> Report:
    return _open(url, options).compact(
        dry_run=options.dry_run,
        executor=SparkExecutor(job_session("compact")),
        dedupe_buffer_bytes=options.dedupe_buffer_size,
        memory=options.memory,
    )


def _vacuum(url: str, options: argparse.Namespace) -> VacuumReport:
    # without a Topic, since a dropped topic is vacuumed too
    storage = Storage(url, dict(options.storage))
    return vacuum(storage, topic_log(storage), dry_run=options.dry_run)


def _maintain(url: str, options: argparse.Namespace) -> Summary:
    """Run retention first, so that compaction rewrites fewer records. A dropped topic is only vacuumed."""
    try:
        reports: dict[str, Report] = {"retention": _retain(url, options), "compact": _compact(url, options)}
    except TopicNotFoundError:
        reports = {}
    reports["vacuum"] = _vacuum(url, options)
    fields = {name: report.to_dict() for name, report in reports.items()}
    is_ok = all(report.get("ok", True) for report in fields.values())
    return Summary("; ".join(map(str, reports.values())), {**fields, "ok": is_ok})


def _verify(url: str, options: argparse.Namespace) -> VerifyReport:
    return _open(url, options).verify(executor=SparkExecutor(job_session("verify")))


def _rebuild(url: str, options: argparse.Namespace) -> RebuildReport:
    executor = SparkExecutor(job_session("rebuild_index"))
    return _open(url, options).rebuild_indexes(force=options.force, dry_run=options.dry_run, executor=executor)


retention = MaintenanceJob(
    maintenance_parser("retention.py", "Delete segments past retention.ms or retention.bytes."), _retain
)
compact = MaintenanceJob(
    _compaction_parser("compact.py", "Keep the last record of each key, or merge small segments."), _compact
)
vacuum_files = MaintenanceJob(maintenance_parser("vacuum.py", "Delete files that nothing refers to."), _vacuum)
maintain = MaintenanceJob(
    _compaction_parser("maintain.py", "Run retention, compaction and vacuum, in this order."), _maintain
)
verify = MaintenanceJob(
    maintenance_parser("verify.py", "Check every checksum, record, index and commit.", read_only=True), _verify
)
rebuild_index = MaintenanceJob(
    maintenance_parser("rebuild_index.py", "Rebuild bad and missing indexes from the logs."), _rebuild
)
rebuild_index.parser.add_argument(
    "--force", action="store_true", help="also rebuild valid indexes that differ from the topic's current settings"
)
