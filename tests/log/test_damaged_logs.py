"""Foreign changes of an active log: every acknowledged record is readable, or an append raises."""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka_commits import KafkaCommits
from partition_logs import Process, append, append_rows, encoded, log, new_topic, release_dead

import distlog
from distlog.core.errors import CorruptRecordError, DistlogError, TopicNotFoundError
from distlog.core.log.live_snapshot import _warn_once
from distlog.core.log.partition_files import DamagedLogError
from distlog.core.log.partition_log import LostRecordsError
from distlog.core.storage.locks_and_pages import PAGE_BYTES

SIZE = encoded(b"0")[0].nbytes
VALUES = [b"%d" % number for number in range(8)]


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    release_dead()


def filled(folder: Path, flushed: int = 8, **settings: object) -> Path:
    """Return a topic of eight batches, the first `flushed` of which were flushed."""
    process = Process(new_topic(folder, **settings))
    for number, value in enumerate(VALUES, 1):
        append(process[0], value)
        if number == flushed:
            process[0].flush()
    process.close()
    return folder


def page(folder: Path) -> Path:
    return folder / "events-0" / ".lock"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def check_refused(folder: Path, *processes: Process, match: str = "distlog repair") -> DamagedLogError:
    """Check that no process can append, and that no file changes."""
    old_files = files(folder)
    for process in (*processes, Process(folder), Process(folder)):
        for _ in range(2):
            with pytest.raises(DamagedLogError, match=match) as raised:
                append(process[0], b"new")
    assert files(folder) == old_files
    assert not Process(folder).topic().verify().ok
    return raised.value


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "events-0").iterdir() if path.suffix == ".log"}


CUTS: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, 3 * SIZE),
    "emptied": lambda path: os.truncate(path, 0),
    "replaced by an older copy": lambda path: path.write_bytes(path.read_bytes()[: 5 * SIZE]),
    "deleted": lambda path: path.unlink(),
    "moved away": lambda path: path.rename(path.with_name("elsewhere")),
}


@pytest.mark.parametrize("is_rebooted", [False, True])
@pytest.mark.parametrize("damage", CUTS)
def test_a_log_shorter_than_acknowledged_refuses_appends(
    damage: str, is_rebooted: bool, tmp_path: Path, rebooted: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = filled(tmp_path / "events")
    living = Process(folder)
    assert living[0].end() == (8, 8)
    CUTS[damage](log(folder))
    if is_rebooted:
        rebooted()
    check_refused(folder, living)
    # readers of this boot trust the page, and fail
    assert is_rebooted or "readers see" not in caplog.text


@pytest.mark.parametrize("preallocate", [False, True])
def test_an_older_copy_under_an_open_log_refuses_appends(preallocate: bool, tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", preallocate=preallocate, internal_segment_bytes=1 << 16)
    living = Process(folder)
    append(living[0], b"0")
    shutil.copy(log(folder), tmp_path / "older")
    append(living[0], b"1")
    if preallocate:
        # zeros after the synced end may be a page that the kernel dropped
        living[0].flush()
    os.replace(tmp_path / "older", log(folder))
    check_refused(folder, living, match="lacks records")


def test_a_log_deleted_before_its_flush_is_not_acknowledged(tmp_path: Path) -> None:
    process = Process(new_topic(tmp_path / "events"))
    appended = append_rows(process[0], *encoded(b"0"))
    log(tmp_path / "events").unlink()
    with pytest.raises(DamagedLogError):
        process[0].flush(appended)


@pytest.mark.parametrize("page_is", ["none", "garbled", "of another boot"])
@pytest.mark.parametrize("position", [0, 10, 20, 66, 3 * SIZE, 3 * SIZE + 9, 6 * SIZE + 40])
def test_a_flipped_bit_before_uncounted_sound_batches_refuses_appends(
    page_is: str, position: int, tmp_path: Path, rebooted: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = filled(tmp_path / "events", flushed=0)
    flip(log(folder), position)
    rebooted()
    if page_is != "of another boot":
        page(folder).write_bytes(b"" if page_is == "none" else os.urandom(PAGE_BYTES))
    error = check_refused(folder)
    number = position // SIZE
    assert (error.details["position"], error.details["offset"]) == (number * SIZE, number)
    caplog.clear()
    _warn_once.cache_clear()
    assert Process(folder).values()[0] == VALUES[:number]
    assert "readers get the records before the damage" in caplog.text


def test_a_torn_write_is_truncated_and_logged(
    tmp_path: Path, rebooted: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = filled(tmp_path / "events", flushed=5)
    os.truncate(log(folder), 7 * SIZE + 20)
    rebooted()
    with caplog.at_level(logging.WARNING):
        assert append(Process(folder)[0], b"new") == (7, 8)
    messages = [record.getMessage() for record in caplog.records if "recovery cuts off" in record.getMessage()]
    assert messages == [
        f"{log(folder)}: recovery cuts off 20 bytes after position {7 * SIZE}: the records from offset 7 on"
    ]
    assert Process(folder).values()[0] == [*VALUES[:7], b"new"]


def test_a_page_lost_in_a_power_loss_is_a_torn_write_unless_flushed(
    tmp_path: Path, rebooted: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    for flushed in (3, 8):
        folder = new_topic(tmp_path / str(flushed) / "events")
        process = Process(folder)
        for number in range(1, 9):
            append(process[0], b"%d" % number * 5000)
            if number == flushed:
                process[0].flush()
        process.close()
        with log(folder).open("r+b") as file:
            # the fifth batch is from 20,276 to 25,345: its page was never written, and the next pages were
            file.seek(20480)
            file.write(bytes(4096))
        rebooted()
        if flushed == 8:
            check_refused(folder, match="lacks records")
            continue
        with caplog.at_level(logging.WARNING):
            assert append(Process(folder)[0], b"new") == (4, 5)
        assert "with sound batches from offset 5 on" in caplog.text
        assert Process(folder).anomalies() == ()


def test_a_repair_truncates_damage_and_reports_the_loss(
    tmp_path: Path, rebooted: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = filled(tmp_path / "events", flushed=0)
    assert str(Process(folder).topic().repair()) == "nothing to repair: every active segment takes appends"
    living = Process(folder)
    waiting = append_rows(living[0], *encoded(b"8"))
    flip(log(folder), 3 * SIZE + 66)
    page(folder).write_bytes(b"")
    old_files = files(folder)
    trial = Process(folder).topic().repair(dry_run=True)
    assert files(folder) == old_files
    topic = Process(folder).topic()
    with caplog.at_level(logging.WARNING):
        report = topic.repair()
    assert trial.to_dict() == {**report.to_dict(), "dry_run": True, "version": trial.version}
    assert str(report) == f"cut 1 partition, {6 * SIZE} bytes, 6 offsets"
    (row,) = report.to_dict()["partitions"]
    assert (row["partition"], row["start_offset"], row["end_offset"]) == (0, 3, 9)
    assert (row["position"], row["bytes"]) == (3 * SIZE, 6 * SIZE)
    assert "the records from offset 3 to 9 are lost" in caplog.text
    assert Process(folder).anomalies() == ()
    with pytest.raises(LostRecordsError):
        living[0].flush(waiting)
    assert append(living[0], b"new") == (3, 4)
    assert living.values()[0] == [*VALUES[:3], b"new"]


@pytest.mark.parametrize("is_rebooted", [False, True])
@pytest.mark.parametrize("damage", [*CUTS, "flipped"])
def test_a_topic_with_a_damaged_log_can_be_dropped(
    damage: str, is_rebooted: bool, tmp_path: Path, rebooted: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = filled(tmp_path / "events", file_delete_delay_ms=0)
    living = Process(folder)
    assert living[0].end() == (8, 8)
    CUTS.get(damage, lambda path: flip(path, 2 * SIZE + 80))(log(folder))
    if is_rebooted:
        rebooted()
    distlog.open(str(folder)).drop()
    # a reader that trusts the page of this boot reads no batch
    assert ("a repair cuts off" in caplog.text) == (is_rebooted or damage != "flipped")
    for process in (living, living):
        with pytest.raises(TopicNotFoundError, match="dropped"):
            append(process[0], b"new")
    again = distlog.create(str(folder))
    with again.writer() as writer:
        writer.append(b"of the new topic")
    again.vacuum()
    assert again.scan().to_table()["value"].to_pylist() == [b"of the new topic"]
    assert again.verify().ok


@pytest.mark.parametrize("damage", CUTS)
def test_a_repair_of_a_shorter_or_missing_log_starts_a_new_one(damage: str, tmp_path: Path) -> None:
    folder = filled(tmp_path / "events")
    CUTS[damage](log(folder))
    report = Process(folder).topic().repair()
    (lost_partition,) = report.partitions
    assert lost_partition.end_offset == 8
    records = Process(folder).values()[0]
    assert records == VALUES[: lost_partition.start_offset]
    assert append(Process(folder)[0], b"new") == (len(records), len(records) + 1)
    assert Process(folder).anomalies() == ()


@pytest.mark.long
def test_after_any_damage_acknowledged_records_are_readable_or_an_append_raises(
    tmp_path: Path, rebooted: Callable[[], None]
) -> None:
    chance = random.Random(28)
    for round_number in range(60):
        folder = new_topic(tmp_path / str(round_number) / "events")
        process, values = Process(folder), list[bytes]()
        for _ in range(chance.randint(2, 9)):
            values.append(chance.randbytes(chance.choice([1, 30, 3000])))
            append(process[0], values[-1])
            if chance.random() < 0.3:
                process[0].checkpoint() if chance.random() < 0.3 else process[0].flush()
        process[0].flush()
        process.close()
        is_cut, path = chance.random() < 0.4, log(folder)
        position = chance.randrange(path.stat().st_size)
        os.truncate(path, position) if is_cut else flip(path, position)
        if chance.random() < 0.6:
            rebooted()
            if chance.random() < 0.4 and not is_cut and position < path.stat().st_size - len(values[-1]) - 80:
                # damage in the last batch looks like a torn write
                page(folder).write_bytes(os.urandom(PAGE_BYTES))
        old_content = path.read_bytes()
        try:
            append(Process(folder)[0], b"new")
        except CorruptRecordError:
            assert path.read_bytes() == old_content
            continue
        assert path.read_bytes().startswith(old_content)
        with_new = Process(folder)
        try:
            assert with_new.values()[0] == [*values, b"new"]
        except DistlogError:
            # the page counts the batch, so readers got it, and it is not overwritten
            assert not with_new.topic().verify().ok
        release_dead()


def test_an_export_of_a_damaged_log_fails_and_keeps_the_earlier_one(
    tmp_path: Path, rebooted: Callable[[], None]
) -> None:
    folder, kafka = filled(tmp_path / "events", flushed=0), tmp_path / "kafka"
    Process(folder).topic().export(kafka)
    (exported,) = kafka.glob("events-0/*.log")
    old_content = exported.read_bytes()
    flip(log(folder), 3 * SIZE + 66)
    rebooted()
    with pytest.raises(DamagedLogError, match="sound batches follow it"):
        Process(folder).topic().export(kafka)
    assert exported.read_bytes() == old_content
    Process(folder).topic().repair()
    Process(folder).topic().export(kafka)


@pytest.mark.parametrize("damage", ["missing", "zeros", "noise"])
def test_verify_ignores_indexes_that_are_rebuilt_after_a_power_loss(
    damage: str, tmp_path: Path, rebooted: Callable[[], None]
) -> None:
    folder = filled(tmp_path / "events")
    index = log(folder).with_suffix(".index")
    index.unlink() if damage == "missing" else index.write_bytes(bytes(64) if damage == "zeros" else os.urandom(64))
    # the page of this boot counts only written batches
    assert Process(folder).topic().verify().anomalies != ()
    rebooted()
    assert Process(folder).topic().verify().anomalies == ()
    append(Process(folder)[0], b"new")
    assert Process(folder).topic().verify().anomalies == ()


def test_verify_warns_of_a_group_past_the_end_of_a_log(tmp_path: Path) -> None:
    folder = filled(tmp_path / "events", flushed=0)
    topic = distlog.open(str(folder))
    with topic.consume(group="readers", start=0, timeout=0) as consumer:
        for _ in consumer:
            pass
    assert topic.verify().warnings == ()
    os.truncate(log(folder), 3 * SIZE)
    page(folder).unlink()
    report = distlog.open(str(folder)).verify()
    assert [(warning.word, warning.partition, warning.offset) for warning in report.warnings] == [
        ("end_below_group", 0, 8)
    ]
    assert "below the committed offset of group readers" in str(report)
    assert report.ok


def test_verify_warns_of_kafka_groups_and_tolerates_their_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = filled(tmp_path / "events", flushed=0)
    topic = distlog.open(str(folder))
    for group, position in (("billing", 8), ("stranger", 7), ("gone", None)):
        KafkaCommits(topic, group)({0: position})
    KafkaCommits(distlog.create(str(tmp_path / "other")), "billing")({0: 100})
    assert topic.verify().warnings == ()
    os.truncate(log(folder), 3 * SIZE)
    page(folder).unlink()
    report = distlog.open(str(folder)).verify()
    assert [(warning.word, warning.offset) for warning in report.warnings] == [
        ("end_below_group", 8),
        ("end_below_group", 7),
    ]
    assert "the log ends at 3, below the committed offset of group billing: records may be lost" in str(report)
    (tmp_path / "__consumer_offsets" / "_commits" / f"{0:020d}.json").write_bytes(b"{}")
    assert distlog.open(str(folder)).verify().ok
    assert "the committed offsets of Kafka clients are not compared with the logs" in caplog.text
