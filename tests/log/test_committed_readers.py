"""Readers of committed records beside a writer of transactions, in threads: nothing undecided or aborted is seen."""

from __future__ import annotations

import threading
from pathlib import Path

from partition_logs import PID, Process, new_topic
from raw_batches import batch, record
from topics import NOW

import distlog
from distlog.core.batches.record_batch import TRANSACTIONAL
from distlog.core.log.end_marker import marker

TRANSACTIONS, READERS = 40, 2


def test_committed_readers_see_each_commit_in_order_and_nothing_else(tmp_path: Path) -> None:
    """testReadCommittedWithConcurrentHighWatermarkUpdates."""
    folder = new_topic(tmp_path / "events")
    expected = [b"%d" % number for number in range(TRANSACTIONS) if number % 2]
    is_over, wrong, looks = threading.Event(), list[list[bytes]](), list[int]()

    def read() -> None:
        topic = distlog.open(str(folder))
        while True:
            last = is_over.is_set()
            seen = topic.refresh().scan(isolation="read_committed").to_table()["value"].to_pylist()
            looks.append(len(seen))
            if seen != expected[: len(seen)] or (last and len(seen) < len(expected)):
                wrong.append(seen)
            if last or wrong:
                return

    readers = [threading.Thread(target=read) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    log = Process(folder)[0]
    times = {"base_timestamp": NOW, "max_timestamp": NOW}
    try:
        for number in range(TRANSACTIONS):
            rows = [record(0, 0, b"k", b"%d" % number)]
            sent = batch(rows, attributes=TRANSACTIONAL, producer=(PID, 0, number), **times)
            log.append_batches(sent, lambda _: None)
            assert log.end_transaction(marker(PID, 0, NOW, is_committed=bool(number % 2)), lambda _: None)
    finally:
        is_over.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    assert looks[-1] == len(expected)
