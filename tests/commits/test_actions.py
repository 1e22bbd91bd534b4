"""Commits and actions as JSON: unknown fields are ignored, and everything else is strict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from crc32c import crc32c
from histories import History, segment

from distlog.core.commits import actions
from distlog.core.commits.actions import (
    Active,
    Add,
    Cleaned,
    Commit,
    Create,
    Drop,
    ProducerBatches,
    Remove,
    Restore,
    Seal,
    SetConfig,
    SetLogHorizon,
    SetLogStartOffset,
    SetPartitions,
    SetTopicId,
    SetTransaction,
    SetVacuumHorizon,
    read_actions,
)
from distlog.core.commits.deduplication import ProducerBatch
from distlog.core.errors import CorruptMetadataError, UnsupportedVersionError

STEM = segment().stem
EVERY_ACTION = (
    Create("clicks"),
    SetPartitions(3),
    SetConfig({"retention.ms": "1000"}),
    Add(segment()),
    Remove(0, STEM),
    SetLogStartOffset(1, 2**63 - 1),
    Restore(1, 5, 2),
    SetTransaction("app", 7, {0: (0, 10), 2: (5, 5)}),
    SetTransaction("app", "7", {}),
    Cleaned(0, 5),
    Active(0, STEM, 10),
    Seal(0, STEM),
    SetVacuumHorizon(12),
    SetLogHorizon(12),
    ProducerBatches({0: (ProducerBatch(7, 1, 4, 9, 2, 1_000, 1, -1), ProducerBatch(7, 1, -1, 10, 0, 1_001, 3, 5))}),
    SetTopicId("12345678-1234-1234-1234-123456789abd"),
    Drop(),
)


def body_of(commit: Commit) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(commit.encode())
    return body


def signed(body: object) -> bytes:
    if isinstance(body, dict):
        body.pop("crc32c", None)
    text = json.dumps(body, separators=(",", ":"))[:-1].encode()
    return text + b',"crc32c":%d}\n' % crc32c(text)


@pytest.fixture
def commit() -> Commit:
    return History().commit(*EVERY_ACTION, id="12345678-1234-1234-1234-123456789abc")


def test_every_action_survives_its_json(commit: Commit) -> None:
    assert commit.actions == EVERY_ACTION
    tables = {actions.AddTable, actions.RemoveTable}
    assert {type(action) for action in EVERY_ACTION} == set(actions.Action.__args__) - tables


def test_a_commit_is_one_json_object_with_kafka_like_names(commit: Commit) -> None:
    body = body_of(commit)
    assert list(body) == [
        "format", "version", "id", "prev", "topic_id", "timestamp_ms", "operation", "writer", "actions", "crc32c",
    ]  # fmt: skip
    assert [name for action in body["actions"] for name in action] == [
        "create", "partitions", "config", "add", "remove", "log_start_offset", "restore",
        "transaction", "transaction", "cleaned", "active", "seal", "gc_floor",
        "log_floor", "producers", "topic_id", "drop",
    ]  # fmt: skip
    assert body["actions"][7] == {
        "transaction": {
            "app_id": "app",
            "batch_id": 7,
            "offsets": {"0": [0, 10], "2": [5, 5]},
        }
    }


def test_the_size_is_that_of_the_file(commit: Commit) -> None:
    assert commit.size == len(commit.encode())


def test_a_newer_format_is_named_first() -> None:
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        Commit.decode(b'{"format": 3, "version": "another kind of number"}', "a file")


def test_any_flipped_bit_is_detected(commit: Commit) -> None:
    data = commit.encode()
    for position in range(len(data)):
        for bit in (0, 3, 7):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises((CorruptMetadataError, UnsupportedVersionError)):
                Commit.decode(bytes(flipped), "a file")


def test_a_truncated_commit_is_detected(commit: Commit) -> None:
    data = commit.encode()
    for size in range(len(data)):
        with pytest.raises(CorruptMetadataError, match="a file"):
            Commit.decode(data[:size], "a file")


@pytest.mark.parametrize("added", [b" ", b"\n", b"\0", b"{}"])
def test_bytes_after_a_commit_are_detected(commit: Commit, added: bytes) -> None:
    with pytest.raises(CorruptMetadataError, match="a file"):
        Commit.decode(commit.encode() + added, "a file")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", 0.5),
        ("format", None),
        ("version", -1),
        ("version", 2**63),
        ("version", True),
        ("id", "12345678-1234-1234-1234-123456789ABC"),
        ("id", ""),
        ("prev", 7),
        ("topic_id", "x"),
        ("timestamp_ms", -1),
        ("timestamp_ms", 2**63 - 1),
        ("timestamp_ms", 1e12),
        ("operation", "rm -rf /"),
        ("writer", ""),
        ("writer", "w" * 1001),
        ("actions", {}),
        ("actions", [[]]),
        ("actions", [{}]),
        ("actions", [{"drop": {}, "create": {"name": "x"}}]),
        ("actions", [{"drop": None}]),
        ("actions", [{"add": {}}]),
        ("actions", [{"create": {"name": "../x"}}]),
        ("actions", [{"partitions": {"count": 0}}]),
        ("actions", [{"partitions": {"count": 1_000_000_000}}]),
        ("actions", [{"config": {"settings": {"retention.ms": 5}}}]),
        ("actions", [{"config": {"settings": []}}]),
        ("actions", [{"remove": {"partition": 0, "stem": "../../x"}}]),
        ("actions", [{"transaction": {"app_id": "a", "batch_id": -1, "offsets": {}}}]),
        ("actions", [{"transaction": {"app_id": "a", "batch_id": 2**63, "offsets": {}}}]),
        ("actions", [{"transaction": {"app_id": "a", "batch_id": None, "offsets": {}}}]),
        ("actions", [{"transaction": {"app_id": "a", "batch_id": 1, "offsets": {}, "in_order": 1}}]),
        ("actions", [{"transaction": {"app_id": "", "batch_id": 1, "offsets": {}}}]),
        ("actions", [{"transaction": {"app_id": "a", "batch_id": 1, "offsets": {"0": [5, 4]}}}]),
        ("actions", [{"transaction": {"app_id": "a", "batch_id": 1, "offsets": {"0": [5]}}}]),
        ("actions", [{"transaction": {"app_id": "a", "batch_id": 1, "offsets": {"-1": [0, 1]}}}]),
        ("actions", [{"transaction": {"app_id": "a", "batch_id": 1, "offsets": {"99999999999": [0, 1]}}}]),
        ("actions", [{"transaction": {"app_id": "a", "batch_id": 1, "offsets": [0]}}]),
    ],
)
def test_values_out_of_their_range_are_refused(commit: Commit, name: str, value: object) -> None:
    with pytest.raises(CorruptMetadataError):
        Commit.decode(signed({**body_of(commit), name: value}), "a file")


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 300, b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format": ' + b"9" * 5000 + b"}", b"NaN"],
)
def test_invalid_bytes_are_refused(data: bytes) -> None:
    with pytest.raises((CorruptMetadataError, UnsupportedVersionError)):
        Commit.decode(data, "a file")


@pytest.mark.parametrize("item", [5, None, 1.5, True, "add"])
def test_an_action_that_is_not_an_object_is_refused(item: object) -> None:
    with pytest.raises(ValueError, match="an action must be an object"):
        read_actions([item])
