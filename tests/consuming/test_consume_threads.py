"""A consumer that is closed, interrupted, or used by a second thread: pauses end at once, and no record is lost."""

from __future__ import annotations

import signal
import threading

import pytest
from test_consume import append
from test_consume import topic as topic
from topic_consumers import Time, consume, drained, rows, span

from distlog.core.topic import Topic


def test_close_from_another_thread_ends_a_pause_at_once(topic: Topic) -> None:
    consumer = topic.consume(poll_interval=1000.0)
    closer = threading.Timer(0.2, consumer.close)
    closer.start()
    assert drained(consumer) == []
    closer.join()
    assert drained(consumer) == []


def test_close_in_a_signal_handler_ends_a_pause_at_once(topic: Topic) -> None:
    consumer = topic.consume(poll_interval=1000.0)
    old_signal = signal.signal(signal.SIGALRM, lambda *_: consumer.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert drained(consumer) == []
    finally:
        signal.signal(signal.SIGALRM, old_signal)


def test_an_interrupt_ends_a_pause_at_once_and_loses_nothing(topic: Topic) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    append(topic, 0, 2)
    time = Time()
    time.events.append(interrupt)
    consumer = consume(topic, time)
    assert rows(next(consumer)) == span(0, 0, 2)
    with pytest.raises(KeyboardInterrupt):
        next(consumer)
    append(topic, 0, 1)
    assert drained(consumer) == span(0, 2, 3)


def test_a_second_thread_gets_an_error_and_the_first_one_its_records(topic: Topic) -> None:
    errors: list[BaseException] = []

    def other() -> None:
        try:
            next(consumer)
        except BaseException as error:
            errors.append(error)

    def intrude() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        append(topic, 0, 1)

    time = Time()
    time.events.append(intrude)
    consumer = consume(topic, time)
    assert drained(consumer) == span(0, 0, 1)
    (error,) = errors
    assert "another thread uses this consumer" in str(error)
