"""Many processes commit to one topic at once."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Address
from forked_programs import Program
from histories import appending, topic_storage

from distlog.core.commits.commit_log import CommitLog
from distlog.core.config import TopicConfig
from distlog.core.storage.storage import Storage

pytestmark = pytest.mark.long

PARTITIONS = 4


def open_log(url: str, options: Mapping[str, Any]) -> CommitLog:
    return CommitLog(
        Storage(url, options),
        clock=lambda: time.time_ns() // 1_000_000,
        random=random.Random(os.getpid()),
        writer=f"process {os.getpid()}",
        checkpoint_commits=20,
    )


def commit_many(url: str, options: Mapping[str, Any], app_id: str, commits: int) -> None:
    """What each process does: so many appends, each of one batch, from a snapshot that is always stale."""
    log = open_log(url, options)
    snapshot = log.load()
    for number in range(commits):
        plan = appending(number % PARTITIONS, 1 + number % 3, batch=(app_id, number))
        _, snapshot = log.commit(snapshot, "append", plan)


COMMITTING = """
import json, sys
from test_commit_log_processes import commit_many

commit_many(*json.loads(sys.argv[1]))
"""


def race(url: str, options: Mapping[str, Any], processes: int, commits: int) -> CommitLog:
    """The log after `processes` processes made `commits` commits each."""
    log = open_log(url, options)
    log.create(PARTITIONS, TopicConfig())
    imports = ["s3fs", "test_commit_log_processes"]
    workers = [
        Program(COMMITTING, json.dumps([url, options, f"app {number}", commits]), imports=imports)
        for number in range(processes)
    ]
    assert [worker.wait(120) for worker in workers] == [0] * processes
    return log


def check_all_there_once_in_order(log: CommitLog, processes: int, commits: int) -> None:
    history = log.history()[::-1]
    assert len(history) == 1 + processes * commits
    assert len({commit.id for commit in history}) == len(history)
    snapshot = log.load()
    for number in range(processes):
        found = [snapshot.transaction(f"app {number}", batch) for batch in range(commits)]
        versions = [info.version for info in found if info]
        assert len(versions) == commits
        assert versions == sorted(versions)
    for state in snapshot.partitions:
        assert state.segments.base_offsets.tolist() == [0, *state.segments.next_offsets[:-1].tolist()]
        assert state.log_end_offset == state.segments.record_counts.sum()
    assert sum(len(state.segments) for state in snapshot.partitions) == processes * commits


def test_six_processes_on_a_local_disk_lose_nothing(tmp_path: Path) -> None:
    log = race(topic_storage(tmp_path).url, {}, processes=6, commits=15)
    check_all_there_once_in_order(log, processes=6, commits=15)


@pytest.mark.s3
def test_four_processes_on_s3_lose_nothing(s3_url: Address) -> None:
    log = race(f"{s3_url.url}/clicks", s3_url.options, processes=4, commits=6)
    check_all_there_once_in_order(log, processes=4, commits=6)
