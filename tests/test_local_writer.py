"""Large local files pass the page cache where the file system takes that, and are right where it does not."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distlog.core.buffers import BLOCK_BYTES
from distlog.core.errors import StorageError
from distlog.core.storage.storage import Storage

DIRECT = getattr(os, "O_DIRECT", 0)
PATTERN = bytes(range(251)) * (3 * BLOCK_BYTES // 251 + 1)
SIZES = st.one_of(
    st.integers(0, 2 * BLOCK_BYTES),
    st.sampled_from([BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES]),
)

Write = Callable[[int, memoryview], int]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def write_in_pieces(storage: Storage, name: str, sizes: list[int]) -> bytes:
    pieces = [PATTERN[number : number + size] for number, size in enumerate(sizes)]
    with storage.open_write(name) as writer:
        for piece in pieces:
            writer.write(piece)
    return b"".join(pieces)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SIZES, max_size=4))
def test_a_file_holds_what_was_written_however_it_was_cut(tmp_path: Path, sizes: list[int]) -> None:
    storage = Storage(str(tmp_path))
    written = write_in_pieces(storage, "a", sizes)
    assert storage.read("a") == written
    os.unlink(tmp_path / "a")


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
    direct: list[tuple[bool, int]] = []

    def noting(real: Write) -> Write:
        def write(file: int, view: memoryview) -> int:
            direct.append((bool(fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT), view.nbytes))
            return real(file, view)

        return write

    monkeypatch.setattr(os, "write", noting(os.write))
    write_in_pieces(storage, "a", [700_000] * 4)
    rest = 2_800_000 % 4096
    assert direct == [
        (True, BLOCK_BYTES),
        (True, BLOCK_BYTES),
        (True, 2_800_000 - 2 * BLOCK_BYTES - rest),
        (False, rest),
    ]


def test_a_file_system_that_refuses_direct_writes_is_written_as_usual(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(real: Write) -> Write:
        def write(file: int, view: memoryview) -> int:
            if fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT:
                raise OSError(errno.EINVAL, "Invalid argument")
            return real(file, view)

        return write

    monkeypatch.setattr(os, "write", refusing(os.write))
    written = write_in_pieces(storage, "a", [BLOCK_BYTES, 5, 2 * BLOCK_BYTES])
    assert storage.read("a") == written


def test_a_write_that_takes_a_part_is_gone_on_with(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    def taking_a_part(real: Write) -> Write:
        def write(file: int, view: memoryview) -> int:
            if fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT:
                return real(file, view[:8192])
            return real(file, view[: max(1, view.nbytes // 2)])

        return write

    monkeypatch.setattr(os, "write", taking_a_part(os.write))
    written = write_in_pieces(storage, "a", [BLOCK_BYTES + 77, BLOCK_BYTES])
    assert storage.read("a") == written


def test_a_full_disk_is_named_with_the_file_and_nothing_stays(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", raising(errno.ENOSPC))
    with pytest.raises(StorageError, match=r"No space left on device.*a\.log"):
        write_in_pieces(storage, "a.log", [2 * BLOCK_BYTES])
    assert os.listdir(storage.url) == []


def test_a_file_that_lacks_a_block_is_never_closed_as_if_it_were_whole(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = storage.open_write("a.log")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", raising(errno.ENOSPC))
        with pytest.raises(StorageError, match="cannot write"):
            writer.write(bytes(BLOCK_BYTES))
    for step in (lambda: writer.write(b"more"), writer.close):
        with pytest.raises(StorageError, match=r"a part was lost before.*a\.log"):
            step()
    writer.abort()
    assert os.listdir(storage.url) == []


def test_a_sync_that_failed_is_not_tried_again(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = storage.open_write("a.log")
    writer.write(b"1")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raising(errno.EIO))
        with pytest.raises(StorageError, match="cannot write"):
            writer.close()
    with pytest.raises(StorageError, match="a part was lost before"):
        writer.close()
    writer.abort()
    assert os.listdir(storage.url) == []


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
