"""docs/costs.md cannot drift: its tables come from the model, and the model counts the requests of a server."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from addresses import Address
from bundled import rows, segments
from store_clock import TimedStorage
from topics import NOW, Clock, topic_on

import distlog
from benchmarks import costs
from distlog.core import paths
from distlog.core.config import TopicConfig
from distlog.core.maintain.merge import job_bytes_of
from distlog.core.maintain.merge_job import JOB_BYTES
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.append import Appender, commit_append

TEXT = (Path(__file__).parents[2] / "docs" / "costs.md").read_text(encoding="utf-8")
TASKS, PARTITIONS, APPENDS = 2, 3, 4


@pytest.mark.long
def test_the_page_equals_the_output_of_the_command() -> None:
    assert costs.page() == TEXT


def test_the_figures_in_the_text_come_from_the_model() -> None:
    words = " ".join(TEXT.split())
    assert f"about {costs.PART_ADD_BYTES} bytes for each part of a bundle" in words
    assert f"about {costs.ADD_BYTES} for a segment of its own files" in words
    assert f"about {costs.REMOVE_BYTES} for a segment that it removes" in words
    assert f"{costs.PART_S * 1e6:.0f} µs for each part" in words
    assert f"{costs.MERGE_BYTES_S / 1e6:.0f} MB/s of small batches" in words
    assert f"by {costs.DRIVER_PART_S * 1e6:.0f} µs for each part" in words
    assert f"a job reads {job_bytes_of(costs.TASK_MEMORY, 1) >> 20} MiB at once" in words
    assert f"${1_000_000 / 30 / 100:.0f} a day for each GiB/s" in words
    assert f"${288_000 / 365:.0f} a day" in TEXT
    assert f"${3_320_000 / 365:,.0f} a day" in TEXT
    assert f"{3_088_272 / 3_320_000:.0%}".replace("%", " %") in TEXT


def test_merging_a_gigabyte_a_second_takes_at_most_about_twice_the_requests_of_its_appends() -> None:
    day = costs.Day(1_000_000_000, 10_000, *costs.SLOW)
    assert day.merges.dollars < 2 * day.appends.dollars
    alone = costs.Day(1_000_000_000, 10_000, *costs.SLOW, memory=0)
    assert alone.merges.dollars > 4 * day.merges.dollars


def requests(topic: Topic) -> costs.Requests:
    return costs.Requests(topic.storage.counters.puts, topic.storage.counters.gets)


def since(topic: Topic, old_requests: costs.Requests) -> costs.Requests:
    return requests(topic) + old_requests.times(-1)


@pytest.mark.s3
def test_the_model_counts_the_requests_that_a_server_gets(s3_url: Address) -> None:
    topic = topic_on(Storage(*s3_url).child("t"), PARTITIONS)
    for number in range(APPENDS):
        old_requests = requests(topic)
        snapshot, written = topic.refresh().snapshot, []
        for task in range(TASKS):
            appender = Appender(
                topic.storage,
                topic.name,
                TopicConfig(),
                PARTITIONS,
                read_version=snapshot.version,
                first_partition=0,
                clock=lambda: NOW,
                random=Random(0),
                workers=1,
            )
            appender.append(rows(PARTITIONS, 200, 1000 * number + 200 * task, size=1000))
            written += appender.close()
        _, after = commit_append(topic.handle, snapshot, written, read_version=snapshot.version)
        topic.advance(after)
        assert since(topic, old_requests) == costs.append(
            segments(topic)[0].log_bytes if number else 0, PARTITIONS, TASKS
        )
    sizes = [int(segment.log_bytes) for segment in topic.snapshot.partitions[0].segments]
    assert len(sizes) == TASKS * APPENDS
    old_requests = requests(topic)
    topic.compact()
    group = tuple(costs.Segment(size, PARTITIONS) for size in sizes)
    merge = costs.Merge.of(group, PARTITIONS, JOB_BYTES)
    # two requests for newer commits, and the commit
    assert since(topic, old_requests) == merge.requests + costs.Requests(1, 2)
    assert len(segments(topic)) == PARTITIONS


def test_the_bytes_of_a_segment_in_a_commit_match_the_model(tmp_path: Path) -> None:
    topic = topic_on(Storage(str(tmp_path / "t")), 100)
    for _ in range(3):
        uneven = [{**row, "timestamp": NOW + 7 * row["partition"]} for row in rows(100, 20, size=90)]
        topic.append([row for number, row in enumerate(uneven) if number % 3 or row["partition"] % 7])
    size = len(topic.storage.read(paths.commit_file(3))) - 500  # bytes that each commit of a bundle has in addition
    assert 0.8 * costs.PART_ADD_BYTES < size / 100 < 1.2 * costs.PART_ADD_BYTES
    topic.append([{"value": b"v", "partition": 0}])
    assert 0.8 * costs.ADD_BYTES < len(topic.storage.read(paths.commit_file(4))) - 300 < 1.2 * costs.ADD_BYTES


#: The largest difference between the requests of the code and of the model, as a share and as a number.
TOLERANCE, FEW = 0.1, 4
KINDS = ("puts", "gets", "lists", "deletes")


def close(counted: costs.Requests, model: costs.Requests, kinds: Sequence[str]) -> bool:
    """Return whether the counted requests of the kinds match the model."""
    pairs = ((getattr(counted, kind), getattr(model, kind)) for kind in kinds)
    return all(abs(count - other) <= max(FEW, TOLERANCE * other) for count, other in pairs)


@pytest.mark.s3
@pytest.mark.long
def test_a_minute_of_simulated_time_takes_the_requests_of_the_model(s3_url: Address) -> None:
    """A merge and a vacuum refresh many commits at once: a minute is too short to count the commits they read."""
    compare(s3_url, 1, 400, seconds=60, maintain_s=20, merges=("puts",), vacuum=("lists", "deletes"))


@pytest.mark.long
@pytest.mark.parametrize(("partitions", "size"), [(1, 400), (12, 400), (4, 60_000)])
def test_minutes_of_simulated_time_take_the_requests_of_the_model(
    memory_url: Address, partitions: int, size: int
) -> None:
    """In memory a listing has no pages, and each file has its own DELETE; the other requests are as on a server."""
    compare(memory_url, partitions, size, seconds=180, maintain_s=60, merges=KINDS, vacuum=("puts", "gets"))


def compare(
    url: Address, partitions: int, size: int, *, seconds: int, maintain_s: int, **compared: Sequence[str]
) -> None:
    """Compare a simulated run of all clients with the model; `compared` limits the kinds of requests of a client."""
    clock, counted, data = Clock(), Counter[tuple[str, str]](), 0

    def client(*arguments: object) -> Topic:
        return topic_on(TimedStorage(Storage(*url).child("t"), clock), *arguments, clock=clock)

    def counting(subject: str, topic: Topic, work: Callable[[], Any]) -> Any:
        old_counters = dataclasses.replace(topic.storage.counters)
        report = work()
        for kind in KINDS:
            counted[subject, kind] += getattr(topic.storage.counters, kind) - getattr(old_counters, kind)
        return report

    writer = client(partitions, {"file.delete.delay.ms": 1000 * maintain_s, "retention.ms": -1})
    keeper, reader = client(), client()
    with reader.consume(start=distlog.EARLIEST, timeout=0) as consumer:
        for second in range(1, seconds + 1):
            clock.now_ms += 1000
            counting("appends", writer, lambda second=second: writer.append(rows(partitions, 2, 2 * second, size)))
            got = counting("consumer", reader, lambda: sum(batch.num_rows for batch in consumer))
            assert got == 2 * partitions
            if second == 1:
                data = sum(int(segment.log_bytes) for segment in segments(writer))
            if second % maintain_s == 0:
                counting("merges", keeper, keeper.compact)
        counting("vacuum", keeper, keeper.vacuum)
    scanner = client()
    assert counting("scan", scanner, lambda: scanner.scan().to_table().num_rows) == 2 * seconds * partitions
    # the consumer polls twice for each append: the second poll finds no record
    few = {"seconds": seconds, "maintain_s": maintain_s, "memory": 0, "stays": True, "looks": 2}
    day = costs.Day(data, partitions, **few)
    model = {
        "appends": day.appends + day.checkpointing,
        "merges": day.merges,
        "vacuum": day.vacuuming,
        "consumer": day.consumer,
        "scan": costs.Requests(0, day.scan.gets - costs.CHECKPOINT_COMMITS // 2 - 3),
    }
    for subject, expected in model.items():
        counted_requests = costs.Requests(*(counted[subject, kind] for kind in KINDS))
        assert close(counted_requests, expected, compared.get(subject, KINDS)), (
            f"{subject}: {counted_requests}, and by the model {expected}"
        )
