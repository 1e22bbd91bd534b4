"""Batches with known bytes, some with the checksums of Kafka's own tests: read, and written where possible."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from distlog.core.format.record_batch import ABORT, COMMIT, CONTROL, check_crcs, read_headers
from distlog.core.format.record_decoder import decode
from distlog.core.format.record_encoder import encode

V0 = "000000000000000000000018 75f0f41d 00 00 00000004 6b657931 00000006 76616c756531"
V1 = "000000000000000000000020 0685b364 01 00 00000000000454c3 00000004 6b657931 00000006 76616c756531"
V2 = (
    "000000000000000000000055ffffffff02e58cf1ff00000000000100000000000454c300000000000454c3ffffffffffffffffffffffffffff"
    "0000000220000000086b6579310c76616c756531002400e1bf2202086b6579320c76616c75653200"
)
V3A = (
    "000000000000000000000064ffffffff02a3ac2aa200030000000100000000000454c300000000000454c3ffffffffffffffffffffffffffff"
    "0000000204224d186040822400008020000000086b6579310c76616c756531002400e1bf2202086b6579320c76616c7565320000000000"
)
V3B = (
    "00000000000000010000005603fd7f3a0003ffffffff0000004804224d1860401a3900000016000100511875f0f41d0f00e0046b6579310000"
    "000676616c75650a0000020011012400301bc3a60d00012400b0320000000676616c75653200000000"
)
V3C = (
    "00000000000000010000006c53e1bee7010300000000000454c3ffffffff0000005604224d18604082470000001600010062200685b3640110"
    "00f0050454c3000000046b6579310000000676616c75650a0000020000230050200509300509000002002304d22c00b0320000000676616c75"
    "653200000000"
)
V4 = (
    "000000000000000500000042ffffffff02dcd7b3a800300000000000000000000003e800000000000003e80000000000005b7f0005ffffffff"
    "000000012000000008000000010c00000000000700"
)
V5 = (
    "0000000000000000000000430000000402caf7d90300100000000100000000000003e800000000000003e90000000000000007000200000000"
    "00000002100000000261023100100002020262023200"
)
V6 = (
    "0000000000000002000000420000000402799042fc00300000000000000000000007d000000000000007d000000000000000070002ffffffff"
    "000000012000000008000000000c00000000000900"
)
V9 = (
    "000000000000000000000042ffffffff025d92250b0000000000000000018bcfe568000000018bcfe56800ffffffffffffffffffffffffffff"
    "000000012000000001027604046831027804683201"
)
V10 = (
    "000000000000000a000000390000000302cfd5eff80000000000000000018bcfe568000000018bcfe56800ffffffffffffffffffffffffffff"
    "000000010e000000026b0100"
)
V11 = (
    "000000000000000a0000003c0000000302b06ca6c80040000000000000018bd50bc4000000018bcfe56800ffffffffffffffffffffffffffff"
    "000000011400ffefb25200026b0100"
)
V12 = (
    "000000000000000300000043ffffffff02b1507a01000000000002000000000000000e000000000000000f0000000000000001000000000005"
    "00000002100000020234026500100002040235026600"
)
V13 = (
    "000000000000006400000031ffffffff02353e8835000000000004ffffffffffffffff0000018bcfe56800000000000000000100000000000a"
    "00000000"
)
NOW = 1_700_000_000_000
PAIR = [(283843, b"key1", b"value1"), (1234, b"key2", b"value2")]


def read(text: str, **options: Any) -> list[tuple[Any, ...]]:
    """Return (offset, timestamp, key, value) of each record of a vector, with its checksum checked."""
    data = bytes.fromhex(text)
    headers = read_headers(data)
    assert headers["size"].sum() == len(data)
    check_crcs(data, headers)
    decoded = decode(data, headers, **options).to_pydict()
    stamps = pa.array(decoded["timestamp"], pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    return list(zip(decoded["offset"], stamps, decoded["key"], decoded["value"], strict=True))


def written(rows: list[tuple[Any, ...]], headers: Any = None, **options: Any) -> str:
    columns = {
        "timestamp": pa.array([row[0] for row in rows], pa.int64()),
        "key": pa.array([row[1] for row in rows], pa.binary()),
        "value": pa.array([row[2] for row in rows], pa.binary()),
    }
    if headers is not None:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns["headers"] = pa.array(headers, kind)
    return bytes(encode(pa.RecordBatch.from_pydict(columns), **options).data).hex()


def test_format_0() -> None:
    assert read(V0) == [(0, -1, b"key1", b"value1")]


def test_format_1() -> None:
    assert read(V1) == [(0, 283843, b"key1", b"value1")]


@pytest.mark.parametrize(("text", "codec"), [(V2, 0), (V3A, 3)])
def test_format_2_plain_and_lz4(text: str, codec: int) -> None:
    assert read(text) == [(0, 283843, b"key1", b"value1"), (1, 1234, b"key2", b"value2")]
    assert written(PAIR, codec=codec) == text


def test_format_0_lz4_with_its_wrong_header_checksum() -> None:
    assert read(V3B) == [(0, -1, b"key1", b"value1"), (1, -1, b"key2", b"value2")]


def test_format_1_lz4() -> None:
    assert read(V3C) == [(0, 283843, b"key1", b"value1"), (1, 1234, b"key2", b"value2")]


@pytest.mark.parametrize(
    ("text", "kind", "coordinator_epoch", "options"),
    [
        (V4, COMMIT, 7, {"base_offset": 5, "producer_id": 23423, "producer_epoch": 5}),
        (V6, ABORT, 9, {"base_offset": 2, "producer_id": 7, "producer_epoch": 2, "leader_epoch": 4}),
    ],
)
def test_end_markers(text: str, kind: int, coordinator_epoch: int, options: dict[str, int]) -> None:
    assert read(text) == []
    (header,) = read_headers(bytes.fromhex(text))
    assert header["size"] == 78
    assert header["attributes"] & CONTROL
    key = b"\0\0" + kind.to_bytes(2, "big")
    value = b"\0\0" + coordinator_epoch.to_bytes(4, "big")
    row = (int(header["max_timestamp"]), key, value)
    assert written([row], transactional=True, control=True, **options) == text


def test_a_transactional_batch() -> None:
    assert read(V5) == [(0, 1000, b"a", b"1"), (1, 1001, b"b", b"2")]
    options = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 0, "leader_epoch": 4}
    assert written([(1000, b"a", b"1"), (1001, b"b", b"2")], transactional=True, **options) == V5


def test_headers_with_a_null_value() -> None:
    assert read(V9) == [(0, NOW, None, b"v")]
    data = bytes.fromhex(V9)
    headers = decode(data, read_headers(data))["headers"].to_pylist()
    assert headers == [[{"key": "h1", "value": b"x"}, {"key": "h2", "value": None}]]
    assert written([(NOW, None, b"v")], headers) == V9


def test_a_tombstone_before_and_after_cleaning() -> None:
    assert read(V10) == read(V11) == [(10, NOW, b"k", None)]
    assert written([(NOW, b"k", None)], base_offset=10, leader_epoch=3) == V10


def test_a_compacted_batch_keeps_its_offset_range() -> None:
    assert read(V12) == [(4, 14, b"4", b"e"), (5, 15, b"5", b"f")]
    (header,) = read_headers(bytes.fromhex(V12))
    assert (header["base_offset"], header["last_offset_delta"], header["base_sequence"]) == (3, 2, 5)


def test_an_empty_batch() -> None:
    assert read(V13) == []
    (header,) = read_headers(bytes.fromhex(V13))
    assert (header["base_offset"], header["last_offset_delta"], header["record_count"]) == (100, 4, 0)
