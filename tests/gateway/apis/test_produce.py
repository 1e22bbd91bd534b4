"""Produce on the wire: acks, error codes, and the sequence numbers of idempotent producers."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
from gateways import PRODUCE, Wire, framed, open_topic, produce_fields, producing, request
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from raw_batches import batch, record, with_right_crc

import distlog
from distlog.core.errors import StorageError, TimestampWarning
from distlog.core.log.partition_log import PartitionLog
from distlog.gateway.gateway_server import GatewayServer


def data(*values: bytes, sequence: int = -1, producer: int = -1, epoch: int = 0, **fields: int) -> bytes:
    numbers = (producer, epoch if producer >= 0 else -1, sequence)
    return batch([record(n, 0, b"k", value) for n, value in enumerate(values)], producer=numbers, **fields)


def values(gateway: GatewayServer) -> list[bytes]:
    return open_topic(gateway).scan(partitions=[0]).to_table().column("value").to_pylist()


@pytest.mark.parametrize("version", range(3, 13))
def test_each_version_returns_the_offset(gateway: GatewayServer, version: int) -> None:
    with Wire(gateway) as wire:
        for first in (0, 2):
            response = producing(wire, data(b"a", b"b"), version=version)
            assert (response.error_code, response.base_offset, response.log_append_time) == (
                ErrorCode.none,
                first,
                None,
            )


def test_seconds_that_are_sent_as_milliseconds_give_one_warning_for_each_topic(gateway: GatewayServer) -> None:
    seconds, ms = 1_700_000_000, 1_700_000_000_000

    def produce() -> None:
        with Wire(gateway) as wire:
            for time in (ms, seconds, seconds):
                response = producing(wire, data(b"a", base_timestamp=time, max_timestamp=time))
                assert response.error_code is ErrorCode.none

    with pytest.warns(TimestampWarning) as warned:
        produce()
    (text,) = [str(warning.message) for warning in warned]
    assert text.startswith(
        "clicks: records have times before 1990, as 1970-01-20T16:13:20.000Z: 1700000000 was taken"
    )


def test_without_acks_there_is_no_response_and_the_next_request_is_answered(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        wire.send(PRODUCE, 9, **produce_fields(9, [("clicks", 0, data(b"a"))], acks=0))
        assert producing(wire, data(b"b")).base_offset == 1
        assert values(gateway) == [b"a", b"b"]


def test_without_acks_an_error_ends_the_connection(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        wire.send(PRODUCE, 9, **produce_fields(9, [("clicks", 7, data(b"a"))], acks=0))
        assert wire.is_closed


def test_other_acks_are_refused(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        assert producing(wire, data(b"a"), acks=2).error_code is ErrorCode.invalid_required_acks
    assert values(gateway) == []


def test_partitions_succeed_and_fail_by_themselves(gateway: GatewayServer) -> None:
    requested = [
        ("clicks", 0, data(b"a")),
        ("clicks", 5, data(b"b")),
        ("none", 0, data(b"c")),
        ("clicks", 1, data(b"d")),
    ]
    with Wire(gateway) as wire:
        body = wire.ask(PRODUCE, 9, **produce_fields(9, requested))
    reply = {
        (response.name, partition.index): partition.error_code
        for response in body.responses
        for partition in response.partition_responses
    }
    unknown = ErrorCode.unknown_topic_or_partition
    assert reply == {
        ("clicks", 0): ErrorCode.none,
        ("clicks", 5): unknown,
        ("none", 0): unknown,
        ("clicks", 1): ErrorCode.none,
    }


def corrupt(position: int) -> bytes:
    broken = bytearray(data(b"a"))
    broken[position] ^= 0xFF
    return bytes(broken)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (corrupt(-1), ErrorCode.corrupt_message),
        (with_right_crc(corrupt(61)), ErrorCode.invalid_record),
        (data(b"a")[:-1], ErrorCode.invalid_record),
        (data(b"a") + data(b"b"), ErrorCode.invalid_record),
        (b"", ErrorCode.invalid_record),
        (data(b"x" * 1_048_577), ErrorCode.message_too_large),
        (data(b"a", attributes=8), ErrorCode.invalid_timestamp),
        (data(b"a", attributes=32), ErrorCode.invalid_record),
        # in a transaction that nobody would end
        (data(b"a", attributes=16, producer=7, sequence=0), ErrorCode.invalid_record),
        (data(b"a", base_timestamp=1 << 60, max_timestamp=1 << 60), ErrorCode.invalid_timestamp),
        (batch([record(0)], count=2, last_delta=1), ErrorCode.invalid_record),
    ],
)
def test_a_bad_batch_gets_kafkas_code_and_appends_nothing(
    gateway: GatewayServer, records: bytes, code: ErrorCode
) -> None:
    with Wire(gateway) as wire:
        response = producing(wire, records)
        assert (response.error_code, response.base_offset) == (code, -1)
        assert response.error_message
        assert producing(wire, data(b"good")).base_offset == 0


def test_invalid_records_are_named(gateway: GatewayServer) -> None:
    open_topic(gateway).alter_config({"cleanup.policy": "compact"})
    with Wire(gateway) as wire:
        response = producing(wire, batch([record(0, key=b"k"), record(1, key=None)]))
    assert response.error_code is ErrorCode.invalid_record
    assert [error.batch_index for error in response.record_errors] == [1]


def test_a_duplicate_batch_gets_its_first_offset(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire, Wire(gateway) as other:
        for sequence in range(3):
            assert producing(wire, data(b"v", producer=7, sequence=sequence)).base_offset == sequence
        again = producing(other, data(b"v", producer=7, sequence=1))
        assert (again.error_code, again.base_offset) == (ErrorCode.none, 1)
    assert values(gateway) == [b"v"] * 3


def test_a_gap_in_the_sequence_numbers_is_refused(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        producing(wire, data(b"v", producer=7, sequence=0))
        response = producing(wire, data(b"v", producer=7, sequence=2))
        assert response.error_code is ErrorCode.out_of_order_sequence_number
        assert producing(wire, data(b"v", producer=7, sequence=1)).base_offset == 1


def test_an_older_epoch_is_fenced(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        producing(wire, data(b"v", producer=7, epoch=3, sequence=0))
        response = producing(wire, data(b"v", producer=7, epoch=2, sequence=1))
        assert response.error_code is ErrorCode.invalid_producer_epoch


def test_each_producer_id_is_new(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        actual = {
            wire.ask(22, 4, transactional_id=None, transaction_timeout=wire_ms(0)).producer_id for _ in range(50)
        }
    assert len(actual) == 50
    assert min(actual) >= 0


def wire_ms(ms: int) -> object:
    import datetime

    return datetime.timedelta(milliseconds=ms)


def test_the_append_time_is_returned(gateway: GatewayServer) -> None:
    open_topic(gateway).alter_config({"message.timestamp.type": "LogAppendTime"})
    with Wire(gateway) as wire:
        response = producing(wire, data(b"a"))
    (row,) = open_topic(gateway).scan(partitions=[0]).to_table().to_pylist()
    assert response.log_append_time == row["timestamp"]


def test_a_dropped_topic_is_unknown_and_one_that_is_created_again_is_another(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        producing(wire, data(b"old"))
        open_topic(gateway).drop()
        assert producing(wire, data(b"v")).error_code is ErrorCode.unknown_topic_or_partition
        distlog.create(f"{gateway.root}/clicks")
        assert producing(wire, data(b"new")).base_offset == 0
    assert values(gateway) == [b"new"]


def circles(wire: Wire, frame: bytes, times: int) -> Counter[str]:
    """Return the kinds of the gateway's objects that only the garbage collector frees after `times` responses."""
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(times):
            wire.socket.sendall(frame)
            assert wire.frame()
        gc.collect()
        ours = (kind for kind in map(type, gc.garbage) if kind.__module__.startswith(("distlog", "concurrent")))
        return Counter(our.__name__ for our in ours)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_an_answered_request_leaves_no_circle_of_objects_to_the_garbage_collector(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        frame = framed(request(PRODUCE, 9, 1, **produce_fields(9, [("clicks", 0, data(b"v"))])))
        wire.socket.sendall(frame)
        wire.frame()
        assert circles(wire, frame, 100) == {}


def test_an_error_whose_causes_form_a_circle_is_answered(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a library makes it that raises the first error of several from the last one."""
    first, last = StorageError("the first try"), StorageError("the last try")
    first.__cause__, last.__context__ = last, first

    def fails(*_: object, **__: object) -> None:
        raise first

    monkeypatch.setattr(PartitionLog, "append_batches", fails)
    with Wire(gateway) as wire:
        assert producing(wire, data(b"a")).error_code is ErrorCode.kafka_storage_error
