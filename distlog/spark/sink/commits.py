"""What a Spark write leaves in the commit log to be known again by: who wrote it, in which run.

A commit's `writer` ends with `write=<id>`, one id per write, and in a stream's batch with `run=<id>`, one id per
start of the query. So the driver finds the offsets that its write got, Spark may ask twice for one commit, and two
writes of one micro-batch are told from a write that is repeated after a restart.
"""

from __future__ import annotations

import platform
import random
from dataclasses import dataclass

from distlog.core import VERSION, paths
from distlog.core.commits.actions import Add, Commit
from distlog.core.commits.commit_files import CommitFiles
from distlog.core.commits.commit_log import CommitLog
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.core.topics.append import AppendResult


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A batch of a streaming query: the query's id lasts as long as its checkpoint, the run's until it is stopped."""

    query_id: str
    batch_id: int
    run_id: str


def commit_log(storage: Storage, write_id: str = "", run_id: str = "") -> CommitLog:
    """The commit log of a topic, whose commits will bear these ids."""
    marks = "".join(f" {name}={value}" for name, value in (("write", write_id), ("run", run_id)) if value)
    writer = f"distlog {VERSION} spark {platform.node()}{marks}"
    return CommitLog(storage, clock=now_ms, random=random.Random(), writer=writer)


def find_write(storage: Storage, write_id: str, after: int) -> AppendResult | None:
    """What the write `write_id` got, if it was committed, durably, later than version `after`."""
    for commits in CommitFiles(storage).follow(after + 1):
        for commit in commits:
            if _bears(commit, "write", write_id):
                storage.sync(paths.COMMITS_DIR)
                return _result(commit)
    return None


def is_of_run(storage: Storage, version: int, run_id: str) -> bool:
    """Whether the commit of `version` was made in this run of a streaming query."""
    return _bears(CommitFiles(storage).read_existing(version), "run", run_id)


def _bears(commit: Commit, mark: str, value: str) -> bool:
    return f"{mark}={value}" in commit.writer.split(" ")


def _result(commit: Commit) -> AppendResult:
    offsets: dict[int, tuple[int, int]] = {}
    for action in commit.actions:
        if isinstance(action, Add):
            first, _ = offsets.get(action.segment.partition, (action.segment.base_offset, 0))
            offsets[action.segment.partition] = first, action.segment.next_offset
    return AppendResult(commit.version, offsets)
