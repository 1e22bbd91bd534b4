"""Verify names each fault with its position, and a sound topic passes."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from adopted import adopt_golden, describe, put, with_indexes
from golden import partitions
from hypothesis import given
from hypothesis import strategies as st
from raw_batches import batch, record, with_right_crc
from searches import examples
from verified_topics import (
    CONFIG,
    NOW,
    anomalies_of,
    changed,
    flip,
    raw_topic,
    second_batch,
    segment_of,
    topic_at,
    verified,
)

import distlog
from distlog import Topic
from distlog.core.commits import checkpoint
from distlog.core.errors import DistlogError
from distlog.core.format.record_batch import read_headers
from distlog.core.maintain import verify_segment as verify_segment_module
from distlog.core.maintain.verify_segment import LogStats, verify_segment

GOLDEN = partitions()


def test_a_missing_log(topic: Topic) -> None:
    topic.storage.delete([topic.reader.name(segment_of(topic, 1))])
    assert anomalies_of(topic) == [("missing_segment", None, None)]
    assert [verdict.ok for verdict in verified(topic).segments] == [True, False]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_missing_index(topic: Topic, suffix: str) -> None:
    topic.storage.delete([topic.reader.name(segment_of(topic), suffix)])
    assert anomalies_of(topic) == [("missing_index", 0, None)]


def test_a_byte_of_a_record(topic: Topic) -> None:
    position, offset = second_batch(topic)
    name = changed(topic, ".log", flip(position + 70), 1)
    assert anomalies_of(topic) == [("corrupt_batch", position, offset)]
    (anomaly,) = verified(topic).anomalies
    assert (anomaly.file, anomaly.partition) == (name, 0)
    assert "checksum" in str(anomaly)


def test_every_bad_batch_is_named_not_only_the_first(topic: Topic) -> None:
    positions, offsets = topic.read(0, 0).positions, topic.read(0, 0).base_offsets
    for row in (1, 2, 5):
        changed(topic, ".log", flip(int(positions[row]) + 65))
    expected = [("corrupt_batch", int(positions[row]), int(offsets[row])) for row in (1, 2, 5)]
    assert anomalies_of(topic) == expected


def test_an_impossible_length_ends_the_walk(topic: Topic) -> None:
    position, _ = second_batch(topic)

    def change(data: bytearray) -> None:
        data[position + 8 : position + 12] = (5).to_bytes(4, "big")
        data[-1] ^= 1

    changed(topic, ".log", change, 1)
    assert anomalies_of(topic) == [("corrupt_batch", position, None)]


def test_a_length_beyond_the_end_of_the_file(topic: Topic) -> None:
    position, _ = second_batch(topic)
    changed(topic, ".log", flip(position + 8, 6), 1)
    assert anomalies_of(topic) == [("corrupt_batch", position, None)]


def test_an_impossible_count_affects_only_its_batch(topic: Topic) -> None:
    position, offset = second_batch(topic)

    def change(data: bytearray) -> None:
        data[position + 57] |= 0x80
        data[-1] ^= 1

    changed(topic, ".log", change, 1)
    words = anomalies_of(topic)
    assert words[0] == ("corrupt_batch", position, offset)
    assert [word for word, _, _ in words] == ["corrupt_batch", "corrupt_batch"]


def test_two_damaged_headers_are_both_named(topic: Topic) -> None:
    positions, offsets = topic.read(0, 0).positions.tolist(), topic.read(0, 0).base_offsets.tolist()
    changed(topic, ".log", flip(positions[2] + 57, 7))
    changed(topic, ".log", flip(positions[5] + 16, 5))
    assert anomalies_of(topic) == [("corrupt_batch", positions[2], offsets[2]), ("corrupt_batch", positions[5], None)]


def test_the_fields_of_a_damaged_header_are_ignored(topic: Topic) -> None:
    position, offset = second_batch(topic)
    changed(topic, ".log", flip(position + 26), 1)
    assert anomalies_of(topic) == [("corrupt_batch", position, offset)]


@pytest.mark.parametrize("size", [0, 10, 100, -1])
def test_a_truncated_log(topic: Topic, size: int) -> None:
    changed(topic, ".log", lambda data: data[:size], 1)
    words = {word for word, _, _ in anomalies_of(topic)}
    assert "metadata_mismatch" in words
    assert words <= {"metadata_mismatch", "corrupt_batch", "index_mismatch", "time_index_mismatch"}
    assert ("corrupt_batch" in words) == (size != 0)


def test_a_log_longer_than_its_commit(topic: Topic) -> None:
    changed(topic, ".log", lambda data: data + b"more", 1)
    (anomaly,) = verified(topic).anomalies
    assert anomaly.word == "metadata_mismatch"
    assert "log_bytes" in anomaly.message


def test_a_wrong_base_offset(topic: Topic) -> None:
    position, offset = second_batch(topic)
    changed(topic, ".log", flip(position + 6), 1)
    assert anomalies_of(topic)[0] == ("offset_gap", position, offset + 256)
    changed(topic, ".log", flip(position + 6), 1)
    changed(topic, ".log", flip(position + 7, (offset - 40).bit_length() - 1), 1)
    assert anomalies_of(topic)[0][:2] == ("offset_overlap", position)


def test_a_wrong_leader_epoch(topic: Topic) -> None:
    changed(topic, ".log", flip(15))
    (anomaly,) = verified(topic).anomalies
    assert anomaly.word == "metadata_mismatch"
    assert "crc32c" in anomaly.message


def test_a_missing_batch_is_a_gap_and_a_second_one_an_overlap(tmp_path: Path) -> None:
    first, second, third = (batch([record()], base_offset=offset) for offset in range(3))
    gap = raw_topic(tmp_path, first + third, 3)
    assert anomalies_of(gap) == [("offset_gap", len(first), 2)]
    doubled = first + second + second + third
    overlap = raw_topic(tmp_path, first + second + third, 3, log_bytes=len(doubled))
    put(overlap, segment_of(overlap), {".log": doubled})
    assert anomalies_of(overlap) == [("offset_overlap", 2 * len(first), 1)]


@pytest.mark.parametrize(
    ("records", "word"),
    [
        ([record(0), record(0)], "non_monotonical_delta"),
        ([record(1), record(0)], "non_monotonical_delta"),
        ([record(0), record(5)], "non_monotonical_delta"),
        ([record(0), record(1)[:-1] + b"\x09"], "corrupt_record"),
        ([record(0), b"\x7f" + record(1)[1:]], "corrupt_record"),
    ],
)
@pytest.mark.parametrize("attributes", [0, 0x20])
def test_records_under_a_right_checksum_are_decoded(
    tmp_path: Path, records: list[bytes], word: str, attributes: int
) -> None:
    first = batch([record()])
    bad = with_right_crc(batch(records, base_offset=1, attributes=attributes))
    topic = raw_topic(tmp_path, first + bad + batch([record()], base_offset=3), 4, has_transactions=True)
    assert anomalies_of(topic) == [(word, len(first), 1)]


def test_a_compressed_section_that_does_not_expand(tmp_path: Path) -> None:
    bad = batch([], count=1, last_delta=0, attributes=4, section=b"not zstd")
    topic = raw_topic(tmp_path, bad, 1, compression="zstd")
    assert anomalies_of(topic) == [("corrupt_record", 0, 0)]


LIES = {
    "record_count": -1,
    "first_timestamp": 1,
    "max_timestamp": 1,
    "offset_of_max_timestamp": -1,
    "crc32c": 1,
    "next_offset": 1,
    "log_bytes": 1,
}


@pytest.mark.parametrize("field", [*LIES, "compression", "has_transactions"])
def test_each_field_of_the_metadata_is_compared(topic: Topic, field: str) -> None:
    segment = segment_of(topic)
    lie = getattr(segment, field) + LIES[field] if field in LIES else "zstd"
    if field == "has_transactions":
        lie = False
        topic = raw_topic(
            Path(topic.storage.local_path("..")), batch([record()], attributes=0x10), 1, has_transactions=True
        )
        log = topic.storage.read(topic.reader.name(segment_of(topic)))
        segment = describe(with_indexes(log, 0), 0, 1, stem=segment_of(topic).stem, time_index_bytes=12)
        assert verify_segment(topic.reader, segment).ok
    verdict = verify_segment(topic.reader, dataclasses.replace(segment, **{field: lie}))
    assert "metadata_mismatch" in {anomaly.word for anomaly in verdict.anomalies}
    assert any(field in anomaly.message for anomaly in verdict.anomalies)


def test_a_compacted_segment_may_end_early_but_not_late(topic: Topic) -> None:
    segment = dataclasses.replace(segment_of(topic), compacted=True)
    assert verify_segment(topic.reader, dataclasses.replace(segment, next_offset=50)).ok
    verdict = verify_segment(topic.reader, dataclasses.replace(segment, next_offset=39))
    assert any("next_offset is 39" in anomaly.message for anomaly in verdict.anomalies)


@pytest.mark.parametrize(
    ("suffix", "stale", "corrupt"),
    [(".index", "index_mismatch", "corrupt_index"), (".timeindex", "time_index_mismatch", "corrupt_index")],
)
def test_an_index_is_compared_entry_by_entry(topic: Topic, suffix: str, stale: str, corrupt: str) -> None:
    right = topic.storage.read(topic.reader.name(segment_of(topic), suffix))
    stride = 8 if suffix == ".index" else 12
    words = set()
    for position in range(len(right)):
        changed(topic, suffix, flip(position, position % 8))
        (anomaly,) = verify_segment(topic.reader, segment_of(topic)).anomalies
        # either of two unordered entries can be the wrong one
        assert anomaly.position in (position - position % stride, position - position % stride + stride)
        words.add(anomaly.word)
        changed(topic, suffix, flip(position, position % 8))
    assert words == {stale, corrupt}
    changed(topic, suffix, lambda data: data[:-1])
    assert anomalies_of(topic) == [("corrupt_index", len(right) - 1, None)]


def test_a_transaction_index_is_compared(tmp_path: Path) -> None:
    topic = adopt_golden(str(tmp_path / "log"), GOLDEN["first.txn-0"])
    changed(topic, ".txnindex", flip(9))
    assert anomalies_of(topic) == [("index_mismatch", 0, None)]
    changed(topic, ".txnindex", lambda data: data[:-3])
    assert [word for word, _, _ in anomalies_of(topic)] == ["corrupt_index"]


@pytest.mark.parametrize("change", [None, flip(0), flip(9), lambda data: data[:-3]])
def test_an_anomaly_of_a_transaction_index_has_advice(tmp_path: Path, change: Any) -> None:
    topic = adopt_golden(str(tmp_path / "log"), GOLDEN["first.txn-0"])
    if change is None:
        topic.storage.delete([topic.reader.name(segment_of(topic), ".txnindex")])
    else:
        changed(topic, ".txnindex", change)
    (anomaly,) = verified(topic).anomalies
    assert anomaly.message.endswith(": rebuild the index")
    topic.rebuild_indexes()
    assert verified(topic).ok


def test_a_segment_with_very_many_anomalies_is_not_read_on(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_segment_module, "MAX_ANOMALIES", 3)
    for position in topic.read(0, 0).positions.tolist():
        changed(topic, ".log", flip(position + 65))
    assert [word for word, _, _ in anomalies_of(topic)] == ["corrupt_batch"] * 3


def test_a_batch_larger_than_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_segment_module, "CHUNK_BYTES", 150)
    topic = topic_at(str(tmp_path / "log"), config={"message.timestamp.type": "LogAppendTime"})
    assert anomalies_of(topic) == []
    changed(topic, ".log", lambda data: data[:-1])
    assert [word for word, _, _ in anomalies_of(topic)] == ["metadata_mismatch", "corrupt_batch"]


def test_the_report_as_a_table_as_json_and_as_text(topic: Topic) -> None:
    position, offset = second_batch(topic)
    changed(topic, ".log", flip(position + 70), 1)
    report = verified(topic)
    rows = report.to_table().to_pylist()
    assert [(row["base_offset"], row["ok"], len(row["anomalies"])) for row in rows] == [(0, True, 0), (40, False, 1)]
    summary = json.loads(json.dumps(report.to_dict()))
    assert (summary["ok"], summary["segments"]) == (False, 2)
    (anomaly,) = summary["anomalies"]
    assert (anomaly["word"], anomaly["position"], anomaly["offset"]) == ("corrupt_batch", position, offset)
    assert str(report).endswith("1 anomaly")


def test_a_verdict_pickles(topic: Topic) -> None:
    changed(topic, ".log", flip(70))
    verdict = verify_segment(pickle.loads(pickle.dumps(topic.reader)), segment_of(topic))
    assert pickle.loads(pickle.dumps(verdict)) == verdict
    assert not verdict.ok


@pytest.mark.s3
def test_on_an_object_store(s3_url: Address) -> None:
    topic = topic_at(f"{s3_url.url}/log", appends=3, **s3_url.options)
    assert anomalies_of(topic) == []
    changed(topic, ".log", flip(70), 2)
    changed(topic, ".index", lambda data: topic.storage.read(topic.reader.name(segment_of(topic, 1), ".index")))
    topic.storage.delete([topic.reader.name(segment_of(topic, 1), ".timeindex")])
    assert [word for word, _, _ in anomalies_of(topic)] == ["index_mismatch", "missing_index", "corrupt_batch"]


SMALL = {"batch.bytes": 60, "index.interval.bytes": 60}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path], Any]:
    """Return a topic of two small segments, its files, and the records of a scan."""
    folder = tmp_path_factory.mktemp("small")
    topic = distlog.create(str(folder / "log"), config=SMALL)
    for codec in ("gzip", "uncompressed"):
        topic.alter_config({"compression.type": codec})
        topic.append([{"value": b"%d" % row, "key": b"k", "timestamp": NOW + row} for row in range(9)])
    checkpoint.write(topic.storage, topic.snapshot)
    files = sorted(path for path in (folder / "log").rglob("*") if path.is_file() and path.stat().st_size)
    return folder, files, topic.scan().to_table()


@pytest.mark.long
@examples(60)
@given(st.data())
def test_every_flipped_bit_is_detected(small: tuple[Path, list[Path], Any], data: st.DataObject) -> None:
    folder, files, right = small
    file = data.draw(st.sampled_from(files))
    damaged = bytearray(file.read_bytes())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    target = folder / "damaged"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder / "log", target / "log")
    (target / file.relative_to(folder)).write_bytes(damaged)
    try:
        topic = distlog.open(str(target / "log"))
        report = verified(topic)
    except DistlogError:
        return
    hint = file.name == "_last_checkpoint"
    assert report.ok == hint
    assert not report.ok or topic.scan().to_table() == right


def test_a_sound_topic_passes(topic: Topic) -> None:
    report = verified(topic)
    assert report.ok
    assert [verdict.records for verdict in report.segments] == [40, 40]
    assert all(verdict.batches > 5 for verdict in report.segments)


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_every_codec_and_kind_of_timestamp_passes(tmp_path: Path, codec: str, kind: str) -> None:
    config = {"compression.type": codec, "message.timestamp.type": kind}
    assert anomalies_of(topic_at(str(tmp_path / "log"), config=config)) == []


def test_records_without_a_timestamp_pass(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "log"), config=CONFIG)
    topic.append([{"value": b"v", "timestamp": -1}] * 20)
    assert anomalies_of(topic) == []


@pytest.mark.parametrize("name", [name for name in GOLDEN if not name.startswith("crashed")])
def test_a_brokers_log_passes(tmp_path: Path, name: str) -> None:
    assert anomalies_of(adopt_golden(str(tmp_path / "log"), GOLDEN[name])) == []


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_compacted_and_merged_segments_pass(tmp_path: Path, policy: str) -> None:
    config = {
        "cleanup.policy": policy,
        "internal.segment.bytes": 10_000,
        "min.cleanable.dirty.ratio": 0,
        "delete.retention.ms": 0,
    }
    topic = distlog.create(str(tmp_path / "log"), config={**CONFIG, **config})
    for number in range(8):
        rows = range(40 * number, 40 * number + 40)
        topic.append(
            [
                {"key": b"%d" % (row % 7), "value": b"v" * 30 if row % 5 else None, "timestamp": NOW + row}
                for row in rows
            ]
        )
        if number % 4 == 3:
            old_row_count = topic.segments().num_rows
            topic.compact()
            assert topic.segments().num_rows < old_row_count
            assert anomalies_of(topic) == []


@pytest.mark.parametrize("name", [name for name in GOLDEN if "compact" in name])
def test_a_compacted_brokers_log_passes(tmp_path: Path, name: str) -> None:
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}
    topic = adopt_golden(str(tmp_path / "log"), GOLDEN[name], config=config)
    topic.compact()
    assert anomalies_of(topic) == []


def test_impossible_batches_are_reported_once_with_their_number() -> None:
    first, far = batch([record()]), batch([record()], base_offset=1 << 31)
    fields = LogStats(describe({".log": first}, 0, (1 << 31) + 1))
    for data in (first + far, first):
        fields.add_batches(memoryview(data), read_headers(data))
    assert fields.batches == 3
    (message,) = fields.contradictions()
    assert "do not fit in one segment" in message
    assert "2147483648" in message
