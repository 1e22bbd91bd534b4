"""Local files: syncs, crashes at every step, and faulty disks."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from disk_calls import Calls
from forked_programs import run
from open_files import open_below

from distlog.core.errors import CommitStateUnknownError, StorageError
from distlog.core.storage.local_files import sync_folder
from distlog.core.storage.storage import FileInfo, Storage

NAME = "_commits/00000000000000000007.json"
#: The number of files that one call reads.
OURS, THEIRS = b'{"id": "ours"}', b'{"id": "theirs"}'


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "root" / "topic"))


def test_a_commit_syncs_file_then_links_then_syncs_the_folder(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put("_commits/first", b"1")
    calls = Calls(monkeypatch, Path(storage.url))
    storage.put_if_absent(NAME, OURS)
    order = [call for call in calls.calls_made if not call.startswith("close")]
    assert order == [
        "write temporary",
        "fsync temporary",
        "link temporary",
        "unlink temporary",
        "fsync _commits",
    ]


def test_new_folders_are_synced_in_their_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync_folder(str(tmp_path))
    storage = Storage(str(tmp_path / "a" / "b"))
    calls = Calls(monkeypatch, tmp_path)
    storage.put("c/file", b"1")
    order = [call for call in calls.calls_made if not call.startswith("close")]
    assert order == [
        *("mkdir a", "fsync ."),
        *("mkdir a/b", "fsync a"),
        *("mkdir a/b/c", "fsync a/b"),
        *("write temporary", "fsync temporary", "replace temporary", "fsync a/b/c"),
    ]


def test_a_writer_is_synced_when_it_closes(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.put("p-0/first", b"1")
    calls = Calls(monkeypatch, Path(storage.url))
    with storage.open_write("p-0/a.log") as writer:
        writer.write(b"12")
        assert "fsync p-0/a.log" not in calls.calls_made
    assert calls.calls_made == ["writev p-0/a.log", "fsync p-0/a.log", "close p-0/a.log", "fsync p-0", "close p-0"]


def test_a_writer_does_not_replace_a_file(storage: Storage) -> None:
    storage.put("a", b"1")
    with pytest.raises(StorageError, match="exists"):
        storage.open_write("a")
    assert storage.read("a") == b"1"


#: Puts a file in its own folders, in children that each end at a system call, until one completes.
CRASHES = """
import itertools, os, sys
from distlog.core.storage.storage import Storage

root, method, name, old, new, when, *calls = sys.argv[1:]
for step in itertools.count(1):
    storage = Storage(f"{root}/{step}")
    if old:
        storage.put(name, old.encode())
    if not (child := os.fork()):
        break
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 9:
        print(step - 1, flush=True)
        os._exit(0)
left = step

def ending(real):
    def call(*arguments, **options):
        global left
        left -= 1
        if not left and when == "before":
            os._exit(9)
        try:
            return real(*arguments, **options)
        finally:
            if not left:
                os._exit(9)
    return call

for each in calls:
    setattr(os, each, ending(getattr(os, each)))
try:
    getattr(storage, method)(name, new.encode())
finally:
    os._exit(0)
"""


def crashed(root: Path, method: str, name: str, data: bytes, *, when: str, old: bytes = b"") -> Iterator[Storage]:
    """Yield the storages of processes that ended, one `when` each system call of a put of `data`."""
    arguments = (root, method, name, old.decode(), data.decode(), when, *Calls.NAMES)
    for step in range(int(run(CRASHES, *arguments, check=True).stdout)):
        yield Storage(root / str(step + 1))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_leaves_a_whole_commit_or_none(tmp_path: Path, when: str) -> None:
    contents = []
    for storage in crashed(tmp_path, "put_if_absent", NAME, OURS, when=when):
        contents.append([file.name for file in storage.list("_commits") if not file.name.endswith(".tmp")])
        standing = storage.put_if_absent(NAME, THEIRS)
        assert standing == storage.read(NAME) == (OURS if contents[-1] else THEIRS)
    assert contents == sorted(contents)
    assert {str(names) for names in contents} == {"[]", str([NAME])}


def test_a_crash_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    name = "_commits/_last_checkpoint"
    contents = [storage.read(name) for storage in crashed(tmp_path, "put", name, b"newer", when="after", old=b"old")]
    assert contents == sorted(contents, reverse=True)
    assert set(contents) == {b"old", b"newer"}


def failing(real: Callable[..., Any], number: int, *, after: bool, times: int = 1) -> Callable[..., Any]:
    """Wrap `real` to fail with errno `number` the first `times`, before or after its work."""
    remaining_failures = [times]

    def call(*arguments: Any, **options: Any) -> Any:
        remaining_failures[0] -= 1
        if remaining_failures[0] < 0:
            return real(*arguments, **options)
        if after:
            real(*arguments, **options)
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_link_with_a_lost_response_succeeds(storage: Storage, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "link", failing(os.link, number, after=True))
    assert storage.put_if_absent(NAME, OURS) == OURS
    assert storage.counters.gets == 0, "the count of links is used, which no cache of names hides"
    assert storage.list("_commits") == [FileInfo(NAME, len(OURS))]


@pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO, errno.ESTALE])
def test_a_failed_link_is_retried(storage: Storage, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "link", failing(os.link, number, after=False, times=2))
    assert storage.put_if_absent(NAME, OURS) == OURS


def test_a_link_that_never_answers_is_unknown(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(os.link, errno.EIO, after=False, times=10**6))
    with pytest.raises(CommitStateUnknownError, match="unknown whether the storage"):
        storage.put_if_absent(NAME, OURS, timeout_s=0.05)
    assert storage.list("_commits") == []


def test_a_file_system_without_hard_links_is_refused(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(os.link, errno.EPERM, after=False, times=1000))
    with pytest.raises(StorageError, match="hard links"):
        storage.probe_put_if_absent("_commits")
    assert storage.list("_commits") == []


def test_a_folder_that_cannot_be_synced_leaves_the_outcome_unknown(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put("_commits/first", b"1")
    real = os.fsync
    calls: list[int] = []

    def second_fails(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.EIO, "disk trouble")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", second_fails)
    with pytest.raises(CommitStateUnknownError, match="disk trouble"):
        storage.put_if_absent(NAME, OURS)


@pytest.mark.parametrize("broken", ["write", "fsync", "replace"])
def test_a_full_disk_is_an_error_and_leaves_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    storage.put("p-0/a", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, broken, failing(getattr(os, broken), errno.ENOSPC, after=False, times=10**6))
        with pytest.raises(StorageError, match="No space left"):
            storage.put("p-0/a", b"new")
    assert storage.list("p-0") == [FileInfo("p-0/a", 3)]
    assert storage.read("p-0/a") == b"old"


def test_a_writer_on_a_full_disk_leaves_nothing(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in ("writev", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, broken, failing(getattr(os, broken), errno.ENOSPC, after=False))
            with pytest.raises(StorageError, match="No space left"), storage.open_write(broken) as writer:
                writer.write(b"1")
    assert storage.list() == []


def test_short_writes_and_reads_are_continued(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 10
    write, pread = os.write, os.pread
    monkeypatch.setattr(os, "write", lambda file, view: write(file, view[:100]))
    monkeypatch.setattr(os, "pread", lambda file, size, position: pread(file, min(size, 99), position))
    storage.put("a", data)
    assert storage.read("a") == data
    assert storage.read("a", 5, 2000) == data[5:2000]


def test_a_file_instead_of_a_folder_fails(storage: Storage) -> None:
    storage.put("a", b"1")
    for call in (lambda: storage.put("a/b", b"2"), lambda: storage.list("a"), lambda: storage.read("a/b")):
        with pytest.raises(StorageError, match="Not a directory"):
            call()


def test_a_map_outlives_the_deletion_of_its_file(storage: Storage) -> None:
    storage.put("a", b"12345")
    view = storage.map("a")
    storage.delete(["a"])
    assert bytes(view) == b"12345"


def test_many_files_are_read_together_and_count_each(storage: Storage) -> None:
    files = {f"{number}-\u00e4": os.urandom(number * 1000) for number in range(50)}
    storage.put_many(files)
    ranges = [(name, min(7, len(data)), len(data)) for name, data in files.items()]
    storage.counters.gets = storage.counters.bytes_read = 0
    content = storage.read_joined(ranges)
    assert bytes(content) == b"".join(data[7:] for data in files.values())
    assert (storage.counters.gets, storage.counters.bytes_read) == (50, len(content))
    assert open_below(Path(storage.url)) == []


@pytest.mark.parametrize(("name", "error"), [("b", "shorter.*file=b"), ("folder", "Is a dir"), ("c/d", "Not a")])
def test_one_of_many_files_that_cannot_be_read_is_named(storage: Storage, name: str, error: str) -> None:
    storage.put_many({"a": bytes(10), "b": bytes(4), "c": bytes(10), "folder/e": b""})
    with pytest.raises(StorageError, match=error):
        storage.read_joined([("a", 0, 10), (name, 0, 5), ("c", 0, 10)])
    with pytest.raises(FileNotFoundError, match="missing"):
        storage.read_joined([("a", 0, 10), ("missing", 0, 10), ("c", 0, 10)])
    assert open_below(Path(storage.url)) == []


def test_each_folder_is_synced_once_for_many_files(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.put_many({"p-0/0": b"", "p-1/0": b""})
    calls = Calls(monkeypatch, Path(storage.url))
    storage.put_many({f"p-{partition}/{number}": b"1" for partition in (0, 1) for number in range(5)})
    assert [calls.calls_made.count(f"fsync p-{partition}") for partition in (0, 1)] == [1, 1]
    assert calls.calls_made.count("fsync temporary") == 10
    assert calls.calls_made[-2].startswith("fsync p-")


def test_many_files_are_written_synced_and_then_published(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.put("a", b"old")
    calls = Calls(monkeypatch, Path(storage.url))
    storage.put_many({"a": b"1", "b": b"2", "c": b"3"})
    steps = [call for call in calls.calls_made if not call.startswith("close")]
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
