"""A follower that is closed, interrupted, or used by a second thread: no pause is slept out, no record is lost."""

from __future__ import annotations

import signal
import threading

import pytest
from followers import Time, drained, follow, rows, span
from test_follow import append
from test_follow import topic as topic

from distlog.core.topic import Topic


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
