"""Base offsets are written into batches of every format, so that readers find the same records at other offsets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from adopted import adopt, offsets, with_indexes
from golden import partitions

from distlog.core.errors import UnsupportedVersionError
from distlog.core.format.record_batch import check_crcs, read_headers
from distlog.core.format.record_decoder import decode
from distlog.core.format.record_encoder import header_offsets, write_base_offsets
from distlog.core.maintain.merge import merge
from distlog.core.topic import Topic

LOGS = [f"logs.{name}-{codec}-0" for name in ("v0", "v1", "v1-append") for codec in ("none", "gzip", "snappy", "lz4")]
MOVED = 1_000_000_007


def log_of(name: str) -> bytes:
    return partitions()[name].logs[0].read_bytes()


@pytest.mark.parametrize("name", [*LOGS, "first.compact-none-0", "first.txn-0", "logs.mixed-0"])
def test_batches_of_every_format_get_the_written_offsets(name: str) -> None:
    data = np.frombuffer(log_of(name), np.uint8).copy()
    batches = read_headers(data)
    original, columns = decode(data, batches).to_pydict(), ("offset", "timestamp", "key", "value")
    if ((batches["magic"] == 0) & (batches["attributes"] & 7 != 0)).any():
        with pytest.raises(UnsupportedVersionError, match="format 0"):
            header_offsets(batches, batches["base_offset"] + MOVED)
        return
    write_base_offsets(data, batches["position"], header_offsets(batches, batches["base_offset"] + MOVED))
    again = read_headers(data)
    check_crcs(data, again)
    after = decode(data, again).to_pydict()
    original["offset"] = [offset + MOVED for offset in original["offset"]]
    assert {column: after[column] for column in columns} == {column: original[column] for column in columns}


@pytest.mark.parametrize("name", LOGS)
def test_writing_the_present_offsets_changes_nothing(name: str) -> None:
    data = np.frombuffer(log_of(name), np.uint8).copy()
    batches = read_headers(data)
    write_base_offsets(data, batches["position"], header_offsets(batches, batches["base_offset"]))
    assert data.tobytes() == log_of(name)


def in_six_segments(name: str, folder: Path, left_out: int = 0) -> Topic:
    log = log_of(name)
    batches = read_headers(log)
    rows = np.linspace(0, len(batches), 6, endpoint=False).astype(int)
    starts, bases = batches["position"][rows].tolist(), batches["base_offset"][rows].tolist()
    ends, next_offset = [*starts[1:], len(log)], int((batches["base_offset"] + batches["last_offset_delta"])[-1]) + 1
    parts = [(base, with_indexes(log[start:end], base)) for base, start, end in zip(bases, starts, ends, strict=True)]
    return adopt(f"{folder}/t", parts[left_out:], next_offset)


@pytest.mark.parametrize("name", [name for name in LOGS if "v0" not in name])
@pytest.mark.parametrize("left_out", [0, 1])
def test_merged_segments_of_old_formats_keep_their_records(name: str, left_out: int, tmp_path: Path) -> None:
    topic = in_six_segments(name, tmp_path, left_out)
    original = topic.scan().to_table()
    report, snapshot = merge(topic.handle, topic.snapshot)
    topic.advance(snapshot)
    assert report.ok
    assert topic.segments().num_rows < 6 - left_out
    after = topic.scan().to_table()
    assert offsets(after) == offsets(original)
    assert after.equals(original)


def test_unmovable_segments_stay_and_are_reported(tmp_path: Path) -> None:
    topic = in_six_segments("logs.v0-gzip-0", tmp_path, left_out=1)
    original = topic.scan().to_table()
    report, snapshot = merge(topic.handle, topic.snapshot)
    topic.advance(snapshot)
    assert not report.ok
    assert topic.scan().to_table().equals(original)
