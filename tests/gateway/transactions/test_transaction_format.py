"""The records of `__transaction_state` are Kafka's bytes; invalid ones are refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.errors import CorruptRecordError
from distlog.core.kafka.transactions import (
    ProducerId,
    TransactionState,
    TransactionStatus,
    decode_key,
    decode_state,
    encode_key,
    encode_state,
)

#: Written by hand from Kafka's TransactionLogKey.json and TransactionLogValue.json.
KEY = "0000 0008 7061796d656e7473"
VALUE = (
    "0000 1122334455667788 0009 0000ea60 01 00000002"
    "0006 636c69636b73 00000002 00000000 00000003"
    "0005 7669657773 00000001 00000001"
    "0000018bcfe56800 0000018bcfe56700"
)
STATE = TransactionState(
    transactional_id="payments",
    producer=ProducerId(0x1122334455667788, 9),
    timeout_ms=60_000,
    status=TransactionStatus.ONGOING,
    partitions=frozenset({("clicks", 0), ("clicks", 3), ("views", 1)}),
    updated_ms=0x18BCFE56800,
    started_ms=0x18BCFE56700,
)


def test_a_key_and_a_value_are_kafkas_bytes() -> None:
    assert encode_key("payments") == bytes.fromhex(KEY)
    assert decode_key(bytes.fromhex(KEY)) == "payments"
    assert encode_state(STATE) == bytes.fromhex(VALUE)
    assert decode_state("payments", bytes.fromhex(VALUE)) == STATE


#: Records that a broker of Kafka 4.1 wrote.
BROKERS_VALUES = {
    TransactionStatus.EMPTY: "0001 0000000000000000 0000 0000ea60 00 00 000001a2095b50b9 ffffffffffffffff 00",
    TransactionStatus.ONGOING: (
        "0001 0000000000000000 0000 0000ea60 01 02 07636c69636b73 02 00000000 00 000001a2095b50c7 000001a2095b50c7 00"
    ),
    TransactionStatus.COMPLETE_COMMIT: "0001 0000000000000000 0000 0000ea60 04 01 000001a2095b50e1 "
    "000001a2095b50c7 00",
}


@pytest.mark.parametrize("status", BROKERS_VALUES)
def test_records_of_kafka_4_are_read(status: TransactionStatus) -> None:
    actual = decode_state("p", bytes.fromhex(BROKERS_VALUES[status]))
    assert (actual.status, actual.producer, actual.timeout_ms) == (status, ProducerId(0, 0), 60_000)
    assert actual.partitions == ({("clicks", 0)} if status is TransactionStatus.ONGOING else set())
    assert actual.updated_ms in range(0x1A2095B50B9, 0x1A2095B50E2)


def test_fields_with_tags_are_left_out() -> None:
    tagged = bytes.fromhex(BROKERS_VALUES[TransactionStatus.ONGOING])
    with_tags = tagged[:30] + bytes.fromhex("01 05 02 abcd") + tagged[31:-1] + bytes.fromhex("02 00 08") + bytes(8)
    assert decode_state("p", with_tags + bytes.fromhex("02 02 0002")) == decode_state("p", tagged)


def test_a_state_without_partitions_has_null_for_them() -> None:
    empty = TransactionState(transactional_id="p", producer=ProducerId(1, 2), timeout_ms=3, updated_ms=4)
    data = encode_state(empty)
    assert data[17:21] == b"\xff\xff\xff\xff"
    assert decode_state("p", data) == empty


def test_a_key_of_another_version_is_ignored() -> None:
    assert decode_key(b"\0\1rest") is None


@pytest.mark.parametrize("data", [b"", b"\0\2" + bytes(40), bytes.fromhex(VALUE)[:-1]])
def test_a_truncated_or_newer_value_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="__transaction_state"):
        decode_state("payments", data)


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_corrupt(data: bytes) -> None:
    with suppress(CorruptRecordError):
        decode_key(data)
    with suppress(CorruptRecordError):
        decode_state("p", data)


def test_kafkas_names_of_the_states() -> None:
    names = [status.kafka_name for status in TransactionStatus]
    assert names == ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]
