"""Compaction of records with keys: which records and tombstones stay, in which segments, batches and times."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from compacting import DAY, NOW, SECRET, CompactedTopic, FixedRandom
from compacting import log as log
from keyed_batches import keyed, last_offsets
from raw_batches import batch, record

from distlog.core.arrays import MAX_LONG
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.format.record_batch import APPEND_TIME, DELETE_HORIZON, read_headers
from distlog.core.maintain.compaction import GroupToClean, clean_group
from distlog.core.maintain.group_rewrite import SegmentGroup
from distlog.core.maintain.survivors import OffsetSurvivors, Verdicts, keyed_records
from distlog.core.read.lookup import MAX_TIMESTAMP
from distlog.core.times import to_ms


def test_the_last_record_of_each_key_stays_at_its_offset(log: CompactedTopic) -> None:
    log.append((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    log.append((b"c", b"1"), (b"b", b"2"))
    report = log.compact()
    assert [(row["offset"], row["key"], row["value"]) for row in log.rows()] == [
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"2"),
    ]
    assert report is not None
    assert (report.records_before, report.records_after, report.segments_before, report.segments_after) == (
        5,
        3,
        2,
        1,
    )
    assert report.bytes_after < report.bytes_before
    assert (report.end_offset, log.first_dirty_offset, report.rounds) == (5, 5, 1)


def test_clean_segments_are_not_compacted_again(log: CompactedTopic) -> None:
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
    full, part, also = keyed(0, 1, 2), keyed(2, 3, 4), keyed(4, 3)
    log.add(full + part + also)
    log.compact()
    data = log.log_bytes()
    assert data.startswith(full)
    assert data.endswith(also)
    assert len(data) < len(full + part + also)


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


def test_log_append_time_stays_the_brokers(log: CompactedTopic) -> None:
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
    records = log.rows()
    assert [(row["key"], row["value"]) for row in records] == [
        (b"b", b""), (b"", b"empty key"), (b"0", b"at 3"), (b"a", b"new")
    ]  # fmt: skip
    assert records[0]["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]


def test_records_without_a_key_are_dropped_and_counted(log: CompactedTopic) -> None:
    log.add(keyed(0, None, 1, None) + keyed(3, 2))
    report = log.compact()
    assert report is not None
    assert (report.unkeyed_records, log.offsets()) == (2, [1, 3])


def test_uncleanable_segments_stay_unchanged(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", min_compaction_lag_ms=1000)
    log.append((b"a", b"1"), (b"b", b"1"))
    log.append((b"a", b"2"))
    log.clock.now += 1001
    log.append((b"a", b"3"), (b"b", b"2"))
    young = log.segments()[2]
    report = log.compact()
    assert report is not None
    assert (report.end_offset, log.first_dirty_offset) == (3, 3)
    assert log.segments()[-1] == young
    assert log.offsets() == [1, 2, 3, 4]


def test_records_below_the_log_start_do_not_come_back(log: CompactedTopic) -> None:
    from distlog.core.maintain.retention import delete_records

    log.topic().alter_config({"cleanup.policy": "compact,delete"})
    log.append((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    delete_records(log.topic().handle, log.topic().snapshot, {0: 2})
    log.compact()
    assert (log.topic().start_offsets(), log.offsets()) == ({0: 2}, [2])


def test_a_dry_run_reads_and_writes_nothing(log: CompactedTopic, tmp_path: Path) -> None:
    log.append((b"a", b"1"), (b"a", b"2"))
    old_paths = sorted(tmp_path.rglob("*"))
    for path in tmp_path.rglob("*.log"):
        path.write_bytes(b"")
    report = log.compact(dry_run=True)
    assert report is not None
    assert (report.records_before, report.records_after, report.rounds) == (2, 2, 0)
    assert sorted(tmp_path.rglob("*")) == old_paths


def test_a_batch_larger_than_a_chunk_or_than_any_message_may_be_now(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", max_message_bytes=20 << 20)
    log.append((b"a", bytes(5 << 20)), (b"b", b"1"))
    log.append((b"a", b"2"))
    log.topic().alter_config({"max.message.bytes": 1000})
    log.compact()
    assert log.values() == {b"a": b"2", b"b": b"1"}


def test_rewriting_by_offsets_equals_rewriting_by_a_map(log: CompactedTopic) -> None:
    """A bucket of hashes finds the same records as a map, and the output is equal byte for byte."""
    log.add(keyed(0, 1, 2, None, 1) + keyed(4, 3, 1))
    log.add(keyed(6, 2, 4) + keyed(8, 9))
    topic = log.topic()
    results = [
        part for segment in log.segments() for part in keyed_records(topic.reader, segment, 0, Verdicts(), SECRET)
    ]
    hashes, offsets = (
        np.concatenate([getattr(segment, name)[segment.has_key] for segment in results])
        for name in ("hashes", "offsets")
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
    assert group.unkeyed_records == 1


#: Two keys with one MurmurHash3_x64_128 of seed 0; collisions for any key are cheap to make.
ALIKE = (
    bytes.fromhex("6163636f756e74206f6620616c69636500000000000000000000000000000000"),
    bytes.fromhex("6163636f756e74206f66206d616c6c6f1ebda471dddd510b08a6ec925ccc995d"),
)


def test_colliding_keys_are_kept_apart(log: CompactedTopic) -> None:
    log.append((ALIKE[0], b"alice"), (b"other", b"1"))
    log.append((ALIKE[1], b"mallory"))
    log.compact()
    assert log.values() == {ALIKE[0]: b"alice", b"other": b"1", ALIKE[1]: b"mallory"}


def test_every_round_has_its_own_secret(log: CompactedTopic) -> None:
    drawn = list[int]()

    class Source(random.Random):
        def randbytes(self, n: int) -> bytes:
            drawn.append(n)
            return bytes([len(drawn)]) * n

    for _ in range(2):
        log.append((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
        log.compact(random=Source())
    assert drawn == [16, 16]
    assert log.offsets() == [4, 5]


def test_the_secret_is_not_written_to_storage(log: CompactedTopic, tmp_path: Path) -> None:
    log.append((b"a", b"1"), (b"a", b"2"))
    log.compact(random=FixedRandom())
    assert log.offsets() == [1]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert not [form for form in (SECRET, SECRET[::-1], SECRET.hex().encode()) if form in written]


def times(log: CompactedTopic) -> tuple[list[int], list[int]]:
    """Return the largest timestamp in each batch header, and the timestamps that readers get."""
    return log.batches()["max_timestamp"].tolist(), [to_ms(row["timestamp"]) for row in log.rows()]


def newest(log: CompactedTopic) -> tuple[int, int] | None:
    offsets: tuple[int, int] | None = log.topic().offsets_for_times(MAX_TIMESTAMP)[0]
    return offsets


def plain(base: int, *keys: bytes, time_ms: int = NOW, **options: int) -> bytes:
    """Return a batch with a record per key, all with one time."""
    rows = [record(delta, 0, key) for delta, key in enumerate(keys)]
    return batch(rows, base_offset=base, base_timestamp=time_ms, max_timestamp=time_ms, **options)


def test_a_batch_with_a_horizon_that_loses_its_newest_record_has_the_time_of_the_newest_left(
    log: CompactedTopic,
) -> None:
    rows = [record(0, 0, b"a", None), record(1, 70, b"b"), record(2, 90, b"c")]
    log.add(batch(rows, base_timestamp=NOW, max_timestamp=NOW + 90) + plain(3, b"d"))
    log.compact()
    assert (times(log)[0], newest(log)) == ([NOW + 90, NOW], (2, NOW + 90))
    log.add(plain(4, b"c", time_ms=1))
    log.compact()
    assert times(log) == ([NOW + 70, NOW, 1], [NOW, NOW + 70, NOW, 1])
    assert (log.segments()[0].max_timestamp, newest(log)) == (NOW + 70, (1, NOW + 70))
    assert log.topic().verify().ok


def test_a_header_with_a_wrong_time_is_corrected(log: CompactedTopic) -> None:
    """Earlier versions of compaction left these headers."""
    log.add(batch([record(0, 5, b"a"), record(1, 0, b"b")], base_timestamp=NOW, max_timestamp=NOW + 90))
    log.add(plain(2, b"c"))
    log.compact()
    assert times(log) == ([NOW + 5, NOW], [NOW + 5, NOW, NOW])


def test_an_emptied_batch_keeps_its_time_but_no_lookup_names_it(log: CompactedTopic) -> None:
    log.add(plain(0, b"a", b"b", time_ms=NOW + 50, producer=(7, 0, 0)))
    log.add(plain(2, b"c") + plain(3, b"a", b"b", time_ms=1))
    log.compact()
    assert times(log) == ([NOW + 50, NOW, 1], [NOW, 1, 1])
    assert (log.segments()[0].max_timestamp, newest(log)) == (NOW + 50, (2, NOW))
    assert log.topic().verify().ok


def test_a_segment_of_emptied_batches_has_no_largest_timestamp(log: CompactedTopic) -> None:
    log.add(batch([record(0, 0, None)], base_timestamp=NOW, max_timestamp=NOW))
    log.compact()
    assert (times(log), newest(log)) == (([NOW], []), None)


def test_offsets_and_log_end_do_not_move(log: CompactedTopic) -> None:
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.clock.now += 5
    log.compact()
    (segment,) = log.segments()
    assert (segment.base_offset, segment.next_offset, segment.record_count) == (0, 2, 1)
    assert (segment.compacted, segment.dense, segment.stored_base_offset) == (True, False, 0)
    assert segment.created_ms == NOW
    assert log.topic().append([{"key": b"b", "value": b"1"}]).offsets == {0: (2, 3)}
    assert log.offsets() == [1, 2]


def test_a_segment_that_loses_nothing_stays(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", internal_segment_bytes=100)
    log.append((b"a", b"1" * 20))
    log.append((b"b", b"1" * 20))
    old_segments = log.segments()
    log.append((b"a", b"2" * 20))
    report = log.compact()
    assert report is not None
    assert log.segments()[0] == old_segments[1]
    assert log.offsets() == [1, 2]
    assert log.topic().snapshot.partitions[0].log_start_offset == 0


def test_emptied_groups_leave_a_gap(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", internal_segment_bytes=200)
    for _ in range(6):
        log.append((b"a", b"x" * 100))
    log.compact()
    assert [(segment.base_offset, segment.next_offset) for segment in log.segments()] == [(5, 6)]
    assert (log.topic().start_offsets(), log.offsets()) == ({0: 0}, [5])
    assert log.topic().scan(start=2).count() == 1


def test_a_segment_covers_the_batches_that_it_lost(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", internal_segment_bytes=170)
    log.add(keyed(0, 1, leader_epoch=3) + keyed(1, 2, leader_epoch=3))
    log.add(keyed(2, 2, 3, 4))
    log.compact()
    assert [(segment.base_offset, segment.next_offset) for segment in log.segments()] == [(0, 2), (2, 5)]
    assert [segment.leader_epoch for segment in log.segments()] == [3, -1]
    assert last_offsets(log) == [0, 4]


def test_outputs_grow_towards_the_segment_size(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", internal_segment_bytes=1000)
    for number in range(40):
        log.append((b"%d" % (number % 20), b"x" * 30))
    log.compact()
    log.append((b"last", b"x"))
    log.compact()
    sizes = [segment.log_bytes for segment in log.segments()]
    assert max(sizes) <= 1000
    assert all(a + b > 1000 for a, b in itertools.pairwise(sizes))
    assert log.offsets() == list(range(20, 41))


def test_a_batch_that_grows_rolls_the_segment(tmp_path: Path) -> None:
    """A delete horizon makes two tombstones together larger than a segment."""
    log = CompactedTopic(f"{tmp_path}/log", internal_segment_bytes=140)
    first, other = (batch([record(0, 0, key, None)], base_offset=offset) for offset, key in enumerate((b"a", b"b")))
    log.add(first)
    log.add(other)
    assert len(first + other) <= 140
    log.compact()
    assert [(segment.base_offset, segment.next_offset) for segment in log.segments()] == [(0, 1), (1, 2)]
    assert log.offsets() == [0, 1]


def test_indexes_of_outputs_lead_to_their_records(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", index_interval_bytes=100, batch_bytes=200)
    for start in range(0, 400, 100):
        log.clock.now += 1
        log.append(*((b"%d" % (number % 150), b"x" * 50) for number in range(start, start + 100)))
    log.compact()
    (segment,) = log.segments()
    assert segment.offset_index_bytes > 0
    assert segment.time_index_bytes > 0
    topic = log.topic()
    assert [next(iter(topic.records(0, start=offset, limit=1))).offset for offset in (0, 250, 399)] == [250, 250, 399]
    assert topic.offsets_for_times(NOW + 4) == {0: (300, NOW + 4)}


#: Kafka's bytes, vectors V10 and V11: a tombstone before and after a cleaning at NOW.
TOMBSTONE = bytes.fromhex(
    "000000000000000a000000390000000302cfd5eff80000000000000000018bcfe568000000018bcfe56800ffffffffffffffffffffffffffff"
    "000000010e000000026b0100"
)
CLEANED_TOMBSTONE = bytes.fromhex(
    "000000000000000a0000003c0000000302b06ca6c80040000000000000018bd50bc4000000018bcfe56800ffffffffffffffffffffffffffff"
    "000000011400ffefb25200026b0100"
)
#: Kafka's bytes of vector V13: a producer's batch of five records after compaction.
EMPTY = bytes.fromhex(
    "000000000000006400000031ffffffff02353e8835000000000004ffffffffffffffff0000018bcfe56800000000000000000100000000000a"
    "00000000"
)


def test_a_tombstone_is_kept_until_its_horizon_and_removes_older_values(log: CompactedTopic) -> None:
    log.append((b"a", b"1"), (b"b", b"1"))
    log.append((b"a", None), (b"c", b"1"))
    log.compact()
    assert log.offsets() == [1, 2, 3]
    (horizon,) = log.batches()["base_timestamp"][log.batches()["attributes"] == DELETE_HORIZON]
    assert horizon == NOW + DAY
    log.clock.now += DAY - 1
    log.append((b"d", b"1"))
    log.compact()
    assert log.values() == {b"a": None, b"b": b"1", b"c": b"1", b"d": b"1"}
    log.clock.now += 1
    log.append((b"e", b"1"))
    log.compact()
    assert log.offsets() == [1, 3, 4, 5]


def test_a_late_clock_gives_a_tombstone_no_early_horizon(log: CompactedTopic) -> None:
    log.append((b"a", None), (b"b", b"1"))
    log.clock.now -= 7 * DAY
    log.compact()
    log.clock.now += 7 * DAY
    log.append((b"c", b"1"))
    log.compact()
    assert log.values() == {b"a": None, b"b": b"1", b"c": b"1"}
    log.clock.now += DAY + 1
    log.append((b"d", b"1"))
    log.compact()
    assert log.values() == {b"b": b"1", b"c": b"1", b"d": b"1"}


def test_tombstones_can_be_kept_forever(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", delete_retention_ms=MAX_LONG)
    log.append((b"a", b"1"), (b"b", None))
    for _ in range(3):
        log.append((b"a", None))
        log.clock.now += 1000 * DAY
        log.compact()
        assert log.values() == {b"a": None, b"b": None}
    times = log.topic().scan(columns="timestamp").to_table()["timestamp"].cast("int64").to_pylist()
    assert min(times) >= NOW


def test_a_horizon_is_counted_from_the_first_cleaning_not_from_the_record(log: CompactedTopic) -> None:
    log.add(batch([record(0, 0, b"a", None)], base_timestamp=1, max_timestamp=1) + keyed(1, 1))
    log.clock.now += 10 * DAY
    log.compact()
    assert log.offsets() == [0, 1]


def test_the_vector_of_a_cleaned_tombstone(log: CompactedTopic) -> None:
    log.add(keyed(0, *range(10)) + TOMBSTONE + keyed(11, 5))
    log.compact()
    assert log.log_bytes()[:-len(keyed(11, 5))].endswith(CLEANED_TOMBSTONE)  # fmt: skip
    log.compact_range(12, 12)
    assert CLEANED_TOMBSTONE in log.log_bytes()
    assert log.segments()[0].first_timestamp == NOW


def test_a_batch_that_loses_its_tombstone_keeps_the_horizon(log: CompactedTopic) -> None:
    log.add(batch([record(0, 0, b"a", None), record(1, 0, b"b")], base_timestamp=NOW, max_timestamp=NOW))
    log.append((b"z", b"1"))
    log.compact()
    log.clock.now += DAY
    log.compact_range(3, 3)
    assert log.offsets() == [1, 2]
    assert log.batches()["attributes"].tolist() == [DELETE_HORIZON, 0]
    assert log.batches()["base_timestamp"][0] == NOW + DAY
    assert log.rows()[0]["timestamp"].timestamp() * 1000 == NOW


def test_the_last_batch_of_the_range_stays_even_if_it_is_empty(log: CompactedTopic) -> None:
    log.add(keyed(0, None, None) + keyed(2, None))
    log.compact()
    assert (last_offsets(log), log.offsets()) == ([2], [])
    assert log.batches()["size"].tolist() == [61]
    log.append((b"a", b"1"))
    log.compact()
    assert last_offsets(log) == [3]


def test_the_vector_of_an_empty_batch(log: CompactedTopic) -> None:
    log.add(keyed(0, *range(100)) + keyed(100, *[None] * 5, producer=(1, 0, 10)) + keyed(105, 200))
    log.compact()
    assert EMPTY in log.log_bytes()


def test_many_tombstones_grow_together(log: CompactedTopic) -> None:
    keys = [b"%d" % number for number in range(5000)]
    rows = [record(delta, 0, key, None) for delta, key in enumerate(keys)]
    log.add(batch(rows, base_timestamp=NOW, max_timestamp=NOW))
    log.compact()
    assert log.values() == dict.fromkeys(keys)
    assert log.segments()[0].log_bytes == 61 + len(b"".join(rows)) + 3 * len(rows)
