"""The frame of all maintenance jobs: the topics, their reports and the exit status.

Topics are maintained one after the other. A failure in one topic does not stop the next.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from distlog.console.output import FAILED, SUCCESS, Report, Summary, fail, print_report, status_of
from distlog.core.display import counted
from distlog.core.errors import TopicNotFoundError
from distlog.core.maintain.compaction import DEDUPE_BUFFER_BYTES
from distlog.core.opening import find_topics
from distlog.core.storage.storage import Storage
from distlog.jobs.job import JobParser, add_shared_arguments, argument, exit_status, reason
from distlog.spark.executor import MERGE_MEMORY_BYTES

#: Kafka's minimum. With far less, a partition would be shared by more tasks than Spark can plan.
_LEAST_BUFFER_BYTES = 1 << 20

#: A function that maintains the topic at a URL as the arguments say.
Work = Callable[[str, argparse.Namespace], Report]


def maintenance_parser(file: str, description: str | None, *, read_only: bool = False) -> argparse.ArgumentParser:
    """A parser with the arguments of maintenance jobs: --topic or --root, --storage, --json, and --dry-run."""
    parser = JobParser(file, description)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--topic", metavar="URL", help="path or URL of the topic")
    where.add_argument("--root", metavar="URL", help="maintain all topics in this folder")
    if not read_only:
        parser.add_argument("--dry-run", action="store_true", help="print what would change, and change nothing")
    add_shared_arguments(parser)
    return parser


def compaction_parser(file: str, description: str | None) -> argparse.ArgumentParser:
    """`maintenance_parser` with --dedupe-buffer-size and --memory, for jobs that compact."""
    parser = maintenance_parser(file, description)
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
    if not (text.isascii() and text.isdecimal() and int(text) >= _LEAST_BUFFER_BYTES):
        raise ValueError(f"must be a number of bytes, at least {_LEAST_BUFFER_BYTES}, not {text!r}")
    return int(text)


def run_maintenance(parser: argparse.ArgumentParser, work: Work, argv: Sequence[str] | None = None) -> int:
    """Parse the arguments, maintain each topic and print its report. Returns the exit status."""

    def run(options: argparse.Namespace) -> int:
        started = time.monotonic()
        urls = [options.topic] if options.topic else _below(options.root, dict(options.storage))
        results = [result for url in urls if (result := _maintain(parser.prog, url, work, options))]
        failed = sum(status != SUCCESS for _, status in results)
        if options.root or options.json:
            seconds = time.monotonic() - started
            fields = {"topics": [topic for topic, _ in results], "failed": failed, "seconds": round(seconds, 3)}
            text = f"{counted(len(results), 'topic')} in {seconds:.1f} s, {failed:,} failed"
            print_report(Summary(text, fields), as_json=options.json)
        return results[0][1] if options.topic else FAILED if failed else SUCCESS

    return exit_status(parser, run, argv)


def _below(root: str, storage: dict[str, str]) -> list[str]:
    urls = [topic.url for topic in find_topics(Storage(root, storage))]
    if not urls:
        raise TopicNotFoundError("the root has no topics: check the address", root=root)
    return urls


def _maintain(prog: str, url: str, work: Work, options: argparse.Namespace) -> tuple[dict[str, Any], int] | None:
    """Maintain a topic and print its report; returns its fields and status, None for a dropped topic."""
    try:
        report = work(url, options)
    except Exception as error:
        if options.root and isinstance(error, TopicNotFoundError):
            return None
        return {"topic": url, "error": reason(error)}, fail(f"{prog}: {url}", error, reason(error))
    fields = {"topic": url, **report.to_dict()}
    if not options.json:
        print_report(Summary(f"{url}: {report}", fields), as_json=False)
    return fields, status_of(report)
