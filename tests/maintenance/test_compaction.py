"""Compaction of records with keys: what stays, what goes, and what its batches look like afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from compacting import NOW, SECRET, CompactedTopic
from compacting import log as log
from keyed_batches import keyed
from raw_batches import batch, record

from distlog.core.batches.record_batch import APPEND_TIME, read_headers
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.maintenance.compaction import GroupToClean, clean_group
from distlog.core.maintenance.group_rewrite import SegmentGroup
from distlog.core.maintenance.record_keys import OffsetSurvivors, Verdicts, keyed_records


def test_the_last_record_of_each_key_stays_at_its_offset(log: CompactedTopic) -> None:
    log.append((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    log.append((b"c", b"1"), (b"b", b"2"))
    done = log.compact()
    assert [(row["offset"], row["key"], row["value"]) for row in log.rows()] == [
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"2"),
    ]
    assert done is not None
    assert (done.records_before, done.records_after, done.segments_before, done.segments_after) == (5, 3, 2, 1)
    assert done.bytes_after < done.bytes_before
    assert (done.end_offset, log.first_dirty_offset, done.rounds) == (5, 5, 1)


def test_what_is_clean_is_not_compacted_again(log: CompactedTopic) -> None:
    log.append((b"a", b"1"))
    log.compact()
    version = log.topic().version
    assert log.compact() is None
    assert log.topic().version == version


def test_new_keys_supersede_what_was_cleaned_before(log: CompactedTopic) -> None:
    log.append((b"a", b"1"), (b"b", b"1"))
    log.compact()
    log.append((b"a", b"2"))
    log.compact()
    assert log.offsets() == [1, 2]


def test_batches_that_lose_nothing_are_copied_byte_for_byte(log: CompactedTopic) -> None:
    whole, part, also = keyed(0, 1, 2), keyed(2, 3, 4), keyed(4, 3)
    log.add(whole + part + also)
    log.compact()
    data = log.log_bytes()
    assert data.startswith(whole)
    assert data.endswith(also)
    assert len(data) < len(whole + part + also)


def test_a_rewritten_batch_keeps_its_offsets_epoch_and_sequence(log: CompactedTopic) -> None:
    log.add(keyed(0, 1, 2, 3, producer=(7, 2, 40), leader_epoch=5) + keyed(3, 1, 3, producer=(8, 0, 0)))
    log.compact()
    first = log.batches()[0]
    names = ("base_offset", "last_offset_delta", "leader_epoch", "producer_id", "producer_epoch", "base_sequence")
    assert [int(first[name]) for name in names] == [0, 2, 5, 7, 2, 40]
    assert (first["record_count"], log.offsets()) == (1, [1, 3, 4])


def test_times_are_those_of_the_records_that_stay(log: CompactedTopic) -> None:
    rows = [record(0, 0, b"a"), record(1, 70, b"b"), record(2, 70, b"c"), record(3, 90, b"d")]
    log.add(batch(rows, base_timestamp=NOW, max_timestamp=NOW + 90) + keyed(4, None) + batch(
        [record(0, 0, b"a"), record(1, 0, b"d")], base_offset=5, base_timestamp=1, max_timestamp=1
    ))  # fmt: skip
    log.compact()
    first = log.batches()[0]
    assert (first["base_timestamp"], first["max_timestamp"]) == (NOW + 70, NOW + 70)
    assert [round(row["timestamp"].timestamp() * 1000) for row in log.rows()] == [NOW + 70, NOW + 70, 1, 1]
    (segment,) = log.segments()
    assert (segment.first_timestamp, segment.max_timestamp, segment.offset_of_max_timestamp) == (
        NOW + 70,
        NOW + 70,
        1,
    )


def test_log_append_time_stays_what_the_broker_said(log: CompactedTopic) -> None:
    rows = [record(0, 0, b"a"), record(1, 70, b"b")]
    log.add(batch(rows, base_timestamp=5, max_timestamp=NOW, attributes=APPEND_TIME) + keyed(2, 97))
    log.add(batch([record(0, 0, b"a")], base_offset=3))
    log.compact()
    first = log.batches()[0]
    assert (first["attributes"], first["max_timestamp"], first["record_count"]) == (APPEND_TIME, NOW, 1)
    assert log.rows()[0]["timestamp"].timestamp() * 1000 == NOW


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_rewritten_batch_keeps_its_codec(tmp_path: Path, codec: str) -> None:
    log = CompactedTopic(f"{tmp_path}/log", compression_type=codec)
    log.append(*((b"%d" % (number % 7), b"value %d " % number * 20) for number in range(50)))
    log.append((b"0", b"last"))
    (attributes,) = set(log.batches()["attributes"].tolist())
    log.compact()
    assert set(log.batches()["attributes"].tolist()) == {attributes}
    assert log.offsets() == [43, 44, 45, 46, 47, 48, 50]
    assert log.values()[b"6"] == b"value 48 " * 20
    assert {segment.compression for segment in log.segments()} == {codec}


def test_headers_and_empty_values_survive_a_rewrite(log: CompactedTopic) -> None:
    rows = [
        record(0, 0, b"a", b"old"),
        record(1, -5, b"b", b"", [(b"h", b"1"), (b"h", None)]),
        record(2, 9, b"", b"empty key"),
    ]
    log.add(batch(rows, base_timestamp=NOW, max_timestamp=NOW + 9) + keyed(3, 0))
    log.append((b"a", b"new"))
    log.compact()
    kept = log.rows()
    assert [(row["key"], row["value"]) for row in kept] == [
        (b"b", b""), (b"", b"empty key"), (b"0", b"at 3"), (b"a", b"new")
    ]  # fmt: skip
    assert kept[0]["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]


def test_records_without_a_key_are_dropped_and_counted(log: CompactedTopic) -> None:
    log.add(keyed(0, None, 1, None) + keyed(3, 2))
    done = log.compact()
    assert done is not None
    assert (done.unkeyed_records, log.offsets()) == (2, [1, 3])


def test_what_is_not_cleanable_is_not_touched(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", min_compaction_lag_ms=1000)
    log.append((b"a", b"1"), (b"b", b"1"))
    log.append((b"a", b"2"))
    log.clock.now += 1001
    log.append((b"a", b"3"), (b"b", b"2"))
    young = log.segments()[2]
    done = log.compact()
    assert done is not None
    assert (done.end_offset, log.first_dirty_offset) == (3, 3)
    assert log.segments()[-1] == young
    assert log.offsets() == [1, 2, 3, 4]


def test_records_below_the_log_start_do_not_come_back(log: CompactedTopic) -> None:
    from distlog.core.maintenance.retention import delete_records

    log.topic().alter_config({"cleanup.policy": "compact,delete"})
    log.append((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    delete_records(log.topic().handle, log.topic().snapshot, {0: 2})
    log.compact()
    assert (log.topic().start_offsets(), log.offsets()) == ({0: 2}, [2])


def test_a_dry_run_reads_and_writes_nothing(log: CompactedTopic, tmp_path: Path) -> None:
    log.append((b"a", b"1"), (b"a", b"2"))
    before = sorted(tmp_path.rglob("*"))
    for path in tmp_path.rglob("*.log"):
        path.write_bytes(b"")
    done = log.compact(dry_run=True)
    assert done is not None
    assert (done.records_before, done.records_after, done.rounds) == (2, 2, 0)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_batch_larger_than_a_chunk_or_than_any_message_may_be_now(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", max_message_bytes=20 << 20)
    log.append((b"a", bytes(5 << 20)), (b"b", b"1"))
    log.append((b"a", b"2"))
    log.topic().alter_config({"max.message.bytes": 1000})
    log.compact()
    assert log.values() == {b"a": b"2", b"b": b"1"}


def test_a_group_is_rewritten_against_offsets_as_it_is_against_a_map(log: CompactedTopic) -> None:
    """What a shuffle of hashes finds, record by record: the same bytes come out."""
    log.add(keyed(0, 1, 2, None, 1) + keyed(4, 3, 1))
    log.add(keyed(6, 2, 4) + keyed(8, 9))
    topic = log.topic()
    found = [part for one in log.segments() for part in keyed_records(topic.reader, one, 0, Verdicts(), SECRET)]
    hashes, offsets = (
        np.concatenate([getattr(one, name)[one.keyed] for one in found]) for name in ("hashes", "offsets")
    )
    newest = dict(zip(map(bytes, hashes), offsets.tolist(), strict=True))
    survivors = OffsetSurvivors(0, 9, latest_offset=8)
    survivors.supersede(np.setdiff1d(offsets, list(newest.values())))
    due = SegmentGroup(SegmentTable.of(log.segments()))
    item = GroupToClean(due, Verdicts(), 9, NOW, topic.config, topic.version)
    group = clean_group(topic.handle, item, survivors)
    (output,) = group.outputs
    alike = topic.storage.read(topic.reader.name(output))
    log.compact()
    assert log.log_bytes() == alike
    assert read_headers(alike)["record_count"].sum() == 5
    assert group.unkeyed == 1
