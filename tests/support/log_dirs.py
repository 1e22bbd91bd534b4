"""Log directories as brokers leave them: copies of golden ones, and what is in a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from adopted import Rows, rows
from golden import DATA, GoldenPartition, partitions

from distlog import Topic

STAGES = {
    "first": DATA / "kafka-4.1" / "first",
    "crashed": DATA / "kafka-4.1" / "crashed",
    "cleaned": DATA / "kafka-4.1" / "cleaned",
    "cleaned-again": DATA / "kafka-4.1" / "cleaned-again",
    "logs": DATA / "kafka-2.8" / "logs",
}


def copy_of(stage: str, folder: Path) -> Path:
    """A log directory of our own, with what the broker left at that stage."""
    return Path(shutil.copytree(STAGES[stage], folder / "kafka-logs"))


def partition_of(stage: str, folder: Path, name: str) -> Path:
    """The folder of one partition in a log directory of our own, which has only that one."""
    log_dir = folder / "kafka-logs"
    log_dir.mkdir(parents=True)
    for file in STAGES[stage].iterdir():
        if file.is_file():
            shutil.copy2(file, log_dir)
    return Path(shutil.copytree(STAGES[stage] / name, log_dir / name))


def golden_of(stage: str) -> dict[str, GoldenPartition]:
    """The partitions of the stage whose records are known, by the names of their folders."""
    return {
        golden_log.folder.name: golden_log
        for name, golden_log in partitions().items()
        if name.startswith(f"{stage}.")
    }


def read(topic: Topic, partition: int = 0, *, committed: bool = False) -> Rows:
    """The records of a partition in the shape of `GoldenPartition.records`."""
    isolation = "read_committed" if committed else "read_uncommitted"
    return rows(topic.scan(partitions=[partition], isolation=isolation).to_table())  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """The content and the time of every file below a folder, by its relative name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(file.relative_to(folder)): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}
