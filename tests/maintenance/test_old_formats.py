"""Compaction of messages in formats 0 and 1, which brokers wrote before 0.11: what stays is rewritten as format 2."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adopted import rows
from golden import partitions
from raw_batches import entry

import distlog
from distlog import CorruptRecordError
from distlog.core.format.record_batch import check_crcs, read_headers
from distlog.core.format.record_decoder import decode
from distlog.core.maintain.survivors import in_format_2

# format 2 has the type CreateTime, and format 0 has none
OLD = {name: partition for name, partition in partitions().items() if name.startswith("logs.")}
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "retention.ms": -1}
COLUMNS = ("offset", "timestamp", "key", "value", "headers")


@pytest.mark.parametrize("name", OLD)
def test_every_message_keeps_its_offset_time_key_and_value_in_format_2(name: str) -> None:
    for log in OLD[name].logs:
        data = log.read_bytes()
        batches = read_headers(data)
        converted, rows_made = in_format_2(data, batches)
        headers = read_headers(converted)
        check_crcs(converted, headers)
        assert headers.tolist() == rows_made.tolist()
        assert set(headers["magic"].tolist()) == {2}
        assert decode(converted, headers, columns=COLUMNS) == decode(data, batches, columns=COLUMNS)
        assert {int(codec) & 7 for codec in headers["attributes"]} == {
            int(codec) & 7 for codec in batches["attributes"]
        }


def test_plain_messages_become_few_batches_and_gaps_stay(tmp_path: Path) -> None:
    data = b"".join(entry(1, offset, b"v") for offset in (*range(1000), *range(2000, 2100)))
    converted, rows_read = in_format_2(data, read_headers(data))
    assert len(rows_read) == 2
    assert rows_read["base_offset"].tolist() == [0, 2000]
    assert rows_read["last_offset_delta"].tolist() == [999, 99]
    assert len(converted) < len(data)


def test_a_format_1_wrapper_of_format_0_messages_is_rewritten() -> None:
    """testCleanCorruptMessageSet: KAFKA-4298, an old cleaner wrote them so."""
    inner = b"".join(entry(0, offset, b"k%d" % offset) for offset in range(3))
    wrapper = entry(1, 2, None, gzip.compress(inner), attributes=1)
    converted, rows_read = in_format_2(wrapper, read_headers(wrapper))
    check_crcs(converted, rows_read)
    assert rows_read["magic"].tolist() == [2]
    records = decode(converted, rows_read, columns=("offset", "key")).to_pylist()
    assert [(row["offset"], row["key"]) for row in records] == [(0, b"k0"), (1, b"k1"), (2, b"k2")]


def test_a_damaged_wrapper_is_named_with_its_position() -> None:
    data = bytearray(OLD["logs.v1-gzip-0"].logs[0].read_bytes())
    batches = read_headers(bytes(data))
    second = int(batches["position"][1])
    data[second + 60] ^= 0xFF
    with pytest.raises(CorruptRecordError) as caught:
        in_format_2(bytes(data), batches, file="a.log", file_position=1000)
    assert (caught.value.details["file"], caught.value.details["position"]) == ("a.log", 1000 + second)


@pytest.mark.parametrize("name", OLD)
def test_the_last_record_of_each_key_stays_and_tombstones_get_a_horizon(name: str, tmp_path: Path) -> None:
    topic = distlog.adopt(OLD[name].folder, str(tmp_path / "old"), config=CONFIG).topic
    last = {
        row["key"]: {**row, "timestamp_type": 0} for row in rows(topic.scan().to_table()) if row["key"] is not None
    }
    report = topic.compact()
    assert report.to_dict()["ok"]
    expected = [{**row, "timestamp_type": 0} for row in rows(topic.scan().to_table())]
    assert expected == sorted(last.values(), key=lambda row: row["offset"])
    assert magics(topic) == {2}
    assert topic.verify().ok
    tombstones = {row["offset"] for row in last.values() if row["value"] is None}
    assert bool(tombstones) == any(batch["attributes"] & 0x40 for batch in batches_of(topic))


def batches_of(topic: distlog.Topic) -> np.ndarray:
    logs = [topic.storage.read(topic.reader.name(segment)) for segment in topic.snapshot.partitions[0].segments]
    batches: Any = np.concatenate([read_headers(log) for log in logs])
    return batches


def magics(topic: distlog.Topic) -> set[int]:
    return set(batches_of(topic)["magic"].tolist())
