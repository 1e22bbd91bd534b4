"""The driver of the campaign `busy-cluster`: a copy by foreachBatch, and beside it appends, compaction and reads.

Of four appends one has a task that is slow in its first attempt, so that Spark runs a second one; another is slow in
all attempts, and is cancelled at a random moment. An append that failed is done again as the same batch.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from distlog.spark import append, compact, read, session
from soak.pipeline import CONF, Job, copy, described
from soak.records import record
from soak.tally import demand

#: Rows of an append, and its tasks; keys of the compacted topic.
ROWS, TASKS, KEYS = 240, 3, 20
#: A slow attempt of a task stands still once, for so many seconds: after it has passed on some rows.
SLOW_S = (1.0, 4.0)
#: Of four appends this one is cancelled.
CANCELLED = 2
#: The topics beside the original and the copy, and the files that tell of work on them.
ROWS_TOPIC, KEYED, CHANGED = "rows", "keyed", "changed"
ACKS, FAILURES = "acks", "failures of work"


def tell(path: Path, fact: object) -> None:
    """Add a line of JSON, which outlives this process."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(file, f"{json.dumps(fact)}\n".encode())
    os.close(file)


def told(path: Path) -> Iterator[dict[str, object]]:
    """The whole lines of such a file, or none if it is not there."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    yield from (json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n"))


class Work:
    """Numbered pieces of work, one after the other, in a thread of their own."""

    def __init__(self, spark: SparkSession, job: Job) -> None:
        self._spark, self._job, self._root = spark, job, Path(job.target).parent
        self._acks = Path(job.folder, ACKS)
        self._chance = random.Random(os.getpid())
        self._tries, self._cancelled = 0, set[int]()

    def run(self) -> None:
        """Go on behind the last acknowledged append until the driver is told to end."""
        number = sum(1 for _ in told(self._acks))
        while not self._job.end.exists():
            if not (self._try("keyed", self._append_keyed, number) and self._try("append", self._append, number)):
                continue
            self._try("changed", self._use_changed, number)
            if number % 3 == 2:
                self._try("compaction", lambda _: compact(self._spark, str(self._root / KEYED)), number)
            number += 1

    def _try(self, name: str, work: Callable[[int], object], number: int) -> bool:
        """Whether the work was done; if not, a line tells why."""
        self._tries += 1
        try:
            work(number)
        except Exception:
            folder, text = Path(self._job.folder, FAILURES), traceback.format_exc()
            tell(folder / name, {"number": number, "text": text})
            return False
        return True

    def _append(self, number: int) -> None:
        is_slow, is_cancelled = number % 2 == 0, number % 4 == CANCELLED
        slow_s = self._chance.uniform(*SLOW_S) if is_slow else 0.0
        rows = self._rows(number * ROWS, slow_s, slow_attempts=100 if is_cancelled else 1)
        group, context = f"append {number} {self._tries}", self._spark.sparkContext
        context.setJobGroup(group, group, True)
        is_over = threading.Event()

        def cancel() -> None:
            # again, since a machine may be so busy that the job has not begun
            while not is_over.wait(self._chance.uniform(0.3, 2.0)):
                context.cancelJobGroup(group)

        # the batch is cancelled once in the life of a driver, and then tried again
        if is_cancelled and number not in self._cancelled:
            self._cancelled.add(number)
            threading.Thread(target=cancel, daemon=True).start()
        try:
            result = append(rows, str(self._root / ROWS_TOPIC), app_id="rows", batch_id=number)
        finally:
            is_over.set()
        offsets = {str(partition): list(span) for partition, span in result.offsets.items()}
        tell(self._acks, {"batch": number, "offsets": offsets, "replayed": result.replayed})

    def _rows(self, first: int, slow_s: float, slow_attempts: int) -> DataFrame:
        @F.arrow_udf("binary")  # type: ignore[attr-defined, untyped-decorator, unused-ignore]
        def values(numbers: pa.Array) -> pa.Array:
            context = TaskContext.get()
            found = numbers.to_pylist()
            is_first = context.partitionId() == 0 and found[0] == first
            if not is_first and context.partitionId() == 0 and context.attemptNumber() < slow_attempts:
                time.sleep(slow_s)
            return pa.array([record("rows", each)["value"] for each in found], pa.binary())

        numbers = self._spark.range(first, first + ROWS, 1, TASKS)
        return numbers.select(F.col("id").cast("string").alias("key"), values("id").alias("value"))

    def _append_keyed(self, number: int) -> None:
        keyed = self._spark.range(0, KEYS, 1, 2).selectExpr("string(id) AS key", f"'{number}' AS value")
        append(keyed, str(self._root / KEYED), app_id="keyed", batch_id=number)

    def _use_changed(self, number: int) -> None:
        """Read a topic that is dropped and made again by others, and append to it."""
        url, mine = str(self._root / CHANGED), f"{os.getpid()}-{self._tries}"
        rows = read(self._spark, url, columns=["value"]).collect()
        check_changed([bytes(row.value) for row in rows])
        more = self._spark.range(0, 30, 1, 2).selectExpr(f"concat('{mine} 30 ', id) AS value")
        append(more, url)
        stream = self._spark.readStream.format("distlog").option("startingOffsets", "earliest").load(url)
        if number % 4 == 3:
            folder = str(Path(self._job.folder, "changed-checkpoints", mine))
            writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
            writer.trigger(availableNow=True).start().awaitTermination()


def check_changed(values: list[bytes]) -> None:
    """Each append is there once and whole. A value says which append it is of, how many rows that has, and which."""
    found = Counter(values)
    wanted = Counter(dict.fromkeys(found, 1))
    demand(found == wanted, f"rows of the changed topic are there more than once: {(found - wanted).most_common(3)}")
    appends = Counter(value.rsplit(b" ", 1)[0] for value in values)
    for append_, count in appends.items():
        demand(count == int(append_.split(b" ")[1]), f"{count} rows are there of the append {append_!r}")


def main(path: str) -> None:
    """Do the job that is described in that file."""
    job = described(path)
    spark = session("busy", **CONF | dict(job.conf))
    work = threading.Thread(target=Work(spark, job).run, daemon=True)
    work.start()
    while not copy(spark, job):
        pass
    work.join()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
