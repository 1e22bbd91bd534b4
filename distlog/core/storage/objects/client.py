"""The fsspec clients of a process: their options, how they are made, and what their errors mean.

Clients are kept per process id. After a fork the child makes its own. It must not close those of its parent, since
both processes share their sockets and the file descriptors of the event loop.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import fsspec

from distlog.core.errors import StorageError
from distlog.core.storage.objects.unreachable import advice
from distlog.core.storage.parallel import PARALLEL_REQUESTS
from distlog.core.storage.retry import ErrorJudge, Verdict

MAX_CLIENTS = 16

# Only `storage.retry` retries, so that its deadline holds: retries in several layers would take minutes.
_S3_CONFIG = {
    "connect_timeout": 5,
    "read_timeout": 20,
    "retries": {"total_max_attempts": 1},
    "max_pool_connections": 2 * PARALLEL_REQUESTS,
}
_INSTALL = {"s3": "pip install 'distlog[s3]'", "gs": "pip install gcsfs", "abfs": "pip install adlfs"}
_CLIENTS: dict[tuple[int, str], Any] = {}
#: The clients, by their key in _CLIENTS, whose server has answered once.
_ANSWERED: set[tuple[int, str]] = set()

_UNCLEAR_STATUS = (307, 408, 409, 412, 425, 429)
_UNCLEAR_CODES = ("RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "SlowDown")
_NEVER_STATUS = (501, 505)
_LAPSED_CODES = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestTimeTooSkewed")
_WRONG_CALL = (TypeError, ValueError, LookupError, ImportError, NotImplementedError, PermissionError, StorageError)
_FORBIDDEN_HINT = "; check the credentials and their permissions (without s3:ListBucket a missing object is 403 too)"
_LOST_CONNECTION = {"HTTPClientError", "ConnectionError", "IncompleteReadError"}


class StorageOptions(dict[str, Any]):
    """The options of a client (for S3: key, secret, token, endpoint_url, anon, client_kwargs, ...); hides the values.

    Strings, as from a command line, may be "true", "false" or JSON objects.
    """

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(f'{name}=***' for name in self)})"

    def settings(self) -> dict[str, Any]:
        """The options as the client wants them."""
        return {name: _typed(value) for name, value in self.items()}

    def masked(self, text: str) -> str:
        """`text` with `***` for every value that may be a secret."""
        for value in _strings([*self.values(), *_environment().values()]):
            text = text.replace(value, "***")
        return text


def _typed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.startswith("{"):
        return json.loads(value)
    return {"true": True, "false": False}.get(value.lower(), value)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def _strings(values: Iterable[Any]) -> list[str]:
    found = []
    for value in values:
        if isinstance(value, Mapping):
            found += _strings(value.values())
        elif isinstance(value, str) and len(value) > 3:
            found.append(value)
    return found


class ClientSource:
    """Gives the fsspec file system for a protocol and options, one per process."""

    def __init__(self, protocol: str, options: StorageOptions) -> None:
        self._protocol, self._options = protocol, options
        self._key = _fingerprint(protocol, options)

    def get(self) -> Any:
        """This process's client.

        Raises StorageError when the client's package is not installed, or an option is unknown.
        """
        key = (os.getpid(), self._key)
        made = _CLIENTS.get(key)
        if made is None:
            _make_room(key[0])
            made = _CLIENTS.setdefault(key, _connect(self._protocol, self._options))
        return made

    @property
    def has_answered(self) -> bool:
        """Whether the server has answered anything to this process."""
        return (os.getpid(), self._key) in _ANSWERED

    def note_answer(self) -> None:
        """Remember that the server has answered."""
        _ANSWERED.add((os.getpid(), self._key))


def _make_room(process: int) -> None:
    """Drop this process's oldest clients beyond MAX_CLIENTS, which rotating credentials make; never a parent's."""
    own = [key for key in list(_CLIENTS) if key[0] == process]
    for key in own[: 1 - MAX_CLIENTS]:
        _CLIENTS.pop(key, None)
        _ANSWERED.discard(key)


def _fingerprint(protocol: str, options: StorageOptions) -> str:
    """A hash of all that a client is made from, which includes the credentials in the environment."""
    made_from = json.dumps([protocol, options, _environment()], sort_keys=True, default=repr)
    return hashlib.sha256(made_from.encode()).hexdigest()


def _connect(protocol: str, options: StorageOptions) -> Any:
    try:
        settings = {**options.settings(), "skip_instance_cache": True, "use_listings_cache": False}
        if protocol == "s3":
            settings["config_kwargs"] = {**_S3_CONFIG, **settings.get("config_kwargs", {})}
        _check_complete(protocol, settings)
        made = fsspec.filesystem(protocol, **settings)
    except ImportError:
        hint = _INSTALL.get(protocol, f"install the fsspec package for {protocol}")
        raise StorageError(f"no client for {protocol}:// is installed: {hint}") from None
    except (TypeError, ValueError, LookupError) as error:
        if protocol not in fsspec.available_protocols():
            raise StorageError(
                f"no storage is called {protocol}://: give a path, s3://bucket/folder, gs://, abfs:// or memory://"
            ) from None
        raise StorageError(f"cannot open {protocol}://: {options.masked(str(error))}") from None
    if protocol == "s3":
        made.retries = 1
    return made


def _check_complete(protocol: str, settings: Mapping[str, Any]) -> None:
    """Raise StorageError for options that are missing: a client that is half made prints a stack when it goes."""
    try:
        client = fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError):
        return  # who makes it says so
    known = inspect.signature(client.__init__).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = {each.name for each in known if each.kind in kinds and each.default is each.empty} - {"self"}
    if missing := sorted(needed - settings.keys()):
        raise StorageError(f"cannot open {protocol}://: set the storage option {' and '.join(missing)}")


class ClientErrors(ErrorJudge):
    """The errors of fsspec clients: s3fs and botocore in detail, others by their Python type."""

    def __init__(self, options: StorageOptions) -> None:
        self._options = options

    def verdict(self, error: Exception) -> Verdict:
        """What the error says; 412 and 409 are unclear, since only a read tells whose object is stored."""
        status, code, _ = _reply(error)
        if code:
            return _verdict_of_reply(status, code)
        if isinstance(error, FileNotFoundError):
            return Verdict.MISSING
        kinds = {kind.__name__ for kind in type(error).__mro__}
        refused = isinstance(error, _WRONG_CALL) or ("BotoCoreError" in kinds and not kinds & _LOST_CONNECTION)
        return Verdict.REFUSED if refused else Verdict.UNCLEAR

    def is_answer(self, error: Exception) -> bool:
        """Whether the error is what a server said."""
        return bool(_reply(error)[1]) or isinstance(error, FileNotFoundError)

    def describe(self, error: Exception) -> str:
        """The server's code, status and words, or what to set to reach it, or the error's type.

        Of the options' values only the server's name is told.
        """
        status, code, words = _reply(error)
        if code:
            hint = _FORBIDDEN_HINT if status == 403 else ""
            return f"{code} (HTTP {status}): {self._options.masked(words[:300])}{hint}"
        if told := advice(error):
            return told
        words = f": {self._options.masked(str(error))}" if isinstance(error, _WRONG_CALL) else ""
        return type(error).__name__ + words


def _verdict_of_reply(status: int, code: str) -> Verdict:
    if status in _UNCLEAR_STATUS or code in _UNCLEAR_CODES:
        return Verdict.UNCLEAR
    if code in _LAPSED_CODES:
        return Verdict.LAPSED
    if status == 404 and code != "NoSuchBucket":
        return Verdict.MISSING
    return Verdict.REFUSED if 300 <= status < 500 or status in _NEVER_STATUS else Verdict.UNCLEAR


def is_past_the_end(error: Exception) -> bool:
    """Whether the error says that a range starts at or after the end of the object."""
    return _reply(error)[0] == 416


def _reply(error: BaseException) -> tuple[int, str, str]:
    """HTTP status, code and words of the server's reply, from the error or its cause; (0, "", "") without one."""
    for source in (error, error.__cause__):
        reply = getattr(source, "response", None)
        if isinstance(reply, dict):
            status = reply.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            said = reply.get("Error", {})
            return int(status), str(said.get("Code") or status), str(said.get("Message", ""))
    return 0, "", ""
