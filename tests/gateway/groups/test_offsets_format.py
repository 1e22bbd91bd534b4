"""Records of `__consumer_offsets`, byte for byte Kafka's."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.errors import CorruptRecordError
from distlog.core.read.kafka_offsets import (
    OffsetKey,
    Position,
    decode_position,
    encode_position,
    offsets_partition,
)
from distlog.gateway.groups.classic_group import GroupRecord, MemberRecord
from distlog.gateway.groups.offsets_format import ClassicGroupKey, decode_group, decode_key, encode_group, encode_key

MEMBER = MemberRecord(
    id="m",
    instance_id=None,
    client_id="c",
    client_host="/h",
    rebalance_timeout_ms=1,
    session_timeout_ms=2,
    subscription=b"s",
    assignment=b"as",
)
GROUP = GroupRecord(
    group="g",
    protocol_type="consumer",
    generation=3,
    protocol="range",
    leader="m",
    phase_since_ms=4,
    members=(MEMBER,),
)


def test_the_bytes_are_kafkas() -> None:
    assert encode_key(OffsetKey("g", "topic", 5)) == b"\0\1\0\1g\0\5topic\0\0\0\5"
    assert encode_key(ClassicGroupKey("g")) == b"\0\2\0\1g"
    assert (
        encode_position(Position(7, -1, "x", 9))
        == b"\0\3" + b"\0" * 7 + b"\7\xff\xff\xff\xff\0\1x" + b"\0" * 7 + b"\t"
    )
    assert encode_group(GROUP) == (
        b"\0\3\0\x08consumer\0\0\0\3\0\5range\0\1m" + b"\0" * 7 + b"\4"
        b"\0\0\0\1" + b"\0\1m\xff\xff\0\1c\0\2/h\0\0\0\1\0\0\0\2\0\0\0\1s\0\0\0\2as"
    )


def test_a_position_that_a_broker_of_kafka_4_1_wrote_is_read() -> None:
    data = bytes.fromhex("0004 0000000000000003 ffffffff 0668656c6c6f 000001a2095b5d3d 00")
    assert decode_position(data) == Position(3, -1, "hello", 0x1A2095B5D3D)
    assert decode_position(data[:-1] + b"\1\0\x10" + bytes(16)) == Position(3, -1, "hello", 0x1A2095B5D3D)


@pytest.mark.parametrize(
    ("group", "partition"), [("billing", 9), ("", 0), ("polygenelubricants", 0), ("gruppe-ä", 48), ("\U0001f600", 49)]
)
def test_a_group_is_in_the_brokers_partition(group: str, partition: int) -> None:
    assert offsets_partition(group, 50) == partition


def test_older_versions_of_values_are_read() -> None:
    offset, since = b"\0" * 7 + b"\7", b"\0" * 7 + b"\t"
    assert decode_position(b"\0\0" + offset + b"\0\1x" + since) == Position(7, -1, "x", 9)
    assert decode_position(b"\0\1" + offset + b"\0\1x" + since + since) == Position(7, -1, "x", 9)
    head = b"\0\x08consumer\0\0\0\3\0\5range\0\1m"
    member = b"\0\0\0\1\0\1m\0\1c\0\2/h\0\0\0\2\0\0\0\1s\0\0\0\2as"
    actual = decode_group("g", b"\0\0" + head + member)
    assert actual
    assert (actual.phase_since_ms, actual.members[0].rebalance_timeout_ms) == (-1, 2)


def test_records_of_newer_kinds_are_left_alone() -> None:
    assert decode_key(b"\0\x10\0\1g\0\1a") is None
    assert decode_position(b"\0\5") is None
    assert decode_group("g", b"\0\4") is None


@given(st.text(), st.text(), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.text())
def test_records_round_trip(group: str, topic: str, partition: int, offset: int, text: str) -> None:
    key, position = OffsetKey(group, topic, partition), Position(offset, 3, text, 4)
    assert decode_key(encode_key(key)) == key
    assert decode_key(encode_key(ClassicGroupKey(group))) == ClassicGroupKey(group)
    assert decode_position(encode_position(position)) == position


@given(st.integers(0, 200), st.binary(max_size=8))
def test_damaged_bytes_are_corrupt(cut: int, noise: bytes) -> None:
    data = encode_group(GROUP)
    with suppress(CorruptRecordError):
        decode_group("g", data[:cut] + noise + data[cut + len(noise) :])
    if cut < len(data):
        with pytest.raises(CorruptRecordError, match="__consumer_offsets"):
            decode_group("g", data[:cut])


def test_a_group_reads_as_it_was_written() -> None:
    assert decode_group("g", encode_group(GROUP)) == GROUP
