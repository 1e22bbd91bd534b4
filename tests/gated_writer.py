"""A writer with small buffers on a topic whose appends wait at a gate, for tests of what happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from topics import contents, topic_on

from distlog.core.storage.storage import Storage
from distlog.core.topics.append import AppendResult
from distlog.core.topics.topic import Topic
from distlog.core.topics.writer import Writer

NEVER_MS = 10**7
TIMEOUT_S = 20
#: Three records of this size fill a buffer of BUFFER_BYTES, and two do not.
VALUE = b"%064d"
BUFFER_BYTES = 300


class Gate:
    """Appends of a topic that wait until they are let through, each to do as the topic does, or to fail."""

    def __init__(self, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
        self._append, self._begun, self._turns = topic.append, threading.Semaphore(0), threading.Semaphore(0)
        self.errors: list[BaseException] = []
        self.rows: list[int] = []
        monkeypatch.setattr(topic, "append", self)

    def __call__(self, rows: Any, **options: Any) -> AppendResult:
        self.rows.append(rows.num_rows)
        self._begun.release()
        assert self._turns.acquire(timeout=TIMEOUT_S)
        if self.errors:
            raise self.errors.pop(0)
        return self._append(rows, **options)

    @property
    def calls(self) -> int:
        """How many appends have come to the gate."""
        return len(self.rows)

    def wait_for_one(self) -> None:
        """Wait until an append has come to the gate."""
        assert self.has_one(TIMEOUT_S)

    def has_one(self, timeout: float) -> bool:
        """Whether an append, not told of before, comes to the gate in so many seconds."""
        return self._begun.acquire(timeout=timeout)

    def open(self, count: int = 1) -> None:
        """Let so many appends through, now or when they come."""
        self._turns.release(count)


def small(topic: Topic, **options: Any) -> Writer:
    """A writer with buffers of three records, which never linger."""
    return Writer(topic, linger_ms=NEVER_MS, buffer_bytes=BUFFER_BYTES, **options)


def fill(writer: Writer, numbers: range) -> None:
    """Append a record for each number to partition 0."""
    for number in numbers:
        writer.append(VALUE % number, partition=0)


def found(topic: Topic) -> list[int]:
    """The numbers of the records in partition 0."""
    return [int(value or b"") for value in contents(topic)[0]]


def begun(work: Callable[[], object]) -> threading.Thread:
    """A thread that does the work."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> bool:
    """Whether the thread comes to its end."""
    thread.join(TIMEOUT_S)
    return not thread.is_alive()


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    """An empty topic of two partitions."""
    return topic_on(Storage(str(tmp_path / "topic")), 2)


@pytest.fixture
def gate(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The gate before the appends of `topic`, open in the end."""
    gate = Gate(topic, monkeypatch)
    yield gate
    gate.open(1000)
