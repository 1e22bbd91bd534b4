"""A client has several batches in flight: after a failed one, none is appended until it was sent again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from gateways import Wire, producing, serving, until
from kio.schema.errors import ErrorCode
from raw_batches import batch, record
from transactional_clients import RawProducer

import distlog
from distlog.core.errors import OutOfOrderSequenceError, StorageError
from distlog.core.format.record_batch import batch_fields, read_headers
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.topics.metadata_cache import HostedTopic
from distlog.gateway.topics.partition import Partition

PATIENCE_S = 60
#: The ways of a batch into a log, on a local disk and on an object store.
APPENDS = ((Partition, "append", Partition.append), (HostedTopic, "append_later", HostedTopic.append_later))
Failing = Callable[..., None]


@pytest.fixture(params=["local", "objects"])
def gateway(request: pytest.FixtureRequest, tmp_path: Any, memory_url: Address) -> Iterator[GatewayServer]:
    root = str(tmp_path) if request.param == "local" else memory_url.url
    distlog.create(f"{root}/clicks", 1)
    with serving(root, linger_ms=1) as served:
        yield served


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Has the storage fail at the next batch: instead of the append, or, if it `is_stored`, after it."""

    def fail_next(*, is_stored: bool = False) -> None:
        def failing_once(real: Callable[..., Any]) -> Callable[..., Any]:
            def failing(*arguments: Any, **options: Any) -> Any:
                for owner, name, append in APPENDS:
                    monkeypatch.setattr(owner, name, append)
                if is_stored and isinstance(appended := real(*arguments, **options), dict):
                    for result in appended.values():
                        result.result()
                raise StorageError("no answer")

            return failing

        for owner, name, append in APPENDS:
            monkeypatch.setattr(owner, name, failing_once(append))

    return fail_next


def numbered(sequence: int, *, epoch: int = 0, count: int = 1) -> bytes:
    records = [record(n, 0, b"k", b"%d" % (sequence + n)) for n in range(count)]
    data: bytes = batch(records, producer=(7, epoch, sequence))
    return data


def sent_code(wire: Wire, sequence: int, **fields: int) -> ErrorCode:
    code: ErrorCode = producing(wire, numbered(sequence, **fields)).error_code
    return code


def values(gateway: GatewayServer) -> list[bytes]:
    actual: list[bytes] = distlog.open(f"{gateway.root}/clicks").scan().to_table().column("value").to_pylist()
    return actual


def test_batches_after_a_failed_first_batch_wait_for_its_retry(gateway: GatewayServer, fail: Failing) -> None:
    with Wire(gateway) as wire:
        fail()
        assert sent_code(wire, 0) is ErrorCode.kafka_storage_error
        assert [sent_code(wire, 1), sent_code(wire, 2)] == [ErrorCode.out_of_order_sequence_number] * 2
        assert [sent_code(wire, sequence) for sequence in range(3)] == [ErrorCode.none] * 3
    assert values(gateway) == [b"0", b"1", b"2"]


def test_a_stored_batch_with_an_error_response_is_followed_by_the_next(gateway: GatewayServer, fail: Failing) -> None:
    with Wire(gateway) as wire:
        fail(is_stored=True)
        assert sent_code(wire, 0) is ErrorCode.kafka_storage_error
        assert [sent_code(wire, 1), sent_code(wire, 0)] == [ErrorCode.none] * 2
    assert values(gateway) == [b"0", b"1"]


def test_a_batch_that_waits_for_a_sync_may_still_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client has sent more, which must not be the producer's first batch where the sync cuts this one off."""
    fsync, refusals, (second,) = os.fsync, list[str](), batch_fields(read_headers(numbered(1)))
    distlog.create(str(tmp_path / "clicks"))
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        failed = gateway.broker.metadata.failed_batches

        def checked_sync(file: int) -> None:
            if os.readlink(f"/proc/self/fd/{file}").endswith(".log"):
                try:
                    failed.check("clicks", 0, second)
                except OutOfOrderSequenceError as error:
                    refusals.append(error.message)
            fsync(file)

        monkeypatch.setattr(os, "fsync", checked_sync)
        assert sent_code(wire, 0) is ErrorCode.none
        failed.check("clicks", 0, second)
    assert len(refusals) == 1


def test_a_producer_of_a_new_epoch_does_not_wait_for_the_old_one(gateway: GatewayServer, fail: Failing) -> None:
    with Wire(gateway) as wire:
        fail()
        assert sent_code(wire, 0) is ErrorCode.kafka_storage_error
        assert sent_code(wire, 5, epoch=1) is ErrorCode.none


def test_an_abandoned_batch_blocks_nothing(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        bad = batch([record(0)], count=2, last_delta=1, producer=(7, 0, 0))
        assert producing(wire, bad).error_code is ErrorCode.invalid_record
        assert sent_code(wire, 2) is ErrorCode.none


def test_librdkafka_loses_nothing_that_it_reports_as_delivered(gateway: GatewayServer, fail: Failing) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    delivered = list[bytes]()
    producer = kafka.Producer(
        {"bootstrap.servers": gateway.address, "enable.idempotence": True, "batch.num.messages": 1, "linger.ms": 0}
    )

    def on_delivery(error: Any, sent: Any) -> None:
        assert error is None
        delivered.append(sent.value())

    fail()
    for number in range(10):
        producer.produce("clicks", b"%d" % number, on_delivery=on_delivery)
    assert producer.flush(PATIENCE_S) == 0
    assert delivered == values(gateway) == [b"%d" % number for number in range(10)]


def test_a_transaction_is_committed_with_its_first_batch(gateway: GatewayServer, fail: Failing) -> None:
    with Wire(gateway) as wire:
        producer = RawProducer(wire)
        until(lambda: producer.init() is ErrorCode.none)
        producer.add(("clicks", 0))
        fail()
        assert producer.send(b"first") is ErrorCode.kafka_storage_error
        producer.sequences["clicks", 0] = 1
        assert producer.send(b"second") is ErrorCode.out_of_order_sequence_number
        producer.sequences["clicks", 0] = 0
        assert [producer.send(b"first"), producer.send(b"second"), producer.end()] == [ErrorCode.none] * 3
    assert values(gateway) == [b"first", b"second"]
