"""The frame of all maintenance jobs: the topic, or all below a root, a report of each, and the exit status.

Topics are done one after the other. A failure in one topic does not stop the others.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from distlog.console.output import DONE, FAILED, Report, Summary, fail, print_report, status_of
from distlog.core.display import counted
from distlog.core.errors import TopicNotFoundError
from distlog.core.maintenance.compaction import DEDUPE_BUFFER_BYTES
from distlog.core.storage.storage import Storage
from distlog.core.topics.open_topic import find_topics
from distlog.jobs.job import JobParser, add_shared_arguments, argument, exit_status, reason
from distlog.spark.frames import MERGE_MEMORY_BYTES

#: Kafka's minimum. With far less, a partition would be shared by more tasks than Spark can plan.
_LEAST_BUFFER_BYTES = 1 << 20

#: A function that maintains the topic at a URL as the arguments say.
Work = Callable[[str, argparse.Namespace], Report]


def maintenance_parser(file: str, description: str | None, *, read_only: bool = False) -> argparse.ArgumentParser:
    """A parser with the arguments of maintenance jobs: --topic or --root, --storage, --json, and --dry-run."""
    parser = JobParser(file, description)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--topic", metavar="URL", help="the path or URL of the topic")
    where.add_argument("--root", metavar="URL", help="a folder: all topics right below it")
    if not read_only:
        parser.add_argument("--dry-run", action="store_true", help="change nothing; only print what would be done")
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
        help="memory of a task for keys, in bytes; tasks share a partition with more keys (default: %(default)s)",
    )
    parser.add_argument(
        "--memory",
        type=argument(_size),
        default=MERGE_MEMORY_BYTES,
        metavar="BYTES",
        help="memory of a task that merges small segments, in bytes (default: %(default)s)",
    )
    return parser


def _size(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= _LEAST_BUFFER_BYTES):
        raise ValueError(f"must be a number of bytes, at least {_LEAST_BUFFER_BYTES}, not {text!r}")
    return int(text)


def run_maintenance(parser: argparse.ArgumentParser, work: Work, given: Sequence[str] | None = None) -> int:
    """Parse the arguments, do the work on each topic and print its report. Returns the exit status."""
    return exit_status(parser, partial(_run, parser.prog, work), given)


def _run(prog: str, work: Work, chosen: argparse.Namespace) -> int:
    started = time.monotonic()
    urls = [chosen.topic] if chosen.topic else _below(chosen.root, dict(chosen.storage))
    done = [one for url in urls if (one := _maintain(prog, url, work, chosen))]
    failed = sum(status != DONE for _, status in done)
    if chosen.root or chosen.json:
        seconds = time.monotonic() - started
        facts = {"topics": [facts for facts, _ in done], "failed": failed, "seconds": round(seconds, 3)}
        text = f"{counted(len(done), 'topic')} in {seconds:.1f} s, {failed:,} failed"
        print_report(Summary(text, facts), as_json=chosen.json)
    return done[0][1] if chosen.topic else FAILED if failed else DONE


def _below(root: str, storage: dict[str, str]) -> list[str]:
    urls = [topic.url for topic in find_topics(Storage(root, storage))]
    if not urls:
        raise TopicNotFoundError("there is no topic right below the root: check the address", root=root)
    return urls


def _maintain(prog: str, url: str, work: Work, chosen: argparse.Namespace) -> tuple[dict[str, Any], int] | None:
    """Do the work on one topic and print its report; returns its facts and status, None for a dropped topic."""
    try:
        report = work(url, chosen)
    except Exception as error:
        if chosen.root and isinstance(error, TopicNotFoundError):
            return None
        return {"topic": url, "error": reason(error)}, fail(f"{prog}: {url}", error, reason(error))
    facts = {"topic": url, **report.to_dict()}
    if not chosen.json:
        print_report(Summary(f"{url}: {report}", facts), as_json=False)
    return facts, status_of(report)
