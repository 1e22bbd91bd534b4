"""Vacuum of a topic with many small commits: what it costs to learn which parts were removed, at three sizes.

    python -m benchmarks.removed_parts

A commit a second adds a bundle of 100 parts, and each minute a merge removes the bundles of the previous minute. The
commits are on a local disk, without data files. `before` makes each commit into actions, as vacuum did; `now` is
`removals`. CPU time of one core, and how far the process's largest memory grew, each in a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from crc32c import crc32c

from distlog.core import paths
from distlog.core.commits.actions import FORMAT, Add, Remove, write_actions
from distlog.core.commits.fields import write
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot_loader import CommitFiles
from distlog.core.maintain.vacuum import removals
from distlog.core.storage.storage import Storage

PARTS, MERGE = 100, 60
_STEM = paths.new_stem(0, "0" * 32)
SIZES = (3600, 21_600, 86_400)


def run(sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """A row for each number of commits."""
    rows = []
    for commits in sizes:
        with tempfile.TemporaryDirectory() as folder:
            write_commits(Path(folder), commits)
            ways = ("before", "now") if commits <= SIZES[1] else ("now",)
            for way in ways:
                command = [sys.executable, "-m", "benchmarks.removed_parts", way, folder, str(commits)]
                completed = subprocess.run(command, capture_output=True, text=True, check=True)
                rows.append(
                    {"commits": commits, "parts": commits * PARTS, "way": way, **json.loads(completed.stdout)}
                )
    return rows


def write_commits(folder: Path, commits: int) -> None:
    """Write the commits 0 to `commits`, of no real topic."""
    (folder / paths.COMMITS_DIR).mkdir()
    stems = [paths.new_stem(version, uuid.uuid4().hex) for version in range(commits)]
    added = json.dumps(write_actions([Add(_part(_STEM, number)) for number in range(PARTS)]), default=write)
    prev: str | None = None
    for version, stem in enumerate(stems):
        actions = json.loads(added.replace(_STEM, stem)) if version % MERGE == 0 else None
        if actions is None:
            prev = _write(folder, version, prev, added.replace(_STEM, stem).replace(" ", ""))
            continue
        merged = stems[version - MERGE : version] if version else []
        actions += write_actions([Remove(number, stem) for number in range(PARTS) for stem in merged])
        prev = _write(folder, version, prev, json.dumps(actions, separators=(",", ":")))


def _part(stem: str, number: int) -> SegmentInfo:
    return SegmentInfo(
        partition=number,
        stem=stem,
        base_offset=1_000_000 * number,
        next_offset=1_000_000 * number + 100 + number,
        record_count=100 + number,
        log_bytes=10_000 + number,
        stored_base_offset=0,
        offset_index_bytes=0,
        time_index_bytes=0,
        txn_index_bytes=0,
        first_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_000 + number,
        offset_of_max_timestamp=1_000_000 * number + 99,
        compression="none",
        created_ms=1_700_000_000_000,
        crc32c=number * 40_000_000,
        log_position=10_100 * number,
    )


def _write(folder: Path, version: int, prev: str | None, actions: str) -> str:
    commit_id = str(uuid.uuid4())
    fields = {"format": FORMAT, "version": version, "id": commit_id, "prev": prev, "topic_id": str(uuid.UUID(int=7))}
    fields |= {"timestamp_ms": 1_700_000_000_000 + version, "operation": "append", "writer": "benchmark"}
    text = f'{json.dumps(fields, separators=(",", ":"))[:-1]},"actions":{actions}'.encode()
    (folder / paths.commit_file(version)).write_bytes(text + b',"crc32c":%d}\n' % crc32c(text))
    return commit_id


def _measure(way: str, folder: str, commits: int) -> dict[str, float]:
    storage = Storage(folder)
    before_kib, started_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    if way == "now":
        result: Any = removals(storage, 0, commits)
    else:
        groups = CommitFiles(storage).follow(0, end=commits, known_version=commits - 1, first_group=64)
        commits_ = [commit for group in groups for commit in group]
        named = (removal for commit in commits_ for removal in commit.actions if isinstance(removal, Remove))
        result = (
            commits_,
            {stem for removal in named for stem in ((removal.partition, removal.stem), (None, removal.stem))},
        )
    took_s = time.process_time() - started_s
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    del result
    return {"cpu_s": round(took_s, 1), "mb": round(grown * 1024 / 1e6)}


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(_measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    else:
        for row in run():
            print(row)
