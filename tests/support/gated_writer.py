"""A writer whose small buffers wait at a gate before they are sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from topics import contents, topic_on

from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.engine import Appends
from distlog.core.write.writer import RecordSender, Writer

NEVER_MS = 10**7
TIMEOUT_S = 60
#: Three records of this size fill a buffer of BUFFER_BYTES, and two do not.
VALUE = b"%064d"
BUFFER_BYTES = 300

#: The method `send` of a sender, unbound.
Send = Callable[[Any, pa.RecordBatch], Appends]


def somewhere(where: str, tmp_path: Path) -> Storage:
    """A storage for a topic: a disk, where writers append directly, or for "commits" a store of objects."""
    return Storage(str(tmp_path / "topic") if where == "in place" else f"memory://{tmp_path.name}/topic")


def replace_sends(monkeypatch: pytest.MonkeyPatch, replace: Callable[[Send], Send]) -> None:
    """Replace the method that sends a writer's buffers, directly and in commits."""
    monkeypatch.setattr(RecordSender, "send", replace(RecordSender.send))


class Gate:
    """Sends of writers that wait until they are let through, each to do what it should, or to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._arrivals, self._turns = threading.Semaphore(0), threading.Semaphore(0)
        self.errors: list[BaseException] = []
        self.rows: list[int] = []
        replace_sends(monkeypatch, lambda real: lambda self_, records: self._through(partial(real, self_), records))

    def _through(self, send: Callable[[pa.RecordBatch], Appends], records: pa.RecordBatch) -> Appends:
        self.rows.append(records.num_rows)
        self._arrivals.release()
        assert self._turns.acquire(timeout=TIMEOUT_S)
        if self.errors:
            raise self.errors.pop(0)
        return send(records)

    @property
    def calls(self) -> int:
        """How many sends have come to the gate."""
        return len(self.rows)

    def wait_for_one(self) -> None:
        """Wait until a send has come to the gate."""
        assert self.has_one(TIMEOUT_S)

    def has_one(self, timeout: float) -> bool:
        """Whether another send comes to the gate within `timeout` seconds."""
        return self._arrivals.acquire(timeout=timeout)

    def open(self, count: int = 1) -> None:
        """Let `count` sends through, now or when they come."""
        self._turns.release(count)


def small(topic: Topic, **options: Any) -> Writer:
    """A writer with buffers of three records, which never linger, unless `options` say something else."""
    sender = RecordSender(topic.handle, topic.current, topic.engine(), options.pop("compression", None))
    return Writer(sender, **{"linger_ms": NEVER_MS, "buffer_bytes": BUFFER_BYTES, **options})


def fill(writer: Writer, numbers: range) -> None:
    for number in numbers:
        writer.append(VALUE % number, partition=0)


def numbers_in(topic: Topic) -> list[int]:
    return [int(value or b"") for value in contents(topic)[0]]


def start_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> bool:
    """Whether the thread comes to its end."""
    thread.join(TIMEOUT_S)
    return not thread.is_alive()


@pytest.fixture(params=["in place", "commits"])
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> Topic:
    """An empty topic of two partitions, wherever writers may write."""
    return topic_on(somewhere(request.param, tmp_path), 2)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The gate before the sends of writers, open in the end."""
    gate = Gate(monkeypatch)
    yield gate
    gate.open(1000)
