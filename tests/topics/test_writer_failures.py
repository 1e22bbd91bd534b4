"""What a writer tells when a commit failed: at every call until it is closed, and of how many records, and which."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from gated_writer import Gate
from test_writer import NEVER_MS, failing
from test_writer import clock as clock
from test_writer import storage as storage
from test_writer import topic as topic
from test_writer import writer as writer
from topics import contents, topic_on

from distlog.core.errors import CommitStateUnknownError, StorageError
from distlog.core.storage.storage import Storage
from distlog.core.topics.appender import Partitioner
from distlog.core.topics.topic import Topic
from distlog.core.topics.writer import Writer


def test_a_failed_flush_is_told_by_every_call_until_the_writer_is_closed(
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


def test_a_commit_that_failed_in_the_background_is_told_by_the_next_call(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        (
            StorageError("no room", file="x"),
            "(file=x records_not_committed=7 of_partitions={0: 2, 1: 4, not chosen yet: 1})",
        ),
        (
            CommitStateUnknownError("no answer"),
            "no answer (records_in_doubt=7 of_partitions={0: 2, 1: 4, not chosen yet: 1})",
        ),
        (KeyboardInterrupt(), "records_not_committed=7 of_partitions={0: 2, 1: 4, not chosen yet: 1}"),
    ],
)
def test_an_error_says_how_many_records_of_which_partitions_it_is_about(
    error: BaseException, fact: str, topic: Topic, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [b"k%d" % number for number in range(4)]
    for key in keys:
        writer.append(b"", key=key)
    went = [sum(values) for values in topic_of_keys(keys)]
    assert went == [1, 3]
    for partition in (0, 1):
        writer.append(b"", key=b"k", partition=partition)
    writer.append(b"")
    failing(monkeypatch, error)
    with pytest.raises(type(error)) as raised:
        writer.flush()
    if isinstance(error, KeyboardInterrupt) and sys.version_info < (3, 11):
        return  # Python has no notes yet
    told = [str(raised.value), *getattr(raised.value, "__notes__", ())]
    wanted = fact.replace("=_", "={0: 2, 1: 4, not chosen yet: 1}")
    assert any(text.endswith(wanted) for text in told), told
    with pytest.raises(type(error)):
        writer.close()


def topic_of_keys(keys: list[bytes]) -> list[list[int]]:
    """For each of two partitions, 1 for each key that an append sends there, 0 for the others."""
    batch = pa.record_batch({"key": pa.array(keys), "value": pa.nulls(len(keys), pa.binary())})
    split = {partition: set(rows.tolist()) for partition, rows in Partitioner(2, 0).split(batch)}
    return [[int(row in split.get(partition, ())) for row in range(len(keys))] for partition in (0, 1)]


def test_in_a_topic_of_one_partition_all_uncommitted_are_of_that(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_on(storage, 1)
    writer = topic.writer(linger_ms=NEVER_MS)
    writer.append(b"")
    writer.append(b"", key=b"k")
    failing(monkeypatch)
    with pytest.raises(StorageError, match=r"records_not_committed=2 of_partitions={0: 2}"):
        writer.close()


def test_of_many_partitions_the_first_twenty_are_named(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_on(storage, 30)
    writer = topic.writer(linger_ms=NEVER_MS)
    for partition in range(30):
        writer.append(b"", partition=partition)
    failing(monkeypatch)
    with pytest.raises(StorageError, match=r"records_not_committed=30 of_partitions={0: 1, .*, 19: 1, 10 more: 10}"):
        writer.close()
