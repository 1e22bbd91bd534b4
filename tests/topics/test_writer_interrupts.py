"""A writer under interrupts, forks and many callers: it commits its records once, and no call hangs."""

from __future__ import annotations

import linecache
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from gated_writer import NEVER_MS, TIMEOUT_S, VALUE, Gate, fill, joined, numbers_in, small, start_thread
from gated_writer import gate as gate
from gated_writer import topic as topic
from interrupts import interrupted
from interrupts import waits as waits
from topics import NOW, contents, topic_on

from distlog.core.errors import StorageError
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write import writer as accumulator
from distlog.core.write.writer import Delivery


def interrupted_at(line: int, work: Callable[[], None]) -> bool:
    """Do the work with a KeyboardInterrupt at line `line` of the accumulator, and return whether it was reached."""
    lines_left = [line]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != accumulator.__file__:
            return None
        text = linecache.getline(accumulator.__file__, frame.f_lineno)
        if event == "line" and not text.strip().startswith("with "):
            lines_left[0] -= 1
            if lines_left[0] == 0:
                raise KeyboardInterrupt
        return trace

    old_trace = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(old_trace)
    return False


@pytest.mark.long
def test_an_interrupt_at_any_line_does_not_lose_or_duplicate_a_record(topic: Topic) -> None:
    line, was_interrupted = 0, True
    while was_interrupted:
        line += 1
        first, accepted = len(numbers_in(topic)), list[int]()
        writer = small(topic)

        def work(writer: Any = writer, accepted: list[int] = accepted) -> None:
            for number in range(4):
                fill(writer, range(number, number + 1))
                accepted.append(number)

        was_interrupted = interrupted_at(line, work)
        assert joined(start_thread(writer.close)), line
        committed = numbers_in(topic)[first:]
        assert committed in (accepted, [*accepted, len(accepted)]), line
    assert line > 20


@pytest.mark.parametrize("has_error", [False, True])
@pytest.mark.usefixtures("waits")
def test_a_close_after_an_interrupted_close_waits_and_raises_its_error(
    has_error: bool, topic: Topic, gate: Gate
) -> None:
    writer = small(topic)
    fill(writer, range(2))
    interrupted(writer.close, gate.wait_for_one)
    gate.errors.extend([StorageError("full")] if has_error else [])
    gate.open()
    if has_error:
        with pytest.raises(StorageError, match="records_not_committed=2"):
            writer.close()
    writer.close()
    assert numbers_in(topic) == ([] if has_error else [0, 1])


def test_without_threads_records_of_a_callback_do_not_linger(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "distlog-writer":
            raise RuntimeError("can't start new thread")
        start(thread)

    def more(delivery: Delivery) -> None:
        if delivery.first_offset == 0:
            fill(writer, range(1, 2))

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = small(topic, on_delivery=more)

    def work() -> None:
        fill(writer, range(1))
        writer.close()

    assert joined(start_thread(work))
    assert numbers_in(topic) == [0, 1]


def test_a_child_forked_by_a_callback_commits_nothing_of_its_parent(topic: Topic) -> None:
    statuses: list[int] = []
    event = threading.Event()

    def fork(delivery: Delivery) -> None:
        if statuses or not event.wait(TIMEOUT_S):
            return
        child = os.fork()
        if child:
            statuses.append(os.waitpid(child, 0)[1])

    with small(topic, on_delivery=fork) as writer:
        fill(writer, range(5))
        event.set()
    assert statuses == [0]
    assert numbers_in(topic.refresh()) == [0, 1, 2, 3, 4]


def test_a_record_appended_during_a_fork_is_committed_by_both(tmp_path: Path) -> None:
    """An append is in flight with other records; it forks, and both processes append the record and close."""
    children: list[int] = []
    forks: list[Callable[[], int]] = []

    def clock() -> int:
        while forks:
            children.append(forks.pop()())
        return NOW

    topic = topic_on(Storage(str(tmp_path / "forked")), 1, clock=clock)
    writer = topic.writer(linger_ms=NEVER_MS)
    writer.append(VALUE % 0)
    writer.append(VALUE % 1)
    forks.append(os.fork)
    writer.append(VALUE % 2)
    if children == [0]:
        try:
            writer.close()
        finally:
            os._exit(0)
    os.waitpid(children[0], 0)
    writer.close()
    assert [int(value or b"") for value in contents(topic.refresh())[0]] == [2, 0, 1, 2]
