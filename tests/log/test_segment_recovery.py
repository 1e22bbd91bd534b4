"""Recovery of a segment after a crash: Kafka's LogSegmentTest and LogLoaderTest."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from active_segments import (
    append,
    config,
    files,
    filled,
    found_again,
    new_segment,
    none_open,
    offsets,
    records,
    reopened,
)
from golden import DATA
from producers import Producers

from distlog.core.format.indexes import TRANSACTION_ENTRY as TXN_ENTRY
from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.record_batch import read_headers
from distlog.core.log.log_segment import ReadableSegment
from distlog.core.log.partition_files import DamagedLogError
from distlog.core.segments.producer_states import OpenTransactions
from distlog.core.segments.segment_state import SegmentState

#: index.interval.bytes of the broker of the golden files of message format 2
BROKER_INTERVAL = 512
LOGS = sorted([*(DATA / "kafka-4.1" / "first").rglob("*.log"), *(DATA / "kafka-4.1" / "crashed").rglob("*.log")])


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_recovery_rebuilds_a_damaged_index(tmp_path: Path, suffix: str) -> None:
    state = filled(tmp_path)
    old_files = files(tmp_path)
    path = tmp_path / f"{0:020d}{suffix}"
    path.write_bytes(old_files[suffix][:5] + bytes(range(200)) + old_files[suffix][205:])
    segment = reopened(tmp_path, state, index_interval_bytes=0)
    segment.recover(none_open())
    assert segment.state == state
    assert files(tmp_path) == old_files
    for offset in range(100):
        position, location = segment.translate_offset(offset), segment.find_offset_by_timestamp(10 * offset)
        assert position is not None
        assert (position.base_offset, location) == (offset, offset)


def test_an_unknown_segment_is_recovered_to_the_state_of_its_appends(tmp_path: Path) -> None:
    state = filled(tmp_path)
    for suffix in (".index", ".timeindex"):
        (tmp_path / f"{0:020d}{suffix}").unlink()
    segment = found_again(tmp_path, index_interval_bytes=0)
    segment.recover(none_open())
    assert dataclasses.replace(segment.state, created_ms=state.created_ms) == state
    assert segment.scan_tail(none_open()) == segment.state


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}-{log.stem[-4:]}")
def test_the_indexes_of_a_recovered_log_equal_the_brokers(tmp_path: Path, log: Path) -> None:
    shutil.copy(log, tmp_path)
    segment = found_again(tmp_path, int(log.stem), index_interval_bytes=BROKER_INTERVAL)
    transactions = none_open()
    for earlier in sorted(log.parent.glob("*.log")):
        if earlier < log:
            transactions = _after(earlier, transactions)
    segment.recover(transactions)
    assert segment.size == log.stat().st_size
    segment.seal()
    contents = files(tmp_path, log.stem)
    for suffix in (".index", ".timeindex", ".txnindex"):
        kafka = log.with_suffix(suffix)
        written = kafka.read_bytes() if kafka.exists() else b""
        if log.parent.parent.name == "crashed":
            # a seal adds the last entry and removes the zeros after it; this segment was not sealed
            written = written.rstrip(b"\0")
            assert contents.get(suffix, b"").startswith(written)
        else:
            assert contents.get(suffix, b"") == written


def _after(log: Path, transactions: OpenTransactions) -> OpenTransactions:
    state = SegmentState.new(log.stem, int(log.stem), 0)
    ReadableSegment(str(log.parent), state, config()).scan_tail(transactions)
    return transactions


class Partition:
    def __init__(self) -> None:
        self.data, self.aborted = b"", list[AbortedTransaction]()

    def clock(self) -> int:
        return 1000

    def add(self, data: bytes, *aborted: AbortedTransaction) -> None:
        self.data, self.aborted = data, list(aborted)


def test_the_transaction_index_is_rebuilt_from_the_markers(tmp_path: Path) -> None:
    log = Partition()
    producers = Producers(log, offset=100)
    producers.send(1, 1, 2).send(2, 1, 2).send(1, 3, 4).abort(2).commit(1)
    producers.roll()
    segment = new_segment(tmp_path, 100)
    append(segment, log.data)
    segment.recover(none_open())
    assert segment.next_offset == 108
    expected = [AbortedTransaction(2, 102, 106, 100)]
    assert log.aborted == expected
    assert _transactions(tmp_path) == expected
    assert segment.state.first_unstable_offset == -1
    segment.recover(OpenTransactions({2: 75, 9: 90}))
    assert _transactions(tmp_path) == [AbortedTransaction(2, 75, 106, 90)]
    assert segment.state.first_unstable_offset == 90
    assert segment.state.has_transactions


def test_transactions_after_a_damaged_offset_are_not_open(tmp_path: Path) -> None:
    """No checksum covers the offset, so the walk finds it when it has observed the whole step."""
    log = Partition()
    Producers(log, offset=100).send(1, 1, 2).abort(1).send(2, 1, 2).roll()
    path = tmp_path / f"{100:020d}.log"
    path.write_bytes(log.data)
    batches = read_headers(log.data)
    sound, last = batches[:-1], batches[-1]
    data = bytearray(log.data)
    data[last["position"] : last["position"] + 8] = (100 + 2**31).to_bytes(8, "big")
    path.write_bytes(data)
    state = found_again(tmp_path, 100).scan_tail(none_open())
    assert (state.next_offset, state.first_unstable_offset) == (100 + sum(sound["record_count"]), -1)
    with pytest.raises(DamagedLogError, match="distlog repair"):
        found_again(tmp_path, 100).recover(none_open())


def _transactions(folder: Path) -> list[AbortedTransaction]:
    rows = np.frombuffer(files(folder, 100)[".txnindex"], TXN_ENTRY).tolist()
    return [AbortedTransaction(*fields) for _, *fields in rows]


@pytest.mark.parametrize("damaged", [0, 1, 7, 19])
def test_a_damaged_batch_ends_the_log_before_it(tmp_path: Path, damaged: int) -> None:
    state = filled(tmp_path, 20)
    size = state.position // 20
    path = tmp_path / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[damaged * size + 65] ^= 1
    path.write_bytes(data)
    segment = reopened(tmp_path, state, index_interval_bytes=0)
    if damaged < 19:
        with pytest.raises(DamagedLogError, match="distlog repair") as raised:
            segment.recover(none_open())
        details = {"position": damaged * size, "offset": damaged, "sound_offset": damaged + 1}
        assert details.items() <= raised.value.details.items()
        assert path.read_bytes() == data
        assert found_again(tmp_path).scan_tail(none_open()).next_offset == damaged
        return
    segment.recover(none_open())
    assert path.read_bytes() == data[: damaged * size]
    assert offsets(segment) == list(range(damaged))


def test_a_batch_that_is_out_of_order_ends_the_log_before_it(tmp_path: Path) -> None:
    state = filled(tmp_path, 5)
    path = tmp_path / f"{0:020d}.log"
    good = path.read_bytes()
    path.write_bytes(good + records(3) + records(9))
    segment = reopened(tmp_path, state, index_interval_bytes=0)
    assert segment.scan_tail(none_open()) == state
    with pytest.raises(DamagedLogError, match="sound batches"):
        segment.recover_tail(none_open())


@pytest.mark.long
@pytest.mark.parametrize("from_start", [False, True])
def test_a_torn_write_is_truncated_at_any_byte(tmp_path: Path, from_start: bool) -> None:
    first, last = records(0, [b"first"]) + records(1), [records(2, [b"x"]), records(3, [b"y", b"z"]), records(5)]
    content = first + b"".join(last)
    ends = np.cumsum([len(first), *map(len, last)]).tolist()
    near = {end + number for end in ends for number in (-1, 0, 1)}
    for cut in sorted({*range(len(first), len(content), 3), *near} & {*range(len(first), len(content) + 1)}):
        folder = tmp_path / str(cut)
        segment = new_segment(folder, index_interval_bytes=0)
        append(segment, records(0, [b"first"]), records(1))
        path = folder / f"{0:020d}.log"
        path.write_bytes(content[:cut])
        assert segment.bytes_past_end() == cut - len(first)
        kept_end = max(end for end in ends if end <= cut)
        segment.recover(none_open()) if from_start else segment.recover_tail(none_open())
        assert path.read_bytes() == content[:kept_end]
        expected = new_segment(folder / "expected", index_interval_bytes=0)
        for data in (records(0, [b"first"]), records(1), *last[: ends.index(kept_end)]):
            append(expected, data)
        assert segment.state == expected.state
        assert files(folder) == files(folder / "expected")
        segment.close()
        expected.close()


def test_a_torn_batch_in_preallocated_space_is_truncated(tmp_path: Path) -> None:
    settings = {"preallocate": True, "segment_bytes": 1 << 20}
    segment = new_segment(tmp_path, **settings)
    append(segment, records(0))
    path = tmp_path / f"{0:020d}.log"
    with path.open("r+b") as file:
        file.seek(segment.size)
        file.write(records(1)[:40])
    assert segment.bytes_past_end() > 0
    segment.recover_tail(none_open())
    assert segment.bytes_past_end() == 0
    assert path.read_bytes() == records(0).ljust(1 << 20, b"\0")


@pytest.mark.parametrize("step", [1, 150, 300])
def test_an_out_of_order_batch_at_a_step_of_the_walk_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr("distlog.core.log.partition_files.WALK_BYTES", step)
    new_segment(tmp_path).close()
    (tmp_path / f"{0:020d}.log").write_bytes(records(0) + records(1) + records(1) + records(2))
    segment = found_again(tmp_path)
    assert segment.scan_tail(none_open()).next_offset == 2
