"""A consumer under an interrupt at any place, or in a forked child."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from topic_consumers import consume, drained, rows, span
from topics import TINY, topic_on, values

from distlog.core.read import consumer as consumer_module
from distlog.core.read.consumer import Consumer
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    topic = topic_on(Storage(str(tmp_path / "topic")), 1, TINY)
    for _ in range(3):
        topic.append(values(range(2)), partition=0)
    return topic


class Interrupt:
    """Raises KeyboardInterrupt at a call or return in the consumer's code, as Ctrl-C does there."""

    def __init__(self, number: int) -> None:
        self.remaining = number

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename == consumer_module.__file__:
            self.remaining -= 1
            if self.remaining == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


def interrupted(consumer: Consumer, number: int) -> list[tuple[int, int]] | None:
    """Return the records of a consumer that is interrupted at call number `number`, or None after the last call."""
    sys.setprofile(Interrupt(number))
    try:
        window = rows(next(consumer))
    except KeyboardInterrupt:
        return []
    finally:
        sys.setprofile(None)
    return None if window else []


def test_an_interrupt_anywhere_loses_nothing_and_leaves_the_group(topic: Topic) -> None:
    for number in itertools.count(1):
        consumer = consume(topic, group=f"g{number}")
        if interrupted(consumer, number) is None:
            break
        assert drained(consumer) == span(0, 0, 6)
        consumer.commit()
        consumer.close()
        assert consumer.position == {}
    assert number > 10
    assert topic.groups()["member"].null_count == number - 1
    assert sorted(topic.groups()["position"].to_pylist()) == [0] + [6] * (number - 1)


def is_refused(use: Callable[[], object]) -> bool:
    try:
        use()
    except RuntimeError as error:
        return "forked child" in str(error)
    return False


def test_a_forked_child_cannot_use_the_consumer_of_its_parent(topic: Topic) -> None:
    with consume(topic, group="g") as consumer:
        next(consumer)
        child = os.fork()
        if child == 0:
            uses = (lambda: next(consumer), consumer.commit, consumer.lag)
            refused = [is_refused(use) for use in uses]
            consumer.close()
            consumer.__exit__(None, None, None)
            os._exit(sum(refused))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert topic.groups()["member"].null_count == 0
        drained(consumer)
    assert topic.groups()["position"].to_pylist() == [6]
