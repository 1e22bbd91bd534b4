"""An append of files on a standalone cluster, with a second attempt of a slow task, and of one that fails.

The first attempt of one task waits until another one reads the same bytes, and then both write everything. Spark
starts a second attempt only on another host, and each worker of the cluster has its own. The first attempt of the
failing task has read everything. Each record must be in the topic once, in the order of the file.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import distlog
from distlog.core.errors import StorageError
from distlog.core.files.file_reader import FileReader
from distlog.core.files.input_files import ReadOptions
from distlog.core.storage.storage import InputStorage
from distlog.spark import session
from distlog.spark.appends import append_files
from distlog.spark.sink import WriteOptions
from soak.cluster import CONF, Cluster
from soak.tally import Tally, demand

LINES, PARTITIONS = 600_000, 2
#: A line has a number and filler.
LINE_BYTES = 160
#: How long an attempt waits for another one.
PATIENCE_S = 120


class SlowOnce(InputStorage):
    """A storage of one file: the byte at `slow` waits for a second reader, the first reader of `failing` fails."""

    def __init__(self, folder: str, slow: int, failing: int) -> None:
        super().__init__()
        self._settings = folder, slow, failing

    def __reduce__(self) -> tuple[Any, ...]:
        return SlowOnce, self._settings

    def chunks(self, url: str, start: int, end: int) -> Iterator[bytes]:
        """Read like any storage, the first time later or with an error at the end."""
        folder, slow, failing = self._settings
        if start <= slow < end and not _is_first(f"{folder}/first reader"):
            Path(folder, "second reader").touch()
        elif start <= slow < end:
            limit = time.monotonic() + PATIENCE_S
            while not Path(folder, "second reader").exists() and time.monotonic() < limit:
                time.sleep(0.05)
        yield from super().chunks(url, start, end)
        if start <= failing < end and _is_first(f"{folder}/failed"):
            raise StorageError("the server is unreachable")


def _is_first(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def run(folder: Path, seed: int) -> Tally:
    """Append a file once, in another driver."""
    (folder / "in.txt").write_text("".join(f"{number:09d}{'-' * 150}\n" for number in range(LINES)))
    topic = distlog.create(str(folder / "topic"), PARTITIONS, config={"retention.ms": -1})
    cluster = Cluster(folder)
    try:
        command = [sys.executable, "-m", "soak.second_attempts", str(folder), cluster.url, str(seed)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run(command, env=environment, check=True)
    finally:
        cluster.close()
    demand((folder / "second reader").exists(), "Spark started no second attempt of the slow task")
    demand((folder / "failed").exists(), "no task failed")
    values_by_partition = [
        topic.refresh().scan(partitions=number).to_table()["value"].to_pylist() for number in range(PARTITIONS)
    ]
    numbers = [[int(value[:9]) for value in values] for values in values_by_partition]
    demand(all(part == sorted(part) for part in numbers), "records are not in the order of the file")
    demand(sorted(chain.from_iterable(numbers)) == list(range(LINES)), "records are missing, or there twice")
    return Tally({"records": LINES, "second attempts": 1, "actions that failed": 1})


def main(folder: str, url: str, seed: int) -> None:
    chance, size = random.Random(seed), LINES * LINE_BYTES
    paths = {f"spark.executorEnv.{name}": os.environ[name] for name in ("NUMBA_CACHE_DIR",) if name in os.environ}
    paths["spark.executorEnv.PYTHONPATH"] = os.environ["PYTHONPATH"]
    spark = session("append", **{**CONF, **paths, "spark.master": url, "spark.eventLog.enabled": "false"})
    storage = SlowOnce(folder, chance.randrange(size // 2), chance.randrange(size // 2, size))
    reader = FileReader(ReadOptions(), storage)
    topic = distlog.open(f"{folder}/topic")
    append_files(spark, topic, reader, reader.files([f"{folder}/in.txt"]), WriteOptions(topic.storage))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
