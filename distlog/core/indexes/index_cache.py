"""A folder of copies of remote index files, fetched once and then mapped, which many processes share.

A copy's name is a hash of where the file is, its size and a tag. What bears a name does not change, but for an index
that is rebuilt: who finds a copy bad discards it. A copy comes by rename, whole, and goes by eviction, least recently
used first, where a copy's modification time is its last use. A copy that is cut short or deleted meanwhile costs a
fetch, never a wrong answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from collections import deque

from distlog.core.errors import CorruptIndexError, StorageError
from distlog.core.storage.storage import Storage

#: The indexes of about 200 GiB of log.
DEFAULT_MAX_BYTES = 1 << 30
#: A process looks at the folder again when it has added this share of `max_bytes`.
_SCAN_SHARE = 16
#: How many of the copies that it handed out last a process never evicts itself, whatever the clock says.
_SPARED = 64
#: A temporary file this much older than the newest copy was left by a process that died.
_ABANDONED_NS = 3_600 * 10**9
_OURS = re.compile(r"[0-9a-f]{64}(\.\w+)?")


def default_folder() -> str:
    """A folder of this user's in the system's temporary one: whatever is in it can be fetched again."""
    return os.path.join(tempfile.gettempdir(), f"distlog-index-cache-{os.getuid()}")


class IndexCache:
    """Copies of index files in `folder`, together up to `max_bytes`; a sixteenth more for every further process.

    The folder is made on the first fetch, for this user alone, and nothing in it is deleted but copies. Picklable.
    """

    def __init__(self, folder: str | None = None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.folder = folder or default_folder()
        self.max_bytes = max_bytes
        self._added_bytes = max_bytes
        self._spared: deque[str] = deque(maxlen=_SPARED)

    def path(self, storage: Storage, name: str, size: int, *, tag: str = "") -> str:
        """The local path of a file of `size` bytes: the file itself on local storage, else its copy.

        `tag` tells files apart that bear one name at different times, as a stem adopted from Kafka may after a drop;
        its segment's checksum will do. Open the path soon: another process may evict the copy when it is the oldest.

        Raises FileNotFoundError when the file is gone, CorruptIndexError when its size is not `size`, and
        StorageError when the folder belongs to, or is open to, another user.
        """
        if storage.is_local:
            path = storage.local_path(name)
            _check_size(name, os.stat(path).st_size, size)
            return path
        self._claim_folder()
        path = self._path(storage, name, size, tag)
        self._spared.append(os.path.basename(path))
        if not _touch(path, size):
            data = storage.read(name)
            _check_size(name, len(data), size)
            self._add(path, data)
        return path

    def discard(self, storage: Storage, name: str, size: int, *, tag: str = "") -> None:
        """Delete the copy that `path` would hand out, which was found bad, or whose file was replaced.

        The file itself, on local storage, is left alone.
        """
        if not storage.is_local:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(storage, name, size, tag))

    def _path(self, storage: Storage, name: str, size: int, tag: str) -> str:
        key = hashlib.sha256("\0".join((storage.url, name, str(size), tag)).encode()).hexdigest()
        return os.path.join(self.folder, key)

    def _claim_folder(self) -> None:
        # Without following a link: a folder that someone else laid out could hold forged copies, or not be a cache.
        with contextlib.suppress(FileExistsError):
            os.makedirs(self.folder, mode=0o700)
        status = os.lstat(self.folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise StorageError("the index cache must be a folder of mode 0700 that is yours", folder=self.folder)

    def _add(self, path: str, data: bytes) -> None:
        handle, temporary = tempfile.mkstemp(prefix=f"{os.path.basename(path)}.", dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        self._added_bytes += len(data)
        if self._added_bytes > self.max_bytes // _SCAN_SHARE:
            self._evict()

    def _evict(self) -> None:
        # Leaves room for what is added until the next look.
        self._added_bytes = 0
        copies = sorted(self._copies())
        excess = sum(size for _, size, _ in copies) - (self.max_bytes - self.max_bytes // _SCAN_SHARE)
        for last_use, size, name in copies:
            if excess <= 0:
                break
            arriving = "." in name and copies[-1][0] - last_use < _ABANDONED_NS
            if name not in self._spared and not arriving:
                excess -= size
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.folder, name))

    def _copies(self) -> list[tuple[int, int, str]]:
        # (last use, size, name), of temporary files too.
        copies = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if _OURS.fullmatch(entry.name):
                        status = entry.stat(follow_symlinks=False)
                        copies.append((status.st_mtime_ns, status.st_size, entry.name))
        return copies


def _touch(path: str, size: int) -> bool:
    # Whether there is a whole copy; it counts as used now.
    try:
        if os.stat(path).st_size != size:
            return False
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _check_size(name: str, size: int, expected: int) -> None:
    if size != expected:
        raise CorruptIndexError(
            "the index file has not the size that its segment says: rebuild the index",
            file=name,
            size=size,
            expected=expected,
        )
