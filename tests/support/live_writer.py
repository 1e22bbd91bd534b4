"""A process that writes record by record, and all ways to read what it has written so far."""

from __future__ import annotations

import subprocess

import pyarrow as pa
from forked_programs import Program
from topics import NOW

import distlog
from distlog.core.format.record_batch import read_headers
from distlog.core.write.rows import Partitioner
from distlog.core.write.writer import Writer

KEYS = 40

_WRITING = """
import sys
import distlog
from live_writer import write

url, first, end, codec = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with distlog.open(url).writer(linger_ms=0, compression=codec) as writer:
    for number in range(first, end):
        write(writer, number)
        if number % 20 == 19:
            writer.flush()
            print(number + 1, flush=True)
    writer.flush()
    print(end, flush=True)
    sys.stdin.read()
"""


def write(writer: Writer, number: int) -> None:
    """Append record `number`, whose key, time and header depend on the number too."""
    value = b"%d" % number
    writer.append(value.ljust(50), key=key_of(number), timestamp=NOW + number, headers=[("n", value)])


def key_of(number: int) -> bytes:
    return b"k%d" % (number % KEYS)


class LiveWriter:
    """A process that writes the records `first` to `end`, and then waits to be closed or killed."""

    def __init__(self, url: str, first: int, end: int, codec: str = "none") -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = Program(_WRITING, url, first, end, codec, **pipes)
        self.acknowledged = first

    def wait_for(self, count: int) -> None:
        """Wait until that many records are acknowledged."""
        assert self._process.stdout
        while self.acknowledged < count:
            self.acknowledged = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        said = self._process.communicate()[0].splitlines()
        # an incomplete number is not an acknowledgement
        self.acknowledged = max([self.acknowledged, *map(int, said[:-1])])

    def close(self) -> None:
        said = self._process.communicate("")[0].splitlines()
        assert self._process.returncode == 0
        self.acknowledged = max([self.acknowledged, *map(int, said)])


def expected(partitions: int, count: int) -> dict[int, list[int]]:
    """The numbers of the first `count` records in each partition, in their order."""
    keys = pa.array([key_of(number) for number in range(count)], pa.binary())
    records = pa.record_batch({"key": keys, "value": keys})
    numbers_by_partition: dict[int, list[int]] = {number: [] for number in range(partitions)}
    return numbers_by_partition | {
        number: rows.tolist() for number, rows in Partitioner(partitions, 0).split(records)
    }


def check_every_reader(topic: distlog.Topic, written: int, acknowledged: int) -> int:
    """Read the topic's snapshot in every way: each partition has a beginning of what was written to it.

    All that was acknowledged is there. Returns the number of records.
    """
    ends, written_numbers = topic.end_offsets(), expected(topic.partitions, written)
    expected_numbers = {partition: numbers[: ends[partition]] for partition, numbers in written_numbers.items()}
    assert {partition: len(numbers) for partition, numbers in expected_numbers.items()} == ends
    assert set(range(acknowledged)) <= {number for numbers in expected_numbers.values() for number in numbers}
    for isolation in ("read_uncommitted", "read_committed"):
        assert _scanned(topic, isolation) == expected_numbers
    for partition, numbers in expected_numbers.items():
        _check_records(topic, partition, numbers)
        _check_batches(topic, partition, len(numbers))
        _check_times(topic, partition, numbers)
    assert sum(topic.segments()["record_count"].to_pylist()) == sum(ends.values())
    assert all(f"<td>{end:,}</td>" in topic._repr_html_() for end in ends.values())
    assert topic.end_offsets() == ends
    return sum(ends.values())


def _scanned(topic: distlog.Topic, isolation: str) -> dict[int, list[int]]:
    table = topic.scan(isolation=isolation).to_table()
    numbers_by_partition: dict[int, list[int]] = {number: [] for number in range(topic.partitions)}
    for row in table.to_pylist():
        assert row["offset"] == len(numbers_by_partition[row["partition"]])
        number = int(row["value"])
        assert (row["key"], row["headers"]) == (key_of(number), [{"key": "n", "value": b"%d" % number}])
        numbers_by_partition[row["partition"]].append(number)
    return numbers_by_partition


def _check_records(topic: distlog.Topic, partition: int, numbers: list[int]) -> None:
    rows = [(row.offset, int(row.value or b""), row.timestamp - NOW) for row in topic.records(partition)]
    assert rows == [(offset, number, number) for offset, number in enumerate(numbers)]
    for offset in {0, len(numbers) // 2, len(numbers) - 1} if numbers else ():
        (row,) = topic.records(partition, offset, 1)
        assert (row.offset, int(row.value or b"")) == (offset, numbers[offset])


def _check_batches(topic: distlog.Topic, partition: int, end: int) -> None:
    offset = 0
    while offset < end:
        fetched = topic.read(partition, offset, 1000)
        batches = read_headers(bytes(fetched))
        assert batches["base_offset"][0] <= offset
        offset = int(batches["base_offset"][-1] + batches["last_offset_delta"][-1]) + 1
        assert fetched.next_offset == offset
    assert len(topic.read(partition, end)) == 0


def _check_times(topic: distlog.Topic, partition: int, numbers: list[int]) -> None:
    for offset in {0, len(numbers) // 3, len(numbers) - 1} if numbers else ():
        time = NOW + numbers[offset]
        assert topic.offsets_for_times({partition: time}) == {partition: (offset, time)}
        assert topic.scan([partition], start_time=time).count() == len(numbers) - offset
        assert topic.scan([partition], end_time=time).count() == offset
    last = (len(numbers) - 1, NOW + numbers[-1]) if numbers else None
    assert topic.offsets_for_times({partition: distlog.MAX_TIMESTAMP}) == {partition: last}
    assert topic.offsets_for_times({partition: distlog.LATEST}) == {partition: (len(numbers), -1)}
    assert topic.offsets_for_times({partition: NOW + 10**9}) == {partition: None}
