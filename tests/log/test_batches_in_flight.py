"""Unacknowledged batches of a producer are recognized by the next process, up to the limit of batches in flight."""

from __future__ import annotations

from pathlib import Path

import pytest
from partition_logs import Process, new_topic
from raw_batches import batch, record
from topics import NOW

from distlog.core.errors import OutOfOrderSequenceError
from distlog.core.log.partition_log import PartitionLog


def send(log: PartitionLog, sequence: int, *, epoch: int = 0) -> tuple[int, int]:
    rows = [record(0, 0, b"k", b"%d" % sequence)]
    produced = batch(rows, base_timestamp=NOW, max_timestamp=NOW, producer=(4711, epoch, sequence))
    return log.append_batches(produced).appended[:2]


@pytest.mark.parametrize("segment_bytes", [100, 200, 300])
def test_batches_in_flight_are_recognized_across_segments(segment_bytes: int, tmp_path: Path) -> None:
    process = Process(new_topic(tmp_path / "events", internal_segment_bytes=segment_bytes))
    sent = [send(process[0], number) for number in range(7)]
    # the last five were not acknowledged; a snapshot has only the last batch before its segment
    other = Process(tmp_path / "events")
    assert [send(other[0], number) for number in range(2, 7)] == sent[2:]
    with pytest.raises(OutOfOrderSequenceError):
        send(other[0], 1)
    assert send(other[0], 7) == (7, 8)
    assert send(process[0], 3) == sent[3]
    # and again after segments of another process
    for first in (8, 13):
        more = [send(other[0], number) for number in range(first, first + 5)]
        assert [send(process[0], number) for number in range(first, first + 5)] == more
    assert process.values()[0] == [b"%d" % number for number in range(18)]


def test_batches_of_an_earlier_epoch_do_not_apply_to_the_next(folder: Path) -> None:
    process = Process(folder)
    send(process[0], 0)
    send(process[0], 1)
    process[0].roll()
    send(process[0], 0, epoch=1)
    other = Process(folder)
    with pytest.raises(OutOfOrderSequenceError, match="sequence=5 expected=1"):
        send(other[0], 5, epoch=1)
    assert send(other[0], 1, epoch=1) == (3, 4)
