"""A consumer of an active segment that is truncated after its records were returned."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from topic_consumers import consume, drained, span

import distlog
from distlog.core.errors import DistlogError, OffsetOutOfRangeError
from distlog.core.topic import Topic


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return distlog.create(str(tmp_path / "topic"), 1, config={"flush.messages": "1000000"})


def write(topic: Topic, count: int) -> None:
    with distlog.open(topic.url).writer(linger_ms=0) as writer:
        for _ in range(count):
            writer.append(b"v", partition=0)


def lose(topic: Topic, count: int, read_on: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Append to the active segment; after all records were `seen`, the sync fails, so they are truncated."""
    writer, real, failures = distlog.open(topic.url).writer(linger_ms=0), os.fsync, [True]

    def fsync(file: int) -> None:
        if failures and failures.pop():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(file)

    for _ in range(count):
        writer.append(b"lost", partition=0)
    while topic.refresh().end_offsets() != {0: 3 + count}:
        pass
    assert read_on()[-count:] == span(0, 3, 3 + count)
    with monkeypatch.context() as patches:
        patches.setattr(os, "fsync", fsync)
        with pytest.raises(DistlogError, match=r"sync|device|lost"):
            writer.flush()
    assert topic.refresh().end_offsets() == {0: 3}


@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize("more", [0, 1, 9])
def test_records_that_replace_truncated_ones_are_returned(
    policy: Any, more: int, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(topic, 3)
    with consume(topic, group="g", out_of_range=policy) as consumer:
        assert drained(consumer) == span(0, 0, 3)
        lose(topic, 5, lambda: drained(consumer), monkeypatch)
        consumer.commit()
        write(topic, more)
        assert drained(consumer) == span(0, 3, 3 + more)
        consumer.commit()
    assert topic.groups()["position"].to_pylist() == [3 + more]


@pytest.mark.parametrize("more", [0, 1, 9])
def test_truncated_records_that_were_returned_fail_with_their_offsets(
    more: int, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(topic, 3)
    consumer = consume(topic)
    lose(topic, 5, lambda: drained(consumer), monkeypatch)
    write(topic, more)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError, match="cut off") as caught:
            next(consumer)
    assert "cut_at=3" in str(caught.value)
    assert drained(consume(topic, start={0: 3})) == span(0, 3, 3 + more)
