"""A deleted, truncated or changed index of an active segment is rebuilt, and stops no append or seal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from partition_logs import Killed, Killer, Process, append, commit_sealed, new_topic
from topics import NOW
from transacting import Sender, committed

from distlog.core.log.partition_files import PageStatus

CHANGES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:5]),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "changed": lambda path: path.write_bytes(b"\x01" * 7 + path.read_bytes()[7:]),
}
VALUES = [b"0", b"1", b"3"]


def prepared(folder: Path) -> Process:
    process = Process(new_topic(folder, segment_index_bytes=1200))
    append(process[0], b"0")
    append(process[0], b"1")
    Sender(Process(folder)).begin().send(0, b"2").abort()
    append(process[0], b"3", time=NOW + 1)
    process[0].flush()
    return process


def index(process: Process, suffix: str) -> Path:
    active = process.head().partitions[0].active
    assert active is not None
    return process.folder(0) / f"{active.stem}{suffix}"


def check(folder: Path, *after: bytes) -> None:
    """Check that all records are readable, and that the sealed segment is sound."""
    assert committed(folder)[0] == [*VALUES, *after]
    process = Process(folder)
    commit_sealed(process)
    assert committed(folder)[0] == [*VALUES, *after]
    assert process.anomalies() == ()
    process.close()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_a_new_process_rebuilds_it(suffix: str, change: str, tmp_path: Path) -> None:
    folder = tmp_path / "events"
    process = prepared(folder)
    process.close()
    path = index(process, suffix)
    old_content = path.read_bytes()
    CHANGES[change](path)
    append(Process(folder)[0], b"4")
    # other indexes of the right length are not read, except the transaction index
    if suffix == ".txnindex" or change in ("gone", "empty", "cut"):
        assert path.read_bytes().startswith(old_content.rstrip(b"\0"))
    check(folder, b"4")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_a_seal_rebuilds_it(suffix: str, change: str, tmp_path: Path) -> None:
    """The process is older than the damage, and appends after it."""
    folder = tmp_path / "events"
    process = prepared(folder)
    append(process[0], b"4")
    CHANGES[change](index(process, suffix))
    append(process[0], b"5")
    process[0].flush()
    process[0].roll()
    assert process.anomalies() == ()
    check(folder, b"4", b"5")


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_a_process_that_replaces_a_killed_one_rebuilds_it(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed process wrote a whole batch that the page does not count; it is kept."""
    folder, killer = tmp_path / "events", Killer(monkeypatch)
    living = prepared(folder)
    dying = Process(folder)
    dying[0].end()
    with killer.killing(None):
        append(dying[0], b"4")
    with pytest.raises(Killed), killer.killing(killer.steps.index("pwrite") + 1):
        append(dying[0], b"5")
    index(living, suffix).unlink()
    append(living[0], b"6")
    check(folder, b"4", b"5", b"6")


def test_a_torn_write_is_truncated_with_a_missing_index(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    process = prepared(folder)
    with process.holding(0) as active:
        segment = active.active_segment()
        assert segment is not None
        active.lock.publish(PageStatus.TORN, segment.state)
    with open(index(process, ".log"), "ab") as log:
        log.write(b"half of a batch")
    index(process, ".index").unlink()
    append(Process(folder)[0], b"4")
    check(folder, b"4")


def test_a_damaged_log_is_not_truncated_and_can_be_sealed(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    process = prepared(folder)
    process.close()
    path = index(process, ".log")
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    index(process, ".timeindex").unlink()
    other = Process(folder)
    append(other[0], b"4")
    other[0].roll()
    assert path.read_bytes()[: len(data)] == data
    assert {anomaly.word for anomaly in process.topic().verify().anomalies} >= {"corrupt_batch"}
    assert append(Process(folder)[0], b"5") == (6, 7)
