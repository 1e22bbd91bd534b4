"""The page of state in the file of a lock: a kill at any byte of a write leaves the previous value."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.errors import StorageFullError
from distlog.core.storage.locks_and_pages import MAX_VALUE_BYTES, PAGE_BYTES, FileLock, SharedPage, read_newest


@given(st.lists(st.binary(max_size=MAX_VALUE_BYTES), max_size=6))
def test_the_last_value_is_read_with_and_without_the_lock(values: list[bytes]) -> None:
    with page_in_memory() as (page, file):
        for value in values:
            page.write(value)
        expected = values[-1] if values else None
        assert page.read() == newest_value(os.pread(file, PAGE_BYTES, 0)) == expected


@given(st.binary(min_size=1, max_size=60), st.binary(min_size=1, max_size=60), st.data())
def test_a_torn_write_leaves_the_previous_or_the_new_value(first: bytes, second: bytes, data: st.DataObject) -> None:
    with page_in_memory() as (page, file):
        page.write(first)
        original_pread = os.pread(file, PAGE_BYTES, 0)
        page.write(second)
        after = os.pread(file, PAGE_BYTES, 0)
    changed = [number for number in range(PAGE_BYTES) if original_pread[number] != after[number]]
    for count in range(len(changed) + 1):
        torn = bytearray(original_pread)
        for number in changed[:count]:
            torn[number] = after[number]
        assert newest_value(bytes(torn)) == (second if count == len(changed) else first)
    written = data.draw(st.sets(st.sampled_from(changed)))
    torn = bytearray(original_pread)
    for number in written:
        torn[number] = after[number]
    assert newest_value(bytes(torn)) in (first, second)


def test_a_read_during_two_writes_returns_no_outdated_value() -> None:
    pages = []
    with page_in_memory() as (page, file):
        for number in range(4):
            page.write(b"value %d" % number)
            pages.append(os.pread(file, PAGE_BYTES, 0))
    # values 0 and 1 are stored: the first slot is sound, and the second is in the middle of a write of value 3
    torn = pages[1][:2048] + pages[3][2048:2060] + pages[1][2060:]
    assert newest_value(torn) == b"value 0"
    reads = [torn, pages[3]]
    assert read_newest(lambda: reads.pop(0)) == b"value 3"
    # as after a death in the middle of a write
    torn = pages[2][:2048] + pages[3][2048:2060] + pages[2][2060:]
    assert read_newest(lambda: torn) == b"value 2"


@given(
    st.lists(
        st.tuples(st.sampled_from(["one", "other"]), st.binary(max_size=20))
        | st.tuples(st.integers(1020, 3 * 1024), st.binary(min_size=1, max_size=12)),
        max_size=8,
    )
)
def test_a_cached_value_follows_changes_of_the_page(steps: list[tuple[str | int, bytes]]) -> None:
    with page_in_memory() as (page, file):
        pages = {"one": page, "other": SharedPage(file, "page")}
        for writer, value in steps:
            if isinstance(writer, str):
                pages[writer].write(value)
                assert page.read() == value
            else:
                # as a process that is killed during a write leaves it, or worse
                os.pwrite(file, value, writer)
            expected = newest_value(os.pread(file, PAGE_BYTES, 0))
            assert [shared_page.read() for shared_page in pages.values()] == [expected, expected]


def test_a_page_without_its_mark_has_no_cached_value() -> None:
    with page_in_memory() as (page, file):
        page.write(b"old")
        page.write(b"value")
        os.pwrite(file, b"?", 0)
        assert page.read() is None


@given(st.binary(max_size=PAGE_BYTES))
def test_random_bytes_are_not_a_value(junk: bytes) -> None:
    assert newest_value(junk) is None
    assert newest_value(b"DLGPAGE1" + junk.ljust(PAGE_BYTES, b"\0")[8:]) is None


def test_a_value_that_does_not_fit_is_refused() -> None:
    with page_in_memory() as (page, _), pytest.raises(ValueError, match="does not fit"):
        page.write(bytes(MAX_VALUE_BYTES + 1))


@pytest.mark.parametrize("data", [b"", bytes(PAGE_BYTES), b"\xa5" * PAGE_BYTES])
def test_a_page_is_usable_after_any_power_loss(path: str, data: bytes) -> None:
    Path(path).write_bytes(data)
    with FileLock(path).held() as page:
        page.write(b"new")
        assert page.read() == newest_value(Path(path).read_bytes()) == b"new"


def test_the_block_of_a_page_is_allocated(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed writer or a full disk can leave a hole: a write to its map on a full disk is a SIGBUS."""
    allocate, allocated = os.posix_fallocate, []

    def noted(descriptor: int, start: int, size: int) -> None:
        allocated.append((start, size))
        allocate(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", noted)
    Path(path).touch()
    os.truncate(path, PAGE_BYTES)
    for _ in range(2):
        with FileLock(path).held():
            pass
    assert allocated == 2 * [(0, PAGE_BYTES)]


def test_a_lock_on_a_full_disk_fails_and_leaks_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    lock, old_count = FileLock(path), len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StorageFullError), lock.held():
            pass
    assert len(os.listdir("/proc/self/fd")) == old_count
    with lock.held() as page:
        page.write(b"value")
    assert newest_value(Path(path).read_bytes()) == b"value"


def newest_value(page: bytes) -> bytes | None:
    return read_newest(lambda: page)


@contextmanager
def page_in_memory() -> Iterator[tuple[SharedPage, int]]:
    file = os.memfd_create("page")
    try:
        yield SharedPage(file, "page"), file
    finally:
        os.close(file)
