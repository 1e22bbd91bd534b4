"""A few records of a damaged log are the right ones or an error with its place, whichever byte is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from adopted import adopt, forget_facts, put, with_indexes
from index_use import by_index as by_index
from index_use import either_way as either_way
from logs import START, Log, appended, batches_of, each_byte_changed, log_of
from point_reads import active, found, wanted
from raw_batches import batch, record
from searches import FACTOR

import distlog
from distlog import CorruptRecordError
from distlog.core.batches.record_batch import HEADER_SIZE, read_headers

#: One record of so many is read for each changed byte.
APART = 10 if FACTOR == 1 else 4


def right_or_refused(log: Log, offset: int) -> bool:
    """Whether a record and its time are found; an AssertionError for a wrong one, or an error that tells no place."""
    time = START + 10 * offset
    try:
        assert found(log.topic, offset) == wanted(log.expected, offset)
        assert log.topic.offsets_for_times(time)[0] == (offset, time)
    except CorruptRecordError as error:
        refused = error.details
    else:
        return True
    assert refused["file"] == log.topic.reader.name(log.segments[0])
    assert refused["partition"] == 0
    assert 0 <= refused["position"] <= log.segments[0].log_bytes
    return False


@pytest.mark.long
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("codec", ["uncompressed", "lz4"])
def test_no_changed_byte_of_a_log_gives_a_wrong_record(tmp_path: Path, codec: str) -> None:
    log = log_of(appended(str(tmp_path / "t"), 20, **{"compression.type": codec}))
    data, refused = log.file().read_bytes(), 0
    # outside of the checksums
    base_offsets = {start + at for start in read_headers(data)["position"].tolist() for at in range(8)}
    for position, wrong in each_byte_changed(data):
        log.file().write_bytes(wrong)
        for offset in range(20) if position in base_offsets else range(position % APART, 20, APART):
            refused += not right_or_refused(log, offset)
    assert refused > len(data) // 3


@pytest.mark.usefixtures("either_way")
def test_no_changed_byte_of_an_active_segment_gives_a_wrong_record(tmp_path: Path) -> None:
    log = log_of(active(str(tmp_path / "t"), 12))
    data, refused = log.file().read_bytes(), 0
    for position, wrong in each_byte_changed(data):
        log.file().write_bytes(wrong)
        refused += not right_or_refused(log, position % 12)
    assert refused > len(data) // 10


@pytest.mark.usefixtures("by_index")
def test_no_changed_byte_of_an_index_gives_a_wrong_record(tmp_path: Path) -> None:
    log = log_of(appended(str(tmp_path / "t"), 60))
    for suffix in (".index", ".timeindex"):
        data = log.file(suffix=suffix).read_bytes()
        for position, wrong in each_byte_changed(data):
            log.file(suffix=suffix).write_bytes(wrong)
            for offset in (position % 60, 59):
                assert right_or_refused(log, offset)
        log.file(suffix=suffix).write_bytes(data)


STORIES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "the first two swapped": lambda batches: [batches[1], batches[0], *batches[2:]],
    "the last two swapped": lambda batches: [*batches[:-2], batches[-1], batches[-2]],
    "backwards": lambda batches: batches[::-1],
    "one twice": lambda batches: [*batches[:3], batches[2], *batches[3:]],
    "one in place of another": lambda batches: [*batches[:2], batches[3], *batches[3:]],
    "without the first": lambda batches: batches[1:],
    "without the third": lambda batches: [*batches[:2], *batches[3:]],
}


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("story", STORIES)
def test_batches_out_of_their_places_give_no_wrong_record(tmp_path: Path, story: str) -> None:
    log = log_of(appended(str(tmp_path / "t"), 60))
    data = log.file().read_bytes()
    wrong = b"".join(STORIES[story](batches_of(data)))
    log.file().write_bytes(wrong + bytes(max(0, len(data) - len(wrong))))
    answers = [right_or_refused(log, offset) for offset in range(60)]
    assert not all(answers)


def test_an_active_segment_that_was_cut_or_replaced_gives_an_error(tmp_path: Path) -> None:
    log = log_of(active(str(tmp_path / "t"), 60))
    other = log_of(active(str(tmp_path / "u"), 61, 11)).file().read_bytes()
    data = log.file().read_bytes()
    for wrong in (data[:-1], data[: len(data) // 2], b"", other):
        log.file().write_bytes(wrong)
        with pytest.raises(distlog.DistlogError):
            found(log.topic, 59)


def test_what_is_behind_the_records_that_are_wanted_is_not_decoded(tmp_path: Path) -> None:
    right = with_indexes(batch([record(0), record(1, 0, b"key"), record(2)]), 0)
    topic = forget_facts(adopt(str(tmp_path / "t"), [(0, right)], 3))
    (segment,) = topic.snapshot.partitions[0].segments
    # as a faulty writer would leave it, with a right checksum
    records = record(0) + record(1, 0, b"key")
    section = records + bytes(segment.log_bytes - HEADER_SIZE - len(records))
    put(topic, segment, {".log": batch([], section=section, count=3, last_delta=2)})
    assert [each.key for each in topic.records(0, 0, 2)] == [None, b"key"]
    with pytest.raises(CorruptRecordError, match=r"file=.*\.log position=0 offset=0 record=2 partition=0"):
        list(topic.records(0, 0, 3))
