"""Reads, maps and writes files on a local or network disk. A written file is durable when the call returns."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from distlog.core import paths
from distlog.core.arrays import BLOCK_BYTES, PAGE_BYTES, byte_view, lies_in_pages, new_array, new_pages
from distlog.core.errors import (
    CommitStateUnknownError,
    DistlogError,
    StorageDeniedError,
    StorageError,
    StorageFullError,
)
from distlog.core.storage.backend import (
    LOCAL_RACERS,
    MAX_CONDITIONAL_BYTES,
    Entries,
    FileInfo,
    ObjectWriter,
    PutTime,
    StorageCounters,
    UnfinishedUpload,
    check_one_wins,
    check_process,
)
from distlog.core.storage.calls import Deadline, ErrorClassifier, ErrorKind, Task, begin, resolve_put
from distlog.core.times import now_ms

if TYPE_CHECKING:
    from typing_extensions import Buffer

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_DIRECTORY | os.O_CLOEXEC
#: Opens a folder for a path or a delete, without a permission to read it, if the system has this flag.
_PATH_ONLY: int = getattr(os, "O_PATH", os.O_RDONLY)
_DIRECT: int = getattr(os, "O_DIRECT", 0)
_GATHER_BYTES = BLOCK_BYTES // 2  # the bytes that are gathered before they are written
_MIN_UNCOPIED_BYTES = 1 << 18  # the least bytes that `write_behind` writes without a copy
#: A buffer up to this size is allocated without a check of the files' sizes, as a wrong size then costs little.
_UNCHECKED_BYTES = 8 << 20
#: The most DURABLE_FOLDERS. With more, all are forgotten, and each then costs a sync or two of its parents.
_MAX_DURABLE_FOLDERS = 16_384

_READ_ONLY_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_HARD_LINKS_ERRNOS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_UNCLEAR_ERRNOS = (errno.EEXIST, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN, errno.EBUSY)
_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_HINTS = {
    errno.EMFILE: "raise the limit of the process (ulimit -n)",
    errno.ENOTDIR: "a part of the path is a file, not a folder: check the address",
}
LINK_ERROR = "refusing to follow a link, which may lead to other users' files: remove it"

MOUNT_TABLE = "/proc/self/mountinfo"
LOCAL_FILE_SYSTEMS = {
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "overlay", "ramfs", "reiserfs", "tmpfs",
    "ubifs", "xfs", "zfs",
}  # fmt: skip

T = TypeVar("T")


class LocalFiles:
    """The backend for absolute paths in `root`. Reads follow links if `follows_links`; writes and lists never do."""

    def __init__(self, counters: StorageCounters, root: str, *, follows_links: bool = True) -> None:
        self._counters, self._root, self._follows_links = counters, root, follows_links

    def without_links(self) -> LocalFiles:
        return LocalFiles(self._counters, self._root, follows_links=False)

    def read(self, path: str, start: int, end: int | None) -> bytes:
        data = self._use_file("read", path, lambda file: _pread(file, start, end))
        self._counters.bytes_read += len(data)
        return data

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[memoryview]:
        """See `Storage.read_ranges`; opens a file once for consecutive ranges."""
        parts: list[bytes] = []
        for path, group in itertools.groupby(ranges, key=itemgetter(0)):
            spans = [(start, end) for _, start, end in group]
            parts += self._use_file("read", path, lambda file: [_pread(file, *span) for span in spans])  # noqa: B023
        self._counters.bytes_read += sum(map(len, parts))
        return [memoryview(data) for data in parts]

    def read_joined(self, ranges: Sequence[tuple[str, int, int]]) -> memoryview:
        """See `Storage.read_joined`. Ends after the first range that its file is too short for."""
        sizes = [max(end - start, 0) for _, start, end in ranges]
        if sum(sizes) > _UNCHECKED_BYTES:
            # a wrong size in the metadata must not allocate more than the files have
            sizes = [max(min(end, self.size(path)) - start, 0) for path, start, end in ranges]
        memory = new_array(sum(sizes), np.uint8)
        buffer, position = memory.data, 0
        for (path, start, end), size in zip(ranges, sizes, strict=True):
            count = self._use_file("read", path, partial(_fill, buffer[position : position + size], start))
            position += count
            if count < end - start:
                break
        self._counters.bytes_read += position
        return buffer[:position].toreadonly()

    def map(self, path: str, start: int, end: int | None) -> memoryview:
        return self._use_file("map", path, partial(map_sealed, start=start, end=end))

    def size(self, path: str) -> int:
        return self._status(path).st_size

    def _status(self, path: str) -> os.stat_result:
        try:
            return os.stat(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LOCAL_ERRORS.failure("stat", path, error) from error

    def put_many(self, files: Mapping[str, Buffer]) -> None:
        """See `Storage.put_many`; files are replaced atomically."""
        replace_files(files)
        for data in files.values():
            self._count_put(data)
        for folder in dict.fromkeys(map(os.path.dirname, files)):
            with failing_as("put", folder):
                sync_folder(folder)

    def put_if_absent(self, path: str, data: bytes, timeout_s: float, put_time: PutTime) -> bytes:
        """See `Storage.put_if_absent`: it links a durable temporary file to the name; only one writer can."""
        temporary = write_temporary(path, data)
        self._count_put(data)
        attempts = itertools.count()

        def link() -> bytes:
            next(attempts)
            try:
                os.link(temporary, path)
            except OSError as error:
                if error.errno in _NO_HARD_LINKS_ERRNOS:
                    text = "commits need hard links, which this file system lacks: use another one"
                    raise StorageError(text) from error
                # over NFS the response can be lost; the number of links shows whether the link was created
                if os.stat(temporary).st_nlink != 2:
                    raise
            return data

        try:
            existing = resolve_put(
                link, lambda: self.read(path, 0, MAX_CONDITIONAL_BYTES + 1), path, LOCAL_ERRORS, Deadline(timeout_s)
            )
            is_only_attempt = next(attempts) == 1  # each attempt of `link` took a number, from 0 on
            put_time.time_ms = _linked_ms(temporary) if existing == data and is_only_attempt else 0
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        self.sync(os.path.dirname(path))
        return existing

    def probe_put_if_absent(self, folder: str, timeout_s: float) -> None:
        """See `Storage.probe_put_if_absent`; a put needs no probe, since links are atomic."""
        path = f"{folder}/{paths.probe_file(uuid.uuid4().hex)}"
        try:
            check_one_wins(
                lambda data: self.put_if_absent(path, data, timeout_s, PutTime()),
                lambda: self.delete([path]),
                folder,
                racers=LOCAL_RACERS,
            )
        except StorageDeniedError:
            while not os.path.exists(folder):  # the nearest existing folder denied it
                folder = os.path.dirname(folder)
            raise StorageDeniedError(f"cannot write to {folder}: permission denied") from None

    def sync(self, folder: str) -> None:
        try:
            sync_folder(folder)
        except OSError as error:
            text = f"the file was written, but its folder cannot be made durable: {error.strerror}"
            raise CommitStateUnknownError(text, folder=folder) from error

    def open_write(self, path: str, part_bytes: int | None = None) -> LocalWriter:
        return LocalWriter(path, self._counters)

    def _scan(self, folder: str, read: Callable[[Iterator[os.DirEntry[str]]], Iterator[T]]) -> Iterator[T]:
        with (
            failing_as("list", folder),
            suppress(FileNotFoundError),
            self._folder(folder, os.O_RDONLY) as descriptor,
            os.scandir(descriptor) as entries,
        ):
            yield from read(entries)

    def entries(self, folder: str) -> Entries:
        """The files and the names of the folders; files that vanish during the call are left out."""
        self._counters.lists += 1
        return list(self._scan(folder, _entries_of))

    def files_after(self, folder: str, name: str) -> Iterator[FileInfo]:
        """See `Storage.list_after`; files that vanish during the call are left out."""
        self._counters.lists += 1
        entries = self._scan(folder, lambda entries: _entries_of(entry for entry in entries if entry.name > name))
        yield from (entry for entry in entries if isinstance(entry, FileInfo))

    def links(self, folder: str) -> list[str]:
        return list(self._scan(folder, lambda entries: (entry.name for entry in entries if entry.is_symlink())))

    def delete(self, paths: Sequence[str]) -> None:
        """See `Storage.delete`; not synced, since a file that a crash restores is deleted again."""
        for folder, group in itertools.groupby(paths, key=os.path.dirname):
            with failing_as("delete in", folder), suppress(FileNotFoundError), self._folder(folder) as descriptor:
                for path in group:
                    with failing_as("delete", path), suppress(FileNotFoundError):
                        os.unlink(os.path.basename(path), dir_fd=descriptor)
        self._counters.deletes += len(paths)

    @contextmanager
    def _folder(self, folder: str, flags: int = _PATH_ONLY) -> Iterator[int]:
        """Yield a descriptor of a folder, without links in the path from the root. Raises StorageError for a link."""
        names = os.path.relpath(folder, self._root).split("/") if folder.startswith(f"{self._root}/") else []
        path = self._root if names else folder
        descriptor = os.open(path, _FOLDER_FLAGS | (_PATH_ONLY if names else flags))
        try:
            for number, name in enumerate(names, 1):
                path = os.path.join(path, name)
                parent = descriptor
                try:
                    flag = flags if number == len(names) else _PATH_ONLY
                    descriptor = os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW | flag, dir_fd=parent)
                except OSError:
                    _refuse_link(name, parent, path)
                    raise
                os.close(parent)
            yield descriptor
        finally:
            os.close(descriptor)

    def open(self, path: str) -> int:
        """Open a file to read, which the caller closes. Raises OSError, and StorageError for a link."""
        if self._follows_links:
            return os.open(path, _READ_FLAGS)
        name = os.path.basename(path)
        with self._folder(os.path.dirname(path)) as folder:
            try:
                return os.open(name, _READ_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
            except OSError:
                _refuse_link(name, folder, path)
                raise

    def now_ms(self, folder: str) -> int:
        """See `Storage.now_ms`: a touch sets the file server's time, and needs no disk space."""
        with failing_as("get the storage's time", folder):
            try:
                os.utime(folder)
            except OSError as error:
                if error.errno not in _READ_ONLY_ERRNOS:
                    raise
                return now_ms()  # without write permission this is a dry run, which may use this machine's time
            return os.stat(folder).st_mtime_ns // 1_000_000

    def replied_ms(self) -> int:
        """See `Storage.replied_ms`: this machine's time, which its disks use; unknown on a network disk."""
        return now_ms() if known_local_disk(self._root) else 0

    def modified_ms(self, path: str) -> int:
        return self._status(path).st_mtime_ns // 1_000_000

    def uploads(self, folder: str) -> list[UnfinishedUpload]:
        """Return no uploads, which only object stores have."""
        return []

    def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> None:
        """Do nothing."""

    def _use_file(self, action: str, path: str, use: Callable[[int], T]) -> T:
        try:
            file = self.open(path)
            try:  # a context manager would take longer than the rest of this function
                result = use(file)
            finally:
                os.close(file)
        except (FileNotFoundError, StorageError):
            raise
        except OSError as error:
            raise LOCAL_ERRORS.failure(action, path, error) from error
        self._counters.gets += 1
        return result

    def _count_put(self, data: Buffer) -> None:
        self._counters.puts += 1
        self._counters.bytes_written += byte_view(data).nbytes


# A segment is written once and synced anyway. The page cache would cost more processor time than the encoding of the
# records, and would evict the pages that readers use. So O_DIRECT is used where the file system allows it.
class LocalWriter(ObjectWriter):
    """Writes directly to the final name, which must be new; full parts are written in the background."""

    def __init__(self, path: str, counters: StorageCounters) -> None:
        self._path, self._counters = path, counters
        # one half of the block, at `_start`, is filled, while the other half is written
        self._block, self._start, self._filled = new_pages(BLOCK_BYTES), 0, 0
        with failing_as("create", path):
            self._file: int | None = create_file(path)
        self._writing: Task[None] | None = None
        #: True if the file may lack a part: during a write, and after one that failed.
        self._is_broken = False
        self._process = os.getpid()
        _set_direct(self._file, True)

    def write(self, data: Buffer) -> None:
        self._wait()
        self._gather(byte_view(data))

    def write_behind(self, data: Buffer) -> None:
        """See `ObjectWriter.write_behind`; copies nothing if `data` is aligned to pages as in the file."""
        self._wait()
        view = byte_view(data)
        head = -self.written_bytes % PAGE_BYTES  # bytes to the next page; whole pages are written without a copy
        if view.nbytes >= _MIN_UNCOPIED_BYTES and lies_in_pages(np.frombuffer(view, np.uint8), self.written_bytes):
            end = view.nbytes - (view.nbytes - head) % PAGE_BYTES
            self._fill(view[:head])
            self._start_write(view[head:end])
            self.written_bytes += end - head
            view = view[end:]
        self._gather(view)

    def _gather(self, view: memoryview) -> None:
        while view.nbytes:
            count = min(view.nbytes, _GATHER_BYTES - self._filled)
            self._fill(view[:count])
            view = view[count:]
            if self._filled == _GATHER_BYTES:
                self._wait()
                self._start_write()

    def _fill(self, view: memoryview) -> None:
        position = self._start + self._filled
        self._block.data[position : position + view.nbytes] = view
        self._filled += view.nbytes
        self.written_bytes += view.nbytes

    def _gathered(self) -> memoryview:
        return self._block.data[self._start : self._start + self._filled]

    def _start_write(self, *later_views: memoryview) -> None:
        """Start to write the gathered bytes, and then `later_views`. No other write may be running."""
        file = self._descriptor()
        # if this fails, a later write must not leave out or repeat a part
        self._is_broken = True
        # a duplicate descriptor, since after an abort another file may get the number
        with failing_as("write", self._path):
            duplicate = os.dup(file)
        views = self._gathered(), *later_views

        def write_and_close() -> None:
            try:
                _write_directly(duplicate, *views, path=self._path)
            finally:
                with failing_as("write", self._path):
                    os.close(duplicate)

        self._writing = begin(write_and_close)
        self._start, self._filled = _GATHER_BYTES - self._start, 0  # the other half
        self._is_broken = False

    def _wait(self) -> None:
        """Wait until the running write ends. Raises StorageError if a part of the file was lost."""
        self._descriptor()
        if self._writing is not None:
            self._is_broken = True
            self._writing.wait()
            self._writing, self._is_broken = None, False

    def _descriptor(self) -> int:
        check_process(self._process, self._path)
        if self._file is None:
            raise StorageError("cannot write: the file is closed", file=self._path)
        if self._is_broken:
            text = "cannot write: an earlier write of this file failed; rewrite the file from its start"
            raise StorageError(text, file=self._path)
        return self._file

    def close(self) -> None:
        if self._file is None:
            return
        self._wait()
        file, gathered = self._descriptor(), self._gathered()
        page_bytes = self._filled // PAGE_BYTES * PAGE_BYTES
        # broken until closed: after a failed sync, a second sync would succeed without the lost data
        self._is_broken = True
        if page_bytes:
            _write_directly(file, gathered[:page_bytes], path=self._path)
        _set_direct(file, False)
        _write_directly(file, gathered[page_bytes:], path=self._path)
        with failing_as("write", self._path):
            os.fsync(file)
            self._file = None
            os.close(file)
            sync_folder(os.path.dirname(self._path))
        self._counters.puts += 1
        self._counters.bytes_written += self.written_bytes

    def abort(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None  # a running write ends in the deleted file
        with suppress(OSError):
            os.close(file)
        if self._process == os.getpid():
            with suppress(OSError):
                os.unlink(self._path)


def _set_direct(file: int, is_direct: bool) -> None:
    """Turn direct writes, past the page cache, on or off, if the file system supports them."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    with suppress(OSError):
        fcntl.fcntl(file, fcntl.F_SETFL, flags | _DIRECT if is_direct else flags & ~_DIRECT)


def _write_directly(file: int, *views: memoryview, path: str) -> None:
    with failing_as("write", path):
        try:
            written = os.writev(file, views)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            written = 0
        for view in views:
            if written < view.nbytes:
                # the file system refuses direct writes after all, or wrote only a part of a disk block
                _set_direct(file, False)
                write_all(file, view[written:])
            written = max(written - view.nbytes, 0)


def _refuse_link(name: str, folder: int, path: str) -> None:
    is_link = False
    with suppress(OSError):
        is_link = stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    if is_link:
        raise StorageError(LINK_ERROR, file=path)


def _linked_ms(temporary: str) -> int:
    """Return the time of the file's hard link, by its disk's clock; 0 without the link."""
    with suppress(OSError):
        status = os.stat(temporary)
        if status.st_nlink == 2:
            return status.st_ctime_ns // 1_000_000
    return 0


def _pread(file: int, start: int, end: int | None) -> bytes:
    size = os.fstat(file).st_size  # bounds the allocation
    end = size if end is None or end > size else end
    if end <= start:
        return b""
    data = os.pread(file, end - start, start)
    while len(data) < end - start and (chunk := os.pread(file, end - start - len(data), start + len(data))):
        data += chunk
    return data


def _fill(part: memoryview, start: int, file: int) -> int:
    """Fill `part` with the file's bytes from `start` on, and return their number, fewer at the end of the file."""
    count = 0
    while count < len(part) and (read_count := os.preadv(file, [part[count:]], start + count)):
        count += read_count
    return count


def _entries_of(entries: Iterator[os.DirEntry[str]]) -> Iterator[FileInfo | str]:
    for entry in entries:
        with suppress(FileNotFoundError):
            if not entry.is_symlink():
                if entry.is_dir(follow_symlinks=False):
                    yield entry.name
                else:
                    status = entry.stat(follow_symlinks=False)
                    yield FileInfo(entry.name, status.st_size, status.st_mtime_ns // 1_000_000)


class LocalErrors(ErrorClassifier):
    """Errors of the file system. An error is UNCLEAR if a network mount may return it for a link that it created."""

    def kind(self, error: Exception) -> ErrorKind:
        if isinstance(error, FileNotFoundError):
            return ErrorKind.MISSING
        is_unclear = isinstance(error, OSError) and error.errno in _UNCLEAR_ERRNOS
        return ErrorKind.UNCLEAR if is_unclear else ErrorKind.REFUSED

    def failure(self, action: str, path: str, error: Exception) -> DistlogError:
        failure = super().failure(action, path, error)
        if not isinstance(error, OSError) or error.errno not in _FULL_ERRNOS:
            return failure
        # a quota may leave less than the free bytes of the disk
        free_bytes = None
        with suppress(OSError):
            status = os.statvfs(os.path.dirname(path))
            free_bytes = status.f_bavail * status.f_frsize
        message = f"{failure.message}: vacuum the topic, or make room on the disk"
        return StorageFullError(message, **failure.details, free_bytes=free_bytes)

    def describe(self, error: Exception) -> str:
        words = (isinstance(error, OSError) and error.strerror) or type(error).__name__
        hint = _HINTS.get(error.errno) if isinstance(error, OSError) and error.errno else None
        return f"{words}: {hint}" if hint else words


LOCAL_ERRORS = LocalErrors()

# First the file is synced, then its folder, then the folder's parents. A power loss may still remove a folder whose
# creator died before it synced the parent. So each process syncs all parents once.

#: The (device, inode) of the folders that this process has made durable, with all their parents; by path.
DURABLE_FOLDERS: dict[str, tuple[int, int]] = {}


@contextmanager
def failing_as(action: str, path: str) -> Iterator[None]:
    """Turn an OSError into the StorageError "cannot <action>"."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise LOCAL_ERRORS.failure(action, path, error) from error


class OpenedFile:
    """A file descriptor that a `with` block closes."""

    __slots__ = ("_file",)

    def __init__(self, file: int) -> None:
        self._file = file

    def __enter__(self) -> int:
        return self._file

    def __exit__(self, *error: object) -> None:
        os.close(self._file)


def create_file(path: str) -> int:
    """Create the file `path`, and its missing parents durably; returns a descriptor."""
    try:
        return os.open(path, _CREATE_FLAGS, 0o666)
    except FileNotFoundError:
        make_folders(os.path.dirname(path))
        return os.open(path, _CREATE_FLAGS, 0o666)


def make_folders(folder: str) -> None:
    """Create `folder` and its missing parents, durably, from the top down."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(path)
        sync_folder(os.path.dirname(path))
        _note_durable(path, _inode(os.stat(path)))


def sync_folder(folder: str) -> None:
    """Make durable the names in `folder`, the folder's own name, and its parents' names, whoever created them."""
    inode = _sync_names(folder)
    if DURABLE_FOLDERS.get(folder) != inode:
        _sync_above(os.path.realpath(folder), inode[0])  # the device
        _note_durable(folder, inode)


def _note_durable(folder: str, inode: tuple[int, int]) -> None:
    if len(DURABLE_FOLDERS) >= _MAX_DURABLE_FOLDERS:
        DURABLE_FOLDERS.clear()
    DURABLE_FOLDERS[folder] = inode


def _sync_above(folder: str, device: int) -> None:
    above = os.path.dirname(folder)
    # not past a mount point, which existed before the mount
    while above != folder and os.stat(above).st_dev == device:
        try:
            inode = _sync_names(above)
        except PermissionError:
            return  # this process created no folder there: `make_folders` would have failed
        if DURABLE_FOLDERS.get(above) == inode:
            return
        folder, above = above, os.path.dirname(above)


def _sync_names(folder: str) -> tuple[int, int]:
    with OpenedFile(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        os.fsync(descriptor)
        return _inode(os.fstat(descriptor))


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def write_all(file: int, view: memoryview) -> None:
    while view.nbytes:
        view = view[os.write(file, view) :]


@contextmanager
def removed_on_error(path: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def write_temporary(path: str, data: Buffer) -> str:
    with _temporary(path, data) as (temporary, file), failing_as("put", path):
        os.fsync(file)
    return temporary


def replace_files(files: Mapping[str, Buffer]) -> None:
    """Replace files, each atomically, without a sync of their names. Writes all files before it syncs the first."""
    with ExitStack() as stack:
        written = [(path, *stack.enter_context(_temporary(path, data))) for path, data in files.items()]
        if len(written) > 1:
            for _, _, file in written:
                # this advice makes Linux start to write; Python lacks sync_file_range
                if hasattr(os, "posix_fadvise"):
                    with suppress(OSError):
                        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        for path, _, file in written:
            with failing_as("put", path):
                os.fsync(file)
        for path, temporary, _ in written:
            with failing_as("put", path):
                os.replace(temporary, path)


@contextmanager
def _temporary(path: str, data: Buffer) -> Iterator[tuple[str, int]]:
    """Yield the path and a descriptor of a new file with `data` next to `path`; removed if the block raises."""
    temporary = os.path.join(os.path.dirname(path), paths.temporary_file(uuid.uuid4().hex))
    with failing_as("put", path):
        file = create_file(temporary)
    with removed_on_error(temporary), OpenedFile(file):
        view = byte_view(data)
        direct_bytes = view.nbytes // BLOCK_BYTES * BLOCK_BYTES
        if direct_bytes:
            # copied, since a direct write takes only whole pages of memory
            block = new_pages(BLOCK_BYTES).data
            _set_direct(file, True)
            for start in range(0, direct_bytes, BLOCK_BYTES):
                block[:] = view[start : start + BLOCK_BYTES]
                _write_directly(file, block, path=path)
            _set_direct(file, False)
        with failing_as("put", path):
            write_all(file, view[direct_bytes:])
        yield temporary, file


_OCTAL = re.compile(r"\\([0-7]{3})")


def is_local_disk(path: str, mount_table: str = MOUNT_TABLE) -> bool:
    """Return whether `path`, or its nearest existing parent, is on a local file system."""
    try:
        with open(mount_table, encoding="utf-8", errors="surrogateescape") as table:
            mounts = [_mount(line) for line in table]
    except (OSError, ValueError, IndexError):
        return False
    real_path, mount_length, file_system = os.path.realpath(path), -1, ""
    for folder, kind in mounts:
        # >=, since the last of several mounts at one path is visible
        if (folder == "/" or f"{real_path}/".startswith(f"{folder}/")) and len(folder) >= mount_length:
            mount_length, file_system = len(folder), kind
    return file_system in LOCAL_FILE_SYSTEMS


known_local_disk = lru_cache(256)(is_local_disk)


def _mount(line: str) -> tuple[str, str]:
    """Return the mount point and the file system in a line of the table, whose optional fields end at a dash."""
    fields = line.split()
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]), fields[fields.index("-", 6) + 1]


# When a mapped file is cut, a process that touches a lost page is killed (SIGBUS); this cannot become an error. So
# only files that are never cut are mapped: log and index files of sealed segments (immutable, replaced by rename),
# copies in the index cache (made by rename, removed by unlink), and the page in the file of a lock.
#
# Many files stay mapped at once, and Python's own map holds a descriptor. So FileMap calls the system's functions.

_system = ctypes.CDLL(None, use_errno=True)
_system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_system.mmap.restype = ctypes.c_void_p
_system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_system.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


class FileMap:
    """Maps `length` bytes of an open file from `start`, where a page starts, until their last array is deleted."""

    def __init__(self, file: int, start: int, length: int, *, writable: bool = False) -> None:
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        address = _system.mmap(None, length, access, mmap.MAP_SHARED, file, start)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        # numpy's array interface: the flag says whether the array is read-only
        interface = {"version": 3, "shape": (length,), "typestr": "|u1", "data": (address, not writable)}
        self.__array_interface__ = interface
        self._mapped = address, length

    def __del__(self, unmap: Any = _system.munmap) -> None:
        if hasattr(self, "_mapped"):
            unmap(*self._mapped)


def map_sealed(file: int, start: int = 0, end: int | None = None) -> memoryview:
    """Map bytes [start, end) of an open file, read-only; fewer if the file is shorter. Raises OSError."""
    length = os.fstat(file).st_size
    end = length if end is None else min(end, length)
    if start >= end:
        return memoryview(b"")
    skipped = start % mmap.ALLOCATIONGRANULARITY  # a map must start at a page
    mapped = np.asarray(FileMap(file, start - skipped, skipped + end - start))
    if os.stat(file).st_size < end:
        raise OSError(errno.EIO, "the file was truncated while it was opened")
    return mapped.data[skipped:]


def map_shared(file: int, length: int, *, writable: bool = True) -> memoryview:
    """Map the first `length` bytes of an open file, which must exist, shared between processes."""
    return np.asarray(FileMap(file, 0, length, writable=writable)).data


class SparseMap:
    """A mapped file with few small reads. `announce` prefetches them; after `read_nothing_ahead`, nothing else is."""

    def __init__(self, file: int) -> None:
        self._file = file
        try:
            self.data = map_sealed(self._file)
        except BaseException:
            os.close(self._file)
            raise

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "data"):
            close(self._file)

    def is_in_memory(self, positions: Iterable[int], size: int) -> bool:
        """Return whether `size` bytes at all `positions` are in the page cache; False if unknown."""
        if not hasattr(os, "RWF_NOWAIT"):  # Python was built for a glibc before 2.26
            return False
        buffer = bytearray(size)
        try:
            return all(os.preadv(self._file, [buffer], position, os.RWF_NOWAIT) for position in positions)
        except OSError:
            return False

    def announce(self, positions: Iterable[int], size: int) -> None:
        """Start to prefetch `size` bytes at each of `positions`, without waiting."""
        if hasattr(os, "posix_fadvise"):
            for position in positions:
                os.posix_fadvise(self._file, position, size, os.POSIX_FADV_WILLNEED)

    def read_nothing_ahead(self) -> None:
        if len(self.data):
            _system.madvise(np.frombuffer(self.data, np.uint8).ctypes.data, len(self.data), mmap.MADV_RANDOM)
