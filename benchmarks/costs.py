"""The cost of a day of a topic on S3: a model of requests and storage, and docs/costs.md, which it writes.

    python -m benchmarks.costs > docs/costs.md

A test compares the page with the model, and each kind of request with what the real code sends to a server in minutes
of simulated time. Prices are those that AWS publishes for S3 Standard in us-east-1.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from distlog.core.config import TopicConfig
from distlog.core.format.kernels.segments import find_groups
from distlog.core.maintain.merge import job_bytes_of, limits_of
from distlog.core.maintain.merge_job import JOB_BYTES, JOB_SEGMENTS, upload_bytes
from distlog.core.segments.segment_writer import HELD_BYTES, LARGEST_BUNDLE, LARGEST_PART
from distlog.core.storage.backend import MAX_MERGED_BYTES as RANGE_BYTES
from distlog.core.storage.object_store import PART_BYTES, SINGLE_PUT_BYTES

PUT_DOLLARS, GET_DOLLARS, MONTH_OF_GB_DOLLARS = 0.005 / 1000, 0.0004 / 1000, 0.023
DAY_S, DAYS_A_MONTH = 86_400, 30
#: Seconds between appends, and between runs of `maintain`; days that records, removed files and commits are kept.
APPEND_S, MAINTAIN_S, KEPT_DAYS, REMOVED_DAYS, COMMIT_DAYS = 1, 60, 7, 1, 7
#: The same seconds for those who can wait.
SLOW = 10, 900
#: The most bytes that one task writes in a second; and the memory of a task of Spark that merges.
TASK_BYTES, TASK_MEMORY = 100_000_000, 4 << 30
#: The bytes in a commit for a segment with its own files, for a part of a bundle, and for a removed segment.
ADD_BYTES, PART_ADD_BYTES, REMOVE_BYTES = 550, 15, 2
#: A checkpoint is two files, comes after this number of commits or their bytes, and has this number of bytes for each
#: segment.
CHECKPOINT_COMMITS, CHECKPOINT_COMMIT_BYTES, CHECKPOINT_ROW_BYTES = 100, 8 << 20, 32
#: Vacuum keeps one checkpoint of this number of commits. A listing, and one DELETE, have up to KEYS keys.
KEPT_CHECKPOINT_COMMITS, KEYS = 1000, 1000
#: Measured on one core: the bytes of small batches that a merge reads, checks, joins and writes in a second; its time
#: for each part; and what of that the driver alone does, which plans and commits.
MERGE_BYTES_S, PART_S, DRIVER_PART_S = 100e6, 30e-6, 12e-6
#: The bytes of memory of a live segment in each process that knows the topic.
SEGMENT_MEMORY = 300


@dataclass(frozen=True, slots=True)
class Requests:
    """Numbers of requests. S3 does not charge for a DELETE."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def times(self, count: int) -> Requests:
        """The requests of `count` repetitions."""
        return Requests(*(getattr(self, name) * count for name in self.__slots__))

    @property
    def dollars(self) -> float:
        """The price."""
        return (self.puts + self.lists) * PUT_DOLLARS + self.gets * GET_DOLLARS


def total(parts: Iterable[Requests]) -> Requests:
    """The sum."""
    return sum(parts, Requests())


def object_puts(size: int, part_bytes: int | None = None) -> int:
    """The requests that write an object: one, or an upload of parts with its begin and end."""
    part = part_bytes or PART_BYTES
    return 1 if size < max(SINGLE_PUT_BYTES, part) else ceil(size / part) + 2


def segment_puts(log_bytes: int, part_bytes: int | None = None) -> int:
    """The requests that write a segment's own files: the log and two indexes, of which a small log has one."""
    log = 1 if log_bytes <= HELD_BYTES else object_puts(log_bytes, part_bytes)
    return log + 1 + (log_bytes > TopicConfig().index_interval_bytes)


def ranges(size: int) -> int:
    """The requests that read `size` adjacent bytes."""
    return ceil(size / RANGE_BYTES)


def append(part_bytes: int, partitions: int, tasks: int) -> Requests:
    """One append of `part_bytes` by each task into each partition: the bundles, a check for news, the commit."""
    if partitions > 1 and part_bytes <= LARGEST_PART:
        data = object_puts(part_bytes * partitions)
    else:
        data = partitions * segment_puts(part_bytes)
    return Requests(tasks * data + 1, 1)


# ---
# Merges: the planner itself says which segments of a partition are worth it. All partitions get the same.


class Segment(NamedTuple):
    """A segment of a partition, its bytes; `share` partitions are in its bundle, 0 for files of its own."""

    size: int
    share: int


@cache
def _reads(segment: Segment, share: int, partitions: int) -> int:
    """The requests that read the segment of each partition, if `share` partitions are read at once."""
    if not segment.share:
        return partitions * ranges(segment.size)
    begins = sorted({*range(0, partitions, segment.share), *range(0, partitions, share)})
    return sum(ranges((end - begin) * segment.size) for begin, end in pairwise([*begins, partitions]))


@dataclass(frozen=True, slots=True)
class Merge:
    """One merge of a group in each partition: its requests, and the segment that the group becomes."""

    requests: Requests
    segment: Segment

    @classmethod
    def of(cls, group: tuple[Segment, ...], partitions: int, job_bytes: int) -> Merge:
        """The merge of a group of this kind."""
        size, kinds, part_bytes = sum(segment.size for segment in group), Counter(group), upload_bytes(job_bytes)
        most = min(job_bytes // max(size, 1), JOB_SEGMENTS * max(1, job_bytes // JOB_BYTES) // len(group))
        share = max(1, min(partitions, most))
        gets = sum(count * _reads(segment_, share, partitions) for segment_, count in kinds.items())
        if partitions == 1 or size > LARGEST_PART:
            return cls(Requests(partitions * segment_puts(size, part_bytes), gets), Segment(size, 0))
        shared = max(1, min(share, LARGEST_BUNDLE // size))
        jobs = [min(share, partitions - first) for first in range(0, partitions, share)]
        sizes = [min(shared, job - first) * size for job in jobs for first in range(0, job, shared)]
        puts = sum(object_puts(bundle, part_bytes) for bundle in sizes)
        return cls(Requests(puts, gets), Segment(size, shared))


@dataclass
class Merging:
    """The segments of a partition, and what their merges have cost so far."""

    partitions: int
    job_bytes: int = JOB_BYTES
    live: list[Segment] = field(default_factory=list)
    # of the live ones, for the planner: the lists are long, and each run of a day needs all values
    sizes: array[int] = field(default_factory=lambda: array("q"))
    requests: Requests = Requests()
    merged: int = 0
    merges: int = 0
    copied: int = 0

    def add(self, segment: Segment, count: int) -> None:
        """Add `count` equal segments."""
        self.live += [segment] * count
        self.sizes.extend([segment.size] * count)

    def run(self) -> None:
        """Merge what is worth it."""
        for start, end in reversed(_groups(self.sizes)):
            group = tuple(self.live[start:end])
            merge = _merge(group, self.partitions, self.job_bytes)
            self.live[start:end] = [merge.segment]
            self.sizes[start:end] = array("q", [merge.segment.size])
            self.requests += merge.requests
            self.merged, self.merges, self.copied = (
                self.merged + len(group),
                self.merges + 1,
                self.copied + merge.segment.size,
            )


_merge = cache(Merge.of)
_LIMITS = limits_of(TopicConfig())


def _groups(sizes: array[int]) -> list[tuple[int, int]]:
    """The groups that `plan_merge` finds in a partition with these sizes, all of one time."""
    count, none = len(sizes), np.zeros(len(sizes), np.int64)
    groups_found, waiting = np.empty((2, count + 1, 2), np.int64)
    offsets = np.arange(count)
    columns = (none, np.frombuffer(sizes, np.int64), offsets, offsets + 1, none, none, none + 1, none[:1])
    return [
        (first, end) for first, end in groups_found[: find_groups(*columns, _LIMITS, waiting, groups_found)].tolist()
    ]


# ---
# A day, and all that it costs.


@dataclass(frozen=True)
class Day:
    """A day, or `seconds`, at `rate` bytes a second: an append every `append_s`, a merge every `maintain_s`.

    Each run of `maintain` opens the topic again, unless it `stays`. A consumer looks `looks` times for each append.
    """

    rate: int
    partitions: int
    append_s: int = APPEND_S
    maintain_s: int = MAINTAIN_S
    seconds: int = DAY_S
    memory: int = TASK_MEMORY
    stays: bool = False
    looks: int = 1
    kept_days: float = KEPT_DAYS
    vacuums: int = 1

    @property
    def tasks(self) -> int:
        """How many tasks write each append."""
        return ceil(self.rate / TASK_BYTES)

    @property
    def part_bytes(self) -> int:
        """The bytes that a task writes into a partition in an append."""
        return self.rate * self.append_s // (self.tasks * self.partitions)

    @property
    def share(self) -> int:
        """How many partitions share a bundle of an append."""
        return self.partitions if self.partitions > 1 and self.part_bytes <= LARGEST_PART else 0

    @property
    def add_bytes(self) -> int:
        """The bytes in a commit for a segment that an append adds."""
        return PART_ADD_BYTES if self.share else ADD_BYTES

    @property
    def count(self) -> int:
        """The number of appends."""
        return self.seconds // self.append_s

    @property
    def runs(self) -> int:
        """The number of runs of `maintain`."""
        return self.seconds // self.maintain_s

    @property
    def appends(self) -> Requests:
        """All appends, without checkpoints."""
        return append(self.part_bytes, self.partitions, self.tasks).times(self.count)

    @cached_property
    def merging(self) -> Merging:
        """The merges."""
        merging = Merging(self.partitions, job_bytes_of(self.memory, 1))
        part = Segment(self.part_bytes, self.share)
        for _ in range(self.runs):
            merging.add(part, self.tasks * self.maintain_s // self.append_s)
            merging.run()
        return merging

    @property
    def openings(self) -> Requests:
        """The commits that the runs of `maintain` read: what came since the run before, or since a checkpoint.

        And its looks for a commit that is not there yet: one at its begin, and one before each of two commits.
        """
        since = ceil(self.maintain_s / self.append_s)
        commits_read = since if self.stays else min(since, CHECKPOINT_COMMITS // 2) + 2
        return Requests(0, commits_read + 3).times(self.runs)

    @property
    def merges(self) -> Requests:
        """The merges, their commits, and the openings."""
        return self.merging.requests + self.openings + Requests(1, 0).times(self.runs)

    @property
    def merge_commit_bytes(self) -> int:
        """The bytes of the commits of merges."""
        merging = self.merging
        adds = PART_ADD_BYTES if any(segment_.share for segment_ in merging.live) else ADD_BYTES
        return self.partitions * (REMOVE_BYTES * merging.merged + adds * merging.merges)

    @property
    def commits(self) -> int:
        """The number of commits: of appends, merges, retention and vacuum."""
        return self.count + 2 * self.runs + self.vacuums

    @property
    def commit_bytes(self) -> int:
        """The bytes of all commits."""
        return self.count * self.tasks * self.partitions * self.add_bytes + self.merge_commit_bytes

    @property
    def live_segments(self) -> int:
        """The live segments of the topic, of all days that are kept, before a run of `maintain`."""
        days = self.kept_days * DAY_S / self.seconds if self.seconds == DAY_S else 1
        waiting = self.tasks * self.maintain_s // self.append_s
        return int(self.partitions * (days * len(self.merging.live) + waiting))

    @property
    def checkpoints(self) -> int:
        """The number of checkpoints."""
        return max(self.commits // CHECKPOINT_COMMITS, self.commit_bytes // CHECKPOINT_COMMIT_BYTES)

    @property
    def checkpoint_bytes(self) -> int:
        """The bytes of one checkpoint."""
        return self.live_segments * CHECKPOINT_ROW_BYTES

    @property
    def objects(self) -> int:
        """The objects with data that come into being."""
        merging = self.merging
        bundles = self.tasks * (1 if self.share else 3 * self.partitions)
        files = [
            3 * self.partitions if not segment_.share else self.partitions // segment_.share
            for segment_ in merging.live
        ]
        return self.count * bundles + merging.merges * (sum(files) // max(len(files), 1))

    @property
    def checkpointing(self) -> Requests:
        """The checkpoints, each with the hint that names it."""
        return Requests(object_puts(self.checkpoint_bytes) + 1).times(self.checkpoints)

    @property
    def retaining(self) -> Requests:
        """Retention, in each run of `maintain`: what is too old goes by a commit."""
        return Requests(1).times(self.runs)

    @property
    def vacuuming(self) -> Requests:
        """Vacuum: two commits, a day of commits that are read, listings, and files that go."""
        own_files = self.partitions if any(not segment_.share for segment_ in self.merging.live) else 0
        commits_kept = self.commits * (COMMIT_DAYS if self.seconds == DAY_S else 1)
        pages = ceil(commits_kept / KEYS) + ceil(own_files / KEYS) + own_files + ceil(self.objects / KEYS) + 3
        deleted = ceil((self.objects + self.commits) / KEYS)
        return Requests(2, self.commits + 10, pages, deleted).times(self.vacuums)

    @property
    def upkeep(self) -> Requests:
        """Checkpoints, retention and vacuum."""
        return self.checkpointing + self.retaining + self.vacuuming

    @property
    def consumer(self) -> Requests:
        """A process that gets all records as they come."""
        if self.share:
            data = self.tasks * ranges(self.part_bytes * self.partitions)
        else:
            data = self.tasks * self.partitions * ranges(self.part_bytes)
        return Requests(0, self.commits + self.count * (data + self.looks))

    @property
    def scan(self) -> Requests:
        """A process that opens the topic, and reads all that is there."""
        live, days = Counter(self.merging.live), self.kept_days if self.seconds == DAY_S else 1
        reads = sum(
            count * _reads(segment_, segment_.share or 1, self.partitions) for segment_, count in live.items()
        )
        return Requests(0, int(reads * days) + CHECKPOINT_COMMITS // 2 + 3, 0)

    @property
    def readers(self) -> Requests:
        """One consumer, and one scan a day."""
        return self.consumer + self.scan

    # --- what is stored, and what it takes of computers

    @property
    def data_gigabytes(self) -> float:
        """The records, and the copies that wait until vacuum may delete them."""
        waiting = self.partitions * self.merging.copied * REMOVED_DAYS + self.rate * DAY_S * REMOVED_DAYS
        return (self.rate * DAY_S * self.kept_days + waiting) / 1e9

    @property
    def metadata_gigabytes(self) -> float:
        """The commits and checkpoints that are kept."""
        checkpoints_kept = 2 + COMMIT_DAYS * self.commits / KEPT_CHECKPOINT_COMMITS
        return (COMMIT_DAYS * self.commit_bytes + checkpoints_kept * self.checkpoint_bytes) / 1e9

    @property
    def storage_dollars(self) -> tuple[float, float]:
        """A day of keeping data, and of metadata."""
        a_day = MONTH_OF_GB_DOLLARS / DAYS_A_MONTH
        return self.data_gigabytes * a_day, self.metadata_gigabytes * a_day

    @property
    def parts_of_a_run(self) -> int:
        """The segments that come between two runs of `maintain`."""
        return self.tasks * self.partitions * self.maintain_s // self.append_s

    @property
    def cores(self) -> float:
        """The cores that merge all day."""
        merging = self.merging
        copying = self.partitions * merging.copied / MERGE_BYTES_S
        return (copying + self.partitions * merging.merged * PART_S) / self.seconds

    @property
    def driver_s(self) -> float:
        """The seconds that the driver of a merge plans and commits alone."""
        return self.parts_of_a_run * DRIVER_PART_S

    @property
    def dollars(self) -> float:
        """All that S3 charges for the day."""
        requests = self.appends, self.merges, self.upkeep, self.readers
        return sum(requests.dollars for requests in requests) + sum(self.storage_dollars)


RATES = {1_000_000: "1 MB/s", 10_000_000: "10 MB/s", 100_000_000: "100 MB/s", 1_000_000_000: "1 GB/s"}
PARTITIONS = (1, 100, 10_000)


def days(append_s: int = APPEND_S, maintain_s: int = MAINTAIN_S) -> Iterator[Day]:
    """The days of a table: each rate with each number of partitions."""
    return (Day(rate, partitions, append_s, maintain_s) for rate in RATES for partitions in PARTITIONS)


def rows(append_s: int = APPEND_S, maintain_s: int = MAINTAIN_S) -> list[list[str]]:
    """A table of docs/costs.md."""
    return [
        [
            RATES[day.rate],
            f"{day.partitions:,}",
            *map(_dollars, (day.appends.dollars, day.merges.dollars, day.upkeep.dollars + day.readers.dollars)),
            _dollars(sum(day.storage_dollars)),
            f"**{_dollars(day.dollars)}**",
            f"{day.cores:,.1f}",
        ]
        for day in days(append_s, maintain_s)
    ]


def _dollars(amount: float) -> str:
    return f"${amount:,.2f}"


def page() -> str:
    """The text of docs/costs.md."""
    fast, slow = (
        "\n".join(f"| {' | '.join(row)} |" for row in rows(*intervals))
        for intervals in ((APPEND_S, MAINTAIN_S), SLOW)
    )
    most, waits = Day(1_000_000_000, 10_000), Day(1_000_000_000, 10_000, *SLOW)
    columns = {
        "fast": fast,
        "slow": slow,
        "commits": f"{most.commit_bytes / 1e9:,.0f}",
        "parts": f"{most.parts_of_a_run // MAINTAIN_S:,}",
        "driver": f"{most.driver_s:,.0f}",
        "merge_cores": f"{waits.cores:,.0f}",
        "copies": f"{waits.partitions * waits.merging.copied / (waits.rate * DAY_S):,.1f}",
        "merges": _dollars(waits.merges.dollars),
        "appends": _dollars(waits.appends.dollars),
        "times": f"{waits.merges.dollars / waits.appends.dollars:,.1f}",
        "warpstream_puts": f"{DAY_S * 4:,}",
        "warpstream_put_dollars": _dollars(DAY_S * 4 * PUT_DOLLARS),
        "requests": _dollars(sum(e.dollars for e in (waits.appends, waits.merges, waits.upkeep, waits.readers))),
        "stored": _dollars(sum(waits.storage_dollars)),
        "all": _dollars(waits.dollars),
    }
    return TEMPLATE.format(**columns)


TEMPLATE = (Path(__file__).parent / "costs.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    print(page(), end="")
