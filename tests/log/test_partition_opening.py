"""Opening a partition of many segments reads only the active one, as in Kafka's LogLoaderTest."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from active_segments import FailingCalls
from partition_logs import Process, append, new_topic

from distlog.core import paths

SEGMENTS = 100

_watched: list[Counter[str]] = []


def _count_open(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str):
        for opens in _watched:
            opens[arguments[0]] += 1


@cache
def _begin_to_see() -> None:
    """A hook cannot be removed, so it is not added by an import, which every worker does."""
    sys.addaudithook(_count_open)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = new_topic(tmp_path_factory.mktemp("many") / "events")
    process = Process(folder)
    for number in range(SEGMENTS):
        append(process[0], b"%d" % number)
        process[0].roll()
    append(process[0], b"active")
    append(process[0], b"and more")
    process[0].flush()
    process.close()
    assert len(process.head().partitions[0].segments) == SEGMENTS
    return folder


@pytest.fixture
def count_opens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[dict[str, int], int]]]:
    """Yield a call that returns the opens of each of the partition's files, and the bytes read directly."""
    files_opened, counted, real = Counter[str](), [0], os.preadv

    def preadv(*arguments: Any) -> int:
        count = real(*arguments)
        counted[0] += count
        return count

    def counts() -> tuple[dict[str, int], int]:
        partition = str(folder / "events-0")
        counts_by_suffix = {
            "active" + Path(name).suffix if Path(name).suffix else Path(name).name: count
            for name, count in files_opened.items()
            if os.path.dirname(name) == partition
        }
        return counts_by_suffix, counted[0]

    monkeypatch.setattr(os, "preadv", preadv)
    _begin_to_see()
    _watched.append(files_opened)
    yield counts
    _watched.remove(files_opened)


def log_bytes(process: Process) -> int:
    active = process.head().partitions[0].active
    assert active is not None
    return (process.folder(0) / f"{active.stem}.log").stat().st_size


def test_the_log_end_needs_no_segment_file(folder: Path, count_opens: Any) -> None:
    process = Process(folder)
    assert process[0].end() == (SEGMENTS + 2, SEGMENTS + 2)
    # the lock is opened twice: for the lock, and for its map; the copy of its page once
    assert count_opens() == ({paths.LOCK_FILE: 2, "active.page": 1}, 0)


def test_a_check_for_due_flushes_opens_one_page(folder: Path, count_opens: Any) -> None:
    assert not Process(folder)[0].flush_if_due()
    assert count_opens() == ({paths.LOCK_FILE: 1}, 0)


def test_an_append_opens_the_files_that_it_writes(folder: Path, count_opens: Any) -> None:
    process = Process(folder)
    append(process[0], b"one more")
    assert count_opens() == ({paths.LOCK_FILE: 2, "active.page": 1, "active.log": 1, "active.index": 1}, 0)
    process[0].flush()


def test_after_a_power_loss_the_active_segment_alone_is_read_once(folder: Path, count_opens: Any) -> None:
    (folder / "events-0" / paths.LOCK_FILE).unlink()
    calls = FailingCalls()
    process = Process(folder, calls=calls)
    size = log_bytes(process)
    assert process[0].end().end_offset >= SEGMENTS + 2
    files, read = count_opens()
    # and a lock is created under a temporary name, with the copy of its page
    assert {name: count for name, count in files.items() if name.startswith("active")} == dict.fromkeys(
        ("active.log", "active.index", "active.timeindex", "active.snapshot", "active.page", "active.tmp"), 1
    )
    assert read == size
    # the log is synced, since its durable end is unknown
    assert calls.calls_made.count("fsync") == 3
