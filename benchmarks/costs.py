"""What a day of a topic costs on S3: a model of requests and storage, which docs/costs.md shows and a test compares.

An append by some tasks puts a bundle a task, and a commit. `maintain` merges every minute. Prices are those that AWS
publishes for S3 Standard in us-east-1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import ceil

from distlog.core.maintenance.merge import JOB_BYTES, JOB_SEGMENTS, worth_it
from distlog.core.segments.segment_writer import HELD_BYTES, LARGEST_PART
from distlog.core.storage.backend import MAX_MERGED_BYTES as RANGE_BYTES
from distlog.core.storage.object_store import PART_BYTES, SINGLE_PUT_BYTES

PUT_DOLLARS, GET_DOLLARS, MONTH_OF_GB_DOLLARS = 0.005 / 1000, 0.0004 / 1000, 0.023
DAY_S, DAYS_A_MONTH = 86_400, 30
#: Seconds between appends, and between runs of `maintain`; the largest segment; days that records are kept.
APPEND_S, MAINTAIN_S, SEGMENT_BYTES, KEPT_DAYS = 1, 60, 1 << 30, 7
#: The same seconds for those who can wait.
SLOW = 10, 900
#: What one task writes in a second, at most.
TASK_BYTES = 100_000_000
#: What a commit says of a segment of files of its own, in JSON, and of a part of a bundle, in columns.
ADD_BYTES, PART_ADD_BYTES = 750, 20
#: Two files for each checkpoint, which the hundredth commit writes.
CHECKPOINT_PUTS, CHECKPOINT_COMMITS = 2, 100


@dataclass(frozen=True, slots=True)
class Requests:
    """Numbers of requests."""

    puts: int
    gets: int

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.puts + other.puts, self.gets + other.gets)

    def times(self, count: int) -> Requests:
        """So many times these."""
        return Requests(self.puts * count, self.gets * count)

    @property
    def dollars(self) -> float:
        """What they cost."""
        return self.puts * PUT_DOLLARS + self.gets * GET_DOLLARS


#: What each run of merges takes besides: two looks for news, and the commit.
RUN = Requests(1, 2)


def object_puts(size: int) -> int:
    """The requests that write an object: one, or an upload of parts with its begin and end."""
    return 1 if size < SINGLE_PUT_BYTES else ceil(size / PART_BYTES) + 2


def append(part_bytes: int, partitions: int, tasks: int) -> Requests:
    """One append of `part_bytes` by each task into each partition: the bundles, a look for news, the commit."""
    if partitions > 1 and part_bytes <= LARGEST_PART:
        data = object_puts(part_bytes * partitions)
    else:
        data = partitions * segment_puts(part_bytes)
    return Requests(tasks * data + 1, 1)


def segment_puts(log_bytes: int) -> int:
    """The requests that write a segment's own files: the log and two indexes."""
    return (1 if log_bytes <= HELD_BYTES else object_puts(log_bytes)) + 2


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a partition, its bytes; so many partitions `share` a bundle, 0 for files of its own."""

    size: int
    share: int


def job(group: tuple[Segment, ...], partitions: int) -> int:
    """How many partitions share the bundle that such groups of theirs become; 0 for files of their own."""
    size = sum(segment.size for segment in group)
    if partitions == 1 or size > LARGEST_PART:
        return 0
    return max(1, min(partitions, JOB_BYTES // max(1, size), JOB_SEGMENTS // len(group)))


@cache
def reads(segment: Segment, share: int, partitions: int) -> int:
    """The requests that read a segment of each partition: each job reads its neighbours in a bundle at once."""
    if not (segment.share and share):
        return partitions * ceil(segment.size / RANGE_BYTES)
    begins = sorted({*range(0, partitions, segment.share), *range(0, partitions, share)})
    counts = (end - begin for begin, end in pairwise([*begins, partitions]))
    return sum(ceil(count * segment.size / RANGE_BYTES) for count in counts)


@cache
def merge(group: tuple[Segment, ...], partitions: int) -> Requests:
    """One merge of such a group in each partition."""
    size, share = sum(segment.size for segment in group), job(group, partitions)
    gets = sum(reads(segment, share, partitions) for segment in group)
    if not share:
        return Requests(partitions * segment_puts(size), gets)
    counts = (min(share, partitions - first) for first in range(0, partitions, share))
    return Requests(sum(object_puts(count * size) for count in counts), gets)


@cache
def merges(part_bytes: int, parts: int, runs: int, partitions: int) -> Requests:
    """All merges of partitions that get `parts` parts each before each of `runs` runs of `maintain`."""
    growing, total = list[Segment](), Requests(0, 0)
    part = Segment(part_bytes, partitions if partitions > 1 and part_bytes <= LARGEST_PART else 0)
    for _ in range(runs):
        *full, growing = _segments([*growing, *[part] * parts])
        total = sum((_merged(group, partitions) for group in full), total) + _merged(growing, partitions)
    return total


def _segments(segments: list[Segment]) -> list[list[Segment]]:
    """Runs that fit into one segment; to all but the last nothing is added any more."""
    found, total = [list[Segment]()], 0
    for segment in segments:
        if total + segment.size > SEGMENT_BYTES:
            found, total = [*found, []], 0
        found[-1].append(segment)
        total += segment.size
    return found


def _merged(segments: list[Segment], partitions: int) -> Requests:
    """Merge what the planner finds worth merging, in place."""
    total, sizes = Requests(0, 0), [segment.size for segment in segments]
    for start, end in reversed(list(worth_it(sizes, 0, len(sizes)))):
        group = tuple(segments[start:end])
        total += merge(group, partitions)
        segments[start:end] = [Segment(sum(sizes[start:end]), job(group, partitions))]
    return total


@dataclass(frozen=True, slots=True)
class Day:
    """A day at `rate` bytes a second: an append every `append_s` seconds, a merge every `maintain_s`."""

    rate: int
    partitions: int
    append_s: int = APPEND_S
    maintain_s: int = MAINTAIN_S

    @property
    def tasks(self) -> int:
        """How many tasks write each append."""
        return ceil(self.rate / TASK_BYTES)

    @property
    def part_bytes(self) -> int:
        """What a task writes into a partition in an append."""
        return self.rate * self.append_s // (self.tasks * self.partitions)

    @property
    def appends(self) -> Requests:
        """The requests of all appends, and of their checkpoints."""
        count = DAY_S // self.append_s
        one = append(self.part_bytes, self.partitions, self.tasks)
        return one.times(count) + Requests(CHECKPOINT_PUTS * count // CHECKPOINT_COMMITS, 0)

    @property
    def merges(self) -> Requests:
        """The requests of all merges, and of their commits."""
        runs, parts = DAY_S // self.maintain_s, self.tasks * self.maintain_s // self.append_s
        return merges(self.part_bytes, parts, runs, self.partitions) + RUN.times(runs)

    @property
    def storage_dollars(self) -> float:
        """A day of keeping KEPT_DAYS of records."""
        return self.rate * DAY_S * KEPT_DAYS / 1e9 * MONTH_OF_GB_DOLLARS / DAYS_A_MONTH

    @property
    def commit_gigabytes(self) -> float:
        """What a day adds to the commit log, which keeps a week."""
        each = PART_ADD_BYTES if self.partitions > 1 and self.part_bytes <= LARGEST_PART else ADD_BYTES
        return DAY_S // self.append_s * self.tasks * self.partitions * each / 1e9


RATES = {1_000_000: "1 MB/s", 10_000_000: "10 MB/s", 100_000_000: "100 MB/s", 1_000_000_000: "1 GB/s"}
PARTITIONS = (1, 100, 10_000)


def rows(append_s: int = APPEND_S, maintain_s: int = MAINTAIN_S) -> list[list[str]]:
    """The table of docs/costs.md: a row for each rate and number of partitions."""
    days = [Day(rate, partitions, append_s, maintain_s) for rate in RATES for partitions in PARTITIONS]
    return [
        [
            RATES[day.rate],
            f"{day.partitions:,}",
            f"{day.appends.puts:,}",
            _dollars(day.appends.dollars),
            _dollars(day.merges.dollars),
            _dollars(day.storage_dollars),
            f"{day.commit_gigabytes:,.2f} GB",
        ]
        for day in days
    ]


def _dollars(amount: float) -> str:
    return f"${amount:,.2f}"


if __name__ == "__main__":
    for schedule in ((APPEND_S, MAINTAIN_S), SLOW):
        print("\n".join(f"| {' | '.join(row)} |" for row in rows(*schedule)), end="\n\n")
