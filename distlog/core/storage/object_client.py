"""The fsspec clients of object stores: their options, their errors, and what this process knows of their servers."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from distlog.core import extra
from distlog.core.errors import DistlogError, InvalidConfigError, StorageDeniedError, StorageError
from distlog.core.storage.calls import PARALLEL_READS, ErrorClassifier, ErrorKind, process_lock

#: The secrets within a connection string of Azure.
_SECRET_PARTS = ("AccountKey=", "SharedAccessSignature=")
_JSON_EXAMPLE = '{"region_name": "eu-west-1"}'
_ENVIRONMENT_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR_HOST")


class StorageOptions(dict[str, Any]):
    """The options of a client. `repr` hides their values. Strings may be "true", "false" or JSON objects."""

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(f'{name}=***' for name in self)})"

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the client. Raises InvalidConfigError for an option that must be a JSON object."""
        return {name: _value_of(name, value) for name, value in self.items()}

    def masked(self, text: str) -> str:
        """Return `text` with `***` for every value that may be a secret."""
        for value in _texts_of([*self.values(), *environment().values()]):
            text = text.replace(value, "***")
        return text


def _value_of(name: str, value: Any) -> Any:
    if isinstance(value, str) and value.startswith("{"):
        with suppress(ValueError):
            return json.loads(value)
    elif isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    # the error must not have the value, which may be a secret
    if name.endswith("_kwargs") and not isinstance(value, Mapping | None):
        raise InvalidConfigError(f"the storage option {name} must be a JSON object, as in {_JSON_EXAMPLE}")
    return value


def _texts_of(values: Iterable[Any]) -> list[str]:
    strings = []
    for value in values:
        if isinstance(value, Mapping):
            strings += _texts_of(value.values())
        elif isinstance(value, str) and len(value) > 3:
            strings.append(value)
            strings += [part.partition("=")[2] for part in value.split(";") if part.startswith(_SECRET_PARTS)]
    return strings


def environment() -> dict[str, str]:
    return {name: os.environ[name] for name in os.environ if name.startswith(_ENVIRONMENT_PREFIXES)}


# The times of the store's replies (HTTP's Date) show how long a process was paused. This machine's clocks don't: the
# wall clock may be set, and the monotonic clock stops while the machine sleeps.

#: Receives the times of the replies to the requests of a context, in ms since 1970.
REPLY_TIMES: ContextVar[list[int] | None] = ContextVar("REPLY_TIMES", default=None)


def record_reply(client: Any, date: str | None) -> None:
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
    """Return a Date in ms since 1970; cached, since all replies in a second have the same Date."""
    return int(parsedate_to_datetime(date).timestamp() * 1000)


def replied_ms(client: Any) -> int:
    """Return the newest time of a reply to `client`; 0 if unknown."""
    return int(getattr(client, "distlog_replied_ms", 0))


def _record_replies(protocol: str, client: Any) -> None:
    """Make `client` pass the Date of each reply to `record_reply`."""
    with suppress(AttributeError):
        if protocol == "s3":
            client._call_s3 = _recording_call(client, client._call_s3)
        elif protocol == "gs":
            from aiohttp import TraceConfig

            async def note(session: Any, context: Any, params: Any) -> None:
                record_reply(client, params.response.headers.get("Date"))

            config = TraceConfig()
            config.on_request_end.append(note)
            client.session_kwargs = {**client.session_kwargs, "trace_configs": [config]}
        elif protocol in _AZURE:
            for policy in client.service_client._pipeline._impl_policies:
                if hasattr(policy, "_response_callback"):
                    policy._response_callback = lambda response: record_reply(
                        client, response.http_response.headers.get("Date")
                    )


def _recording_call(client: Any, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def recording(*arguments: Any, **named: Any) -> Any:
        try:
            reply = await call(*arguments, **named)
        except Exception as error:
            # an error such as "missing" or "exists" is a reply too
            record_reply(client, _s3_date(getattr(error, "response", getattr(error.__cause__, "response", None))))
            raise
        record_reply(client, _s3_date(reply))
        return reply

    return recording


def _s3_date(reply: Any) -> str | None:
    metadata = reply.get("ResponseMetadata", {}) if isinstance(reply, Mapping) else {}
    date: str | None = metadata.get("HTTPHeaders", {}).get("date")
    return date


# Clients are cached per process id. A forked child makes its own clients, and must not close its parent's, since the
# two processes share sockets and the descriptors of the event loop.
MAX_CLIENTS = 16

# Clients don't retry, since `calls.retried` does: retries in several layers would take minutes.
_S3_CONFIG = {
    "connect_timeout": 5,
    "read_timeout": 20,
    "retries": {"total_max_attempts": 1},
    "max_pool_connections": PARALLEL_READS,
}
#: The environment variable that makes gcsfs query the kind of a bucket.
_GCSFS_BUCKET_KINDS = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"
_AZURE = ("abfs", "abfss", "az")
_AZURE_SETTINGS = {"connection_timeout": 5, "read_timeout": 20}
_EXTRAS = {"s3": "s3", "gs": "gcs", **dict.fromkeys(_AZURE, "azure")}
#: The option of s3fs, by the name that other tools use.
_S3_NAMES = {
    **dict.fromkeys(("access_key", "access_key_id", "aws_access_key_id"), "key"),
    **dict.fromkeys(("secret_key", "secret_access_key", "aws_secret_access_key"), "secret"),
    **dict.fromkeys(("session_token", "aws_session_token"), "token"),
    **dict.fromkeys(("region", "region_name", "aws_region"), 'client_kwargs={"region_name": ...}'),
}
#: Options of s3fs that are not its arguments: of its cache of listings, and of botocore's session.
_S3_OTHER_OPTIONS = {
    "skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths",
    "profile", "session_vars", "event_hooks", "include_builtin_handlers",
}  # fmt: skip


@dataclass(slots=True)
class PutProof:
    """Whether conditional puts are proven to work in a bucket. `lock` is held during the probe."""

    is_proven: bool = False
    lock: AbstractContextManager[object] = field(default_factory=process_lock)


@dataclass(slots=True)
class KnownClient:
    """An fsspec client. `has_answered` is True once its server has replied; `proofs` are by bucket."""

    client: Any
    has_answered: bool = False
    proofs: dict[str, PutProof] = field(default_factory=dict)


#: The clients, by process and by a hash of their settings.
_CLIENTS: dict[tuple[int, str], KnownClient] = {}


class ClientSource:
    """Returns the current process's client for a protocol and its options."""

    def __init__(self, protocol: str, options: StorageOptions) -> None:
        self._protocol, self._options = protocol, options
        # a hash of all settings of a client, including the credentials in the environment
        settings = json.dumps([protocol, options, environment()], sort_keys=True, default=repr)
        self._key = hashlib.sha256(settings.encode()).hexdigest()

    def get(self) -> KnownClient:
        """Return this process's client. Raises InvalidConfigError for an unknown option."""
        key = (os.getpid(), self._key)
        client = _CLIENTS.get(key)
        if client is None:
            # rotating credentials make many clients: keep this process's newest MAX_CLIENTS - 1, and all of a parent
            own_keys = [client_key for client_key in list(_CLIENTS) if client_key[0] == key[0]]
            for oldest_key in own_keys[: 1 - MAX_CLIENTS]:
                _CLIENTS.pop(oldest_key, None)
            client = _CLIENTS.setdefault(key, KnownClient(_connect(self._protocol, self._options)))
        return client

    @property
    def has_answered(self) -> bool:
        client = _CLIENTS.get((os.getpid(), self._key))
        return client is not None and client.has_answered


def _connect(protocol: str, options: StorageOptions) -> Any:
    # slow to import, and local topics do not need it
    import fsspec

    settings = {**options.settings(), "skip_instance_cache": True, "use_listings_cache": False}
    if protocol == "s3":
        settings["config_kwargs"] = {**_S3_CONFIG, **settings.get("config_kwargs", {})}
    elif protocol in _AZURE:
        settings = {**_AZURE_SETTINGS, **settings}
    client_class = _class_of(protocol)
    if client_class is not None:
        _check_options(protocol, client_class, settings)
    try:
        client = (
            client_class(**settings) if client_class and protocol == "gs" else fsspec.filesystem(protocol, **settings)
        )
    except ImportError:
        name = _EXTRAS.get(protocol)
        hint = f"pip install {extra(name)}" if name else f"install the fsspec package for {protocol}"
        raise StorageError(f"no client for {protocol}:// is installed: {hint}") from None
    except (TypeError, ValueError, LookupError) as error:
        if protocol not in fsspec.available_protocols():
            text = f"unknown storage {protocol}://: use a path, s3://bucket/folder, gs://, abfs:// or memory://"
            raise StorageError(text) from None
        raise StorageError(f"cannot open {protocol}://: {options.masked(str(error))}") from None
    except OSError as error:
        if not str(error).startswith("Unable to load lib"):
            raise
        raise StorageError(
            f"no client for {protocol}:// is installed: it needs Java and Hadoop's libhdfs, located by JAVA_HOME and "
            "HADOOP_HOME or ARROW_LIBHDFS_DIR"
        ) from None
    _stop_retries(protocol, client)
    _record_replies(protocol, client)
    return client


def _class_of(protocol: str) -> Any:
    """Return the class of a protocol's clients, or None: then the creation of a client raises the error."""
    from fsspec import get_filesystem_class

    try:
        client_class: Any = get_filesystem_class(protocol)
    except (ImportError, ValueError):
        return None
    # gcsfs queries a bucket's kind by gRPC, and tries for a minute where gRPC fails; its base class doesn't
    if protocol == "gs" and _GCSFS_BUCKET_KINDS not in os.environ:
        return next((kind for kind in client_class.__mro__ if kind.__module__ == "gcsfs.core"), client_class)
    return client_class


def _stop_retries(protocol: str, client: Any) -> None:
    if protocol == "s3":
        client.retries = 1
    elif protocol in _AZURE:
        with suppress(AttributeError):
            client.service_client._config.retry_policy.total_retries = 0
    elif protocol == "gs":
        with suppress(AttributeError):
            # the method without its decorator, which retries
            client._request = type(client)._request.__wrapped__.__get__(client)


def _check_options(protocol: str, client: Any, settings: Mapping[str, Any]) -> None:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = [item for item in inspect.signature(client.__init__).parameters.values() if item.kind in kinds]
    required = {item.name for item in parameters if item.default is item.empty} - {"self"}
    if missing := sorted(required - settings.keys()):
        raise InvalidConfigError(f"cannot open {protocol}://: set the storage option {' and '.join(missing)}")
    names = [item.name for item in parameters if item.name != "self"]
    # arguments of base classes are valid
    inherited = {name for kind in client.__mro__ for name in inspect.signature(kind.__init__).parameters}
    suggestions = {**{name: name for name in names}, **(_S3_NAMES if protocol == "s3" else {})}
    for name in [setting for setting in settings if setting not in inherited]:
        # with 0.66, a name of three letters is close if two letters are swapped
        if close := difflib.get_close_matches(name.lower(), suggestions, 1, 0.66):
            text = f"{protocol}:// has no storage option {name!r}: did you mean {suggestions[close[0]]}?"
            raise InvalidConfigError(text)
        if protocol == "s3" and name not in _S3_OTHER_OPTIONS:  # s3fs refuses it only with the first request
            raise InvalidConfigError(f"s3:// has no storage option {name!r}: it has {', '.join(names)}")


class ClientErrors(ErrorClassifier):
    """The errors of a protocol's fsspec client: judged by the server's reply if they have one, else by their type."""

    def __init__(self, options: StorageOptions, protocol: str) -> None:
        self._options = options
        self._server_settings = _SERVER_SETTINGS.get(protocol, "the address, the storage options, and the network")

    def kind(self, error: Exception) -> ErrorKind:
        if answer := _reply(error):
            table, reply = answer
            return table.kind(reply)
        if isinstance(error, FileNotFoundError):
            return ErrorKind.MISSING
        kinds = _class_names(error)
        if "RefreshError" in kinds:
            return ErrorKind.LAPSED
        is_refused = (
            isinstance(error, _CALL_ERRORS)
            or bool(kinds & _NO_CREDENTIALS_ERRORS)
            or ("BotoCoreError" in kinds and not kinds & _LOST_CONNECTION_ERRORS)
        )
        return ErrorKind.REFUSED if is_refused else ErrorKind.UNCLEAR

    def is_answer(self, error: Exception) -> bool:
        return _reply(error) is not None or isinstance(error, (FileNotFoundError, FileExistsError))

    def failure(self, action: str, path: str, error: Exception) -> DistlogError:
        failure = super().failure(action, path, error)
        answer = _reply(error)
        if answer and answer[1].status in (401, 403) and not isinstance(failure, StorageDeniedError):
            return StorageDeniedError(failure.message, **failure.details)
        return failure

    def describe(self, error: Exception) -> str:
        """Return the server's reply, the remedy, or the error's type; without the values of options."""
        if answer := _reply(error):
            table, reply = answer
            cause = table.cause(reply)
            hint = f"; {cause}" if cause else ""
            return f"{reply.code} (HTTP {reply.status}): {self._options.masked(reply.words[:300])}{hint}"
        if isinstance(error, FileNotFoundError):
            return _NO_BUCKET  # `retried` has raised for a missing object, unless only the bucket can be missing
        if advice := _advice(error, self._server_settings):
            return advice
        words = f": {self._options.masked(str(error))}" if isinstance(error, _CALL_ERRORS) else ""
        return type(error).__name__ + words


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's reply: the HTTP status, the store's error code, and the text, which may have a secret."""

    status: int
    code: str
    words: str


@dataclass(frozen=True, slots=True)
class ClientTable:
    """The meanings of a store's replies to one client. A reply's error code takes precedence over its HTTP status."""

    name: str
    reply: Callable[[BaseException], Reply | None]
    statuses: Mapping[int, ErrorKind]
    codes: Mapping[str, ErrorKind]
    causes: Mapping[str | int, str]

    def kind(self, reply: Reply) -> ErrorKind:
        kind = self.codes.get(reply.code) or self.statuses.get(reply.status)
        return kind or (ErrorKind.REFUSED if 300 <= reply.status < 500 else ErrorKind.UNCLEAR)

    def cause(self, reply: Reply) -> str | None:
        # Google's text: gcsfs sends no credentials if it finds none
        if reply.words.startswith("Anonymous caller does not have"):
            return f"no credentials were sent: {_GOOGLE_LOGIN}"
        return self.causes.get(reply.code) or self.causes.get(reply.status)


def _reply_of_s3fs(error: BaseException) -> Reply | None:
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    fields = response.get("Error", {})
    return Reply(status, str(fields.get("Code") or status), str(fields.get("Message", "")))


def _reply_of_gcsfs(error: BaseException) -> Reply | None:
    code = str(getattr(error, "code", None)) if type(error).__name__ == "HttpError" else ""
    if code.isdecimal():
        return Reply(int(code), _status_phrase(int(code)), str(getattr(error, "message", "")))
    # a 403 is only recognizable by its text
    if type(error) is OSError and error.errno is None and str(error).startswith("Forbidden: "):
        return Reply(403, _status_phrase(403), str(error).partition("\n")[2])
    return None


def _reply_of_adlfs(error: BaseException) -> Reply | None:
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or "HttpResponseError" not in _class_names(error):
        return None
    code = getattr(error, "error_code", None)
    words = str(getattr(error, "message", "")).partition("\n")[0]
    return Reply(status, str(getattr(code, "value", code) or _status_phrase(status)), words)


def _status_phrase(status: int) -> str:
    return next((member.phrase for member in HTTPStatus if member == status), "Error")


_NO_BUCKET = "the bucket or container does not exist: create it, or check the address"
_CLOCK = "this machine's clock differs too much from the store's: set it, for example by NTP"
_PERMISSIONS = "the credentials do not allow it: check their permissions"
_S3_EXPIRED = "the session token has expired: get new credentials, for example by aws sso login"
_GOOGLE_LOGIN = "gcloud auth application-default login, or another storage option token"
_AZURE_KEYS = "the account key, the token or the SAS"
#: 409 and 412 are unclear: only a read shows which object is stored. Other 3xx and 4xx are refusals, 5xx unclear.
_STATUSES = {
    307: ErrorKind.UNCLEAR,
    404: ErrorKind.MISSING,
    408: ErrorKind.UNCLEAR,
    409: ErrorKind.UNCLEAR,
    412: ErrorKind.UNCLEAR,
    416: ErrorKind.PAST_THE_END,
    425: ErrorKind.UNCLEAR,
    429: ErrorKind.UNCLEAR,
    501: ErrorKind.REFUSED,
    505: ErrorKind.REFUSED,
}
S3FS = ClientTable(
    "s3fs",
    _reply_of_s3fs,
    _STATUSES,
    {
        "NoSuchBucket": ErrorKind.REFUSED,
        **dict.fromkeys(
            ("RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "SlowDown"),
            ErrorKind.UNCLEAR,
        ),
        **dict.fromkeys(
            ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestTimeTooSkewed"),
            ErrorKind.LAPSED,
        ),
    },
    {
        401: "the credentials are not accepted: check the storage options key and secret, or the environment's",
        403: "the credentials do not allow it: check their permissions (without s3:ListBucket a missing object is "
        "403 too)",
        "RequestTimeTooSkewed": _CLOCK,
        **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"), _S3_EXPIRED),
        **dict.fromkeys(
            ("InvalidToken", "InvalidClientTokenId", "UnrecognizedClientException"),
            "the session token is wrong, or belongs to other credentials: get new ones, or unset AWS_SESSION_TOKEN",
        ),
        "InvalidAccessKeyId": "the store does not know this access key: check the key and the endpoint",
        "SignatureDoesNotMatch": "the secret does not match the access key: check both",
        "AuthorizationHeaderMalformed": "the region is not the bucket's: set AWS_DEFAULT_REGION",
        "PermanentRedirect": "the bucket is at another endpoint: set AWS_DEFAULT_REGION, or endpoint_url",
        "NoSuchBucket": _NO_BUCKET,
    },
)
#: An expired token of Google or Azure is a 401.
GCSFS = ClientTable(
    "gcsfs",
    _reply_of_gcsfs,
    {**_STATUSES, 401: ErrorKind.LAPSED},
    {},
    {401: f"the token is wrong or has expired: {_GOOGLE_LOGIN}", 403: _PERMISSIONS},
)
ADLFS = ClientTable(
    "adlfs",
    _reply_of_adlfs,
    {**_STATUSES, 401: ErrorKind.LAPSED},
    {
        "ContainerNotFound": ErrorKind.REFUSED,
        "BlobArchived": ErrorKind.REFUSED,
        # the code of an expired SAS, and of a wrong key
        "AuthenticationFailed": ErrorKind.LAPSED,
        "OperationTimedOut": ErrorKind.UNCLEAR,
    },
    {
        401: f"{_AZURE_KEYS} is missing, wrong or expired: get another, for example by az login",
        403: _PERMISSIONS,
        "AuthenticationFailed": f"{_AZURE_KEYS} is wrong or expired, or this machine's clock is wrong: check them",
        "AuthorizationPermissionMismatch": f"{_PERMISSIONS}, for example the role Storage Blob Data Contributor",
        "AuthorizationFailure": "the account's firewall, or a SAS without this right, forbids it: check both",
        "ContainerNotFound": _NO_BUCKET,
    },
)
TABLES = (S3FS, GCSFS, ADLFS)

#: The client's own errors about a call: no retry helps, and their text is shown.
_CALL_ERRORS = (TypeError, ValueError, LookupError, ImportError, NotImplementedError, PermissionError, StorageError)
_LOST_CONNECTION_ERRORS = {"HTTPClientError", "ConnectionError", "IncompleteReadError"}
_NO_CREDENTIALS_ERRORS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "DefaultCredentialsError",
    # Azure's error without a reply
    "ClientAuthenticationError",
}
_NO_CREDENTIALS_ADVICE = (
    "no credentials were found: set the storage options key and secret, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or anon=true for a public bucket (for gs:// the option token, for abfs:// account_name "
    "and account_key)"
)
#: botocore's errors before a request is sent.
_EXPIRED_LOGIN = {"SSOError", "TokenRetrievalError"}
#: The settings that locate a client's server, for the error if the server cannot be reached.
_SERVER_SETTINGS = {
    "s3": "the storage option endpoint_url or AWS_ENDPOINT_URL, the region, and the network",
    "gs": "the storage option endpoint_url or STORAGE_EMULATOR_HOST, if one is set, and the network",
    **dict.fromkeys(
        ("abfs", "abfss", "az"),
        "the account's name, the storage options connection_string and account_host or "
        "AZURE_STORAGE_CONNECTION_STRING, and the network",
    ),
}
#: The cause of a client's error in plain words; the first match applies.
_UNREACHABLE_REASONS = (
    (socket.gaierror, "its name does not resolve"),
    (ConnectionRefusedError, "it refuses connections"),
    (ssl.SSLError, "TLS fails"),
    (TimeoutError, "no answer"),
)

#: Frequent errors that have no reply themselves; their cause may have one.
_ERRORS_WITHOUT_REPLY = (FileNotFoundError, FileExistsError, TimeoutError)


def _class_names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _reply(error: BaseException) -> tuple[ClientTable, Reply] | None:
    """Return the client's table and the server's reply, from the error or its cause; None without a reply."""
    for source in (error, error.__cause__):
        if source is None or type(source) in _ERRORS_WITHOUT_REPLY:
            continue
        for table in TABLES:
            if reply := table.reply(source):
                return table, reply
    return None


def _advice(error: Exception, server_settings: str) -> str | None:
    """Return what is wrong, and the remedy, if the server is unreachable or credentials are missing."""
    if _class_names(error) & _NO_CREDENTIALS_ERRORS:
        return _NO_CREDENTIALS_ADVICE
    if "RefreshError" in _class_names(error):
        return (
            f"the credentials of Google cannot be renewed: {_GOOGLE_LOGIN}; or this machine's clock is wrong: set it"
        )
    if _class_names(error) & _EXPIRED_LOGIN:
        return _S3_EXPIRED
    causes = list(_causes(error, 8))
    server = next((name for cause in causes if (name := _server(cause))), None)
    if server is None:
        return None
    reason = next((words for kind, words in _UNREACHABLE_REASONS for cause in causes if isinstance(cause, kind)), "")
    return f"{server} cannot be reached{reason and f', {reason}'}: check {server_settings}"


def _server(error: BaseException) -> str | None:
    """Return the name and port of the server that botocore or aiohttp did not reach."""
    arguments = getattr(error, "kwargs", None)
    address = arguments.get("endpoint_url") if isinstance(arguments, Mapping) else None
    if isinstance(address, str):
        return urlsplit(address).netloc.rpartition("@")[2]
    host, port = getattr(error, "host", None), getattr(error, "port", None)
    return f"{host}:{port}" if isinstance(host, str) and isinstance(port, int) else None


def _causes(error: BaseException | None, limit: int) -> Iterator[BaseException]:
    """Yield an error of botocore or aiohttp and its causes, up to `limit` errors."""
    while error is not None and limit > 0:
        yield error
        limit -= 1
        arguments: Any = getattr(error, "kwargs", None)
        inner = arguments.get("error") if isinstance(arguments, Mapping) else getattr(error, "os_error", None)
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
