"""Reads and writes the file of users. Whoever can write to it can log in as anybody; who can read it can guess."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress

from distlog.core.errors import DistlogError, InvalidConfigError, StorageError
from distlog.gateway.security.users import Users, parse_users

_log = logging.getLogger("distlog.gateway")
_PRIVATE = 0o600
#: A group may read it, as where a file is mounted for a process; nobody else may do anything.
_OTHERS = 0o037
_DECOY_BYTES = 32
#: No file of users is larger: a million of them are about half of it.
_MAX_BYTES = 1 << 30

_Stamp = tuple[int, ...]


def read_users(path: str) -> Users:
    """The users in the file. Raises InvalidConfigError, also if others than its owner may use it; StorageError."""
    return _read(path)[0]


def write_users(path: str, change: Callable[[Users], Users], random: Callable[[int], bytes] = os.urandom) -> None:
    """Change the users in the file, which is made if there is none, all at once, for its owner alone.

    Raises InvalidConfigError, StorageError; then the file is as it was. Two who do this at once wait for each other.
    """
    try:
        folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            users = read_users(path) if os.path.lexists(path) else Users(random(_DECOY_BYTES), {})
            _replace(os.path.realpath(path), change(users).to_json().encode())
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if isinstance(error, DistlogError):
            raise
        raise StorageError(f"cannot write the file of users: {error.strerror or error}", path=path) from None


class UsersFile:
    """The users of a file as they are now, for many threads. What cannot be read leaves them as they were."""

    def __init__(self, path: str) -> None:
        self._path, self._lock = path, threading.Lock()
        self._users, self._stamp = _read(path)

    def __repr__(self) -> str:
        return f"UsersFile({self._path!r})"

    def current(self) -> Users:
        """The users. The file is read again if it is another one now."""
        with self._lock:
            stamp = _stamp_of(self._path)
            if stamp != self._stamp:
                self._stamp = stamp
                self._load()
            return self._users

    def _load(self) -> None:
        try:
            self._users, self._stamp = _read(self._path)
        except DistlogError as error:
            _log.warning("users stay as they were: %s", error)
        else:
            _log.info("users were read again from %s", self._path)


def _read(path: str) -> tuple[Users, _Stamp]:
    try:
        with open(path, "rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_mode & _OTHERS:
                raise InvalidConfigError(
                    "others than its owner may use the file of users: chmod 600, or 640",
                    path=path,
                    mode=oct(stat.S_IMODE(facts.st_mode)),
                )
            if 0 not in (os.geteuid(), facts.st_uid) and facts.st_uid != os.geteuid():
                raise InvalidConfigError("the file of users is somebody else's: chown it", path=path)
            text = file.read(_MAX_BYTES).decode()
    except OSError as error:
        raise StorageError(f"cannot read the file of users: {error.strerror or error}", path=path) from None
    except UnicodeDecodeError:
        raise InvalidConfigError("this is no file of users: make one with `distlog users`", path=path) from None
    return parse_users(text), _stamp(facts)


def _stamp(facts: os.stat_result) -> _Stamp:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _stamp_of(path: str) -> _Stamp:
    try:
        return _stamp(os.stat(path))
    except OSError:
        return ()


def _replace(path: str, data: bytes) -> None:
    new = f"{path}.new"
    with suppress(FileNotFoundError):
        # of one who was killed
        os.unlink(new)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    try:
        with open(descriptor, "wb") as file:
            _as_before(path, descriptor)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(new)
        raise


def _as_before(path: str, descriptor: int) -> None:
    """Give the new file the owner and mode of the old one, so that a gateway of another user still reads it."""
    # where that is not allowed, the file is its owner's alone: its group is another one
    with suppress(FileNotFoundError, PermissionError):
        facts = os.stat(path)
        os.fchown(descriptor, facts.st_uid, facts.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(facts.st_mode) & ~_OTHERS)
