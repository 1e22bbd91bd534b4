"""The life of a bundle: its parts leave one by one, by retention or merges, and its file goes with the last."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundled import bundles, rows, segments
from commits import put_commit
from store_clock import TimedStorage
from topics import Clock, contents, files, named_files, topic_on
from vacuuming import DELAY, World

from distlog.core.commits.actions import Remove
from distlog.core.errors import SnapshotTooOldError
from distlog.core.storage.storage import Storage


def both_parts(value: str) -> list[dict[str, object]]:
    return [{"value": value, "partition": number} for number in (0, 1)]


def remove(world: World, partition: int) -> None:
    """Remove the segments of one partition, as retention does."""
    topic = world.topic()
    removals = [Remove(partition, segment.stem) for segment in topic.snapshot.partitions[partition].segments]
    put_commit(world.log, topic.snapshot, "retention", lambda _: removals)


def vacuumed(world: World) -> list[str]:
    """Vacuum after the delay, and return the names of deleted files."""
    world.wait()
    return sorted(file.name for file in world.vacuum().files if not file.name.startswith("_commits/"))


def test_a_bundle_stays_while_one_part_is_live_and_goes_with_the_last(world: World) -> None:
    world.topic().append(both_parts("v"))
    (bundle,) = bundles(world.storage)
    remove(world, 0)
    assert vacuumed(world) == []
    assert world.values() == [b"v"]
    remove(world, 1)
    world.wait(DELAY - 1)
    assert world.vacuum().files == ()
    assert vacuumed(world) == [bundle]
    assert world.files() == set()


def test_a_bundle_stays_for_the_delay(world: World) -> None:
    world.topic().append(both_parts("v"))
    held = world.topic()
    world.expire()
    assert vacuumed(world)
    with pytest.raises(SnapshotTooOldError):
        held.scan().to_table()


def test_a_merge_makes_one_bundle_of_several_which_go_then(tmp_path: Path) -> None:
    clock = Clock()
    storage = TimedStorage(Storage(str(tmp_path / "t")), clock)
    topic = topic_on(storage, 4, {"file.delete.delay.ms": DELAY}, clock)
    for first in range(5):
        topic.append(rows(4, 1, first))
    old, old_bundles = topic_on(storage, clock=clock), bundles(storage)
    assert len(old_bundles) == 5
    topic.compact()
    assert [segment.stem for segment in segments(topic)] == 4 * [segments(topic)[0].stem]
    assert len(bundles(storage)) == 6
    assert contents(topic) == contents(old)
    clock.now_ms += 1
    topic.append(rows(4, 1, 5))
    clock.now_ms += DELAY
    topic.vacuum()
    assert files(storage) == named_files(topic)
    assert bundles(storage) == sorted(
        {topic.reader.name(segment) for segment in segments(topic) if segment.is_bundled}
    )
    assert topic.verify().ok
    assert {len(content) for content in contents(topic).values()} == {6}


def test_compaction_takes_parts_and_leaves_files(tmp_path: Path) -> None:
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    topic = topic_on(Storage(str(tmp_path / "t")), 2, settings)
    for round_ in range(4):
        topic.append([{"key": f"k{n % 2}", "value": f"{round_}", "partition": n % 2} for n in range(4)])
    topic.append([{"key": "z", "value": "z", "partition": number} for number in (0, 1)])
    topic.compact()
    values = topic.scan(columns=["key", "value"]).to_table().to_pylist()
    assert {row["value"] for row in values if row["key"] != b"z"} <= {b"3", b"2"}
    assert not all(segment.is_bundled for segment in segments(topic))
    assert topic.verify().ok


def test_retention_by_time_removes_a_long_load_in_parts(tmp_path: Path) -> None:
    clock = Clock()
    settings = {"segment.ms": "100", "segment.jitter.ms": "0", "retention.ms": "1000", "file.delete.delay.ms": "0"}
    storage = TimedStorage(Storage(str(tmp_path / "t")), clock)
    topic = topic_on(storage, 3, settings, clock)
    topic.append(rows(3, 300))
    assert len(bundles(storage)) == 3
    for number in (1, 2, 3):
        clock.now_ms += 1_150 if number == 1 else 100
        topic.retention()
        clock.now_ms += 1
        topic.vacuum()
        assert len(bundles(storage)) == 3 - number
        assert files(storage) == named_files(topic)


def test_a_dropped_topic_loses_its_bundles_after_the_delay(world: World) -> None:
    world.topic().append(both_parts("v"))
    world.topic().drop()
    world.wait(DELAY - 1)
    world.vacuum()
    assert len(bundles(world.storage)) == 1
    assert len(vacuumed(world)) == 1
    assert world.files() == set()
