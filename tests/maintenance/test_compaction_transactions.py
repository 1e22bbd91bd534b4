"""Compaction of transactions and of idempotent producers: the scenarios of Kafka's LogCleanerTest, by offset."""

from __future__ import annotations

import dataclasses
import pickle
import struct
from pathlib import Path

import pytest
from compacting import DAY, NOW, CompactedTopic
from producers import Producers
from raw_batches import batch, record

from distlog.core.commits.deduplication import EXPIRATION_MS
from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.record_batch import (
    COMMIT,
    CONTROL,
    DELETE_HORIZON,
    LEADER_CHANGE,
    TRANSACTIONAL,
    read_headers,
)
from distlog.core.maintain.compaction import Cleanable, CleaningPlan, clean_partition
from distlog.core.maintain.retention import retention
from distlog.core.maintain.survivors import SLOT_BYTES

LATER = 1000
"""The delete.retention.ms of the topics."""


@pytest.fixture
def log(tmp_path: Path) -> CompactedTopic:
    return CompactedTopic(f"{tmp_path}/log", delete_retention_ms=LATER)


def again(log: CompactedTopic, after_ms: int = 0) -> None:
    """Clean everything once more, `after_ms` later, without new records."""
    log.clock.now += after_ms
    end = log.topic().snapshot.partitions[0].log_end_offset
    log.compact_range(end, end)


def bases(log: CompactedTopic) -> list[int]:
    return log.batches()["base_offset"].tolist()


def last_offsets(log: CompactedTopic) -> list[int]:
    batches = log.batches()
    return (batches["base_offset"] + batches["last_offset_delta"]).tolist()


def live_offsets(log: CompactedTopic) -> list[int]:
    """Return the offsets of all records and markers; every batch with records has its last one here."""
    holding = log.batches()[log.batches()["record_count"] > 0]
    markers = holding["base_offset"][holding["attributes"] & CONTROL != 0].tolist()
    return sorted(log.offsets() + markers)


def transactions(log: CompactedTopic) -> list[AbortedTransaction]:
    reader = log.topic().reader
    return [entry for segment in log.segments() for entry in reader.aborted_transactions(segment)]


def test_the_last_batch_of_each_idempotent_producer_stays(log: CompactedTopic) -> None:
    producers = Producers(log, transactional=False)
    producers.send(1, 1, 2, 3).send(2, 3, 1, 4).send(3, 1, 4).roll()
    log.compact()
    assert (live_offsets(log), last_offsets(log)) == ([1, 3, 6, 7], [2, 5, 7])
    batches = log.batches()
    assert (batches["base_sequence"] + batches["last_offset_delta"]).tolist() == [2, 2, 1]
    producers.send(4, 2).roll()
    log.compact()
    assert (live_offsets(log), last_offsets(log)) == ([3, 6, 7, 8], [2, 5, 7, 8])
    assert log.batches()["size"][0] == 61


def test_an_earlier_batch_of_a_producer_is_removed(log: CompactedTopic) -> None:
    producers = Producers(log, transactional=False)
    producers.send(1, 1).send(1, 2).send(1, 2).send(2, 1).roll()
    log.compact()
    assert (live_offsets(log), last_offsets(log)) == ([2, 3], [2, 3])


def test_a_silent_producer_is_forgotten(log: CompactedTopic) -> None:
    producers = Producers(log, transactional=False)
    producers.send(1, 1).plain(1).roll()
    log.clock.now += EXPIRATION_MS - 1
    log.compact()
    assert last_offsets(log) == [0, 1]
    again(log, 1)
    assert last_offsets(log) == [1]


def test_a_silent_producer_expires_after_the_configured_time(log: CompactedTopic) -> None:
    producers = Producers(log, transactional=False)
    producers.send(1, 1).plain(1).roll()
    log.clock.now += 1000
    topic = log.topic()
    for limit_ms, kept_batches in ((1001, 2), (1000, 1)):
        handle = dataclasses.replace(topic.handle, producer_expiration_ms=limit_ms)
        plan = CleaningPlan.of(topic.snapshot, Cleanable(0, 0, 2, 0, 1, False))
        outcome = clean_partition(handle, plan, 1 << 20)
        (output,) = [segment for group in outcome.groups for segment in group.outputs]
        assert len(read_headers(log.storage.read(f"{topic.name}-0/{output.stem}.log"))) == kept_batches
    again = pickle.loads(pickle.dumps(handle))
    assert again.producer_expiration_ms == 1000


def test_aborted_records_are_removed_and_committed_ones_compacted(log: CompactedTopic) -> None:
    producers = Producers(log)
    producers.send(1, 1, 2).send(2, 2, 3).send(1, 3, 4).abort(1).commit(2).send(1, 2).commit(1).roll()
    original = transactions(log)
    log.compact()
    assert (live_offsets(log), transactions(log)) == ([3, 6, 7, 8, 9], original)
    assert [row["key"] for row in log.rows()] == [b"3", b"2"]
    assert log.rows("read_committed") == log.rows()


def test_a_commit_marker_is_removed_after_its_data_and_its_horizon(log: CompactedTopic) -> None:
    producers = Producers(log)
    producers.send(1, 1).send(1, 2, 3).commit(1).send(1, 2).commit(1).roll()
    log.compact()
    assert live_offsets(log) == [0, 2, 3, 4, 5]
    producers.send(1, 1, 3).commit(1).roll()
    log.compact()
    assert live_offsets(log) == [3, 4, 5, 6, 7, 8]
    for waited in (0, LATER - 1):
        again(log, waited)
        assert live_offsets(log) == [3, 4, 5, 6, 7, 8]
    again(log, 1)
    assert live_offsets(log) == [4, 5, 6, 7, 8]


def test_an_abort_marker_is_removed_a_horizon_after_its_data(log: CompactedTopic) -> None:
    producers = Producers(log)
    producers.send(1, 1).send(1, 2, 3).abort(1).send(1, 3).commit(1).roll()
    log.compact()
    assert (live_offsets(log), len(transactions(log))) == ([3, 4, 5], 1)
    again(log)
    assert (live_offsets(log), len(transactions(log))) == ([3, 4, 5], 1)
    again(log, LATER)
    assert (live_offsets(log), transactions(log)) == ([4, 5], [])


@pytest.mark.parametrize("is_removed", [False, True])
def test_restored_aborted_records_stay_aborted(log: CompactedTopic, is_removed: bool) -> None:
    """A transaction, a version, the abort, the deletion of its records, compaction, restore."""
    log.topic().alter_config({"cleanup.policy": "compact,delete", "retention.ms": -1})
    producers = Producers(log)
    producers.plain(9).send(1, 1, 2).roll()
    original = log.topic().version
    producers.plain(3).abort(1).plain(3).roll()
    log.topic().delete_records({0: 3})
    if is_removed:
        assert log.topic().retention().to_dict()["segments"] == 1
    log.compact()
    assert log.topic().verify().ok
    log.topic().restore(original)
    assert log.offsets() == [0, 1, 2, 5]
    assert [row["offset"] for row in log.rows("read_committed")] == [0, 5]
    assert log.topic().verify().ok


def test_a_marker_stays_as_long_as_a_segment_below_the_log_start_needs_it(log: CompactedTopic) -> None:
    """Without the marker the transaction would look open, and hold back committed reads."""
    log.topic().alter_config({"cleanup.policy": "compact,delete", "retention.ms": -1, "internal.segment.bytes": 400})
    producers = Producers(log)
    producers.plain(9).send(1, 1, 2).roll()
    producers.commit(1).plain(3).roll()
    log.topic().delete_records({0: 3})
    for _ in range(3):
        log.clock.now += EXPIRATION_MS
        producers.plain(8).roll()
        log.compact()
        assert log.rows("read_committed") == log.rows() != []
    retention(log.topic().handle, log.topic().snapshot)
    log.compact_range(7, 7)
    again(log, LATER)
    assert live_offsets(log) == log.offsets() == [4, 7]


def test_old_empty_batches_with_equal_sequence_numbers_are_removed(log: CompactedTopic) -> None:
    """testEmptyBatchRemovalWithSequenceReuse."""
    producers = Producers(log)
    producers.send(1, 1).commit(1).restart_numbers(1).send(1, 2).commit(1).plain(1).plain(2).roll()
    log.compact()
    for _ in range(2):
        assert (live_offsets(log), last_offsets(log)) == ([1, 3, 4, 5], [1, 2, 3, 4, 5])
        # the second time, the first marker has no data, and its horizon begins
        again(log, LATER)
    assert (live_offsets(log), last_offsets(log)) == ([3, 4, 5], [2, 3, 4, 5])


def test_an_abort_marker_stays_as_long_as_an_empty_batch_of_its_transaction_is_read(log: CompactedTopic) -> None:
    """testAbortMarkerRetentionWithEmptyBatch."""
    producers = Producers(log)
    producers.send(1, 2, 3).abort(1).roll()
    log.compact()
    (original,) = transactions(log)
    for _ in range(2):
        # the empty batch holds the producer's last sequence number
        assert (log.rows(), live_offsets(log), last_offsets(log)) == ([], [2], [1, 2])
        assert transactions(log) == [original]
        again(log, LATER)
    producers.send(1, 1).roll()
    again(log, LATER)
    assert (live_offsets(log), last_offsets(log), transactions(log)) == ([2, 3], [2, 3], [original])
    again(log)
    assert (live_offsets(log), last_offsets(log), transactions(log)) == ([2, 3], [2, 3], [original])
    again(log, LATER)
    assert (live_offsets(log), last_offsets(log), transactions(log)) == ([3], [3], [])


def test_transactions_that_span_segments_are_cleaned_when_they_are_decided(log: CompactedTopic) -> None:
    """testCleanWithTransactionsSpanningSegments."""
    producers = Producers(log)
    producers.send(1, 1, 2).send(2, 2, 3).roll()
    producers.send(1, 3).plain(1).abort(1).roll()
    original = bases(log)
    log.compact()
    # the second transaction began in the first segment, and is open
    assert bases(log) == original
    assert "partition 0: a transaction from offset 2 on is open, and nothing" in str(log.topic().compact())
    producers.send(2, 4).commit(2).plain(4).roll()
    log.compact()
    rows = [(row["offset"], row["key"]) for row in log.rows("read_committed")]
    assert rows == [(2, b"2"), (3, b"3"), (5, b"1"), (9, b"4")]
    assert log.rows() == log.rows("read_committed")


def test_a_transaction_that_is_aborted_in_a_later_segment_leaves_its_sequence(log: CompactedTopic) -> None:
    producers = Producers(log)
    producers.send(1, 1).roll()
    producers.abort(1).roll()
    for _ in range(3):
        again(log, LATER)
        assert (live_offsets(log), last_offsets(log)) == ([1], [0, 1])
        assert len(transactions(log)) == 1


def test_the_last_sequence_stays_even_if_its_transaction_was_aborted(log: CompactedTopic) -> None:
    producers = Producers(log)
    producers.send(1, 1).send(1, 2, 3).abort(1).roll()
    log.compact()
    assert (live_offsets(log), last_offsets(log)) == ([3], [2, 3])
    producers.send(1, 1, 2).roll()
    producers.commit(1).roll()
    log.compact()
    assert (live_offsets(log), last_offsets(log)) == ([3, 4, 5, 6], [3, 5, 6])


def test_the_marker_stays_while_an_empty_batch_of_its_transaction_does(log: CompactedTopic) -> None:
    producers = Producers(log)
    producers.send(1, 2, 3).roll()
    producers.send(2, 2, 3).commit(2).roll()
    producers.plain(2).plain(3).commit(1).roll()
    log.compact()
    assert (log.offsets(), last_offsets(log)) == ([5, 6], [1, 3, 4, 5, 6, 7])
    again(log, LATER)
    assert last_offsets(log) == [1, 3, 4, 5, 6, 7]
    producers.send(2, 1).commit(2).roll()
    log.compact()
    assert (log.offsets(), last_offsets(log)) == ([5, 6, 8], [1, 4, 5, 6, 7, 8, 9])
    again(log)
    again(log, LATER)
    assert (log.offsets(), last_offsets(log)) == ([5, 6, 8], [1, 5, 6, 7, 8, 9])


def test_an_empty_control_batch_keeps_the_epoch_and_can_be_cleaned_again(log: CompactedTopic) -> None:
    Producers(log).commit(1).plain(1).plain(2).roll()
    log.compact()
    again(log, LATER)
    assert (bases(log), live_offsets(log), log.batches()["record_count"].tolist()) == ([0, 1, 2], [1, 2], [0, 1, 1])
    assert log.batches()["attributes"][0] == CONTROL | TRANSACTIONAL
    again(log, LATER)
    assert bases(log) == [0, 1, 2]


def test_other_control_batches_stay(log: CompactedTopic) -> None:
    key, value = struct.pack(">hh", 0, LEADER_CHANGE), b"\0\0opaque"
    leader = batch([record(0, 0, key, value)], attributes=CONTROL, base_timestamp=NOW, max_timestamp=NOW)
    log.add(leader + batch([record(0, 0, b"a")], base_offset=1, base_timestamp=NOW, max_timestamp=NOW))
    log.compact()
    again(log, DAY)
    assert bases(log) == [0, 1]
    assert log.log_bytes().startswith(leader)


def test_a_control_batch_with_a_too_short_key_is_ignored(log: CompactedTopic) -> None:
    strange = batch([record(0, 0, b"", bytes(6))], attributes=CONTROL, base_timestamp=NOW, max_timestamp=NOW)
    log.add(strange + batch([record(0, 0, b"a")], base_offset=1, base_timestamp=NOW, max_timestamp=NOW))
    log.compact()
    assert log.log_bytes().startswith(strange)


def test_a_marker_of_a_transaction_without_data_is_obsolete_at_once(log: CompactedTopic) -> None:
    Producers(log).send(1, 1).commit(1).commit(1).plain(2).roll()
    log.compact()
    assert (log.batches()["attributes"] & DELETE_HORIZON != 0).tolist() == [False, False, True, False]


def test_markers_of_a_producer_that_wrote_data_are_not_kept_for_it(log: CompactedTopic) -> None:
    Producers(log, transactional=False).send(1, 1).commit(1).plain(2).roll()
    log.compact()
    again(log, LATER)
    assert bases(log) == [0, 2]


def test_a_marker_of_a_new_epoch_replaces_the_last_data(log: CompactedTopic) -> None:
    times = {"base_timestamp": NOW, "max_timestamp": NOW}
    key, value = struct.pack(">hh", 0, COMMIT), struct.pack(">hi", 0, 0)
    data = batch([record(0, 0, b"a")], producer=(1, 0, 0), **times)
    marker = batch(
        [record(0, 0, key, value)], base_offset=1, attributes=CONTROL | TRANSACTIONAL, producer=(1, 1, -1), **times
    )
    log.add(data + marker + batch([record(0, 0, b"a")], base_offset=2, **times))
    log.compact()
    assert bases(log) == [1, 2]
    again(log, LATER)
    assert (bases(log), log.batches()["record_count"].tolist()) == ([1, 2], [0, 1])


def test_each_segment_has_the_aborted_transactions_that_end_in_it(tmp_path: Path) -> None:
    log = CompactedTopic(f"{tmp_path}/log", internal_segment_bytes=320)
    producers = Producers(log)
    for _ in range(3):
        producers.send(1, 1).abort(1).plain(2).roll()
    original = transactions(log)
    log.compact()
    assert [len(log.topic().reader.aborted_transactions(segment)) for segment in log.segments()] == [1, 1, 1]
    assert transactions(log) == original
    assert [row["offset"] for row in log.rows("read_committed")] == [8]


def test_markers_are_not_keys(log: CompactedTopic) -> None:
    producers = Producers(log)
    producers.send(1, 1).commit(1).roll()
    alike = record(0, 0, struct.pack(">hh", 0, COMMIT), b"a record")
    log.add(batch([alike], base_offset=2, base_timestamp=NOW, max_timestamp=NOW))
    log.compact()
    assert live_offsets(log) == [0, 1, 2]


def test_open_transactions_are_left_alone(log: CompactedTopic) -> None:
    producers = Producers(log)
    producers.plain(1).plain(1).roll()
    producers.plain(1).send(1, 1).roll()
    outcome = log.compact()
    assert outcome is not None
    assert (outcome.end_offset, live_offsets(log)) == (2, [1, 2, 3])
    producers.commit(1).roll()
    log.compact()
    assert live_offsets(log) == [3, 4]


def test_several_passes_over_transactions_with_a_small_map(log: CompactedTopic) -> None:
    """A map of three keys and three rounds, the last one after the delete horizons: Kafka's multi-pass scenario."""
    producers = Producers(log)
    producers.send(1, 1, 2).send(2, 2, 3).send(1, 3, 4).commit(1).commit(2)
    producers.send(1, 2, 3).abort(1).send(2, 4, 5)
    producers.send(1, 6, 7).commit(1).abort(2)
    producers.send(2, 8, 9).commit(2).roll()
    memory = 4 * SLOT_BYTES
    assert log.compact_range(0, 20, memory) == 4
    assert bases(log) == [0, 2, 4, 6, 7, 10, 13, 15, 16, 17, 19]
    assert log.compact_range(4, 20, memory) == 14
    assert bases(log) == [0, 2, 4, 6, 7, 10, 13, 15, 16, 17, 19]
    assert 3 not in log.offsets()
    log.clock.now += LATER
    assert log.compact_range(14, 20, memory) == 20
    assert bases(log) == [0, 2, 4, 6, 7, 13, 15, 17, 19]
    assert transactions(log) == []


def test_compacted_transactions_move_with_retention(log: CompactedTopic) -> None:
    log.topic().alter_config({"cleanup.policy": "compact,delete", "retention.ms": 10 * DAY})
    producers = Producers(log)
    producers.send(1, 1, 2).send(2, 3).abort(1).commit(2).send(1, 4).commit(1).roll()
    log.compact()
    assert [row["offset"] for row in log.rows("read_committed")] == [2, 5]
    log.clock.now += 11 * DAY
    retention(log.topic().handle, log.topic().snapshot)
    assert log.rows("read_committed") == []
