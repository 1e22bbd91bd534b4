"""Errors of a writer after a failed commit: at every call until close, with the lost records."""

from __future__ import annotations

import sys

import pytest
from gated_writer import Gate
from test_writer import NEVER_MS, failing
from test_writer import clock as clock
from test_writer import storage as storage
from test_writer import topic as topic
from test_writer import writer as writer
from topics import contents

from distlog.core.errors import CommitStateUnknownError, StorageError
from distlog.core.topic import Topic
from distlog.core.write.writer import Writer


def test_a_failed_flush_is_raised_by_every_call_until_close(
    topic: Topic, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.append(b"lost", partition=0)
    failed = failing(monkeypatch)
    for call in (writer.flush, lambda: writer.append(b"more"), writer.flush, writer.close):
        with pytest.raises(StorageError, match="No space left"):
            call()
    writer.close()
    monkeypatch.undo()
    assert len(failed) == 1
    assert contents(topic.refresh())[0] == []


def test_a_failed_background_commit_is_raised_by_the_next_call(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    gate.errors.append(StorageError("cannot put: No space left on device"))
    writer = topic.writer(linger_ms=0)
    writer.append(b"lost")
    gate.open()
    with pytest.raises(StorageError, match="No space left"):
        writer.flush()
    with pytest.raises(StorageError, match="No space left"):
        writer.append(b"refused")
    with pytest.raises(StorageError, match="No space left"):
        writer.close()
    assert gate.calls == 1


@pytest.mark.parametrize("error", [None, KeyError("something else broke")])
def test_a_block_ends_with_the_error_of_its_last_commit(
    error: Exception | None, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def block() -> None:
        with topic.writer(linger_ms=NEVER_MS) as writer:
            writer.append(b"lost")
            failing(monkeypatch)
            if error:
                raise error

    with pytest.raises(StorageError, match="No space left") as raised:
        block()
    assert raised.value.__context__ is error


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (StorageError("no room", file="x"), "(file=x records_not_committed=4 of_partitions={0: 1, 1: 2, None: 1})"),
        (CommitStateUnknownError("no answer"), "no answer (records_in_doubt=4 of_partitions={0: 1, 1: 2, None: 1})"),
        (KeyboardInterrupt(), "records_not_committed=4 of_partitions={0: 1, 1: 2, None: 1}"),
    ],
)
def test_an_error_has_the_lost_records_by_partition(
    error: BaseException, fact: str, topic: Topic, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in (0, 1):
        writer.append(b"", partition=partition)
    writer.append(b"", key=b"k1")
    writer.append(b"")
    failing(monkeypatch, error)
    with pytest.raises(type(error)) as raised:
        writer.flush()
    if isinstance(error, KeyboardInterrupt) and sys.version_info < (3, 11):
        return
    texts = [str(raised.value), *getattr(raised.value, "__notes__", ())]
    assert any(text.endswith(fact) for text in texts), texts
    with pytest.raises(type(error)):
        writer.close()
