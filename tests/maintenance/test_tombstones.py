"""Tombstones and batches without records: how long compaction keeps them."""

from __future__ import annotations

from pathlib import Path

from compacting import DAY, NOW, CompactedTopic
from compacting import log as log
from keyed_batches import keyed, last_offsets
from raw_batches import batch, record

from distlog.core.batches.record_batch import DELETE_HORIZON
from distlog.core.config import MAX_LONG

#: KAFKA's bytes, from the vectors V10 and V11: a tombstone, and the same after a cleaning at NOW.
TOMBSTONE = bytes.fromhex(
    "000000000000000a000000390000000302cfd5eff80000000000000000018bcfe568000000018bcfe56800ffffffffffffffffffffffffffff"
    "000000010e000000026b0100"
)
CLEANED_TOMBSTONE = bytes.fromhex(
    "000000000000000a0000003c0000000302b06ca6c80040000000000000018bd50bc4000000018bcfe56800ffffffffffffffffffffffffffff"
    "000000011400ffefb25200026b0100"
)
#: KAFKA's bytes of vector V13: what is left of a producer's batch of five records.
EMPTY = bytes.fromhex(
    "000000000000006400000031ffffffff02353e8835000000000004ffffffffffffffff0000018bcfe56800000000000000000100000000000a"
    "00000000"
)


def test_a_tombstone_is_kept_until_its_horizon_and_takes_older_values_along(log: CompactedTopic) -> None:
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


def test_a_clock_that_is_behind_gives_a_tombstone_no_early_horizon(log: CompactedTopic) -> None:
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


def test_tombstones_may_be_kept_for_ever(tmp_path: Path) -> None:
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
