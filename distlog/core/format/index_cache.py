"""A folder of copies of remote index files, shared by many processes: each file is fetched once, then mapped.

The name of a copy is a hash of the file's address, its size and a tag. The file of a name does not change, except
when an index is rebuilt: a process that finds a copy bad discards it. A copy appears as a whole, by rename. Eviction
deletes the least recently used copies; the modification time of a copy is its last use. A copy that is cut short or
deleted costs a fetch, and never gives a wrong answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distlog.core.errors import CorruptIndexError, StorageError
from distlog.core.storage.backend import Part
from distlog.core.storage.storage import Storage

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: The indexes of about 200 GiB of log.
DEFAULT_MAX_BYTES = 1 << 30


class IndexCache:
    """Copies of index files in `folder`, up to `max_bytes`, and a sixteenth more for each further process."""

    def __init__(self, folder: str | None = None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.folder = folder or default_folder()
        self.max_bytes = max_bytes
        self._added_bytes: int | None = None
        self._spared: deque[str] = deque(maxlen=_SPARED)

    def local_file(self, storage: Storage, part: Part, *, tag: str = "") -> tuple[str, int]:
        """Return a local file with the index `part`, and the position in it: the object itself, or a copy.

        `tag` distinguishes files that have the same name at different times (a stem adopted from Kafka, after a
        drop); the segment's checksum is a good tag. Open the path soon: another process may evict the copy.
        Raises CorruptIndexError when the object has another size, StorageError when the folder belongs to
        another user or is open to one.
        """
        if storage.is_local:
            path = storage.local_path(part.name)
            _check_size(part, os.stat(path).st_size - part.begin)
            return path, part.begin
        self._claim_folder()
        path = self._path(storage, part, tag)
        self._spared.append(os.path.basename(path))
        if not _touch(path, part.size):
            # all of a file, since another size shows that it is another file
            data = storage.read(part.name, part.begin, None if part.is_file else part.begin + part.size)
            _check_size(part, len(data))
            self._add(path, data)
        return path, 0

    def fetch(self, storage: Storage, parts: Sequence[tuple[Part, str]]) -> None:
        """Make the missing copies of `parts` of bundles, with their tags.

        A request fetches parts close to each other.
        """
        self._claim_folder()
        paths = [(part, self._path(storage, part, tag)) for part, tag in parts]
        missing = [(part, path) for part, path in paths if not _touch(path, part.size)]
        for start in range(0, len(missing), _AT_ONCE):
            group = missing[start : start + _AT_ONCE]
            indexes = storage.read_ranges([part.full_range for part, _ in group])
            for (_, path), data in zip(group, indexes, strict=True):
                self._spared.append(os.path.basename(path))
                self._add(path, data)

    def discard(self, storage: Storage, part: Part, *, tag: str = "") -> None:
        """Delete the copy that `local_file` would return; a local file itself stays."""
        if not storage.is_local:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(storage, part, tag))

    def _path(self, storage: Storage, part: Part, tag: str) -> str:
        position = "" if part.is_file else str(part.begin)
        key = hashlib.sha256("\0".join((storage.url, part.name, position, str(part.size), tag)).encode()).hexdigest()
        return os.path.join(self.folder, key)

    def _claim_folder(self) -> None:
        # Do not follow a link: a folder that someone else made could hold forged copies, or be no cache.
        with contextlib.suppress(FileExistsError):
            os.makedirs(self.folder, mode=0o700)
        status = os.lstat(self.folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise StorageError("the index cache must be a folder of mode 0700 that is yours", folder=self.folder)

    def _add(self, path: str, data: Buffer) -> None:
        handle, temporary = tempfile.mkstemp(prefix=f"{os.path.basename(path)}.", dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if self._added_bytes is None:
            self._added_bytes = 0 if self._was_listed(path) else self.max_bytes
        self._added_bytes += memoryview(data).nbytes
        if self._added_bytes > self.max_bytes // _SCAN_SHARE:
            with open(os.path.join(self.folder, _LISTED), "wb") as listed:
                os.utime(listed.fileno())
            # leaves room for what is added before the next listing
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

    def _was_listed(self, path: str) -> bool:
        """Return whether the folder was listed less than a minute before the copy `path` was made."""
        with contextlib.suppress(FileNotFoundError):
            listed_ns = os.stat(os.path.join(self.folder, _LISTED)).st_mtime_ns
            return 0 <= os.stat(path).st_mtime_ns - listed_ns < _LISTED_NS
        return False

    def _copies(self) -> list[tuple[int, int, str]]:
        # Returns (last use, size, name) of each copy and temporary file.
        copies = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if _OURS.fullmatch(entry.name):
                        status = entry.stat(follow_symlinks=False)
                        copies.append((status.st_mtime_ns, status.st_size, entry.name))
        return copies


#: A process lists the folder again after it has added one sixteenth of `max_bytes`.
_SCAN_SHARE = 16
#: It also lists the folder with its first copy, unless a process has just done so: 100,000 copies take 0.4 s.
_LISTED_NS = 60 * 10**9
#: The modification time of this empty file is the time of the last listing.
_LISTED = ".listed"
#: How many copies are fetched together, and so held in memory.
_AT_ONCE = 512
#: A process never evicts its last used copies, up to this many.
_SPARED = 64
#: A temporary file that is older than the newest copy by more than this belongs to a crashed process.
_ABANDONED_NS = 3_600 * 10**9
_OURS = re.compile(r"[0-9a-f]{64}(\.\w+)?")


def default_folder() -> str:
    """Return this user's folder in the system's folder for temporary files. Its content can be fetched again."""
    try:
        temporary = tempfile.gettempdir()
    except OSError:
        # no folder can be written, as on a full disk: logs are then read without copies of their indexes
        temporary = os.environ.get("TMPDIR") or "/tmp"
    return os.path.join(temporary, f"distlog-index-cache-{os.getuid()}")


def _touch(path: str, size: int) -> bool:
    # Returns whether there is a whole copy, and marks it as used now.
    try:
        if os.stat(path).st_size != size:
            return False
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _check_size(part: Part, size: int) -> None:
    """Raise CorruptIndexError unless `size`, the object's bytes from the part on, is right."""
    if size < part.size or (part.is_file and size > part.size):
        raise CorruptIndexError(
            "the size of the index file differs from its segment's metadata: rebuild the index",
            file=part.name,
            size=size,
            expected=part.size,
        )
