"""Users who may append to a local topic can lock its partitions, and users who may only read it cannot."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import distlog
from distlog.core import paths
from distlog.core.errors import LockHeldError, StorageError
from distlog.core.log import live_snapshot
from distlog.core.log.live_snapshot import TailWatch
from distlog.core.log.partition_files import counters_in
from distlog.core.maintain.vacuum import removed_files_held
from distlog.core.storage.locks_and_pages import FileLock, counters_of, flocked, read_newest

NOBODY, GROUP = 65534, 54321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    old_umask = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old_umask)


def as_user(user: int, group: int, work: Callable[[], object]) -> None:
    """Do `work` in a child process of this user, and check that it raises nothing."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def modes(partition: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in partition.glob(".*")}


@pytest.mark.parametrize(("mask", "lock", "copy"), [(0o022, 0o600, 0o644), (0o002, 0o660, 0o664), (0, 0o666, 0o666)])
def test_a_lock_is_for_those_who_may_write_and_its_copy_for_those_who_may_read(
    folder: Path, mask: int, lock: int, copy: int
) -> None:
    with umask(mask):
        with FileLock(str(folder / ".lock")).held() as page:
            page.write(b"value")
        assert modes(folder) == {".lock": lock, ".lock.page": copy}


@needs_root
def test_a_user_with_read_rights_reads_new_records_and_locks_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = distlog.create(str(folder / "events"))
    partition = folder / "events" / "events-0"
    with topic.writer() as writer:
        writer.append(b"first")
        writer.flush()
        assert set(modes(partition)) == {".lock", ".lock.page", ".flush", ".flush.page"}
        assert len(distlog.open(topic.url).scan().to_table()) == 1

        def read(count: int) -> None:
            monkeypatch.setattr(live_snapshot.ActiveTail, "_walk", None)
            assert distlog.open(topic.url).end_offsets() == {0: count}
            assert len(distlog.open(topic.url).scan().to_table()) == count
            assert counters_in(str(partition)) == counters
            assert not lockable(partition)

        counters = counters_in(str(partition))
        as_user(NOBODY, NOBODY, lambda: read(1))

        watch = TailWatch(topic.handle)
        topic.refresh()

        def reads_new_records() -> None:
            assert watch.changed(topic.snapshot)
            assert not watch.changed(topic.snapshot)

        as_user(NOBODY, NOBODY, reads_new_records)
        writer.append(b"second")
        writer.flush()
        counters = counters_in(str(partition))
        as_user(NOBODY, NOBODY, lambda: read(2))


def lockable(partition: Path) -> list[str]:
    modes = []
    for name in (".lock", ".flush"):
        try:
            file = os.open(partition / name, os.O_RDONLY)
        except PermissionError:
            continue
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        modes.append(name)
    return modes


@needs_root
def test_a_user_with_read_rights_delays_no_restore_and_no_vacuum(folder: Path) -> None:
    topic = distlog.create(str(folder / "events"))
    commits = folder / "events" / "_commits"
    assert stat.S_IMODE((folder / "events" / paths.REMOVED_FILES_LOCK).stat().st_mode) == 0o600

    def lock_all() -> None:
        files = []
        for path in commits.iterdir():
            with suppress(PermissionError):
                files.append(os.open(path, os.O_RDONLY))
        assert files
        for file in files:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with removed_files_held(topic.storage):
        as_user(NOBODY, NOBODY, lock_all)


@needs_root
def test_members_of_a_group_that_may_write_restore_one_after_the_other(folder: Path) -> None:
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2775)
    with umask(0o002):
        topic = distlog.create(str(folder / "events"))
        topic.append([{"value": b"v"}])
        topic.delete_records({0: 1})
    as_user(NOBODY, GROUP, lambda: distlog.open(topic.url).restore(1) and None)
    assert len(distlog.open(topic.url).scan().to_table()) == 1


def test_a_wait_for_the_lock_of_removed_files_names_its_holder(folder: Path) -> None:
    topic = distlog.create(str(folder / "events"))
    path = topic.storage.local_path(paths.REMOVED_FILES_LOCK)
    with (
        removed_files_held(topic.storage),
        pytest.raises(LockHeldError, match=f"process {os.getpid()} has held the lock for more than 0.01 s"),
        flocked(path, 0.01),
    ):
        pass
    with flocked(path, 0):
        pass


def test_the_lock_of_removed_files_stays_when_the_topic_has_ended(folder: Path) -> None:
    topic = distlog.create(str(folder / "events"), config={"file.delete.delay.ms": 0})
    topic.drop()
    topic.vacuum()
    assert (folder / "events" / paths.REMOVED_FILES_LOCK).stat().st_size == 0
    assert distlog.topics(str(folder)) == []


def append(folder: Path, value: bytes) -> None:
    with distlog.open(str(folder / "events")).writer() as writer:
        writer.append(value)


@needs_root
def test_members_of_a_group_that_may_write_append_one_after_the_other(folder: Path) -> None:
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2775)
    with umask(0o002):
        distlog.create(str(folder / "events"))
        append(folder, b"of root")
        as_user(NOBODY, GROUP, lambda: append(folder, b"of another"))
        append(folder, b"of root again")
    values = distlog.open(str(folder / "events")).scan().to_table()["value"].to_pylist()
    assert values == [b"of root", b"of another", b"of root again"]


@needs_root
def test_a_topic_without_copies_can_be_read_by_those_who_may_not_open_the_lock(folder: Path) -> None:
    topic = distlog.create(str(folder / "events"))
    with topic.writer() as writer:
        writer.append(b"value")
    for copy in (folder / "events" / "events-0").glob(".*.page"):
        copy.unlink()

    def read() -> None:
        assert distlog.open(topic.url).end_offsets() == {0: 1}
        assert TailWatch(topic.handle).changed(distlog.open(topic.url).snapshot)

    as_user(NOBODY, NOBODY, read)


@needs_root
def test_members_of_a_group_append_where_a_copy_was_made_under_a_narrow_umask(folder: Path) -> None:
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2775)
    with umask(0o002):
        distlog.create(str(folder / "events"))
        append(folder, b"first")
    for copy in (folder / "events" / "events-0").glob(".*.page"):
        copy.unlink()
    with umask(0o022):
        append(folder, b"second")
    as_user(NOBODY, GROUP, lambda: append(folder, b"third"))
    assert len(distlog.open(str(folder / "events")).scan().to_table()) == 3


@pytest.mark.parametrize("name", [".lock", ".lock.page"])
@pytest.mark.parametrize("target", [b"others'", None])
def test_a_link_instead_of_a_lock_raises_and_is_not_followed(folder: Path, name: str, target: bytes | None) -> None:
    elsewhere = folder / "others"
    if target is not None:
        elsewhere.write_bytes(target)
        elsewhere.chmod(0o644)
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(StorageError, match="cannot open the lock"), FileLock(str(folder / ".lock")).held():
        pass
    if target is None:
        assert not elsewhere.exists()
    else:
        assert (elsewhere.read_bytes(), stat.S_IMODE(elsewhere.stat().st_mode)) == (target, 0o644)


def test_a_mount_without_chmod_accepts_appends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".lock").touch(0o644)

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchmod", refused)
    for _ in range(2):
        with FileLock(str(folder / ".lock")).held() as page:
            page.write(b"value")


@pytest.mark.parametrize("writes_before", [0, 1, 2, 3])
def test_a_copy_is_overwritten_with_its_page(folder: Path, writes_before: int) -> None:
    lock = FileLock(str(folder / ".lock"))
    # a copy with larger numbers than the page, as a power loss may leave it
    newer = FileLock(str(folder / ".newer"))
    with newer.held() as page:
        for number in range(9):
            page.write(b"of the newer copy %d" % number)
            page.add(number)
    shutil.copy(folder / ".newer.page", folder / ".lock.page")
    for number in range(writes_before):
        with lock.held() as page:
            page.write(b"%d" % number)
    # another process, which started before the change, or has just started
    other = FileLock(str(folder / ".lock"))
    for writer in (other, lock, other, lock, lock):
        with writer.held() as page:
            page.write(b"value of %d" % id(writer))
            page.add(1, 2)
        files = [(folder / name).read_bytes() for name in (".lock", ".lock.page")]
        assert read_newest((folder / ".lock.page").read_bytes) == page.read() == b"value of %d" % id(writer)
        assert counters_of(files[1]) == counters_of(files[0])


def test_the_next_writer_updates_the_copy_after_a_kill(folder: Path) -> None:
    path = folder / ".lock"
    first, second = FileLock(str(path)), FileLock(str(path))
    for number, lock in enumerate((first, second, first, second)):
        with lock.held() as page:
            page.write(b"%d" % number)
    old_page = (folder / ".lock.page").read_bytes()
    with first.held() as page:
        page.write(b"killed")
    with open(folder / ".lock.page", "r+b") as copy:
        copy.write(old_page)
    with second.held() as page:
        page.write(b"next")
    assert read_newest((folder / ".lock.page").read_bytes) == b"next"
