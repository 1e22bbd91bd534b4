"""A segment with offsets too far apart for an index, as of brokers before 1.1, is split (KAFKA-6264)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from raw_batches import batch, record

import distlog
from distlog.core.arrays import MAX_INT, MAX_LONG
from distlog.core.format.record_batch import read_headers
from distlog.core.kafka.partition_folder import file_name

HIGH_OFFSET = MAX_INT + 5


def single_record(offset: int, count: int = 1) -> bytes:
    rows = [record(delta, 0, None, b"%d" % (offset + delta)) for delta in range(count)]
    return batch(rows, base_offset=offset)


def partition(folder: Path, segments: dict[int, Sequence[bytes]], *, clean: bool = True) -> Path:
    """Return a partition's folder with these batches by base offset, in a log directory of a stopped broker."""
    path = folder / "kafka-logs" / "clicks-0"
    path.mkdir(parents=True)
    if clean:
        (path.parent / ".kafka_cleanshutdown").touch()
    for base, batches in segments.items():
        (path / file_name(base, ".log")).write_bytes(b"".join(batches))
    return path


def adopted(path: Path) -> tuple[distlog.Topic, list[int]]:
    """Return the adopted topic, which must be sound, and the base offsets of its segments."""
    topic = distlog.adopt(path).topic
    rows = topic.scan().to_table()
    assert rows["value"].to_pylist() == [b"%d" % offset for offset in rows["offset"].to_pylist()]
    assert topic.verify().ok
    return topic, topic.segments()["base_offset"].to_pylist()


def offsets(topic: distlog.Topic) -> list[int]:
    return topic.scan().to_table()["offset"].to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_is_split_where_its_offsets_overflow_the_index(clean: bool, tmp_path: Path) -> None:
    all_offsets = [0, 5, MAX_INT, HIGH_OFFSET, HIGH_OFFSET + 3, 2 * HIGH_OFFSET + 10]
    path = partition(tmp_path, {0: [single_record(offset) for offset in all_offsets]}, clean=clean)
    old_log = (path / file_name(0, ".log")).read_bytes()
    topic, bases = adopted(path)
    assert offsets(topic) == all_offsets
    assert bases == [0, HIGH_OFFSET, 2 * HIGH_OFFSET + 10]
    assert topic.end_offsets() == {0: 2 * HIGH_OFFSET + 11}
    assert (path / file_name(0, ".log")).read_bytes() == old_log
    assert topic.append([{"value": b"next"}]).offsets == {0: (2 * HIGH_OFFSET + 11, 2 * HIGH_OFFSET + 12)}


def test_other_segments_stay_unchanged(tmp_path: Path) -> None:
    segments = {
        7: [single_record(7)],
        9: [single_record(9), single_record(9 + HIGH_OFFSET, 3)],
        4 * HIGH_OFFSET: [single_record(4 * HIGH_OFFSET)],
    }
    topic, bases = adopted(partition(tmp_path, segments))
    assert bases == [7, 9, 9 + HIGH_OFFSET, 4 * HIGH_OFFSET]
    assert offsets(topic) == [7, 9, 9 + HIGH_OFFSET, 10 + HIGH_OFFSET, 11 + HIGH_OFFSET, 4 * HIGH_OFFSET]
    inode = (tmp_path / "kafka-logs" / "clicks" / "clicks-0" / file_name(4 * HIGH_OFFSET, ".log")).stat().st_ino
    assert inode == (tmp_path / "kafka-logs" / "clicks-0" / file_name(4 * HIGH_OFFSET, ".log")).stat().st_ino


@pytest.mark.parametrize(
    "batches", [[single_record(HIGH_OFFSET), single_record(HIGH_OFFSET + 1)], [single_record(MAX_INT - 1, 5)]]
)
def test_a_segment_of_far_offsets_starts_at_its_first_batch(batches: Sequence[bytes], tmp_path: Path) -> None:
    first = int(read_headers(batches[0])["base_offset"][0])
    topic, bases = adopted(partition(tmp_path, {0: batches}))
    assert bases[-1] == first
    assert offsets(topic)[0] == first


def test_producers_and_transactions_of_a_split_segment_are_known(tmp_path: Path) -> None:
    """An aborted transaction across the split is hidden, and its producer continues."""
    rows = [record(0, 0, None, b"no")]
    abort = record(0, 0, b"\0\0\0\0", b"\0\0\0\0\0\0")
    batches = [
        batch(rows, base_offset=3, attributes=0x10, producer=(7, 0, 0)),
        batch(rows, base_offset=HIGH_OFFSET, attributes=0x10, producer=(7, 0, 1)),
        batch([abort], base_offset=HIGH_OFFSET + 1, attributes=0x30, producer=(7, 0, -1)),
        single_record(HIGH_OFFSET + 2),
    ]
    path = partition(tmp_path, {3: batches})
    topic = distlog.adopt(path).topic
    assert topic.verify().ok
    assert topic.scan(isolation="read_committed").to_table()["offset"].to_pylist() == [HIGH_OFFSET + 2]
    snapshots = list((path.parent / "clicks" / "clicks-0").glob("*.snapshot"))
    assert [snapshot.name for snapshot in snapshots] == [file_name(HIGH_OFFSET + 3, ".snapshot")]


def test_a_torn_write_after_a_split_is_truncated_and_reported(tmp_path: Path) -> None:
    path = partition(
        tmp_path,
        {0: [single_record(0), single_record(HIGH_OFFSET), single_record(HIGH_OFFSET + 1)[:-4]]},
        clean=False,
    )
    report = distlog.adopt(path)
    assert offsets(report.topic) == [0, HIGH_OFFSET]
    cut = [note for note in report.notes if "cut" in note]
    assert len(cut) == 1
    torn = len(single_record(HIGH_OFFSET + 1)) - 4
    assert f"cut {torn} bytes from position {path.joinpath(file_name(0, '.log')).stat().st_size - torn}" in cut[0]


def test_times_are_found_in_each_part_of_a_split_segment(tmp_path: Path) -> None:
    batches = [
        batch([record()], base_offset=offset, base_timestamp=offset, max_timestamp=offset)
        for offset in (0, HIGH_OFFSET, HIGH_OFFSET + 7)
    ]
    topic = distlog.adopt(partition(tmp_path, {0: batches})).topic
    assert topic.offsets_for_times(HIGH_OFFSET)[0] == (HIGH_OFFSET, HIGH_OFFSET)
    assert topic.offsets_for_times(HIGH_OFFSET + 1)[0] == (HIGH_OFFSET + 7, HIGH_OFFSET + 7)


@pytest.mark.parametrize("phase", [1, 2, 3, 4, 5])
def test_a_broker_that_stopped_while_it_split_left_all_records(phase: int, tmp_path: Path) -> None:
    low, high, last = (
        [single_record(0), single_record(5)],
        [single_record(HIGH_OFFSET), single_record(HIGH_OFFSET + 1)],
        2 * HIGH_OFFSET,
    )
    path = partition(tmp_path, {0: [*low, *high], last: [single_record(last)]}, clean=False)
    low_name, high_name = file_name(0, ".log"), file_name(HIGH_OFFSET, ".log")
    (path / f"{low_name}{'.cleaned' if phase < 3 else '.swap'}").write_bytes(b"".join(low))
    (path / f"{high_name}{'.cleaned' if phase < 2 else '.swap'}").write_bytes(b"".join(high))
    if phase >= 4:
        (path / low_name).rename(path / f"{low_name}.deleted")
    if phase == 5:
        (path / f"{low_name}.swap").rename(path / low_name)
    topic, bases = adopted(path)
    assert offsets(topic) == [0, 5, HIGH_OFFSET, HIGH_OFFSET + 1, last]
    assert bases == [0, HIGH_OFFSET, last]


def test_a_partition_at_the_last_offset_refuses_appends(tmp_path: Path) -> None:
    topic, _ = adopted(partition(tmp_path, {MAX_LONG - 6: [single_record(MAX_LONG - 6, 5)]}))
    with pytest.raises(distlog.CommitConflictError, match="nothing was committed"):
        topic.append([{"value": b"v"}] * 2)
    writer = topic.writer()
    for _ in range(2):
        writer.append(b"v")
    with pytest.raises(distlog.InvalidRecordError, match="no offsets left"):
        writer.close()
    with topic.writer() as writer:
        writer.append(b"%d" % (MAX_LONG - 1))
    assert distlog.open(topic.url).end_offsets() == {0: MAX_LONG}
    assert offsets(topic.refresh()) == [*range(MAX_LONG - 6, MAX_LONG)]


def test_a_record_with_the_largest_offset_is_refused(tmp_path: Path) -> None:
    path = partition(tmp_path, {MAX_LONG: [single_record(MAX_LONG)]})
    with pytest.raises(distlog.CorruptionError, match=r"the offset 2\^63 - 1: no log can end after it"):
        distlog.adopt(path)
