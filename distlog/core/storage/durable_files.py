"""Writes local files so that they survive a power cut; and what the errors of a local disk mean."""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from distlog.core import paths
from distlog.core.errors import DistlogError, StorageError, StorageFullError
from distlog.core.storage.backend import byte_view
from distlog.core.storage.retry import ErrorClassifier, ErrorKind

# First the file is synced, then its folder, then the folders above. A folder that exists may still be lost: the
# process that made it may have died before it synced the folder above. So each process syncs, once, all folders
# above those that it writes to.

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_UNCLEAR = (errno.EEXIST, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN, errno.EBUSY)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_HINTS = {
    errno.EMFILE: "raise the limit of the process (ulimit -n)",
    errno.ENOTDIR: "a part of the path is a file, not a folder: check the address",
}


class LocalErrors(ErrorClassifier):
    """A definite errno is a refusal; an errno that a network mount may give for a link that it made is unclear."""

    def kind(self, error: Exception) -> ErrorKind:
        if isinstance(error, FileNotFoundError):
            return ErrorKind.MISSING
        unclear = isinstance(error, OSError) and error.errno in _UNCLEAR
        return ErrorKind.UNCLEAR if unclear else ErrorKind.REFUSED

    def failure(self, action: str, path: str, error: Exception) -> DistlogError:
        failure = super().failure(action, path, error)
        if isinstance(error, OSError) and error.errno in _FULL:
            message = f"{failure.message}: vacuum, or make room"
            return StorageFullError(message, **failure.details, free_bytes=_free_bytes(path))
        return failure

    def describe(self, error: Exception) -> str:
        words = (isinstance(error, OSError) and error.strerror) or type(error).__name__
        hint = _HINTS.get(error.errno) if isinstance(error, OSError) and error.errno else None
        return f"{words}: {hint}" if hint else words


def _free_bytes(path: str) -> int | None:
    """Return the free bytes of the file system, or None if unknown. A quota may leave fewer."""
    try:
        status = os.statvfs(os.path.dirname(path))
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


LOCAL_ERRORS = LocalErrors()

#: The folders that this process has made durable, with all folders above them: (device, inode) by path.
DURABLE_FOLDERS: dict[str, tuple[int, int]] = {}
#: The most entries; a forgotten folder costs a sync or two of its parents.
_MOST_FOLDERS = 16_384


@contextmanager
def failing_as(action: str, path: str) -> Iterator[None]:
    """Turn an OSError into the StorageError "cannot <action>"."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise LOCAL_ERRORS.failure(action, path, error) from error


def create_file(path: str) -> int:
    """Create the file `path` and missing folders above it, durably; returns a descriptor."""
    try:
        return os.open(path, _CREATE, 0o666)
    except FileNotFoundError:
        make_folders(os.path.dirname(path))
        return os.open(path, _CREATE, 0o666)


def make_folders(folder: str) -> None:
    """Make `folder` and the missing folders above it, durably, from the top down."""
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
    """Make the names in `folder` durable, and the folder's name, also if another process made it."""
    inode = _sync_names(folder)
    if DURABLE_FOLDERS.get(folder) != inode:
        _sync_above(os.path.realpath(folder), inode[0])
        _note_durable(folder, inode)


def _note_durable(folder: str, inode: tuple[int, int]) -> None:
    if len(DURABLE_FOLDERS) >= _MOST_FOLDERS:
        DURABLE_FOLDERS.clear()
    DURABLE_FOLDERS[folder] = inode


def _sync_above(folder: str, device: int) -> None:
    """Sync the folders above `folder`, as far as they may have been made together with it."""
    above = os.path.dirname(folder)
    # a mount point is older than what is mounted on it
    while above != folder and os.stat(above).st_dev == device:
        try:
            inode = _sync_names(above)
        except PermissionError:
            return  # this process made no folder there: `make_folders` would have failed
        if DURABLE_FOLDERS.get(above) == inode:
            return
        folder, above = above, os.path.dirname(above)


def _sync_names(folder: str) -> tuple[int, int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        return _inode(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def write_all(file: int, view: memoryview) -> None:
    """Write all of `view` to a descriptor, in as many system calls as needed."""
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
    """Write and sync a temporary file for `path`; returns its path."""
    with _temporary(path, data) as (temporary, file), failing_as("put", path):
        os.fsync(file)
    return temporary


def replace_files(files: Mapping[str, Buffer]) -> None:
    """Replace files, each atomically, with unsynced names; writes all before the first sync."""
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
    """Yield the path and a descriptor of a new file next to `path` with `data`; removed when the block raises."""
    temporary = os.path.join(os.path.dirname(path), paths.temporary_file(uuid.uuid4().hex))
    with failing_as("put", path):
        file = create_file(temporary)
    with removed_on_error(temporary):
        try:
            with failing_as("put", path):
                write_all(file, byte_view(data))
            yield temporary, file
        finally:
            os.close(file)


MOUNT_TABLE = "/proc/self/mountinfo"
LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "overlay", "ramfs", "reiserfs", "tmpfs"}
    | {"ubifs", "xfs", "zfs"}
)
_OCTAL = re.compile(r"\\([0-7]{3})")


def is_local_disk(path: str, mount_table: str = MOUNT_TABLE) -> bool:
    """Return whether `path`, or the existing folder above it, is on a local file system."""
    try:
        with open(mount_table, encoding="utf-8", errors="surrogateescape") as table:
            mounts = [_mount(line) for line in table]
    except (OSError, ValueError, IndexError):
        return False
    real, longest, file_system = os.path.realpath(path), -1, ""
    for folder, kind in mounts:
        # of several mounts at one path, the last is visible
        if (folder == "/" or real == folder or real.startswith(folder + "/")) and len(folder) >= longest:
            longest, file_system = len(folder), kind
    return file_system in LOCAL


known_local_disk = lru_cache(256)(is_local_disk)


def _mount(line: str) -> tuple[str, str]:
    """(mount point, kind of file system) of a line, whose optional fields end at a single dash."""
    fields = line.split()
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]), fields[fields.index("-", 6) + 1]
