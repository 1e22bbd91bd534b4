"""IndexCache: one fetch, whole files only, bounded, shared by processes that know nothing of each other."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from distlog.core.errors import CorruptIndexError, StorageError
from distlog.core.format.indexes import IndexCache, default_folder
from distlog.core.storage.backend import Part
from distlog.core.storage.storage import Storage


@dataclass
class RemoteFiles:
    """A remote storage that counts the fetches."""

    files: dict[str, bytes]
    url: str = "s3://bucket/topic"
    is_local: bool = False
    fetched: list[str] = field(default_factory=list)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self.fetched.append(name)
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name][start:end]


@dataclass
class LocalFiles:
    folder: Path
    is_local: bool = True
    url: str = "/data/topic"

    def local_path(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(folder: Path) -> Any:
    return IndexCache(str(folder), 16_000)


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir() if file.name != ".listed"}


def test_a_remote_file_is_fetched_once(cache: Any, folder: Path) -> None:
    remote = RemoteFiles({"a.index": b"12345678"})
    path = cache.local_file(remote, Part.file("a.index", 8))[0]
    assert Path(path).read_bytes() == b"12345678"
    assert Path(path).parent == folder
    assert cache.local_file(remote, Part.file("a.index", 8))[0] == path
    assert IndexCache(str(folder), 16_000).local_file(remote, Part.file("a.index", 8))[0] == path
    assert remote.fetched == ["a.index"]


def test_a_local_file_is_returned_itself(cache: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.index").write_bytes(b"12345678")
    assert cache.local_file(LocalFiles(tmp_path), Part.file("a.index", 8))[0] == str(tmp_path / "a.index")
    assert not folder.exists()
    with pytest.raises(CorruptIndexError, match="the size of the index file differs"):
        cache.local_file(LocalFiles(tmp_path), Part.file("a.index", 16))
    with pytest.raises(FileNotFoundError):
        cache.local_file(LocalFiles(tmp_path), Part.file("b.index", 8))


def test_files_differ_by_storage_name_size_and_tag(cache: Any) -> None:
    remote = RemoteFiles({"a": b"11", "b": b"22", "c": b"333"})
    other = RemoteFiles({"a": b"44"}, url="s3://bucket/other")
    paths = [
        cache.local_file(remote, Part.file("a", 2))[0],
        cache.local_file(remote, Part.file("b", 2))[0],
        cache.local_file(other, Part.file("a", 2))[0],
        cache.local_file(remote, Part.file("a", 2), tag="other")[0],
        cache.local_file(remote, Part.file("c", 3))[0],
    ]
    assert [Path(path).read_bytes() for path in paths] == [b"11", b"22", b"44", b"11", b"333"]
    assert len(set(paths)) == 5


def test_a_file_of_another_size_is_corrupt_and_not_kept(cache: Any, folder: Path) -> None:
    remote = RemoteFiles({"a.index": b"1234567"})
    with pytest.raises(CorruptIndexError, match="the size of the index file differs") as caught:
        cache.local_file(remote, Part.file("a.index", 8))
    assert caught.value.details == {"file": "a.index", "size": 7, "expected": 8}
    assert names(folder) == set()


def test_a_missing_file_is_missing(cache: Any, folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cache.local_file(RemoteFiles({}), Part.file("a.index", 8))
    assert names(folder) == set()


@pytest.mark.parametrize("damage", [b"", b"1234", b"123456789"])
def test_a_copy_of_the_wrong_length_is_fetched_again(cache: Any, damage: bytes) -> None:
    remote = RemoteFiles({"a.index": b"12345678"})
    path = Path(cache.local_file(remote, Part.file("a.index", 8))[0])
    path.write_bytes(damage)
    assert Path(cache.local_file(remote, Part.file("a.index", 8))[0]).read_bytes() == b"12345678"
    assert len(remote.fetched) == 2


def test_a_deleted_copy_or_folder_is_fetched_again(cache: Any, folder: Path) -> None:
    remote = RemoteFiles({"a.index": b"12345678"})
    Path(cache.local_file(remote, Part.file("a.index", 8))[0]).unlink()
    Path(cache.local_file(remote, Part.file("a.index", 8))[0]).unlink()
    (folder / ".listed").unlink()
    folder.rmdir()
    assert Path(cache.local_file(remote, Part.file("a.index", 8))[0]).read_bytes() == b"12345678"


def test_a_failed_write_leaves_no_file(cache: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        cache.local_file(RemoteFiles({"a": b"1"}), Part.file("a", 1))
    assert names(folder) == set()


def age(path: str, seconds: int) -> None:
    os.utime(path, (seconds, seconds))


def test_the_least_recently_used_copies_go_first(folder: Path) -> None:
    remote = RemoteFiles({str(number): bytes(1000) for number in range(30)})
    filler = IndexCache(str(folder), 1 << 20)
    paths = [filler.local_file(remote, Part.file(str(number), 1000))[0] for number in range(20)]
    for number, path in enumerate(paths):
        age(path, 1000 + number)
    assert filler.local_file(remote, Part.file("3", 1000))[0] == paths[3]
    age(str(folder / ".listed"), 1000)
    last = IndexCache(str(folder), 16_000).local_file(remote, Part.file("29", 1000))[0]
    retained = {Path(path).name for path in [*paths[7:], paths[3], last]}
    assert names(folder) == retained
    assert sum(file.stat().st_size for file in folder.iterdir()) == 15_000


def test_a_folder_that_was_listed_just_before_is_not_listed_for_the_first_copy_of_a_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, scandir = list[int](), os.scandir

    def counted(path: str) -> Any:
        looks.append(1)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    remote = RemoteFiles({str(number): bytes(100) for number in range(30)})
    for number in range(20):
        IndexCache(str(folder), 16_000).local_file(remote, Part.file(str(number), 100))
    assert len(looks) == 1
    for number, ahead_s in ((20, -61), (21, 61)):
        age(str(folder / ".listed"), int(folder.stat().st_mtime) + ahead_s)
        IndexCache(str(folder), 16_000).local_file(remote, Part.file(str(number), 100))
    assert len(looks) == 3


def test_one_process_stays_within_the_limit(folder: Path) -> None:
    cache = IndexCache(str(folder), 160_000)
    remote = RemoteFiles({str(number): bytes(1000) for number in range(400)})
    for number in range(400):
        cache.local_file(remote, Part.file(str(number), 1000))
        assert sum(file.stat().st_size for file in folder.iterdir()) <= 160_000
    assert len(names(folder)) > 140
    assert remote.fetched == [str(number) for number in range(400)]


def test_a_just_returned_copy_stays_with_any_time(cache: Any, folder: Path) -> None:
    remote = RemoteFiles({str(number): bytes(9000) for number in range(60)})
    paths = []
    for number in range(60):
        paths.append(cache.local_file(remote, Part.file(str(number), 9000))[0])
        age(paths[-1], 1000 - number)
    assert all(os.path.exists(path) for path in paths)


def test_only_copies_are_ever_deleted(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "thesis.txt").write_bytes(bytes(50_000))
    (folder / "deadbeef").mkdir()
    age(str(folder / "thesis.txt"), 1)
    cache = IndexCache(str(folder), 16_000)
    cache.local_file(RemoteFiles({"a": bytes(9000)}), Part.file("a", 9000))
    cache.local_file(RemoteFiles({"b": bytes(9000)}), Part.file("b", 9000))
    assert {"thesis.txt", "deadbeef"} < names(folder)


def test_files_that_a_killed_process_left_half_written_go_after_an_hour(cache: Any, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    now = (folder.stat().st_mtime_ns // 10**9) + 1
    old, young = folder / ("a" * 64 + ".x1_yz"), folder / ("b" * 64 + ".x2_yz")
    for file, seconds in ((old, now - 4000), (young, now - 3000)):
        file.write_bytes(bytes(20_000))
        age(str(file), seconds)
    cache.local_file(RemoteFiles({"a": bytes(1000)}), Part.file("a", 1000))
    assert not old.exists()
    assert young.exists()


def hammer(folder: str, url: str, seed: int, result: Any) -> None:
    """Use a cache far too small for the files, in an order by seed; put (lookups, wrong contents, failed races)."""
    files = {str(number): bytes([number]) * (200 + number) for number in range(40)}
    cache, remote = IndexCache(folder, 3000), RemoteFiles(files, url=url)
    wrong = failed = 0
    for step in range(600):
        name = str((step * (seed * 2 + 1) + seed) % 40)
        try:
            wrong += Path(cache.local_file(remote, Part.file(name, 200 + int(name)))[0]).read_bytes() != files[name]
        except FileNotFoundError:
            failed += 1
    result.put((seed, wrong, failed))


def test_four_processes_share_a_folder_that_is_too_small_for_them(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    result = context.Queue()
    workers = [
        context.Process(target=hammer, args=(str(folder), "s3://bucket/topic", seed, result)) for seed in range(4)
    ]
    for worker in workers:
        worker.start()
    outcomes = sorted(result.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    assert [(seed, wrong) for seed, wrong, _ in outcomes] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert sum(races for *_, races in outcomes) < 600
    assert all(len(name) == 64 for name in names(folder))


def test_the_folder_is_for_its_user_alone(cache: Any, folder: Path) -> None:
    path = cache.local_file(RemoteFiles({"a": b"1"}), Part.file("a", 1))[0]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert Path(path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_a_folder_open_to_others_is_refused(cache: Any, folder: Path, mode: int) -> None:
    remote = RemoteFiles({"a": b"1"})
    cache.local_file(remote, Part.file("a", 1))
    folder.chmod(mode)
    with pytest.raises(StorageError, match="with mode 0700: delete it"):
        cache.local_file(remote, Part.file("a", 1))


def test_a_folder_of_another_user_is_refused(cache: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(StorageError, match="with mode 0700: delete it"):
        cache.local_file(RemoteFiles({"a": b"1"}), Part.file("a", 1))


def test_a_link_or_a_file_as_the_folder_is_refused(cache: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="with mode 0700: delete it"):
        cache.local_file(RemoteFiles({"a": b"1"}), Part.file("a", 1))
    folder.unlink()
    folder.touch(mode=0o700)
    with pytest.raises(StorageError, match="with mode 0700: delete it"):
        cache.local_file(RemoteFiles({"a": b"1"}), Part.file("a", 1))


def test_the_default_folder_is_temporary_and_names_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert os.path.dirname(default_folder()) == str(tmp_path)
    assert str(os.getuid()) in os.path.basename(default_folder())
    assert IndexCache().folder == default_folder()


def test_a_real_storage_serves(cache: Any, memory_url: Any) -> None:
    storage = Storage(*memory_url)
    storage.put("a/b.index", b"12345678")
    path = cache.local_file(storage, Part.file("a/b.index", 8))[0]
    storage.delete(["a/b.index"])
    assert Path(cache.local_file(storage, Part.file("a/b.index", 8))[0]).read_bytes() == b"12345678"
    assert cache.local_file(storage, Part.file("a/b.index", 8))[0] == path
    with pytest.raises(FileNotFoundError):
        cache.local_file(storage, Part.file("a/c.index", 8))


def test_a_cache_pickles(cache: Any, folder: Path) -> None:
    remote = RemoteFiles({"a": b"1"})
    path = cache.local_file(remote, Part.file("a", 1))[0]
    copy = pickle.loads(pickle.dumps(cache))
    assert copy.local_file(remote, Part.file("a", 1))[0] == path
    assert remote.fetched == ["a"]
