"""The users of a gateway, and their file: JSON without passwords."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import stat
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from distlog.core.errors import DistlogError, InvalidConfigError, StorageError, UnsupportedVersionError
from distlog.core.storage.local_files import sync_folder
from distlog.core.storage.locks_and_pages import flocked


class UsersFile:
    """The users of a file, for many threads. If the file becomes unreadable, the former users stay valid."""

    def __init__(self, path: str) -> None:
        self._path, self._lock = path, threading.Lock()
        self._users, self._stamp = _read(path)

    def __repr__(self) -> str:
        return f"UsersFile({self._path!r})"

    def current(self) -> Users:
        with self._lock:
            stamp = stamp_of(self._path)
            if stamp != self._stamp:
                # set this first, so that an unreadable file is read and logged only once
                self._stamp = stamp
                try:
                    self._users, self._stamp = _read(self._path)
                except DistlogError as error:
                    _log.warning("the former users stay valid: %s", error)
                else:
                    _log.info("users were read again from %s", self._path)
            return self._users


# As in Kafka and its clients, names and passwords are UTF-8 without SASLprep.

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: The iterations of a new secret: the most that Kafka allows.
ITERATIONS = 16_384
#: The mechanism that checks the plain password of an unknown user.
UNKNOWN_USER_MECHANISM = "SCRAM-SHA-256"
#: The iterations that a secret may have. RFC 5802 has the minimum. The maximum keeps logins from hanging.
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 1 << 20
SALT_BYTES = 32


@dataclass(frozen=True, slots=True)
class ScramSecret:
    """A user's secret for one mechanism. Its `repr` has no keys."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def secret_of(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramSecret:
    salted_password = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    return secret_of_salted(mechanism, salted_password, salt, iterations)


def secret_of_salted(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> ScramSecret:
    """Return the secret for a SaltedPassword of RFC 5802, which a client may have computed."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    server_key = hmac.digest(salted_password, b"Server Key", name)
    return ScramSecret(salt, iterations, hashlib.new(name, client_key).digest(), server_key)


def new_secrets(password: str, random: Callable[[int], bytes]) -> dict[str, ScramSecret]:
    return {mechanism: secret_of(mechanism, password, random(SALT_BYTES), ITERATIONS) for mechanism in HASHES}


# The file: {"format": 1, "decoy": "<base64>", "users": {"alice": {"SCRAM-SHA-256": SECRET, "SCRAM-SHA-512": SECRET}}}
# SECRET: {"salt": "<base64>", "iterations": 16384, "stored_key": "<base64>", "server_key": "<base64>"}

_FORMAT = 1
_DECOY_BYTES = 32
MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class Users:
    """The secrets of users. `decoy` makes constant salts for unknown names: clients must not detect who is a user."""

    decoy: bytes = field(repr=False)
    secrets: Mapping[str, Mapping[str, ScramSecret]] = field(repr=False)

    def secret(self, name: str, mechanism: str) -> tuple[ScramSecret, bool]:
        """Return a user's secret and True, or, for an unknown name, a secret that fits no password and False."""
        secret = self.secrets.get(name, {}).get(mechanism)
        if secret is not None:
            return secret, True
        algorithm = HASHES[mechanism]
        salt = hmac.digest(self.decoy, f"{mechanism} {name}".encode(errors="surrogateescape"), "sha256")
        key = bytes(hashlib.new(algorithm).digest_size)
        return ScramSecret(salt, ITERATIONS, key, key), False

    def plain_mechanism(self, name: str) -> str:
        """The mechanism for a user's plain password: SCRAM-SHA-256 if the user has both, since it is cheaper."""
        return min(self.secrets.get(name, ()), default=UNKNOWN_USER_MECHANISM)

    def with_root_users(self, secrets: Mapping[str, Mapping[str, ScramSecret]]) -> Users:
        return replace(self, secrets={**secrets, **self.secrets})

    def with_user(self, name: str, secrets: Mapping[str, ScramSecret]) -> Users:
        return replace(self, secrets={**self.secrets, check_name(name): secrets})

    def without_user(self, name: str) -> Users:
        if name not in self.secrets:
            raise DistlogError("the user does not exist: `distlog users FILE` lists the users", user=name)
        return replace(self, secrets={user: secrets for user, secrets in self.secrets.items() if user != name})

    def to_json(self) -> str:
        users = {
            name: {mechanism: written_secret(secret) for mechanism, secret in sorted(secrets.items())}
            for name, secrets in sorted(self.secrets.items())
        }
        document = {"format": _FORMAT, "decoy": b64encode(self.decoy).decode(), "users": users}
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def parse_users(text: str | bytes, path: str | None = None) -> Users:
    """Parse the text of `to_json`. Raises UnsupportedVersionError, StorageError, which do not quote the text."""
    try:
        document = json.loads(text)
        if document["format"] != _FORMAT:
            reason = "the file of users has another format: upgrade distlog"
            raise UnsupportedVersionError(reason, path=path)
        decoy = b64decode(document["decoy"], validate=True)
        users = {check_name(name): _secrets(name, fields) for name, fields in document["users"].items()}
        if len(decoy) != _DECOY_BYTES:
            raise ValueError("the decoy has another length")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise StorageError("this is not a file of users: make one with `distlog users`", path=path) from None
    return Users(decoy, users)


def check_name(name: str) -> str:
    """Return the name. Raises InvalidConfigError if clients cannot send it, or logs cannot show it."""
    if not 0 < len(name.encode(errors="replace")) <= MAX_NAME_BYTES or not name.isprintable():
        text = f"a user's name must have 1 to {MAX_NAME_BYTES} bytes, all printable"
        raise InvalidConfigError(text, user=ascii(name))
    return name


def written_secret(secret: ScramSecret) -> dict[str, Any]:
    keys = {"salt": secret.salt, "stored_key": secret.stored_key, "server_key": secret.server_key}
    return {"iterations": secret.iterations, **{name: b64encode(key).decode() for name, key in keys.items()}}


def _secrets(name: str, fields: Any) -> dict[str, ScramSecret]:
    try:
        return {mechanism: parsed_secret(mechanism, fields[mechanism]) for mechanism in HASHES}
    except (ValueError, KeyError, TypeError):
        raise StorageError("the user's credentials are incomplete: set the password again", user=name) from None


def parsed_secret(mechanism: str, fields: Any) -> ScramSecret:
    """Parse the result of `written_secret`. Raises ValueError, KeyError, TypeError, which do not quote secrets."""
    names = "salt", "stored_key", "server_key"
    salt, stored_key, server_key = (b64decode(fields[name], validate=True) for name in names)
    size, iterations = hashlib.new(HASHES[mechanism]).digest_size, fields["iterations"]
    if type(iterations) is not int or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ValueError("iterations")
    if len(stored_key) != size or len(server_key) != size or not salt:
        raise ValueError("keys")
    return ScramSecret(salt, iterations, stored_key, server_key)


_log = logging.getLogger("distlog.gateway")
#: The mode of a new file: its owner reads and writes it.
_PRIVATE = 0o600
#: The permissions that the file must not have: its group may only read it, and other users have no access.
_OTHER_ACCESS = 0o037
#: The largest file of users: a million users need about half.
_MAX_BYTES = 1 << 30
#: How long a change waits for another change of the file.
_WAIT_S = 10.0

_Stamp = tuple[int, ...]


def read_users(path: str) -> Users:
    return _read(path)[0]


def write_users(path: str, change: Callable[[Users], Users], *, timeout_s: float = _WAIT_S) -> None:
    """Change the users in the file atomically. A missing file is created for its owner only."""
    target = os.path.realpath(path)
    with flocked(f"{target}.lock", timeout_s) as lock:
        try:
            # the lock file gets the owner of the file of users
            with suppress(PermissionError):
                os.fchmod(lock, _PRIVATE)
            _keep_owner(target, lock, _PRIVATE)
            users = read_users(path) if os.path.lexists(path) else Users(os.urandom(_DECOY_BYTES), {})
            _replace(target, change(users).to_json().encode())
            sync_folder(os.path.dirname(target))
        except OSError as error:
            if isinstance(error, DistlogError):
                raise
            raise StorageError(f"cannot write the file of users: {error.strerror or error}", path=path) from None


def _read(path: str) -> tuple[Users, _Stamp]:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & _OTHER_ACCESS:
                raise StorageError(
                    "the file of users may be accessed by other users: change its mode to 600 or 640",
                    path=path,
                    mode=oct(stat.S_IMODE(status.st_mode)),
                )
            # root may use any file, and all users trust a file of root
            if 0 not in (os.geteuid(), status.st_uid) and status.st_uid != os.geteuid():
                raise StorageError("the file of users belongs to another user: chown it to this one", path=path)
            text = file.read(_MAX_BYTES)
    except OSError as error:
        if isinstance(error, DistlogError):
            raise
        raise StorageError(f"cannot read the file of users: {error.strerror or error}", path=path) from None
    return parse_users(text, path), _stamp(status)


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def stamp_of(path: str) -> _Stamp:
    try:
        return _stamp(os.stat(path))
    except OSError:
        return ()


def _replace(path: str, data: bytes) -> None:
    new_path = f"{path}.new"
    with suppress(FileNotFoundError):
        # a killed process may have left it
        os.unlink(new_path)
    descriptor = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    try:
        with open(descriptor, "wb") as file:
            _keep_owner(path, descriptor, 0o777 & ~_OTHER_ACCESS)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new_path, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(new_path)
        raise


def _keep_owner(path: str, descriptor: int, mode: int) -> None:
    """Give a file the owner of the file at `path`, and those bits of its mode that are in `mode`."""
    # if this process may not change the owner, the new file belongs to this process's user
    with suppress(FileNotFoundError, PermissionError):
        status = os.stat(path)
        os.fchown(descriptor, status.st_uid, status.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & mode)
