"""Closing a partition: it waits for the threads that hold its lock, and lets go of every file."""

from __future__ import annotations

import threading
from pathlib import Path

from open_files import open_below
from partition_logs import Process, append, encoded, new_topic

from distlog.core import paths
from distlog.core.batches.record_batch import read_headers
from distlog.core.log.active_partition import ActivePartition
from distlog.core.storage.locks_and_pages import FileLock


def test_close_waits_for_a_thread_that_holds_the_lock_and_then_lets_go_of_the_files(tmp_path: Path) -> None:
    """1. A thread holds the lock, and has the segment. 2. Another one closes. 3. The first appends, and lets go."""
    process = Process(new_topic(tmp_path / "events"))
    append(process[0], b"before")
    active = ActivePartition(process.handle, 0, process.snapshots)
    began = threading.Event()

    def close() -> None:
        began.set()
        active.close()

    closing = threading.Thread(target=close)
    with active.held():
        segment = active.recover()
        assert segment is not None
        closing.start()
        assert began.wait(60)
        closing.join(0.2)  # it would be over by now if it did not wait
        assert closing.is_alive()
        data, _ = encoded(b"in between")
        data[:8].view(">i8")[:] = segment.next_offset
        segment.append(data.data, read_headers(data.data))
        active.moved_on()
    closing.join(60)
    assert not closing.is_alive()
    process.close()
    assert open_below(tmp_path) == []
    assert process.seen() == {0: [b"before", b"in between"]}
    assert append(process[0], b"after") == (2, 3)


def test_what_is_flushed_closes_though_another_log_of_the_same_thread_holds_the_flush_lock(tmp_path: Path) -> None:
    """The garbage collector may close a log that nobody has any more in the middle of another log's flush."""
    process = Process(new_topic(tmp_path / "events"), timeout_s=0.0)
    append(process[0], b"a")
    process[0].flush()
    other = FileLock(str(process.folder(0) / paths.FLUSH_FILE))
    with other.held():
        process.close()
        assert {Path(path).name for path in open_below(tmp_path)} == {paths.FLUSH_FILE}
    other.close()
    assert open_below(tmp_path) == []
