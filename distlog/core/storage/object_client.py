"""The fsspec clients of a process: how they are made, and which of their stores have answered."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from distlog.core import extra
from distlog.core.errors import InvalidConfigError, StorageError
from distlog.core.locks import process_lock
from distlog.core.storage.parallel import PARALLEL_REQUESTS

#: The secrets within a connection string of Azure.
_SECRET_PARTS = ("AccountKey=", "SharedAccessSignature=")
_OBJECT = '{"region_name": "eu-west-1"}'
_ENVIRONMENT = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR_HOST")


class StorageOptions(dict[str, Any]):
    """The options of a client, whose values `repr` hides; strings may be "true", "false" or JSON objects."""

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(f'{name}=***' for name in self)})"

    def settings(self) -> dict[str, Any]:
        """The options as the client wants them. Raises InvalidConfigError for one that must be a JSON object."""
        return {name: _typed(name, value) for name, value in self.items()}

    def masked(self, text: str) -> str:
        """`text` with `***` for every value that may be a secret."""
        for value in _strings([*self.values(), *environment().values()]):
            text = text.replace(value, "***")
        return text


def _typed(name: str, value: Any) -> Any:
    if isinstance(value, str) and value.startswith("{"):
        with suppress(ValueError):
            return json.loads(value)
    elif isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    # as all clients call them; the value may be a secret
    if name.endswith("_kwargs") and not isinstance(value, Mapping | None):
        raise InvalidConfigError(f"the storage option {name} must be a JSON object, as in {_OBJECT}")
    return value


def _strings(values: Iterable[Any]) -> list[str]:
    strings = []
    for value in values:
        if isinstance(value, Mapping):
            strings += _strings(value.values())
        elif isinstance(value, str) and len(value) > 3:
            strings.append(value)
            strings += [part.partition("=")[2] for part in value.split(";") if part.startswith(_SECRET_PARTS)]
    return strings


def environment() -> dict[str, str]:
    return {name: os.environ[name] for name in os.environ if name.startswith(_ENVIRONMENT)}


# The store's time, from its replies (the Date of HTTP). No clock of this machine measures how long a process was
# paused: the wall clock may be set, and the monotonic clock stops while the machine sleeps or is an image.

#: Gets the times of the replies to the requests of a context, in ms since 1970.
REPLY_TIMES: ContextVar[list[int] | None] = ContextVar("REPLY_TIMES", default=None)


def note_reply(client: Any, date: str | None) -> None:
    """Store the Date of a reply to `client`; a missing or bad Date is ignored."""
    try:
        time_ms = _date_ms(date or "")
    except (TypeError, ValueError):
        return
    client.distlog_replied_ms = max(time_ms, replied_ms(client))
    times = REPLY_TIMES.get()
    if times is not None:
        times.append(time_ms)


@lru_cache(64)
def _date_ms(date: str) -> int:
    """Parse a Date to ms since 1970; cached, since all replies of a second have the same."""
    return int(parsedate_to_datetime(date).timestamp() * 1000)


def replied_ms(client: Any) -> int:
    """Return the newest time of a reply to `client`; 0 without any."""
    return int(getattr(client, "distlog_replied_ms", 0))


def _note_replies(protocol: str, client: Any) -> None:
    """Make a new client store the times of its replies, if it supports that."""
    with suppress(AttributeError):
        if protocol == "s3":
            client._call_s3 = _noted_calls(client, client._call_s3)
        elif protocol == "gs":
            from aiohttp import TraceConfig

            async def note(session: Any, context: Any, params: Any) -> None:
                note_reply(client, params.response.headers.get("Date"))

            config = TraceConfig()
            config.on_request_end.append(note)
            client.session_kwargs = {**client.session_kwargs, "trace_configs": [config]}
        elif protocol in _AZURE:
            for policy in client.service_client._pipeline._impl_policies:
                if hasattr(policy, "_response_callback"):
                    policy._response_callback = lambda response: note_reply(
                        client, response.http_response.headers.get("Date")
                    )


def _noted_calls(client: Any, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def noted(*arguments: Any, **named: Any) -> Any:
        try:
            reply = await call(*arguments, **named)
        except Exception as error:
            # "missing" and "exists" are replies too
            note_reply(client, _s3_date(getattr(error, "response", getattr(error.__cause__, "response", None))))
            raise
        note_reply(client, _s3_date(reply))
        return reply

    return noted


def _s3_date(reply: Any) -> str | None:
    metadata = reply.get("ResponseMetadata", {}) if isinstance(reply, Mapping) else {}
    date: str | None = metadata.get("HTTPHeaders", {}).get("date")
    return date


# Clients are cached per process id. A forked child makes its own, and must not close its parent's, since both
# processes share sockets and the descriptors of the event loop.
MAX_CLIENTS = 16

# Only `storage.retry` retries, so that its deadline holds: retries in several layers would take minutes.
_S3_CONFIG = {
    "connect_timeout": 5,
    "read_timeout": 20,
    "retries": {"total_max_attempts": 1},
    "max_pool_connections": 2 * PARALLEL_REQUESTS,
}
#: This variable makes gcsfs query the kind of a bucket.
_KINDS_OF_BUCKETS = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"
_AZURE = ("abfs", "abfss", "az")
_AZURE_SETTINGS = {"connection_timeout": 5, "read_timeout": 20}
_INSTALL = {"s3": "s3", "gs": "gcs", **dict.fromkeys(_AZURE, "azure")}
#: Names of other tools for options of s3fs.
_S3_NAMES = {
    **dict.fromkeys(("access_key", "access_key_id", "aws_access_key_id"), "key"),
    **dict.fromkeys(("secret_key", "secret_access_key", "aws_secret_access_key"), "secret"),
    **dict.fromkeys(("session_token", "aws_session_token"), "token"),
    **dict.fromkeys(("region", "region_name", "aws_region"), 'client_kwargs={"region_name": ...}'),
}
#: The options of s3fs in addition to its arguments: of its cache of listings, and of botocore's session.
_S3_LIBRARY = frozenset(
    {
        *("skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths"),
        *("profile", "session_vars", "event_hooks", "include_builtin_handlers"),
    }
)
_CLIENTS: dict[tuple[int, str], Any] = {}
#: The clients, by their key in _CLIENTS, whose server has answered once.
_ANSWERED: set[tuple[int, str]] = set()
#: By a client's key in _CLIENTS and a bucket: whether the bucket keeps the condition of a put.
_PROOFS: dict[tuple[int, str, str], Proof] = {}


@dataclass(slots=True)
class Proof:
    """Whether conditional puts of a bucket are proven to work, if `is_held`; `lock` is for the probe."""

    is_held: bool = False
    lock: AbstractContextManager[object] = field(default_factory=process_lock)


class ClientSource:
    def __init__(self, protocol: str, options: StorageOptions) -> None:
        self._protocol, self._options = protocol, options
        # a hash of all settings of a client, including the credentials in the environment
        settings = json.dumps([protocol, options, environment()], sort_keys=True, default=repr)
        self._key = hashlib.sha256(settings.encode()).hexdigest()

    def get(self) -> Any:
        """Return this process's client. Raises InvalidConfigError for an unknown option."""
        key = (os.getpid(), self._key)
        client = _CLIENTS.get(key)
        if client is None:
            # rotating credentials make more than MAX_CLIENTS: drop this process's oldest clients, never a parent's
            clients = [old for old in list(_CLIENTS) if old[0] == key[0]]
            for old in clients[: 1 - MAX_CLIENTS]:
                _CLIENTS.pop(old, None)
                _ANSWERED.discard(old)
                for proof in [bucket_key for bucket_key in list(_PROOFS) if bucket_key[:2] == old]:
                    _PROOFS.pop(proof, None)
            client = _CLIENTS.setdefault(key, _connect(self._protocol, self._options))
        return client

    @property
    def has_answered(self) -> bool:
        return (os.getpid(), self._key) in _ANSWERED

    def note_answer(self) -> None:
        _ANSWERED.add((os.getpid(), self._key))

    def proof(self, bucket: str) -> Proof:
        return _PROOFS.setdefault((os.getpid(), self._key, bucket), Proof())


def _connect(protocol: str, options: StorageOptions) -> Any:
    # slow to import, and local topics do not need it
    import fsspec

    settings = {**options.settings(), "skip_instance_cache": True, "use_listings_cache": False}
    if protocol == "s3":
        settings["config_kwargs"] = {**_S3_CONFIG, **settings.get("config_kwargs", {})}
    elif protocol in _AZURE:
        settings = {**_AZURE_SETTINGS, **settings}
    kind_of_client = _class_of(protocol)
    if kind_of_client is not None:
        _check_options(protocol, kind_of_client, settings)
    try:
        client = (
            kind_of_client(**settings)
            if kind_of_client and protocol == "gs"
            else fsspec.filesystem(protocol, **settings)
        )
    except ImportError:
        name = _INSTALL.get(protocol)
        hint = f"pip install {extra(name)}" if name else f"install the fsspec package for {protocol}"
        raise StorageError(f"no client for {protocol}:// is installed: {hint}") from None
    except (TypeError, ValueError, LookupError) as error:
        if protocol not in fsspec.available_protocols():
            raise StorageError(
                f"unknown storage {protocol}://: use a path, s3://bucket/folder, gs://, abfs:// or memory://"
            ) from None
        raise StorageError(f"cannot open {protocol}://: {options.masked(str(error))}") from None
    except OSError as error:
        if not str(error).startswith("Unable to load lib"):
            raise
        raise StorageError(
            f"no client for {protocol}:// is installed: it needs Java and Hadoop's libhdfs, located by JAVA_HOME and "
            "HADOOP_HOME or ARROW_LIBHDFS_DIR"
        ) from None
    _stop_retries(protocol, client)
    _note_replies(protocol, client)
    return client


def _class_of(protocol: str) -> Any:
    """Return the class of the clients of a protocol, or None; making a client raises the error."""
    from fsspec import get_filesystem_class

    try:
        kind_of_client: Any = get_filesystem_class(protocol)
    except (ImportError, ValueError):
        return None
    # gcsfs queries the kind of a bucket by gRPC, and waits a minute for a server without gRPC; its base does not
    if protocol == "gs" and _KINDS_OF_BUCKETS not in os.environ:
        return next((kind for kind in kind_of_client.__mro__ if kind.__module__ == "gcsfs.core"), kind_of_client)
    return kind_of_client


def _stop_retries(protocol: str, client: Any) -> None:
    """Make the client try once, if it supports that."""
    if protocol == "s3":
        client.retries = 1
    elif protocol in _AZURE:
        with suppress(AttributeError):
            client.service_client._config.retry_policy.total_retries = 0
    elif protocol == "gs":
        with suppress(AttributeError):
            client._request = type(client)._request.__wrapped__.__get__(client)


def _check_options(protocol: str, client: Any, settings: Mapping[str, Any]) -> None:
    """Raise InvalidConfigError for missing options, and for misspelled names."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = [item for item in inspect.signature(client.__init__).parameters.values() if item.kind in kinds]
    needed = {item.name for item in parameters if item.default is item.empty} - {"self"}
    if missing := sorted(needed - settings.keys()):
        raise InvalidConfigError(f"cannot open {protocol}://: set the storage option {' and '.join(missing)}")
    names = [item.name for item in parameters if item.name != "self"]
    # arguments of base classes are valid
    inherited = {name for kind in client.__mro__ for name in inspect.signature(kind.__init__).parameters}
    meant = {**{name: name for name in names}, **(_S3_NAMES if protocol == "s3" else {})}
    for name in [setting for setting in settings if setting not in inherited]:
        # in a name of three letters two may be swapped
        if close := difflib.get_close_matches(name.lower(), meant, 1, 0.66):
            raise InvalidConfigError(f"{protocol}:// has no storage option {name!r}: did you mean {meant[close[0]]}?")
        if protocol == "s3" and name not in _S3_LIBRARY:
            raise InvalidConfigError(f"s3:// has no storage option {name!r}: it has {', '.join(names)}")
