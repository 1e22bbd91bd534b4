"""More partitions in a present topic: writers use them at once, and present records stay."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from topics import contents, topic_on

import distlog
from distlog.core.commits.actions import MAX_PARTITIONS
from distlog.core.errors import InvalidConfigError, InvalidPartitionsError, ReadOnlyTopicError
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


@pytest.fixture(params=["in place", "commits"])
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> Topic:
    where = str(tmp_path / "topic") if request.param == "in place" else f"memory://{tmp_path.name}/topic"
    topic = topic_on(Storage(where), 1)
    with topic.writer() as writer:
        writer.append(b"before", key=b"k")
    return topic.refresh()


def test_records_stay_where_they_are_and_new_ones_go_everywhere(topic: Topic) -> None:
    topic.create_partitions(3)
    assert topic.partitions == distlog.open(topic.url).partitions == 3
    with topic.writer() as writer:
        for number in range(3):
            writer.append(b"after", partition=number)
    topic.append([{"value": "table", "partition": number} for number in range(3)])
    assert contents(topic.refresh()) == {
        0: [b"before", b"after", b"table"],
        1: [b"after", b"table"],
        2: [b"after", b"table"],
    }


@pytest.mark.filterwarnings("ignore::distlog.RetentionWarning")
def test_an_open_writer_routes_keys_by_the_added_partitions(topic: Topic) -> None:
    other = distlog.open(topic.url)
    with other.writer() as writer:
        writer.append(b"first", partition=0)
        writer.flush()
        topic.create_partitions(50)
        for number in range(20):
            writer.append(b"third", key=b"%d" % number)
    topic.refresh().append([{"key": b"%d" % number, "value": "third"} for number in range(20)])
    values = topic.refresh().scan(columns=["partition", "key", "value"]).to_table().to_pylist()
    pairs = [(row["key"], row["partition"]) for row in values if row["value"] == b"third"]
    assert len(pairs) == 40
    assert len(set(pairs)) == 20
    assert len({partition for _, partition in pairs}) > 1


def test_the_largest_of_concurrent_numbers_applies(topic: Topic) -> None:
    def grow(count: int) -> int:
        try:
            distlog.open(topic.url).create_partitions(count)
        except InvalidPartitionsError:
            return 0
        return count

    with ThreadPoolExecutor(4) as pool:
        topics = list(pool.map(grow, (2, 5, 3, 4)))
    assert topic.refresh().partitions == max(topics) == 5
    assert contents(topic)[0] == [b"before"]


@pytest.mark.parametrize("count", [1, 0, -1, MAX_PARTITIONS + 1])
def test_an_invalid_number_is_refused(topic: Topic, count: int) -> None:
    version = topic.version
    with pytest.raises(InvalidPartitionsError, match="partitions"):
        topic.create_partitions(count)
    assert topic.refresh().version == version


def test_a_number_must_be_whole_and_a_snapshot_of_the_past_stays(topic: Topic) -> None:
    with pytest.raises(InvalidConfigError, match="count"):
        topic.create_partitions(2.5)  # type: ignore[arg-type]
    with pytest.raises(ReadOnlyTopicError):
        distlog.open(topic.url, version=0).create_partitions(2)


def test_maintenance_covers_the_new_partitions(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "topic"), config={"cleanup.policy": "compact"})
    topic.append([{"key": "k", "value": "old"}, {"key": "k", "value": "new"}])
    topic.create_partitions(2)
    topic.append([{"key": "k", "value": "there", "partition": 1}, {"key": "k", "value": "newest", "partition": 1}])
    for work in (topic.compact, topic.vacuum, partial(topic.rebuild_indexes, force=True)):
        work()
    values = topic.refresh().scan(columns=["partition", "value"]).to_table().to_pylist()
    assert [(row["partition"], row["value"]) for row in values] == [(0, b"new"), (1, b"newest")]
    assert topic.verify().ok
