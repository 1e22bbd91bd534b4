"""Several files that are put at once: the order of the steps, and what is left when one of them fails."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from disk_calls import Calls

from distlog.core.errors import StorageError
from distlog.core.storage.storage import FileInfo, Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "root" / "topic"))


def test_each_folder_is_synced_once_for_many_files(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.put_many({"p-0/0": b"", "p-1/0": b""})
    calls = Calls(monkeypatch, Path(storage.url))
    storage.put_many({f"p-{partition}/{number}": b"1" for partition in (0, 1) for number in range(5)})
    assert [calls.made.count(f"fsync p-{partition}") for partition in (0, 1)] == [1, 1]
    assert calls.made.count("fsync temporary") == 10
    assert calls.made[-2].startswith("fsync p-")


def test_many_files_are_written_before_the_first_is_synced_and_synced_before_the_first_is_seen(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put("a", b"old")
    calls = Calls(monkeypatch, Path(storage.url))
    storage.put_many({"a": b"1", "b": b"2", "c": b"3"})
    steps = [call for call in calls.made if not call.startswith("close")]
    expected = [f"{step} temporary" for step in ("write", "fsync", "replace") for _ in "abc"]
    assert steps == [*expected, "fsync ."]


@pytest.mark.parametrize("broken", ["write", "fsync"])
def test_one_of_many_files_that_cannot_be_written_is_named_and_none_is_replaced(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    storage.put("a", b"old")
    real, count = getattr(os, broken), itertools.count()

    def second_fails(*arguments: Any) -> Any:
        if next(count) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(os, broken, second_fails)
    with pytest.raises(StorageError, match=r"No space left.*/b\b"):
        storage.put_many({"a": b"1", "b": b"2", "c": b"3"})
    assert storage.list() == [FileInfo("a", 3)]
    assert storage.read("a") == b"old"
