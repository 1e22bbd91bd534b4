"""Large local files bypass the page cache on file systems that support it, and are right on others."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from searches import examples

from distlog.core.arrays import PAGE_BYTES, new_pages
from distlog.core.errors import StorageError
from distlog.core.storage.storage import Storage

DIRECT = getattr(os, "O_DIRECT", 0)
#: The size of a writer's buffer.
GATHERED = 1 << 20
PATTERN = np.frombuffer(bytes(range(251)) * (3 * GATHERED // 251 + 1), np.uint8)
SIZES = st.one_of(
    st.integers(0, 2 * GATHERED),
    st.sampled_from([GATHERED - 1, GATHERED, GATHERED + 1, 2 * GATHERED]),
)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def write_in_parts(storage: Storage, name: str, sizes: list[int]) -> bytes:
    parts = [PATTERN[number : number + size] for number, size in enumerate(sizes)]
    with storage.open_write(name) as writer:
        for part in parts:
            writer.write(part)
    return b"".join(parts)


def aligned_as_in_the_file(position: int, size: int) -> np.ndarray:
    """Return bytes at the distance from a page of memory that `position` has from a page of the file."""
    block = new_pages(size, position)
    block[:] = PATTERN[position % 251 :][:size]
    return block


@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SIZES, max_size=4))
def test_a_file_holds_all_parts(tmp_path: Path, sizes: list[int]) -> None:
    storage = Storage(str(tmp_path))
    written = write_in_parts(storage, "a", sizes)
    assert storage.read("a") == written
    os.unlink(tmp_path / "a")


@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, GATHERED), st.booleans()), max_size=6))
def test_a_file_holds_parts_from_any_memory(tmp_path: Path, parts: list[tuple[int, bool]]) -> None:
    storage, written, previous = Storage(str(tmp_path)), b"", np.empty(0, np.uint8)
    with storage.open_write("a") as writer:
        for size, is_apart in parts:
            part = aligned_as_in_the_file(len(written) + is_apart, size)
            written += part.tobytes()
            writer.write_behind(part)
            previous[:] = 0
            previous = part
    assert storage.read("a") == written
    os.unlink(tmp_path / "a")


def test_a_file_system_that_refuses_direct_writes_is_written_as_usual(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(file: int, views: Sequence[memoryview]) -> int:
        if fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return writev(file, views)

    writev = os.writev
    monkeypatch.setattr(os, "writev", refusing)
    written = write_in_parts(storage, "a", [GATHERED, 5, 2 * GATHERED])
    assert storage.read("a") == written
    storage.put("b", written)
    assert storage.read("b") == written


@pytest.mark.parametrize("size", [2 * GATHERED - 1, 2 * GATHERED, 6 * GATHERED + 5])
def test_a_large_file_is_replaced_whole(storage: Storage, tmp_path: Path, size: int) -> None:
    content = bytes(range(251)) * (size // 251 + 1)
    storage.put("a", b"old")
    storage.put("a", content[:size])
    assert storage.read("a") == content[:size]
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("written_bytes", [0, 100, PAGE_BYTES, 3 * PAGE_BYTES, 400_000])
def test_a_short_write_is_continued(written_bytes: int, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    # writes that part of all the views
    monkeypatch.setattr(
        os, "writev", lambda file, views: write(file, b"".join(views)[:written_bytes]) if written_bytes else 0
    )
    monkeypatch.setattr(os, "write", lambda file, view: write(file, view[: max(1, view.nbytes // 2)]))
    parts = [aligned_as_in_the_file(start, 600_077) for start in (0, 600_077)]
    with storage.open_write("a") as writer:
        for part in parts:
            writer.write_behind(part)
    assert storage.read("a") == b"".join(parts)


def test_a_file_with_a_failed_write_cannot_be_closed(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = storage.open_write("a.log")
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", raising(errno.ENOSPC))
        writer.write(bytes(GATHERED))
        with pytest.raises(StorageError, match="cannot write: No space left"):
            writer.write(b"more")
    for step in (lambda: writer.write(b"more"), writer.close):
        with pytest.raises(StorageError, match=r"an earlier write of this file failed.*a\.log"):
            step()
    writer.abort()
    assert os.listdir(storage.url) == []


def test_a_write_in_flight_at_an_abort_touches_no_other_file(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    writev, started, may_write, written = os.writev, threading.Event(), threading.Event(), threading.Event()

    def slow(file: int, views: Sequence[memoryview]) -> int:
        started.set()
        may_write.wait(60)
        size = writev(file, views)
        written.set()
        return size

    monkeypatch.setattr(os, "writev", slow)
    writer = storage.open_write("a")
    writer.write_behind(aligned_as_in_the_file(0, 600_000))
    assert started.wait(60)
    writer.abort()
    other_files = [os.open(Path(storage.url) / f"other-{number}", os.O_RDWR | os.O_CREAT) for number in range(5)]
    may_write.set()
    assert written.wait(60)
    assert [os.fstat(other).st_size for other in other_files] == [0] * 5
    assert sorted(os.listdir(storage.url)) == [f"other-{number}" for number in range(5)]
    for other in other_files:
        os.close(other)


@pytest.mark.parametrize("call", ["dup", "close"])
def test_a_failed_dup_or_close_fails_with_the_file(
    call: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_twice() -> None:
        writer.write_behind(aligned_as_in_the_file(0, 600_000))
        writer.write_behind(b"more")

    writer = storage.open_write("a.log")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, raising(errno.EIO))
        with pytest.raises(StorageError, match=r"cannot write: Input/output error.*a\.log"):
            write_twice()
    with pytest.raises(StorageError, match="an earlier write of this file failed"):
        writer.close()
    writer.abort()
    assert os.listdir(storage.url) == []


def test_a_failed_sync_is_not_repeated(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = storage.open_write("a.log")
    writer.write(b"1")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raising(errno.EIO))
        with pytest.raises(StorageError, match="cannot write"):
            writer.close()
    with pytest.raises(StorageError, match="an earlier write of this file failed"):
        writer.close()
    writer.abort()
    assert os.listdir(storage.url) == []


def raising(number: int) -> Callable[..., int]:
    def fail(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail
