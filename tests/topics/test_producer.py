"""Producers: their records are stored once and in order after any failure, and a newer producer fences older ones."""

from __future__ import annotations

import errno
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from addresses import Address
from faulty_storage import FaultyStorage
from topics import contents, topic_on

import distlog
from distlog.core.arrays import MAX_LONG
from distlog.core.errors import (
    InvalidConfigError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    ReadOnlyTopicError,
)
from distlog.core.format.record_batch import read_headers
from distlog.core.log.partition_log import LostRecordsError
from distlog.core.storage.storage import Storage
from distlog.core.write.producer import Producer


@pytest.fixture
def local(tmp_path: Path) -> distlog.Topic:
    return distlog.create(str(tmp_path / "events"), config={"batch.bytes": 100})


def again(topic: distlog.Topic) -> distlog.Topic:
    copy: distlog.Topic = pickle.loads(pickle.dumps(topic))
    return copy.refresh()


def batches(topic: distlog.Topic, partition: int = 0, offset: int = 0) -> Any:
    """Return the headers of the partition's batches, from `offset` on, as in a fetch."""
    data = bytes(topic.refresh().read(partition, offset, 1 << 20))
    return read_headers(data)


def failing(monkeypatch: pytest.MonkeyPatch, name: str, suffix: str, *, spared: int, times: int, code: int) -> None:
    """Make calls of `os` fail for files with the suffix, after some successful ones."""
    real, failures_left = getattr(os, name), [spared, times]

    def call(file: int, *arguments: Any) -> Any:
        if os.readlink(f"/proc/self/fd/{file}").endswith(suffix):
            if failures_left[0] > 0:
                failures_left[0] -= 1
            elif failures_left[1] > 0:
                failures_left[1] -= 1
                raise OSError(code, os.strerror(code))
        return real(file, *arguments)

    monkeypatch.setattr(os, name, call)


def test_records_of_a_producer_are_stored_in_order(topic: distlog.Topic) -> None:
    with topic.producer() as producer:
        for number in range(20):
            producer.append(b"%d" % number, partition=number % 2)
            if number % 5 == 0:
                producer.flush()
    values = contents(again(topic))
    assert values == {first: [b"%d" % number for number in range(first, 20, 2)] for first in range(2)}


def test_sequence_numbers_continue_in_each_partition(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "events"), partitions=2, config={"batch.bytes": 100})
    with topic.producer() as producer:
        for _ in range(3):
            for number in range(30):
                producer.append(b"value", partition=number % 3 // 2)
            producer.flush()
    for partition, count in ((0, 60), (1, 30)):
        headers = batches(topic, partition)
        ends = headers["base_sequence"] + headers["record_count"]
        assert headers["base_sequence"].tolist() == [0, *ends[:-1].tolist()]
        assert ends[-1] == count
        assert len(set(headers["producer_id"].tolist())) == 1
        assert headers["producer_id"][0] >= 0
        assert set(headers["producer_epoch"].tolist()) == {0}


@pytest.mark.parametrize("spared", range(5))
@pytest.mark.parametrize(
    ("name", "suffix", "code"),
    [
        ("fsync", ".log", errno.EIO),
        ("pwrite", ".log", errno.ENOSPC),
        ("pwrite", ".index", errno.EIO),
        ("fsync", ".timeindex", errno.EIO),
    ],
)
def test_a_failed_append_is_retried_once(
    name: str, suffix: str, code: int, spared: int, local: distlog.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, name, suffix, spared=spared, times=2, code=code)
    numbers = range(60)
    with local.producer() as producer:
        for number in numbers:
            producer.append(b"%d" % number)
            if number % 20 == 19:
                producer.flush()
    assert contents(again(local))[0] == [b"%d" % number for number in numbers]
    assert again(local).verify().anomalies == ()


def test_a_writer_does_not_retry(local: distlog.Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "fsync", ".log", spared=0, times=1, code=errno.EIO)
    writer = local.writer()
    writer.append(b"a")
    with pytest.raises(distlog.StorageError):
        writer.flush()


def test_after_acknowledged_records_are_lost_nothing_follows_them(
    local: distlog.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.alter_config({"flush.messages": MAX_LONG})
    deliveries: list[distlog.Delivery] = []
    producer = local.producer(on_delivery=deliveries.append)
    producer.append(b"0")
    producer.flush()
    failing(monkeypatch, "fsync", ".log", spared=0, times=1, code=errno.EIO)
    producer.append(b"1")
    with pytest.raises(LostRecordsError):
        producer.flush()
    assert [delivery.first_offset for delivery in deliveries] == [0, 1]
    producer.append(b"2")
    with pytest.raises(OutOfOrderSequenceError):
        producer.flush()
    assert contents(again(local))[0] == [b"0"]


def test_a_commit_with_a_lost_response_happens_once(tmp_path: Path) -> None:
    for fail_at in range(40):
        plain = Storage(f"memory://{tmp_path}/{fail_at}/events")
        topic_on(plain, 1)
        faulty = FaultyStorage(plain)
        topic = topic_on(faulty)  # type: ignore[arg-type]
        producer = topic.producer()
        producer.append(b"0")
        producer.flush()
        faulty.fail_at = len(faulty.operations) + fail_at
        for number in (1, 2):
            producer.append(b"%d" % number)
            producer.flush()
        producer.close()
        assert contents(topic_on(plain))[0] == [b"0", b"1", b"2"]
        if len(faulty.operations) <= faulty.fail_at:
            break
    assert fail_at > 3


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.s3)])
def on_objects(request: pytest.FixtureRequest) -> distlog.Topic:
    address: Address = request.getfixturevalue(f"{request.param}_url")
    return distlog.create(f"{address.url}/events", partitions=2, storage_options=address.options)


def test_on_an_object_store_sequence_numbers_continue_in_each_partition(on_objects: distlog.Topic) -> None:
    with on_objects.producer("payments") as producer:
        for round_ in range(3):
            for number in range(6):
                producer.append(b"%d" % round_, partition=number % 3 // 2)
            producer.flush()
    for partition, count in ((0, 4), (1, 2)):
        sequences = [batches(on_objects, partition, offset)["base_sequence"][0] for offset in (0, count, 2 * count)]
        assert sequences == [0, count, 2 * count]
        (state,) = (state for _, state in on_objects.current.refresh().partitions[partition].producers.items())
        assert [batch.last_sequence for batch in state.batches] == [count - 1, 2 * count - 1, 3 * count - 1]
        assert state.epoch == 0


def test_a_newer_producer_fences_older_ones_with_its_id(topic: distlog.Topic) -> None:
    first = topic.producer("payments")
    first.append(b"0", partition=0)
    first.flush()
    # another id and no id are not affected
    older = [topic.producer("refunds"), topic.producer()]
    second = again(topic).producer("payments")

    def send() -> None:
        first.append(b"1", partition=0)
        first.flush()

    # the append raises it if the writer's thread was as quick
    with pytest.raises(ProducerFencedError, match="payments"):
        send()
    for number, producer in enumerate([second, *older, second], 2):
        producer.append(b"%d" % number, partition=0)
        producer.flush()
    assert contents(again(topic))[0] == [b"0", b"2", b"3", b"4", b"5"]


def test_a_newer_producer_starts_after_appends_in_flight(
    local: distlog.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = again(local).producer("payments")
    first.append(b"0")
    first.flush()
    real, writing, go_on, observed = os.pwrite, threading.Event(), threading.Event(), list[Any]()

    def pwrite(file: int, *arguments: Any) -> int:
        if os.readlink(f"/proc/self/fd/{file}").endswith(".log"):
            writing.set()
            assert go_on.wait(60)
        return real(file, *arguments)

    def begin() -> None:
        second = local.producer("payments")
        observed.append(contents(again(local))[0])
        second.close()

    monkeypatch.setattr(os, "pwrite", pwrite)
    first.append(b"1")
    flushing = threading.Thread(target=first.flush)
    flushing.start()
    assert writing.wait(60)
    beginning = threading.Thread(target=begin)
    beginning.start()
    while local.current.refresh().transactions.newest("producer:payments") == 0:
        pass
    # the newer one's commit exists: now the older one continues
    beginning.join(0.1)
    go_on.set()
    beginning.join()
    flushing.join()
    assert observed == [[b"0", b"1"]]
    first.append(b"2")
    with pytest.raises(ProducerFencedError):
        first.flush()


def test_a_restarted_producer_has_the_same_id_and_the_next_epoch(local: distlog.Topic) -> None:
    for _ in range(3):
        with again(local).producer("payments") as producer:
            producer.append(b"value")
    headers = batches(local)
    assert len(set(headers["producer_id"].tolist())) == 1
    assert headers["producer_epoch"].tolist() == [0, 1, 2]
    assert headers["base_sequence"].tolist() == [0, 0, 0]


def test_after_the_last_epoch_the_producer_gets_another_id(
    local: distlog.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distlog.core.write.producer._EPOCHS_PER_ID", 2)
    for _ in range(4):
        with again(local).producer("payments") as producer:
            producer.append(b"value")
    headers = batches(local)
    assert headers["producer_epoch"].tolist() == [0, 1, 0, 1]
    assert len(set(headers["producer_id"].tolist())) == 2


def test_a_recreated_topic_has_its_own_producers(tmp_path: Path) -> None:
    url, ids = str(tmp_path / "events"), set()
    for _ in range(2):
        topic = distlog.create(url)
        with topic.producer("payments") as producer:
            producer.append(b"value")
        ids |= set(batches(topic)["producer_id"].tolist())
        topic.drop()
    assert len(ids) == 2


def in_child(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except distlog.InvalidRecordError:
            os._exit(3)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("transactional_id", [None, "payments"])
def test_a_forked_child_is_another_producer_or_refused(local: distlog.Topic, transactional_id: str | None) -> None:
    producer = local.producer(transactional_id)
    producer.append(b"parent")
    producer.flush()
    if transactional_id is None:
        assert in_child(lambda: (producer.append(b"child"), producer.flush())) == 0
    else:
        assert in_child(lambda: (producer.append(b"child"), producer.flush())) == 3
    producer.append(b"parent")
    producer.close()
    headers = batches(local)
    expected = [0, 0, 1] if transactional_id is None else [0, 1]
    assert headers["base_sequence"].tolist() == expected
    assert len(np.unique(headers["producer_id"])) == (2 if transactional_id is None else 1)


@pytest.mark.parametrize("wrong", ["", "x" * 250, 5])
def test_a_transactional_id_is_text(local: distlog.Topic, wrong: Any) -> None:
    with pytest.raises(InvalidConfigError, match="transactional id"):
        local.producer(wrong)


def test_a_topic_at_a_version_has_no_producers(local: distlog.Topic) -> None:
    with pytest.raises(ReadOnlyTopicError):
        distlog.open(local.url, version=0).producer()


def test_readers_and_maintenance_work_with_producers(local: distlog.Topic) -> None:
    for part in range(3):
        with local.producer("payments") as producer:
            for number in range(10):
                producer.append(b"%d" % (10 * part + number))
        local.append([{"value": b"bulk"}])
    expected = contents(again(local))[0]
    assert len(expected) == 33
    local.compact()
    local.rebuild_indexes(force=True)
    local.refresh()
    for isolation in ("read_committed", "read_uncommitted"):
        assert local.scan(isolation=isolation).to_table()["value"].to_pylist() == expected
    assert again(local).verify().anomalies == ()
    with local.producer("payments") as producer:
        producer.append(b"last")
    assert contents(again(local))[0] == [*expected, b"last"]


def test_a_with_block_gives_type_checkers_a_producer_not_a_writer() -> None:
    assert Producer.__enter__.__annotations__["return"] == "Producer"
