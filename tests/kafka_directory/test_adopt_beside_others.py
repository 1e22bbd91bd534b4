"""Several adoptions and exports at once, on a disk: one goes on, the others are refused, and no file is harmed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from log_dirs import golden_of, partition_of, read

import distlog
from distlog import StorageError
from distlog.core.kafka_directory import adopt, export


@pytest.mark.parametrize("way", ["in place", "copied"])
def test_of_two_adoptions_to_one_address_on_a_disk_the_second_is_refused(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = golden_of("first")["java-lz4-0"].records()
    folder = partition_of("first", tmp_path, "java-lz4-0")
    target = str(tmp_path / "copies" / "java-lz4") if way == "copied" else None
    real, seen = adopt._commit, []

    def commit(*arguments: Any) -> Any:
        # 1. all files of the first one are there; 2. a second one begins
        monkeypatch.setattr(adopt, "_commit", real)
        with pytest.raises(StorageError, match="another adoption") as error:
            distlog.adopt(folder, target)
        seen.append(error)
        return real(*arguments)

    monkeypatch.setattr(adopt, "_commit", commit)
    topic = distlog.adopt(folder, target).topic
    # 3. the first one's topic is whole
    assert seen
    assert read(topic) == records
    assert topic.verify().ok


def test_of_two_exports_into_one_log_directory_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [distlog.create(str(tmp_path / name)) for name in ("first", "second")]
    target, real = tmp_path / "logs", export._write_checkpoints

    def write(*arguments: Any) -> None:
        monkeypatch.setattr(export, "_write_checkpoints", real)
        with pytest.raises(StorageError, match="another export or adoption"):
            topics[1].export(target)
        real(*arguments)

    monkeypatch.setattr(export, "_write_checkpoints", write)
    topics[0].export(target)
    topics[1].export(target)
    assert (target / "replication-offset-checkpoint").read_text() == "0\n2\nfirst 0 0\nsecond 0 0\n"
