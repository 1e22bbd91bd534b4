"""Locks and small values that processes share: `flock`, and mapped pages of a file."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import struct
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from typing import NamedTuple

from crc32c import crc32c

from distlog.core import paths
from distlog.core.errors import LockHeldError, StorageError
from distlog.core.storage.local_files import OpenedFile, failing_as, make_folders, map_shared

# The page in a lock's file has two slots. A write fills the older one, so the newer value survives a kill during a
# write. The valid slot with the larger number applies, so readers need no lock; writers need a `FileLock`.
#
# The page survives processes in the page cache, but not a power loss: store the boot's id (`boot_id`) with a value.
#
# Users that may only read the topic may not open the file, since they could lock it. They read a copy of the page,
# in a second file (`copy_path`) that is written right after the page.
#
#     position  size  field
#            0     8  magic
#            8     8  process id of the last holder of the lock, for error messages only
#         1024  1024  slot 0: number uint64, length uint32, CRC-32C uint32 (of number, length and value), value
#         2048  1024  slot 1
#         3072    16  the boot's id, if the counters are of this boot
#         3088    64  counters, int64 of this machine, for measurements only

PAGE_BYTES = 4096
SLOT_BYTES = 1024
_MAGIC = b"DLGPAGE1"
_HOLDER = struct.Struct("<q")
_HOLDER_AT = 8
_SLOTS_AT = (1024, 2048)
_NUMBERS = struct.Struct("<QI")
_NUMBER = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_VALUE_AT = _NUMBERS.size + _CRC.size
MAX_VALUE_BYTES = SLOT_BYTES - _VALUE_AT
_BOOT_AT = 3072
_BOOT_BYTES = 16
COUNTER_COUNT = 8
_COUNTERS = struct.Struct(f"={COUNTER_COUNT}q")
_COUNTERS_AT = _BOOT_AT + _BOOT_BYTES
_COUNTERS_END = _COUNTERS_AT + _COUNTERS.size


class _Slot(NamedTuple):
    #: Counts the writes of the page, so the largest slot is the newest.
    number: int
    value: bytes
    position: int
    data: bytes

    @property
    def other_position(self) -> int:
        first, second = _SLOTS_AT
        return second if self.position == first else first


class SharedPage:
    """The page in the open file `descriptor`, created if missing or without its magic; writes go to `copy` too."""

    def __init__(self, descriptor: int, path: str, copy: SharedPage | None = None) -> None:
        status = os.fstat(descriptor)
        if status.st_size not in (0, PAGE_BYTES):
            raise _wrong_size(path, status.st_size)
        if not status.st_size or not status.st_blocks:
            # on a full disk, a write to a hole in the map would kill the process (SIGBUS)
            os.posix_fallocate(descriptor, 0, PAGE_BYTES)
        if os.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
            # the file is new, or was lost in a power loss; concurrent processes write the same bytes
            os.pwrite(descriptor, _MAGIC, 0)
        self._page = map_shared(descriptor, PAGE_BYTES)
        self._cached: _Slot | None = None
        # items of 8 bytes, so that readers read each atomically
        self._counters = self._page[_COUNTERS_AT:_COUNTERS_END].cast("q")
        self._is_counter_boot_checked = False
        # a copy may be older than the page, or newer after a power loss, so the first write copies everything
        self._copy = None if copy is None else copy._page
        self._is_copied = False

    @property
    def holder(self) -> int:
        """The id of the process that last called `record_holder`; the process may have ended."""
        return int(_HOLDER.unpack_from(self._page, _HOLDER_AT)[0])

    def record_holder(self, process_id: int) -> None:
        _HOLDER.pack_into(self._page, _HOLDER_AT, process_id)

    def read(self) -> bytes | None:
        slot = self._newest()
        return slot.value if slot else None

    def write(self, value: bytes) -> None:
        """Write `value`, at most MAX_VALUE_BYTES, into the older slot. Needs the lock."""
        if len(value) > MAX_VALUE_BYTES:
            raise ValueError(f"a value of {len(value)} bytes does not fit into a slot of {MAX_VALUE_BYTES}")
        newest = self._newest()
        number, position = (newest.number + 1, newest.other_position) if newest else (0, _SLOTS_AT[0])
        head = _NUMBERS.pack(number, len(value))
        data = head + _CRC.pack(crc32c(value, crc32c(head))) + value
        self._page[position : position + len(data)] = data
        self._cached = _Slot(number, value, position, data)
        if self._copy is not None:
            if self._is_copied:
                self._copy[position : position + len(data)] = data
            else:
                self._copy[_SLOTS_AT[0] : _BOOT_AT] = self._page[_SLOTS_AT[0] : _BOOT_AT]
                self._is_copied = True

    def add(self, *amounts: int) -> None:
        """Add an amount to each of the first counters. Needs the lock."""
        counters = self._counters
        if not self._is_counter_boot_checked and self._page[_BOOT_AT:_COUNTERS_AT] != boot_id():
            self._page[_BOOT_AT:_COUNTERS_END] = boot_id() + bytes(_COUNTERS.size)
        self._is_counter_boot_checked = True
        for index, amount in enumerate(amounts):
            counters[index] += amount
        if self._copy is not None:
            self._copy[_BOOT_AT:_COUNTERS_END] = self._page[_BOOT_AT:_COUNTERS_END]

    def _newest(self) -> _Slot | None:
        newest = self._cached
        if newest is None or not self._is_newest(newest):
            newest = self._cached = max(_valid_slots(self._page), default=None)
        return newest

    def _is_newest(self, slot: _Slot) -> bool:
        """Return whether a slot is unchanged and the other slot is older, without the cost of a checksum."""
        page = self._page
        is_same = page[slot.position : slot.position + len(slot.data)].tobytes() == slot.data
        return (
            is_same
            and _NUMBER.unpack_from(page, slot.other_position)[0] < slot.number
            and page[: len(_MAGIC)] == _MAGIC
        )


def _wrong_size(path: str, size: int) -> StorageError:
    text = "the lock file has the wrong size: delete it while no process uses the topic"
    return StorageError(text, file=path, size=size)


class WatchedPage:
    """Detects changes of the page in the file `path`, without the lock."""

    def __init__(self, path: str) -> None:
        with OpenedFile(_open_to_watch(path)) as file:
            if os.fstat(file).st_size != PAGE_BYTES:
                raise _wrong_size(path, os.fstat(file).st_size)
            # without the head and the counters, which are not part of the value
            self._slots = map_shared(file, PAGE_BYTES, writable=False)[_SLOTS_AT[0] : _BOOT_AT]
        self._last_value = b""

    def changed(self) -> bool:
        """Return whether a byte of the value changed since the last call; True at the first call."""
        last_value, self._last_value = self._last_value, self._slots.tobytes()
        return self._last_value != last_value


def copy_path(path: str) -> str:
    return path + paths.PAGE_COPY


def open_page(path: str) -> int:
    """Open the page in a lock's file for reading, or its copy if only writers may open the file."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return os.open(copy_path(path), os.O_RDONLY | os.O_CLOEXEC)


def _open_to_watch(path: str) -> int:
    # overlayfs (containers) copies a file of the image when it is first opened for writes, and an earlier map would
    # show the old file: so open it for writes, if allowed
    try:
        return os.open(path, _OPEN_FLAGS)
    except FileNotFoundError:
        raise
    except OSError:
        return open_page(path)


def read_newest(read: Callable[[], bytes]) -> bytes | None:
    """Return the newest valid value of a page. Reads again if a slot is torn, since it may be the newer slot."""
    slots = _valid_slots(read())
    if len(slots) < len(_SLOTS_AT):
        slots += _valid_slots(read())
    return max(slots).value if slots else None


def counters_of(page: bytes) -> tuple[int, ...]:
    """Return the counters in a page; zeros if nothing was counted since the boot."""
    if len(page) < PAGE_BYTES or page[_BOOT_AT:_COUNTERS_AT] != boot_id():
        return (0,) * COUNTER_COUNT
    return _COUNTERS.unpack_from(page, _COUNTERS_AT)


def _valid_slots(page: bytes | memoryview) -> list[_Slot]:
    if page[: len(_MAGIC)] != _MAGIC or len(page) < PAGE_BYTES:
        return []
    return [slot for slot in (_slot(page, position) for position in _SLOTS_AT) if slot is not None]


def _slot(page: bytes | memoryview, position: int) -> _Slot | None:
    data = bytes(page[position : position + SLOT_BYTES])
    number, length = _NUMBERS.unpack_from(data)
    if length > MAX_VALUE_BYTES:
        return None
    value = data[_VALUE_AT : _VALUE_AT + length]
    (checksum,) = _CRC.unpack_from(data, _NUMBERS.size)
    if crc32c(value, crc32c(data[: _NUMBERS.size])) != checksum:
        return None
    return _Slot(number, value, position, data[: _VALUE_AT + length])


@cache
def boot_id() -> bytes:
    """Return 16 bytes that change with every boot; zeros if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return bytes.fromhex(file.read().decode().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


# `flock` belongs to an open file, which a forked child shares: its copy would hold the lock after the parent's death.
# So a child closes its copies, and opens its own files. A file that was opened while another thread forked is opened
# again, since the child may have an unknown copy.
#
# If an interrupt comes between an open and its assignment, or two threads open the file, no object refers to the
# descriptor. This lost descriptor would hold the lock for the lifetime of the process. So one thread at a time opens
# the file (`_opening_lock`), and `release` unlocks the descriptor that was locked, even if the file was opened again.
# If a descriptor is lost after all, a thread that waits for the lock finds it, unlocks it and logs an error.

_log = logging.getLogger("distlog")

#: How long to wait for a lock. Holders need milliseconds, or about a second for a commit.
TIMEOUT_S = 60.0
#: A lock that is not free for this time is logged and inspected: its holder may be stopped or lost.
_LONG_S = 1.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 2e-3

#: Links are not followed: they may lead to another user's file, whose mode would change, or to a missing file.
_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW

#: Weak references to all locks of this process. Copying a set is atomic in CPython, so no lock guards it.
_locks: set[weakref.ref[FileLock]] = set()
#: How often this process started to fork.
_forks = 0
#: The number of forks between the first process and this process.
_generation = 0


class FileLock:
    """The lock and the page of the file `path`, not reentrant; a missing file is created, with its folder."""

    def __init__(
        self,
        path: str,
        timeout_s: float = TIMEOUT_S,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self._timeout_s = path, timeout_s
        self._sleep, self._monotonic = sleep, monotonic
        # `_thread_lock` excludes other threads; `_opening_lock` is held briefly, while the file is opened or closed
        self._thread_lock, self._opening_lock = threading.Lock(), threading.Lock()
        # descriptors, or -1: the open file, and the file that a thread locks (set before the lock is acquired)
        self._file = self._locked_file = -1
        self._is_held = False
        self._page: SharedPage | None = None
        # the first and the latest time at which this process found the lock held, without a gap of more than _LONG_S
        self._first_refusal_s: float | None = None
        self._last_refusal_s, self._is_logged = 0.0, False
        _locks.add(weakref.ref(self, _locks.discard))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if getattr(self, "_file", -1) >= 0:
            close(self._file)

    @property
    def page(self) -> SharedPage:
        """The page that processes share by this lock. Only writes need the lock."""
        return self._page or self._open()

    def held(self, timeout_s: float | None = None) -> LockGuard:
        """Hold the lock in a block. Raises LockHeldError, with the holder's process id, at the timeout."""
        return LockGuard(self, self._timeout_s if timeout_s is None else timeout_s)

    def acquire(self, timeout_s: float) -> SharedPage:
        end = self._monotonic() + timeout_s
        acquired: list[bool] = []
        try:
            # acquires and appends in one step of the interpreter: no interrupt comes between the two
            acquired.extend(map(self._thread_lock.acquire, (True,), (max(timeout_s, 0),)))
            if not acquired[0]:
                # the thread that holds `_thread_lock` may itself be waiting for another process
                raise _held_by([os.getpid()] if self._is_held else self._holders(), timeout_s, self.path)
            page = self._locked_page(end, timeout_s)
            page.record_holder(os.getpid())
        except BaseException:
            if any(acquired):
                self.release()
            raise
        return page

    def release(self) -> None:
        file, self._locked_file, self._is_held = self._locked_file, -1, False
        try:
            if file >= 0:
                fcntl.flock(file, fcntl.LOCK_UN)
                assert file == self._file, f"the file of a lock was opened again while it was held: {self.path}"
        finally:
            self._thread_lock.release()

    def is_free(self) -> bool:
        """Return whether the lock was free, or held by a lost descriptor, which this unlocks. Raises StorageError."""
        acquired: list[bool] = []
        try:
            acquired.extend(map(self._thread_lock.acquire, (False,)))
            if not acquired[0]:
                self._watch_holder(self._monotonic())
                return False
            if self._page is None:
                self._open()
            self._locked_file = self._file
            return self._try_lock() or self._watch_holder(self._monotonic())
        finally:
            if any(acquired):
                self.release()

    def excluding_threads(self) -> AbstractContextManager[object]:
        """Exclude the other threads of this process in the block, but not other processes."""
        return self._thread_lock

    def close(self) -> None:
        with self.excluding_threads():
            self.close_file()

    def close_file(self) -> None:
        """Close the file. The caller holds the lock, or is inside `excluding_threads`."""
        with self._opening_lock:
            file, self._file, self._page, self._locked_file = self._file, -1, None, -1
            if file >= 0:
                os.close(file)

    def reset_in_child(self) -> None:
        self._thread_lock, self._opening_lock, self._is_held = threading.Lock(), threading.Lock(), False
        self.close_file()

    def _open(self) -> SharedPage:
        with self._opening_lock, failing_as("open the lock", self.path):
            while self._page is None:
                forks = _forks
                make_folders(os.path.dirname(self.path))
                # if another process removes the file here, `file` has no links, and `_locked_page` opens a new one
                file = open_lock(self.path)
                try:
                    page = self._mapped()
                except BaseException:
                    os.close(file)
                    raise
                self._file = file
                if forks == _forks:
                    self._page = page
                else:
                    # a child that was forked since may have a copy of the descriptor, and would share the lock
                    self._file = -1
                    os.close(file)
            return self._page

    def _mapped(self) -> SharedPage:
        # map another open file than the locked one: a forked child inherits the map, and would keep the lock held
        with (
            OpenedFile(open_lock(self.path)) as mapped,
            OpenedFile(os.open(copy_path(self.path), _OPEN_FLAGS | os.O_CREAT, 0o666)) as copy,
        ):
            # all users that may append can write the copy, regardless of its creator's umask
            _set_mode_if_owner(copy, _mode_of(copy) | _mode_of(mapped))
            return SharedPage(mapped, self.path, SharedPage(copy, self.path))

    def _locked_page(self, end: float, timeout_s: float) -> SharedPage:
        while True:
            page = self.page
            self._locked_file = self._file
            self._lock(end, timeout_s)
            if os.fstat(self._file).st_nlink > 0:
                return page
            # the file was removed: other processes lock a new one
            self._is_held = False
            self.close_file()

    def _lock(self, end: float, timeout_s: float) -> None:
        pause_s = _SHORTEST_PAUSE_S
        while True:
            if self._try_lock():
                return
            if self._watch_holder(now := self._monotonic()):
                continue
            if now >= end:
                raise _held_by(self._holders(), timeout_s, self.path)
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise StorageError(f"cannot lock: {error.strerror}", file=self.path) from error
        self._is_held, self._first_refusal_s = True, None
        return True

    def _watch_holder(self, now: float) -> bool:
        """Log once if the lock is held for long. Returns True if this unlocked a lost descriptor that held it."""
        if self._first_refusal_s is None or now - self._last_refusal_s > _LONG_S:
            self._first_refusal_s, self._is_logged = now, False
        self._last_refusal_s = now
        if self._is_logged or now - self._first_refusal_s < _LONG_S:
            return False
        self._is_logged = True
        holders = self._holders()
        if os.getpid() in holders and _unlock_lost(self._file):
            _log.error("this process held a lock that none of its threads uses; unlocked it: %s", self.path)
            return True
        _log.warning("%s", _held_by(holders, _LONG_S, self.path))
        return False

    def _holders(self) -> list[int]:
        # without the lock, another thread may close the file concurrently
        with suppress(OSError):
            return _holders_of(self._file)
        return []


def open_lock(path: str) -> int:
    """Open a lock's file, created if missing; only users that may write the file may open it."""
    while True:
        try:
            file = os.open(path, _OPEN_FLAGS)
        except FileNotFoundError:
            _create_lock_file(path)
            continue
        _keep_readers_out(file)
        return file


def _create_lock_file(path: str) -> None:
    # the file gets its final mode before its name: the write bits of 0o622 less the umask, and read bits for the same
    temporary = os.path.join(os.path.dirname(path), paths.temporary_file(uuid.uuid4().hex))
    file = os.open(temporary, _OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o622)
    try:
        _keep_readers_out(file)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.close(file)
        os.unlink(temporary)


def _keep_readers_out(file: int) -> None:
    """Let the group, and all other users, read a file only if they may write it."""
    write_bits = _mode_of(file) & 0o022
    read_bits = write_bits << 1  # of the same users
    _set_mode_if_owner(file, 0o600 | write_bits | read_bits)


def _mode_of(file: int) -> int:
    return stat.S_IMODE(os.fstat(file).st_mode)


def _set_mode_if_owner(file: int, mode: int) -> None:
    status = os.fstat(file)
    if stat.S_IMODE(status.st_mode) != mode and os.geteuid() in (0, status.st_uid):
        # some mounts have no modes, or root may not change them: an append must not fail for this reason
        with suppress(OSError):
            os.fchmod(file, mode)


class LockGuard:
    """A FileLock that is held in a `with` block; leaving a block that was not entered does nothing."""

    __slots__ = ("_generation", "_lock", "_timeout_s")

    def __init__(self, lock: FileLock, timeout_s: float) -> None:
        self._lock, self._timeout_s, self._generation = lock, timeout_s, -1

    def __enter__(self) -> SharedPage:
        page = self._lock.acquire(self._timeout_s)
        self._generation = _generation
        return page

    def __exit__(self, *error: object) -> None:
        # a child that was forked in the block does not hold the lock, and must not release it for its other threads
        if self._generation == _generation:
            self._lock.release()


def _held_by(holders: list[int], timeout_s: float, path: str) -> LockHeldError:
    held = f"has held the lock for more than {timeout_s:g} s" if timeout_s > 0 else "holds the lock"
    return LockHeldError(
        f"{_holder_name(holders)} {held}: {_advice(holders)}", file=path, pid=holders[0] if holders else None
    )


def _holder_name(holders: list[int]) -> str:
    return (
        f"process {holders[0]}" if holders else "a process that /proc/locks does not show (as in another container)"
    )


def _advice(holders: list[int]) -> str:
    with suppress(OSError, IndexError), open(f"/proc/{holders[0]}/stat", "rb") as file:
        # the state follows the name in brackets, which may have any bytes
        if file.read().rpartition(b")")[2].split()[0] in (b"T", b"t"):
            return "it is stopped: continue it (SIGCONT), or end it"
    return "check what it waits for, or end it"


def _holders_of(file: int) -> list[int]:
    """Return the ids of the processes that hold the `flock` of an open file, as far as the system shows them."""
    status = os.fstat(file)
    device_and_inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    exact_pids, same_inode_pids = list[int](), list[int]()
    with suppress(OSError, ValueError), open("/proc/locks", encoding="ascii") as locks:
        for line in locks:
            # "1: FLOCK ADVISORY WRITE <pid> <device>:<inode> 0 EOF"; a waiting process has "->" after the number
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].endswith(f":{status.st_ino}"):
                # some file systems have another device here than in `stat`
                (exact_pids if fields[5] == device_and_inode else same_inode_pids).append(int(fields[4]))
    # 0 and -1 stand for unknown processes
    return sorted(pid for pid in exact_pids or same_inode_pids if pid > 0)


def _unlock_lost(file: int) -> int:
    """Unlock the lost descriptors that hold the lock of the open file `file`; returns their number."""
    try:
        count, status = 0, os.fstat(file)
    except OSError:
        return 0
    for name in os.listdir("/proc/self/fd"):
        # a copy stays the same open file, even if the descriptor is reused
        with suppress(OSError), OpenedFile(os.dup(int(name))) as copy:
            if int(name) != file and os.path.samestat(os.fstat(copy), status) and _holds(copy):
                count += _unlock_unused(int(name), copy)
    return count


def _unlock_unused(descriptor: int, copy: int) -> bool:
    """Unlock an open file unless a thread uses it through its FileLock; returns whether it was unlocked."""
    locks = [lock for reference in tuple(_locks) if (lock := reference()) and lock._file == descriptor]
    if not locks:
        fcntl.flock(copy, fcntl.LOCK_UN)
        return True
    if not locks[0]._thread_lock.acquire(blocking=False):
        return False
    try:
        fcntl.flock(copy, fcntl.LOCK_UN)
    finally:
        locks[0]._thread_lock.release()
    return True


def _holds(descriptor: int) -> bool:
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as info:
        return any(line.startswith("lock:") and " FLOCK " in line for line in info)


def _note_fork() -> None:
    global _forks
    _forks += 1


def _reset_all() -> None:
    global _generation
    _generation += 1
    for reference in tuple(_locks):
        lock = reference()
        if lock is not None:
            lock.reset_in_child()


os.register_at_fork(before=_note_fork, after_in_child=_reset_all)


@contextmanager
def flocked(path: str, timeout_s: float = TIMEOUT_S) -> Iterator[int]:
    """Hold the lock of the file `path` in a block; yields its descriptor. Nobody may ever remove the file."""
    with failing_as("open the lock", path):
        file = open_lock(path)
    try:
        with failing_as("lock", path):
            _lock_without_page(file, path, timeout_s)
        yield file
    finally:
        # a child that was forked in the block also has the open file, and must not hold the lock
        fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def _lock_without_page(file: int, path: str, timeout_s: float) -> None:
    end, pause_s, is_logged = time.monotonic() + timeout_s, _SHORTEST_PAUSE_S, False
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() >= end:
            raise _held_by(_holders_of(file), timeout_s, path)
        if not is_logged:
            _log.warning("waiting for a lock that %s holds: %s", _holder_name(_holders_of(file)), path)
            is_logged = True
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def ensure_lock_file(path: str) -> None:
    """Create a lock's file if missing, so that a full disk cannot prevent it later."""
    with failing_as("create the lock", path):
        os.close(open_lock(path))
