"""The records of groups of the newer protocol are Kafka's, byte for byte."""

from __future__ import annotations

import uuid

import pytest

from distlog.core.errors import CorruptRecordError
from distlog.gateway.groups.offsets_format import (
    ConsumerGroupKey,
    ConsumerValue,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    RecordKind,
    decode_consumer_value,
    decode_key,
    encode_consumer_value,
    encode_key,
)

TOPIC = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
PARTITIONS = frozenset({(TOPIC, 2), (TOPIC, 0)})
PARTITIONS_HEX = "02" + TOPIC.hex + "03" + "00000000" + "00000002" + "00"
MEMBER = MemberMetadata(
    instance_id="i1",
    rack_id=None,
    client_id="c",
    client_host="/h",
    topics=("a", "bc"),
    pattern=None,
    rebalance_timeout_ms=300_000,
    assignor="uniform",
)
MEMBER_HEX = "03" + b"i1".hex() + "00" + "0263" + "032f68" + "03" + "0261" + "036263" + "00" + "000493e0"

KEYS = [
    (ConsumerGroupKey("g", RecordKind.EPOCH), "0003000167"),
    (ConsumerGroupKey("g", RecordKind.MEMBER, "m"), "000500016700016d"),
    (ConsumerGroupKey("g", RecordKind.TARGET_EPOCH), "0006000167"),
    (ConsumerGroupKey("g", RecordKind.TARGET, "m"), "000700016700016d"),
    (ConsumerGroupKey("g", RecordKind.CURRENT, "m"), "000800016700016d"),
]
VALUES: list[tuple[RecordKind, ConsumerValue, str]] = [
    (RecordKind.EPOCH, 7, "0000" + "00000007" + "00"),
    (RecordKind.TARGET_EPOCH, 6, "0000" + "00000006" + "00"),
    (RecordKind.MEMBER, MEMBER, "0000" + MEMBER_HEX + "08" + b"uniform".hex() + "00"),
    (RecordKind.TARGET, PARTITIONS, "0000" + PARTITIONS_HEX + "00"),
    (
        RecordKind.CURRENT,
        CurrentAssignment(7, 6, MemberState.UNREVOKED_PARTITIONS, PARTITIONS, frozenset()),
        "0000" + "00000007" + "00000006" + "01" + PARTITIONS_HEX + "01" + "00",
    ),
]


@pytest.mark.parametrize(("key", "expected"), KEYS, ids=[key.kind.name for key, _ in KEYS])
def test_keys_are_those_of_kafka(key: ConsumerGroupKey, expected: str) -> None:
    assert encode_key(key).hex() == expected
    assert decode_key(encode_key(key)) == key


@pytest.mark.parametrize(("kind", "value", "expected"), VALUES, ids=[kind.name for kind, _, _ in VALUES])
def test_values_are_those_of_kafka(kind: RecordKind, value: ConsumerValue, expected: str) -> None:
    assert encode_consumer_value(value).hex() == expected
    assert decode_consumer_value(kind, bytes.fromhex(expected)) == value


@pytest.mark.parametrize(("kind", "value", "expected"), VALUES, ids=[kind.name for kind, _, _ in VALUES])
def test_bytes_that_end_too_early_are_an_error_and_unknown_versions_are_left_out(
    kind: RecordKind, value: ConsumerValue, expected: str
) -> None:
    data = bytes.fromhex(expected)
    for size in range(2, len(data) - 1):
        with pytest.raises(CorruptRecordError):
            decode_consumer_value(kind, data[:size])
    assert decode_consumer_value(kind, b"\0\x01" + data[2:]) is None


def test_a_long_text_has_a_length_of_several_bytes() -> None:
    topics = tuple(f"t{number:03}" for number in range(200))
    metadata = MemberMetadata(
        instance_id=None,
        rack_id="r" * 300,
        client_id="",
        client_host="",
        topics=topics,
        pattern="^a",
        rebalance_timeout_ms=-1,
        assignor=None,
    )
    assert decode_consumer_value(RecordKind.MEMBER, encode_consumer_value(metadata)) == metadata
