"""Kafka's log directories: an export next to `cp` of the same files, and an import without a copy.

    python -m benchmarks.kafka_directory [GIGABYTES]

The batches have 16 KiB, as with Kafka clients. The peer of the export is `cp` of the files that it made, and a
sync, on the same disk. The peer of the adoption is reading the files. It reads the headers of batches and
at indexes alone: one page in four of a log that is not in memory.
A row's `ratio` is how many times faster distlog is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distlog
from benchmarks.topics import table
from distlog import Topic

GIGABYTES = 2.0
_ROWS = 2_000_000
_CONFIG = {"batch.bytes": 16_384, "retention.ms": -1}


def run(gigabytes: float = GIGABYTES) -> list[dict[str, Any]]:
    """One dict per case, in seconds."""
    with tempfile.TemporaryDirectory() as small:
        rows = [_export(Path(small), gigabytes / 4, 1 << 20)[1]]
    with tempfile.TemporaryDirectory() as folder:
        kafka, row = _export(Path(folder), gigabytes, 1 << 30)
        size, rows = sum(path.stat().st_size for path in kafka.rglob("*.log")), [*rows, row]
        # as after a broker that was stopped in order
        (kafka / ".kafka_cleanshutdown").touch()
        shown = f"{size / 1e9:.1f} GB"
        for name, prepare in (("files not in memory", _forget), ("files in memory", _read)):
            prepare(kafka)
            adopt = _seconds(lambda: distlog.adopt(kafka).topic)
            shutil.rmtree(kafka / "clicks")
            prepare(kafka)
            rows.append(
                _row(f"adopt {shown} without a copy, {name}", adopt, _seconds(lambda: _read(kafka)), "reading them")
            )
        return rows


def _export(folder: Path, gigabytes: float, segment_bytes: int) -> tuple[Path, dict[str, Any]]:
    """The log directory of an export, and its row."""
    topic, kafka = _topic(f"{folder}/clicks", gigabytes, segment_bytes), folder / "kafka"
    _forget(folder)
    export = _seconds(lambda: topic.export(kafka))
    _forget(folder)
    copy = _seconds(lambda: _copy(kafka, folder / "copy"))
    shutil.rmtree(folder / "copy")
    logs = [path.stat().st_size for path in kafka.rglob("*.log")]
    return kafka, _row(f"export {sum(logs) / 1e9:.1f} GB in {len(logs)} segments", export, copy, "cp and sync")


def _topic(url: str, gigabytes: float, segment_bytes: int) -> Topic:
    topic, records = distlog.create(url, config={**_CONFIG, "segment.bytes": segment_bytes}), table(_ROWS, 100)
    while topic.segments()["log_bytes"].to_numpy().sum() < gigabytes * 1e9:
        topic.append(records)
    return topic


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    for path in target.rglob("*"):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def _forget(folder: Path) -> None:
    """Have the system let go of the files' pages."""
    for path in folder.rglob("*.log"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(folder: Path) -> None:
    buffer = bytearray(1 << 20)
    for path in sorted(folder.rglob("*.log")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _row(case: str, ours: float, theirs: float, peer: str) -> dict[str, Any]:
    return {
        "benchmark": "kafka_directory",
        "case": case,
        "distlog": ours,
        "peer": theirs,
        "unit": "s",
        "ratio": theirs / ours,
        "peer_name": peer,
    }


if __name__ == "__main__":
    for row in run(*map(float, sys.argv[1:])):
        print(json.dumps(row))
