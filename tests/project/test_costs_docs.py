"""docs/costs.md cannot drift: its tables are what the model gives, and the model counts what a server counts."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from bundled import rows, segments
from conftest import Address
from topics import NOW, topic_on

from benchmarks import costs
from distlog.core import paths
from distlog.core.config import TopicConfig
from distlog.core.storage.storage import Storage
from distlog.core.topics.append_commit import commit_append
from distlog.core.topics.appender import Appender
from distlog.core.topics.topic import Topic

TEXT = (Path(__file__).parents[2] / "docs" / "costs.md").read_text(encoding="utf-8")
TASKS, PARTITIONS, APPENDS = 2, 3, 4


def table(number: int) -> list[list[str]]:
    """The rows of a table of the page, without its head."""
    lines = re.findall(r"(?:^\|.*\n)+", TEXT, re.MULTILINE)[number].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_tables_are_what_the_model_gives() -> None:
    assert table(0) == costs.rows()
    assert table(1) == costs.rows(*costs.SLOW)


def test_the_figures_in_the_text_are_those_of_the_model() -> None:
    before = costs.DAY_S * 2 * 100
    assert f"took {before / 1e6:.0f} million PUTs a day for its files, ${before * costs.PUT_DOLLARS:.0f}" in TEXT
    assert f"about {costs.PART_ADD_BYTES} bytes for each part of a bundle" in TEXT
    assert f"about {costs.ADD_BYTES} for a segment of its own files" in " ".join(TEXT.split())
    a_day = costs.DAY_S * 1000 // 250
    assert f"{a_day:,} PUTs a day and agent, ${a_day * costs.PUT_DOLLARS:.2f}" in TEXT
    assert f"${288_000 / 365:.0f} a day" in TEXT
    assert f"${3_320_000 / 365:,.0f} a day" in TEXT
    assert f"{3_088_272 / 3_320_000:.0%}".replace("%", " %") in TEXT


def requests(topic: Topic) -> costs.Requests:
    """What the topic's storage has counted."""
    return costs.Requests(topic.storage.counters.puts, topic.storage.counters.gets)


def since(topic: Topic, before: costs.Requests) -> costs.Requests:
    return requests(topic) + before.times(-1)


@pytest.mark.s3
def test_the_model_counts_the_requests_that_a_server_gets(s3_url: Address) -> None:
    topic = topic_on(Storage(*s3_url).child("t"), PARTITIONS)
    for number in range(APPENDS):
        before = requests(topic)
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
        assert since(topic, before) == costs.append(segments(topic)[0].log_bytes if number else 0, PARTITIONS, TASKS)
    sizes = [int(one.log_bytes) for one in topic.snapshot.partitions[0].segments]
    assert len(sizes) == TASKS * APPENDS
    before = requests(topic)
    topic.compact()
    group = tuple(costs.Segment(size, PARTITIONS) for size in sizes)
    assert since(topic, before) == costs.merge(group, PARTITIONS) + costs.RUN
    assert len(segments(topic)) == PARTITIONS


def test_a_commit_says_of_a_segment_what_the_model_says(tmp_path: Path) -> None:
    topic = topic_on(Storage(str(tmp_path / "t")), 100)
    for _ in range(3):
        uneven = [{**row, "timestamp": NOW + 7 * row["partition"]} for row in rows(100, 20, size=90)]
        topic.append([row for number, row in enumerate(uneven) if number % 3 or row["partition"] % 7])
    size = len(topic.storage.read(paths.commit_file(3)))
    assert 0.8 * costs.PART_ADD_BYTES < size / 100 < 1.2 * costs.PART_ADD_BYTES
    topic.append([{"value": b"v", "partition": 0}])
    assert 0.8 * costs.ADD_BYTES < len(topic.storage.read(paths.commit_file(4))) - 300 < 1.2 * costs.ADD_BYTES
