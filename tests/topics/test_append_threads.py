"""Threads share an append: partitions in parallel, each in order; one error, and no leftover files."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from topics import NOW, contents, files, named_files, topic_on

from distlog.core.errors import InvalidRecordError, StorageError
from distlog.core.format.record_encoder import RecordInput
from distlog.core.storage.storage import Storage
from distlog.core.write import append as appender_module
from distlog.core.write import rows as appendable
from distlog.core.write.append import Appender, PartitionQueue, commit_append

ROWS = 20_000


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "topic"))


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender_module, "_SHARED_BYTES", 1)
    monkeypatch.setattr(appendable, "SLICE_BYTES", 50_000)


def table(large: Collection[int] = ()) -> pa.Table:
    """Return rows of which row n goes to partition n % 3; `large` ones exceed a batch."""
    values = [b"%08d" % n + bytes(2_000_000 * (n in large)) for n in range(ROWS)]
    return pa.table({"partition": pa.array(np.arange(ROWS) % 3, pa.int32()), "value": values})


def appender(storage: Storage, workers: int, **options: Any) -> Appender:
    topic = topic_on(storage, 3)
    return Appender(
        storage,
        topic.name,
        topic.config,
        3,
        read_version=0,
        first_partition=0,
        clock=lambda: NOW,
        random=Random(0),
        workers=workers,
        **options,
    )


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_each_partition_keeps_its_order_with_any_number_of_threads(workers: int, storage: Storage) -> None:
    writer = appender(storage, workers)
    assert writer.append(table()) == ROWS
    topic = topic_on(storage)
    _, snapshot = commit_append(topic.handle, topic.snapshot, writer.close(), read_version=0)
    topic.advance(snapshot)
    assert contents(topic) == {number: [b"%08d" % n for n in range(number, ROWS, 3)] for number in range(3)}
    assert files(storage) == named_files(topic)


@pytest.mark.parametrize(("is_local", "are_bundled"), [(False, True), (True, False)])
def test_an_append_with_little_memory_makes_several_bundles_on_an_object_store(
    is_local: bool, are_bundled: bool, tmp_path: Path
) -> None:
    """A local disk gets files that are streamed, which takes no more memory."""
    storage = Storage(str(tmp_path / "topic") if is_local else f"memory://{tmp_path.name}/topic")
    writer = appender(storage, 1, held_bytes=4 << 20)
    values = [b"%06d" % n + bytes(1000) for n in range(ROWS)]
    writer.append(pa.table({"partition": pa.array(np.arange(ROWS) % 3, pa.int32()), "value": values}))
    topic = topic_on(storage)
    _, snapshot = commit_append(topic.handle, topic.snapshot, writer.close(), read_version=0)
    topic.advance(snapshot)
    segments = [segment for state in topic.snapshot.partitions for segment in state.segments]
    assert all(segment.is_bundled for segment in segments) == are_bundled
    assert (len({segment.stem for segment in segments}) > 4) == are_bundled
    assert contents(topic) == {number: values[number::3] for number in range(3)}
    assert topic.verify().ok


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_too_large_row_is_reported_and_no_file_is_left(workers: int, storage: Storage) -> None:
    writer = appender(storage, workers)
    old_files, threads = files(storage), set(threading.enumerate())
    with pytest.raises(InvalidRecordError, match=r"max.message.bytes.*partition=1 row_of_partition=3333 "):
        writer.append(table(large=[10_000, 10_001, 19_998]))
    writer.abort()
    remaining = set(threading.enumerate()) - threads
    assert not [thread for thread in remaining if thread.name.startswith("distlog-ahead")]
    assert files(storage) == old_files


def test_a_queue_is_aborted_when_the_thread_that_writes_leaves_it() -> None:
    events: list[str] = []
    has_started, may_write = threading.Event(), threading.Event()

    class Writer:
        def append(self, source: Any, rows: Any) -> None:
            has_started.set()
            may_write.wait(60)
            events.append("wrote")

        def abort(self) -> None:
            events.append("gave up")

    queue = PartitionQueue(Writer())  # type: ignore[arg-type]
    source = RecordInput.from_arrow(pa.record_batch({"timestamp": [1], "key": [b""], "value": [b""]}))
    first, second = queue.put(source, np.arange(1)), queue.put(source, np.arange(1))
    thread = threading.Thread(target=first)
    thread.start()
    assert has_started.wait(60)
    queue.abort()
    assert events == []
    may_write.set()
    thread.join()
    assert events == ["wrote", "gave up"]
    with pytest.raises(StorageError, match="aborted"):
        second()
    assert events.count("wrote") == 1
