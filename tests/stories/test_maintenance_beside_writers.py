"""Real processes that append in place and are killed, next to all that maintains the topic.

1. Any maintenance in any order, while writers come and are killed: nothing durable is lost, doubled or moved.
2. Vacuum without a pause and without a delay, while writers roll: they notice nothing, and no file is left over.
3. A drop while writers append: each gets the error that says so, and nothing durable is lost to who still reads.
4. Compaction while a writer appends and is killed: the last record of each key stays.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from maintained_writers import APPENDING, Campaign, begin
from partition_logs import Process, append, new_topic
from topics import contents
from waiting import until

from distlog.core.commits.actions import Add
from distlog.core.maintenance.vacuum import vacuum
from distlog.core.topics import open_topic

pytestmark = pytest.mark.long


@pytest.mark.parametrize("seed", [1, 2])
def test_story_1_maintenance_in_any_order(tmp_path: Path, seed: int) -> None:
    Campaign(tmp_path / "events", seed).run(steps=12)


def test_story_2_vacuum_without_a_pause(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", 2, internal_segment_bytes=2000, file_delete_delay_ms=0)
    process, is_over, errors = Process(folder), threading.Event(), list[BaseException]()

    def clean() -> None:
        other = Process(folder)
        try:
            while not is_over.is_set():
                vacuum(other.handle.storage, other.handle.log)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=clean)
    thread.start()
    writers = [begin(APPENDING, folder, f"w{number}", 150) for number in range(2)]
    outputs = [writer.communicate() for writer in writers]
    is_over.set()
    thread.join()
    assert errors == []
    assert [(writer.returncode, complaint) for writer, (_, complaint) in zip(writers, outputs, strict=True)] == [
        (0, ""),
        (0, ""),
    ]
    for partition, values in process.seen().items():
        for name in (b"w0", b"w1"):
            numbers = [int(value.split()[1]) for value in values if value and value.startswith(name)]
            assert numbers == list(range(partition, 150, 2))
    head = process.head()
    assert len(head.partitions[0].segments) > 3
    vacuum(process.handle.storage, process.handle.log)
    for partition, state in enumerate(head.partitions):
        logs = [name for name in os.listdir(folder / f"events-{partition}") if name.endswith(".log")]
        assert len(logs) == len(state.segments) + bool(state.active)
    assert process.topic().verify().ok


def test_story_3_a_drop_while_writers_append(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", 2, internal_segment_bytes=3000, file_delete_delay_ms=0)
    process = Process(folder)
    writers = {f"w{number}": begin(APPENDING, folder, f"w{number}", 1_000_000) for number in range(2)}
    until(lambda: min(process.topic().end_offsets().values()) > 100)
    topic = process.topic()
    topic.drop()
    dropped = process.handle.log.load(include_dropped=True)
    durable = {}
    for name, writer in writers.items():
        said, complaint = writer.communicate()
        assert "TopicNotFoundError: the topic was dropped" in complaint
        durable[name] = max(map(int, said.split()), default=-1)
    last = process.handle.log.load(version=dropped.version - 1)
    left = contents(type(topic)(process.handle, last))
    # nothing was appended after the drop, which sealed what there was
    commit = process.handle.log.commits(dropped.version, dropped.version + 1)[0]
    ends = {
        action.segment.partition: action.segment.next_offset for action in commit.actions if isinstance(action, Add)
    }
    for partition, values in left.items():
        assert len(values) == ends.get(partition, last.partitions[partition].log_end_offset)
    for partition, values in left.items():
        for name in writers:
            numbers = [int(value.split()[1]) for value in values if value and value.startswith(name.encode())]
            assert numbers == list(range(partition, partition + 2 * len(numbers), 2))
            assert len(numbers) >= len(range(partition, durable[name] + 1, 2))
    open_topic.create(str(folder), 2)
    new = Process(folder)
    append(new[0], b"new")
    vacuum(new.handle.storage, new.handle.log)
    assert new.seen() == {0: [b"new"], 1: []}


KEYED = """
import sys
from pathlib import Path
import numpy as np
from partition_logs import Process
from raw_batches import batch, record
from topics import NOW
from distlog.core.batches.record_batch import read_headers

process = Process(Path(sys.argv[1]))
print(-1, flush=True)
for number in range(1_000_000):
    rows = [record(0, 0, b"%s %d" % (sys.argv[2].encode(), number % 5), b"%d" % number)]
    data = np.frombuffer(batch(rows, base_timestamp=NOW, max_timestamp=NOW), np.uint8).copy()
    process[0].append(data, read_headers(data.data))
    if number % 10 == 9:
        process[0].flush()
        print(number, flush=True)
"""


def test_story_4_compaction_while_a_writer_appends_and_is_killed(tmp_path: Path) -> None:
    folder = new_topic(
        tmp_path / "events",
        internal_segment_bytes=2000,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.0,
        file_delete_delay_ms=0,
    )
    process, durable = Process(folder), {}
    for name in ("v0", "v1"):
        writer = begin(KEYED, folder, name)
        for _ in range(3):
            segments = process.topic().segments().num_rows
            until(lambda most=segments + 3: process.topic().segments().num_rows > most)
            report = process.topic().compact()
            assert report.ok  # type: ignore[union-attr]
            # it had something to do, beside a writer that goes on: five keys of each writer stay in what was cleaned
            (cleaned,) = report.partitions  # type: ignore[union-attr]
            assert 0 < cleaned.records_after < cleaned.records_before
            end = process.topic().end_offsets()[0]
            until(lambda before=end: process.topic().end_offsets()[0] > before)
            process.topic().vacuum()
        writer.send_signal(signal.SIGKILL)
        said, complaint = writer.communicate()
        assert complaint == ""
        durable[name] = max(map(int, said.splitlines()[:-1]), default=-1)
    process[0].roll()
    assert process.topic().compact().ok  # type: ignore[union-attr]
    table = process.topic().scan(columns=["offset", "key", "value"]).to_table()
    offsets, keys, values = (column.to_pylist() for column in table.columns)
    assert offsets == sorted(set(offsets))
    assert len(keys) == len(set(keys))
    left = dict(zip(keys, map(int, values), strict=True))
    for name, number in durable.items():
        last = max((value for key, value in left.items() if key.startswith(name.encode())), default=-1)
        assert last >= number
        wanted = {b"%s %d" % (name.encode(), value % 5): value for value in range(max(0, last - 4), last + 1)}
        assert {key: value for key, value in left.items() if key.startswith(name.encode())} == wanted
    assert process.topic().verify().ok
