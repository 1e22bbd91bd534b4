"""The writer accepts records during commits: in order, in bounded memory, and none after an error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from gated_writer import NEVER_MS, TIMEOUT_S, VALUE, Gate, fill, joined, numbers_in, small, start_thread
from gated_writer import gate as gate
from gated_writer import topic as topic
from topics import NOW, Clock, contents, topic_on

from distlog.core.errors import CommitStateUnknownError, InvalidRecordError, StorageError
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.append import AppendResult
from distlog.core.write.writer import Delivery


def test_appends_return_during_a_commit(topic: Topic, gate: Gate) -> None:
    writer = small(topic)
    fill(writer, range(3))
    gate.wait_for_one()
    fill(writer, range(3, 5))
    assert topic.refresh().version == 0
    gate.open(2)
    writer.close()
    assert numbers_in(topic) == [0, 1, 2, 3, 4]
    assert gate.calls == 2


def test_a_lingering_commit_blocks_no_append(topic: Topic, gate: Gate) -> None:
    writer = topic.writer(linger_ms=0)
    for number in range(3):
        writer.append(VALUE % number, partition=0)
        gate.wait_for_one()
        writer.append(VALUE % (number + 100), partition=0)
        gate.open()
        gate.wait_for_one()
        gate.open()
        writer.flush()
    assert numbers_in(topic) == [0, 100, 1, 101, 2, 102]


def test_a_writer_with_two_full_buffers_waits_for_a_commit(topic: Topic, gate: Gate) -> None:
    writer = small(topic)
    accepted: list[int] = []
    went_on = threading.Semaphore(0)

    def work() -> None:
        for number in range(8):
            fill(writer, range(number, number + 1))
            accepted.append(number)
            went_on.release()

    thread = start_thread(work)
    for _ in range(5):
        assert went_on.acquire(timeout=TIMEOUT_S)
    gate.wait_for_one()
    # the sixth fills the second buffer; its wait has no event, so the test checks that it does not continue
    assert not went_on.acquire(timeout=0.05)
    assert (accepted, gate.calls) == ([0, 1, 2, 3, 4], 1)
    gate.open()
    assert joined(thread)
    gate.wait_for_one()
    assert accepted == list(range(8))
    gate.open(2)
    writer.close()
    assert numbers_in(topic) == list(range(8))


def test_the_memory_of_many_threads_is_bounded(topic: Topic, gate: Gate) -> None:
    writer = small(topic)
    accepted: list[int] = []

    def work() -> None:
        for number in range(50):
            fill(writer, range(number, number + 1))
            accepted.append(number)

    threads = [start_thread(work) for _ in range(4)]
    open_count = 0
    most = 3 + len(threads)
    while len(accepted) < 200:
        assert len(accepted) <= sum(gate.rows[:open_count]) + 2 * most
        if gate.has_one(0.01):
            gate.open()
            open_count += 1
    assert max(gate.rows) <= most
    gate.open(1000)
    writer.close()
    assert all(joined(thread) for thread in threads)
    assert sorted(numbers_in(topic)) == sorted([*range(50)] * 4)


def test_a_flush_waits_for_earlier_records_only(topic: Topic, gate: Gate) -> None:
    writer = small(topic)
    fill(writer, range(4))
    gate.wait_for_one()
    results: list[AppendResult] = []
    flushing = start_thread(lambda: results.append(writer.flush()))
    gate.open(2)
    assert joined(flushing)
    assert [result.offsets for result in results] == [{0: (3, 4)}]
    fill(writer, range(4, 7))
    gate.wait_for_one()
    gate.open()
    writer.close()


def test_records_after_a_failed_commit_are_not_committed(topic: Topic, gate: Gate) -> None:
    writer = small(topic)
    gate.errors.append(StorageError("cannot put: No space left on device"))
    fill(writer, range(5))
    gate.open(5)
    for call in (writer.flush, lambda: fill(writer, range(5, 6)), writer.close):
        with pytest.raises(StorageError, match=r"No space left .*records_not_committed=5"):
            call()
    assert gate.calls == 1
    assert numbers_in(topic.refresh()) == []


def test_an_append_that_waits_for_space_raises_the_error_of_the_commit(topic: Topic, gate: Gate) -> None:
    writer = small(topic)
    gate.errors.append(StorageError("no answer"))
    errors: list[str] = []

    def work() -> None:
        try:
            fill(writer, range(100))
        except StorageError as error:
            errors.append(str(error))

    thread = start_thread(work)
    gate.wait_for_one()
    gate.open()
    assert joined(thread)
    assert len(errors) == 1
    with pytest.raises(StorageError):
        writer.close()
    assert gate.calls == 1


def test_records_after_a_commit_in_doubt_are_not_committed(topic: Topic, gate: Gate) -> None:
    writer = small(topic)
    gate.errors.append(CommitStateUnknownError("no answer"))
    fill(writer, range(5))
    gate.open(5)
    fact = r"records_in_doubt=3 of_partitions={0: 5} records_not_committed=2"
    with pytest.raises(CommitStateUnknownError, match=fact):
        writer.close()


def test_a_failed_commit_loses_only_later_records(topic: Topic, gate: Gate) -> None:
    writer = small(topic)
    fill(writer, range(3))
    gate.wait_for_one()
    gate.open()
    writer.flush()
    gate.errors.append(StorageError("full"))
    fill(writer, range(3, 6))
    gate.open()
    with pytest.raises(StorageError, match="records_not_committed=3"):
        writer.close()
    assert numbers_in(topic) == [0, 1, 2]


def test_without_threads_the_caller_commits(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with small(topic) as writer:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        fill(writer, range(2))
        assert numbers_in(topic) == [0, 1]
        monkeypatch.undo()
        fill(writer, range(2, 9))
    assert numbers_in(topic) == list(range(9))


def test_a_callback_gets_the_offsets_of_each_commit_and_partition(topic: Topic) -> None:
    deliveries: list[Delivery] = []
    with topic.writer(linger_ms=NEVER_MS, on_delivery=deliveries.append) as writer:
        fill(writer, range(3))
        writer.append(b"", partition=1)
        writer.flush()
        assert deliveries == [Delivery(0, 0, 3, 3, None), Delivery(1, 0, 1, 1, None)]
        fill(writer, range(2))
    assert deliveries[2:] == [Delivery(0, 3, 5, 2, None)]


def test_a_callback_gets_an_error_and_the_records_after_it(topic: Topic, gate: Gate) -> None:
    deliveries: list[Delivery] = []
    error = StorageError("no answer")
    writer = small(topic, on_delivery=deliveries.append)
    gate.errors.append(error)
    fill(writer, range(4))
    writer.append(b"", partition=1)
    gate.open()
    with pytest.raises(StorageError):
        writer.close()
    sent, *unsent = deliveries
    assert sent == Delivery(0, None, None, 3, error)
    assert unsent == [Delivery(0, None, None, 1, error), Delivery(1, None, None, 1, error)]


def test_callbacks_run_in_the_background_and_block_no_append(topic: Topic) -> None:
    threads: list[threading.Thread] = []
    called, proceed = threading.Event(), threading.Event()

    def slow(delivery: Delivery) -> None:
        threads.append(threading.current_thread())
        called.set()
        assert proceed.wait(TIMEOUT_S)

    writer = small(topic, on_delivery=slow)
    fill(writer, range(3))
    assert called.wait(TIMEOUT_S)
    fill(writer, range(3, 5))
    proceed.set()
    writer.close()
    assert threading.current_thread() not in threads
    assert numbers_in(topic) == list(range(5))


@pytest.mark.parametrize("error", [KeyError("a fault"), SystemExit(3)])
def test_an_error_of_a_callback_is_logged(
    error: BaseException, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(delivery: Delivery) -> None:
        raise error

    with caplog.at_level(logging.ERROR, "distlog"), small(topic, on_delivery=broken) as writer:
        fill(writer, range(7))
    assert numbers_in(topic) == list(range(7))
    assert "on_delivery failed for Delivery(partition=0" in caplog.text
    assert type(error).__name__ in caplog.text


def test_a_callback_may_append_and_not_wait_for_itself(topic: Topic) -> None:
    refused: list[str] = []
    came = threading.Event()

    def more(delivery: Delivery) -> None:
        if delivery.first_offset != 0:
            came.set()
            return
        fill(writer, range(100, 110))
        for call in (writer.flush, writer.close):
            with pytest.raises(InvalidRecordError, match="on_delivery must not flush or close") as raised:
                call()
            refused.append(str(raised.value))

    writer = small(topic, on_delivery=more)
    fill(writer, range(3))
    assert came.wait(TIMEOUT_S)
    writer.close()
    assert len(refused) == 2
    assert numbers_in(topic) == [0, 1, 2, *range(100, 110)]


def test_records_of_all_kinds_keep_their_order_and_their_fields(tmp_path: Path) -> None:
    clock = Clock()
    topic = topic_on(Storage(str(tmp_path / "mixed")), 1, clock=clock)
    with topic.writer(linger_ms=NEVER_MS) as writer:
        for number in range(40):
            clock.now_ms = NOW + number
            value = b"%d" % number
            writer.append(value if number % 2 else str(number), key=value if number % 3 else None)
            writer.append(None, timestamp=number, headers=[("h", value)], partition=0)
    rows = list(topic.records(0))
    assert [row.value for row in rows[::2]] == [b"%d" % number for number in range(40)]
    assert [row.timestamp for row in rows[::2]] == [NOW + number for number in range(40)]
    assert [row.key for row in rows[::2]] == [b"%d" % n if n % 3 else None for n in range(40)]
    assert [(row.timestamp, row.headers) for row in rows[1::2]] == [(n, [("h", b"%d" % n)]) for n in range(40)]
    assert all(row.value is None for row in rows[1::2])


def test_a_record_appended_during_a_close_is_committed(tmp_path: Path) -> None:
    """An append is in flight, another thread closes the writer, and the append adds its record."""
    closes: list[Callable[[], None]] = []

    def clock() -> int:
        while closes:
            assert joined(start_thread(closes.pop()))
        return NOW

    topic = topic_on(Storage(str(tmp_path / "closed")), 1, clock=clock)
    writer = topic.writer(linger_ms=NEVER_MS)
    writer.append(b"first")
    closes.append(writer.close)
    writer.append(b"late")
    assert contents(topic)[0] == [b"first", b"late"]


def test_a_record_appended_during_a_failing_commit_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append is in flight, a commit fails, and the append adds its record."""
    flushes: list[Callable[[], object]] = []

    def clock() -> int:
        while flushes:
            with pytest.raises(StorageError, match="records_not_committed=1"):
                flushes.pop()()
        return NOW

    topic = topic_on(Storage(str(tmp_path / "failed")), 1, clock=clock)
    gate = Gate(monkeypatch)
    gate.errors.append(StorageError("no answer"))
    gate.open(9)
    deliveries: list[Delivery] = []
    writer = topic.writer(linger_ms=NEVER_MS, on_delivery=deliveries.append)
    writer.append(b"first")
    flushes.append(writer.flush)
    with pytest.raises(StorageError, match=r"records_not_committed=2"):
        writer.append(b"late")
    assert gate.calls == 1
    assert [delivery.record_count for delivery in deliveries] == [1, 1]
