"""Large local files pass the page cache where the file system takes that, and are right where it does not."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from searches import examples

from distlog.core.arrays import PAGE_BYTES, address, new_pages
from distlog.core.errors import StorageError
from distlog.core.storage.storage import Storage

DIRECT = getattr(os, "O_DIRECT", 0)
#: What a writer gathers.
GATHERED = 1 << 20
PATTERN = np.frombuffer(bytes(range(251)) * (3 * GATHERED // 251 + 1), np.uint8)
SIZES = st.one_of(
    st.integers(0, 2 * GATHERED),
    st.sampled_from([GATHERED - 1, GATHERED, GATHERED + 1, 2 * GATHERED]),
)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def write_in_pieces(storage: Storage, name: str, sizes: list[int]) -> bytes:
    pieces = [PATTERN[number : number + size] for number, size in enumerate(sizes)]
    with storage.open_write(name) as writer:
        for piece in pieces:
            writer.write(piece)
    return b"".join(pieces)


def lying_as_in_the_file(position: int, size: int) -> np.ndarray:
    """Bytes that stand as far behind the start of a page of memory as `position` behind one of the file."""
    block = new_pages(size, position)
    block[:] = PATTERN[position % 251 :][:size]
    return block


@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SIZES, max_size=4))
def test_a_file_holds_what_was_written_however_it_was_cut(tmp_path: Path, sizes: list[int]) -> None:
    storage = Storage(str(tmp_path))
    written = write_in_pieces(storage, "a", sizes)
    assert storage.read("a") == written
    os.unlink(tmp_path / "a")


@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, GATHERED), st.booleans()), max_size=6))
def test_a_file_holds_what_was_written_wherever_it_lay_in_memory(
    tmp_path: Path, pieces: list[tuple[int, bool]]
) -> None:
    storage, written, before = Storage(str(tmp_path)), b"", np.empty(0, np.uint8)
    with storage.open_write("a") as writer:
        for size, is_apart in pieces:
            piece = lying_as_in_the_file(len(written) + is_apart, size)
            written += piece.tobytes()
            writer.write_behind(piece)
            before[:] = 0
            before = piece
    assert storage.read("a") == written
    os.unlink(tmp_path / "a")


def test_what_lies_in_memory_as_in_the_file_is_written_from_there(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = noted_writes(monkeypatch)
    first, second = lying_as_in_the_file(0, 600_000), lying_as_in_the_file(600_000, 600_000)
    with storage.open_write("a") as writer:
        writer.write_behind(first)
        writer.write_behind(second)
    rest = 600_000 % PAGE_BYTES
    head = PAGE_BYTES - rest
    end = 1_200_000 % PAGE_BYTES
    assert [call.places[-1] for call in calls[:2]] == [
        (address(first), 600_000 - rest),
        (address(second) + head, 600_000 - head - end),
    ]
    assert [call.places[0][1] for call in calls] == [0, PAGE_BYTES, end]
    assert storage.read("a") == first.tobytes() + second.tobytes()


def test_the_caller_may_reuse_its_buffer_at_once(storage: Storage) -> None:
    with storage.open_write("a") as writer:
        buffer = bytearray(b"first ")
        writer.write(buffer)
        buffer[:] = b"second"
        writer.write(buffer)
    assert storage.read("a") == b"first second"


def test_whole_pages_pass_the_page_cache_and_the_end_does_not(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not takes_direct_writes(Path(storage.url)):
        pytest.skip("this file system takes no direct writes")
    calls = noted_writes(monkeypatch)
    write_in_pieces(storage, "a", [700_000] * 4)
    rest = 2_800_000 % PAGE_BYTES
    assert [(call.is_direct, call.places[0][1]) for call in calls] == [
        (True, GATHERED),
        (True, GATHERED),
        (True, 2_800_000 - 2 * GATHERED - rest),
        (False, rest),
    ]


def test_a_file_system_that_refuses_direct_writes_is_written_as_usual(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(file: int, views: Sequence[memoryview]) -> int:
        if fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return writev(file, views)

    writev = os.writev
    monkeypatch.setattr(os, "writev", refusing)
    written = write_in_pieces(storage, "a", [GATHERED, 5, 2 * GATHERED])
    assert storage.read("a") == written


@pytest.mark.parametrize("taken", [0, 100, PAGE_BYTES, 3 * PAGE_BYTES, 400_000])
def test_a_write_that_takes_a_part_is_gone_on_with(
    taken: int, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    # as many bytes of all the views as the disk takes
    monkeypatch.setattr(os, "writev", lambda file, views: write(file, b"".join(views)[:taken]) if taken else 0)
    monkeypatch.setattr(os, "write", lambda file, view: write(file, view[: max(1, view.nbytes // 2)]))
    pieces = [lying_as_in_the_file(start, 600_077) for start in (0, 600_077)]
    with storage.open_write("a") as writer:
        for piece in pieces:
            writer.write_behind(piece)
    assert storage.read("a") == b"".join(pieces)


def test_a_full_disk_is_named_with_the_file_and_nothing_stays(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "writev", raising(errno.ENOSPC))
    with pytest.raises(StorageError, match=r"No space left on device.*a\.log"):
        write_in_pieces(storage, "a.log", [2 * GATHERED])
    assert os.listdir(storage.url) == []


def test_a_file_that_lacks_a_block_is_never_closed_as_if_it_were_whole(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_is_made_next_does_not_wait_for_the_disk(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    writev, may_write, allowed = os.writev, threading.Event(), []

    def waiting(file: int, views: Sequence[memoryview]) -> int:
        allowed.append(may_write.wait(60))
        return writev(file, views)

    monkeypatch.setattr(os, "writev", waiting)
    first, second = lying_as_in_the_file(0, 600_000), lying_as_in_the_file(600_000, 600_000)
    with storage.open_write("a") as writer:
        writer.write_behind(first)
        may_write.set()
        writer.write_behind(second)
    assert allowed == [True, True, True]
    assert storage.read("a") == first.tobytes() + second.tobytes()


def test_a_write_that_is_under_way_when_its_file_is_aborted_touches_no_other_file(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    writev, begun, may_write, written = os.writev, threading.Event(), threading.Event(), threading.Event()

    def slow(file: int, views: Sequence[memoryview]) -> int:
        begun.set()
        may_write.wait(60)
        size = writev(file, views)
        written.set()
        return size

    monkeypatch.setattr(os, "writev", slow)
    writer = storage.open_write("a")
    writer.write_behind(lying_as_in_the_file(0, 600_000))
    assert begun.wait(60)
    writer.abort()
    others = [os.open(Path(storage.url) / f"other-{number}", os.O_RDWR | os.O_CREAT) for number in range(5)]
    may_write.set()
    assert written.wait(60)
    assert [os.fstat(other).st_size for other in others] == [0] * 5
    assert sorted(os.listdir(storage.url)) == [f"other-{number}" for number in range(5)]
    for other in others:
        os.close(other)


@pytest.mark.parametrize("call", ["dup", "close"])
def test_a_descriptor_that_cannot_be_had_or_closed_is_an_error_with_the_file(
    call: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_twice() -> None:
        writer.write_behind(lying_as_in_the_file(0, 600_000))
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


def test_a_few_threads_write_many_files(storage: Storage) -> None:
    writers = [storage.open_write(str(number)) for number in range(20)]
    for writer in writers:
        writer.write_behind(lying_as_in_the_file(0, 600_000))
    assert sum(thread.name.startswith("distlog-background") for thread in threading.enumerate()) <= 4
    for writer in writers:
        writer.close()
    assert {file.size for file in storage.list()} == {600_000}


def test_a_sync_that_failed_is_not_tried_again(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
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


@dataclass(frozen=True)
class Write:
    """A system call: whether it passed the page cache, and (address, size) of what it wrote."""

    is_direct: bool
    places: list[tuple[int, int]]


def noted_writes(monkeypatch: pytest.MonkeyPatch) -> list[Write]:
    calls: list[Write] = []

    def noting(file: int, views: Sequence[memoryview]) -> int:
        is_direct = bool(fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT)
        calls.append(Write(is_direct, [(address(np.frombuffer(view, np.uint8)), view.nbytes) for view in views]))
        return writev(file, views)

    writev = os.writev
    monkeypatch.setattr(os, "writev", noting)
    return calls


def raising(number: int) -> Callable[..., int]:
    def fail(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


def takes_direct_writes(folder: Path) -> bool:
    probe = folder / "probe"
    try:
        file = os.open(probe, os.O_WRONLY | os.O_CREAT | DIRECT)
    except OSError:
        return False
    os.close(file)
    probe.unlink()
    return DIRECT != 0
