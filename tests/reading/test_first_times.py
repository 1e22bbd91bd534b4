"""Batches whose base timestamp is not the time of their first record: lookups find the record's own time."""

from __future__ import annotations

from pathlib import Path

import pytest
from partition_logs import Process, new_topic
from producer_batches import CODECS, made, records
from topics import NOW

SETTINGS = {"retention_ms": -1, "segment_ms": 1 << 60}
#: Times of records in batches that each have the base timestamp NOW, and an empty one where a segment ends.
BATCHES = {
    "in a batch": [[5, 0, 9]],
    "in a later batch": [[5, 7], [0, 9]],
    "in a later segment": [[5, 7], [], [0, 9]],
}


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("case", BATCHES)
@pytest.mark.parametrize("batch_bytes", [20, 10_000], ids=["apart", "joined"])
def test_a_base_timestamp_of_no_first_record_is_not_taken_for_its_time(
    tmp_path: Path, case: str, codec: str, batch_bytes: int
) -> None:
    process = Process(new_topic(tmp_path / "t", **SETTINGS, batch_bytes=batch_bytes))
    for times in [*BATCHES[case], []]:
        if times:
            process[0].append_batches(made(records(*times), codec, max_timestamp=NOW + max(times)))
        else:
            process[0].roll()
    topic = process.topic()
    read = topic.scan().to_table()["timestamp"].cast("int64").to_pylist()
    assert read == [NOW + time for times in BATCHES[case] for time in times]
    for _ in range(2):
        found = [topic.offsets_for_times({0: NOW + time})[0] for time in (0, 3, 6, 9)]
        assert found == [next((at, one) for at, one in enumerate(read) if one >= NOW + time) for time in (0, 3, 6, 9)]
        assert topic.offsets_for_times({0: NOW - 1})[0] == (0, NOW + 5)
        assert topic.compact().ok
        topic = topic.refresh()
        assert topic.segments().num_rows == 1
        assert topic.verify().ok
