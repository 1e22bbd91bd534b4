"""Active segments of many partitions begin in one commit, whatever other processes open meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from partition_logs import Process, append, new_topic

from distlog.core.errors import StorageError
from distlog.core.log.partition_log import open_together
from distlog.core.log.segment_files import ActiveFile


def operations(process: Process) -> list[str]:
    return [commit.operation for commit in process.handle.log.commits(0, process.head().version + 1)]


def test_partitions_that_others_opened_meanwhile_are_not_opened_again(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", partitions=4)
    process, other = Process(folder), Process(folder)
    append(other[2], b"a")
    open_together([process[number] for number in (3, 2, 1, 0)])
    assert operations(process) == ["create", "active", "active"]
    actives = [state.active for state in process.head().partitions]
    for number in range(4):
        append(process[number], b"b")
    assert process.seen() == {number: [b"a", b"b"] if number == 2 else [b"b"] for number in range(4)}
    assert [state.active for state in process.head().partitions] == actives
    open_together([other[number] for number in range(4)])
    assert operations(process) == ["create", "active", "active"]
    assert process.anomalies() == ()


def test_of_partitions_that_cannot_all_be_opened_none_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, create = Process(new_topic(tmp_path / "events", partitions=3)), ActiveFile.create

    def refused(file: ActiveFile) -> None:
        if "events-1/" in file.path:
            raise StorageError("no such luck", file=file.path)
        create(file)

    with monkeypatch.context() as patches:
        patches.setattr(ActiveFile, "create", refused)
        with pytest.raises(StorageError, match="no such luck"):
            open_together([process[number] for number in range(3)])
    assert operations(process) == ["create"]
    for number in range(3):
        append(process[number], b"a")
    assert process.seen() == {number: [b"a"] for number in range(3)}
