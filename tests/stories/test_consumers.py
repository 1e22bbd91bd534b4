"""Real processes consume a topic as a group, and are killed one after another while another process writes."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from addresses import Address
from forked_programs import Program

import distlog

pytestmark = pytest.mark.long

PARTITIONS = 4
RECORDS = 1500
#: Prints each record, then commits; reads the state of its lease a few batches later.
_FOLLOWING = """
import json, sys
import distlog

url, options = sys.argv[1], json.loads(sys.argv[2])
topic = distlog.open(url, storage_options=options)
with topic.consume(group="jobs", lease=2.0, columns=["partition", "offset", "value"]) as consumer:
    for number, batch in enumerate(consumer):
        rows = zip(*(column.to_pylist() for column in batch.columns))
        sys.stdout.write("".join(f"{number} {p} {o} {v.decode()}\\n" for p, o, v in rows))
        sys.stdout.flush()
        try:
            consumer.commit()
        except distlog.FencedMemberError:
            pass
"""
_WRITING = """
import json, sys, time
import distlog

url, options, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
topic = distlog.open(url, storage_options=options)
with topic.writer(linger_ms=20) as writer:
    for number in range(count):
        writer.append(b"%d" % number, partition=number % 4)
        if number % 50 == 49:
            writer.flush()
            time.sleep(0.02)
"""


class Process:
    """A child that writes its output to a file, so that it never waits for a pipe."""

    def __init__(self, program: str, output: Path, *arguments: str) -> None:
        self.output = output
        with output.open("wb") as file:
            self.child = Program(program, *arguments, stdout=file)

    def rows(self) -> list[list[int]]:
        """Return the (batch, partition, offset, number) of its records, without a truncated line."""
        lines = self.output.read_text().split("\n")[:-1]
        return [[int(field) for field in line.split()] for line in lines]


@contextmanager
def running(program: str, output: Path, *arguments: str) -> Iterator[Process]:
    process = Process(program, output, *arguments)
    try:
        yield process
    finally:
        process.child.kill()
        process.child.wait()


def wait_until(topic: distlog.Topic, group_is_at: dict[int, int]) -> None:
    end = time.monotonic() + 600
    while True:
        table = topic.groups()
        if dict(zip(*(table[name].to_pylist() for name in ("partition", "position")), strict=True)) == group_is_at:
            return
        assert time.monotonic() < end, table.to_pylist()
        time.sleep(0.2)


def wait_until_shared(topic: distlog.Topic, by: int) -> None:
    """Wait until `by` members have partitions, so that each gets records."""
    end = time.monotonic() + 300
    while len(set(topic.groups()["member"].to_pylist()) - {None}) < by:
        assert time.monotonic() < end, topic.groups().to_pylist()
        time.sleep(0.2)


def check(processes: list[Process], ends: dict[int, int]) -> None:
    """Check that each written record was returned, and that partitions continue without gaps unless they moved."""
    offsets: dict[int, set[int]] = defaultdict(set)
    went_on = jumps = 0
    for process in processes:
        last: dict[int, tuple[int, int]] = {}
        for batch, partition, offset, number in process.rows():
            assert number == offset * PARTITIONS + partition
            previous = last.get(partition)
            if previous is not None and previous[1] + 1 == offset:
                went_on += 1
            elif previous is not None:
                assert previous[0] < batch
                jumps += 1
            offsets[partition].add(offset)
            last[partition] = batch, offset
    assert offsets == {partition: set(range(end)) for partition, end in ends.items()}
    assert jumps < 20 < went_on


def run(url: str, options: dict[str, str], tmp_path: Path, records: int, kills: int) -> None:
    chance, arguments = random.Random(kills), (url, json.dumps(options))
    topic = distlog.create(url, PARTITIONS, storage_options=options)
    with ExitStack() as stack:
        members = [
            stack.enter_context(running(_FOLLOWING, tmp_path / f"member{number}", *arguments)) for number in range(3)
        ]
        wait_until_shared(topic, len(members))
        writer = stack.enter_context(running(_WRITING, tmp_path / "writer", *arguments, str(records)))
        for number in range(kills):
            victim = chance.choice([member for member in members if member.child.poll() is None])
            end = time.monotonic() + 300
            while not victim.output.stat().st_size and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(chance.random())
            victim.child.kill()
            members.append(stack.enter_context(running(_FOLLOWING, tmp_path / f"member{3 + number}", *arguments)))
        assert writer.child.wait(timeout=600) == 0
        ends = topic.refresh().end_offsets()
        assert sum(ends.values()) == records
        wait_until(topic, ends)
    check(members, ends)
    assert sum(1 for member in members if member.rows()) >= 3


def test_three_members_on_a_disk_two_of_them_killed(tmp_path: Path) -> None:
    run(str(tmp_path / "topic"), {}, tmp_path, RECORDS, kills=2)


@pytest.mark.s3
def test_three_members_on_s3_one_of_them_killed(s3_url: Address, tmp_path: Path) -> None:
    run(f"{s3_url.url}/topic", s3_url.options, tmp_path, 200, kills=1)
