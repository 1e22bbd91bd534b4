"""Writing local files so that they survive a power cut, and what the errors of a local disk mean.

The order: the file, then its name in the folder, then the names of the folders above. That a folder is there does
not mean that its name would survive: whoever made it may have died before it was synced. So each process syncs
the folders above those that it writes to once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from distlog.core.errors import StorageError, StorageFullError
from distlog.core.storage.backend import byte_view
from distlog.core.storage.retry import ErrorJudge, Verdict

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_UNCLEAR = (errno.EEXIST, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN, errno.EBUSY)
_FULL = (errno.ENOSPC, errno.EDQUOT)


class LocalErrors(ErrorJudge):
    """A definite errno is a refusal; what a network mount may say of a link that was made is unclear."""

    def verdict(self, error: Exception) -> Verdict:
        """See the class."""
        if isinstance(error, FileNotFoundError):
            return Verdict.MISSING
        unclear = isinstance(error, OSError) and error.errno in _UNCLEAR
        return Verdict.UNCLEAR if unclear else Verdict.REFUSED

    def failure(self, action: str, path: str, error: Exception) -> StorageError:
        """As every judge, and a full disk is told apart."""
        failure = super().failure(action, path, error)
        if isinstance(error, OSError) and error.errno in _FULL:
            return StorageFullError(failure.message, **failure.details)
        return failure

    def describe(self, error: Exception) -> str:
        """The operating system's words."""
        return (isinstance(error, OSError) and error.strerror) or type(error).__name__


LOCAL_ERRORS = LocalErrors()

#: The folders that this process has made durable, with all folders above them: (device, inode) by path.
DURABLE_FOLDERS: dict[str, tuple[int, int]] = {}


@contextmanager
def failing_as(action: str, path: str) -> Iterator[None]:
    """Turn an OSError into the StorageError "cannot <action>"."""
    try:
        yield
    except OSError as error:
        raise LOCAL_ERRORS.failure(action, path, error) from error


def create_file(path: str) -> int:
    """A descriptor of the new file `path`; missing folders above it are made, durably."""
    try:
        return os.open(path, _CREATE, 0o666)
    except FileNotFoundError:
        make_folders(os.path.dirname(path))
        return os.open(path, _CREATE, 0o666)


def make_folders(folder: str) -> None:
    """Make `folder` and what is missing above it, durably, from the top down."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(path)
        sync_folder(os.path.dirname(path))
        DURABLE_FOLDERS[path] = _place(os.stat(path))


def sync_folder(folder: str) -> None:
    """Make the names in `folder` durable, and its own name too, whoever made it."""
    place = _sync_names(folder)
    if DURABLE_FOLDERS.get(folder) != place:
        _sync_above(os.path.realpath(folder), place[0])
        DURABLE_FOLDERS[folder] = place


def _sync_above(folder: str, device: int) -> None:
    """Sync the folders above `folder`, as far as somebody may have made one of them with it."""
    above = os.path.dirname(folder)
    # a mount point was there before what is mounted on it
    while above != folder and os.stat(above).st_dev == device:
        try:
            place = _sync_names(above)
        except PermissionError:
            return  # whoever may not read a folder made none in it: it could not have been synced either
        if DURABLE_FOLDERS.get(above) == place:
            return
        folder, above = above, os.path.dirname(above)


def _sync_names(folder: str) -> tuple[int, int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        return _place(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def _place(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def write_all(file: int, view: memoryview) -> None:
    """Write the whole `view` to a descriptor, however little each system call takes."""
    while view.nbytes:
        view = view[os.write(file, view) :]


@contextmanager
def removed_on_error(path: str) -> Iterator[None]:
    """Remove the file `path` when the block raises."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def write_file(path: str, data: Buffer) -> None:
    """Write the new file `path` and sync its bytes, not yet its name; it is removed again on an error."""
    file = create_file(path)
    with removed_on_error(path):
        try:
            write_all(file, byte_view(data))
            os.fsync(file)
        finally:
            os.close(file)
