"""A follower that is closed, interrupted, or used by a second thread: no pause is slept out, no record is lost."""

from __future__ import annotations

import signal
import threading
from datetime import datetime, timezone
from typing import Any

import pytest
from followers import Time, drained, follow, rows, span
from test_follow import append
from test_follow import topic as topic
from topics import NOW

import distlog
from distlog.core.reading import time_lookup
from distlog.core.topics.topic import Topic


def test_close_from_another_thread_ends_a_pause_at_once(topic: Topic) -> None:
    follower = topic.follow(poll_interval=1000.0)
    closer = threading.Timer(0.2, follower.close)
    closer.start()
    assert drained(follower) == []
    closer.join()
    assert drained(follower) == []


def test_close_in_a_signal_handler_ends_a_pause_at_once(topic: Topic) -> None:
    follower = topic.follow(poll_interval=1000.0)
    before = signal.signal(signal.SIGALRM, lambda *_: follower.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert drained(follower) == []
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_interrupt_comes_through_at_once_and_loses_nothing(topic: Topic) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    append(topic, 0, 2)
    time = Time()
    time.events.append(interrupt)
    follower = follow(topic, time)
    assert rows(next(follower)) == span(0, 0, 2)
    with pytest.raises(KeyboardInterrupt):
        next(follower)
    append(topic, 0, 1)
    assert drained(follower) == span(0, 2, 3)


class InterruptedDict(dict[int, int]):
    """Raises once, after it was changed, as when Ctrl-C is pressed then."""

    def __init__(self, content: dict[int, int]) -> None:
        super().__init__(content)
        self._left = 1

    def update(self, *arguments: Any) -> None:  # type: ignore[override]
        super().update(*arguments)
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def test_a_batch_that_the_caller_did_not_get_is_handed_out_again(topic: Topic) -> None:
    append(topic, 0, 2)
    follower = follow(topic, partitions=[0])
    follower._assignment.position = InterruptedDict({0: 0})
    with pytest.raises(KeyboardInterrupt):
        next(follower)
    assert follower.position == {0: 0}
    assert drained(follower) == span(0, 0, 2)


def test_a_second_thread_gets_an_error_and_the_first_one_its_records(topic: Topic) -> None:
    errors: list[BaseException] = []

    def other() -> None:
        try:
            next(follower)
        except BaseException as error:
            errors.append(error)

    def intrude() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        append(topic, 0, 1)

    time = Time()
    time.events.append(intrude)
    follower = follow(topic, time)
    assert drained(follower) == span(0, 0, 1)
    (error,) = errors
    assert "another thread uses this follower" in str(error)


def test_where_to_begin_by_time_is_looked_up_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an object store a look is a request: one after the other they took minutes."""
    topic = distlog.create("memory://side-by-side/clicks", partitions=4, config={"retention.ms": -1})
    topic.append(
        [{"value": b"v", "timestamp": ms, "partition": number} for number in range(4) for ms in (NOW, NOW + 2)]
    )
    together, first_in = threading.Barrier(4, timeout=60), time_lookup.first_in

    def meet(*asked: Any) -> Any:
        together.wait()
        return first_in(*asked)

    monkeypatch.setattr(time_lookup, "first_in", meet)
    start = datetime.fromtimestamp((NOW + 1) / 1000, timezone.utc)
    with topic.follow(start=start, timeout=0) as follower:
        assert follower.position == dict.fromkeys(range(4), 1)
    with topic.follow(group="billing", start=start, timeout=0) as follower:
        assert follower.position == dict.fromkeys(range(4), 1)
    assert topic.reset_group("billing", start) == dict.fromkeys(range(4), 1)
