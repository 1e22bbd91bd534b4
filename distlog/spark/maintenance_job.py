"""What every maintenance job does around its one call: one topic or all below a root, a report of each, the status.

Topics come one after the other, and what fails in one does not stop the others. Exit status: 0 done, 1 something
failed or is wrong, 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from distlog.core.errors import TopicNotFoundError
from distlog.core.maintenance.reports import RetentionReport, counted
from distlog.core.maintenance.vacuum import VacuumReport, vacuum
from distlog.core.open_topic import find_topics
from distlog.core.open_topic import open as open_topic
from distlog.core.storage import Storage
from distlog.core.times import now_ms
from distlog.core.topic import topic_log
from distlog.spark.job import add_shared_arguments, reason


class Report(Protocol):
    """What was done to a topic: a line for people as `str`, and the facts, in which `ok` may say that it is not."""

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""


#: Maintains the topic at a URL as the arguments say.
Work = Callable[[str, argparse.Namespace], Report]


def maintenance_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments of every maintenance job: --topic or --root, --dry-run, --storage and --json."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--topic", metavar="URL", help="the topic's path or URL")
    where.add_argument("--root", metavar="URL", help="a folder; all topics right below it")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    add_shared_arguments(parser)
    return parser


def run_maintenance(parser: argparse.ArgumentParser, work: Work, given: Sequence[str] | None = None) -> int:
    """Parse the arguments, do the work on each topic and tell what it did; returns the exit status."""
    chosen = parser.parse_args(given)
    started = time.monotonic()
    try:
        urls = [chosen.topic] if chosen.topic else _below(chosen.root, dict(chosen.storage))
    except Exception as error:
        print(f"{parser.prog}: {reason(error)}", file=sys.stderr)
        return 1
    topics = [facts for url in urls if (facts := _maintain(parser.prog, url, work, chosen))]
    failed = sum("error" in facts or not facts.get("ok", True) for facts in topics)
    seconds = time.monotonic() - started
    if chosen.json:
        print(json.dumps({"topics": topics, "failed": failed, "seconds": round(seconds, 3)}), flush=True)
    elif chosen.root:
        print(f"{counted(len(topics), 'topic')} in {seconds:.1f} s, {failed:,} failed", flush=True)
    return 1 if failed else 0


def _below(root: str, storage: dict[str, str]) -> list[str]:
    found = [topic.url for topic in find_topics(Storage(root, storage))]
    if not found:
        raise TopicNotFoundError("there is no topic below the root", root=root)
    return found


def _maintain(prog: str, url: str, work: Work, chosen: argparse.Namespace) -> dict[str, Any] | None:
    """What was done to a topic, or why not; None for one that was dropped, of which nothing but files is left."""
    try:
        report = work(url, chosen)
    except Exception as error:
        if chosen.root and isinstance(error, TopicNotFoundError):
            return None
        print(f"{prog}: {url}: {reason(error)}", file=sys.stderr)
        return {"topic": url, "error": reason(error)}
    if not chosen.json:
        print(f"{url}: {report}", flush=True)
    return {"topic": url, **report.to_dict()}


def retain(url: str, chosen: argparse.Namespace) -> RetentionReport:
    """Let go of the old segments of a topic; the work of `jobs/retention.py`."""
    return open_topic(url, storage_options=dict(chosen.storage)).retention(dry_run=chosen.dry_run)


def vacuum_topic(url: str, chosen: argparse.Namespace) -> VacuumReport:
    """Delete the files of a topic, or of a dropped one, that nobody needs; the work of `jobs/vacuum.py`."""
    storage = Storage(url, dict(chosen.storage))
    return vacuum(storage, topic_log(storage), now_ms, dry_run=chosen.dry_run)
