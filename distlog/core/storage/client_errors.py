"""The meaning of errors of object stores' clients, by the type of an error: no client is imported."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from distlog.core.errors import DistlogError, StorageDeniedError, StorageError
from distlog.core.storage.object_client import StorageOptions
from distlog.core.storage.retry import ErrorClassifier, ErrorKind


class ClientErrors(ErrorClassifier):
    """The errors of the fsspec client of a protocol: by the tables, others by their Python type."""

    def __init__(self, options: StorageOptions, protocol: str) -> None:
        self._options = options
        self._where = _WHERE.get(protocol, "the address, the storage options, and the network")

    def kind(self, error: Exception) -> ErrorKind:
        if answer := _reply(error):
            table, reply = answer
            return table.kind(reply)
        if isinstance(error, FileNotFoundError):
            return ErrorKind.MISSING
        kinds = _kinds(error)
        if "RefreshError" in kinds:
            return ErrorKind.LAPSED
        is_refused = (
            isinstance(error, _WRONG_CALL)
            or bool(kinds & _NO_CREDENTIALS)
            or ("BotoCoreError" in kinds and not kinds & _LOST_CONNECTION)
        )
        return ErrorKind.REFUSED if is_refused else ErrorKind.UNCLEAR

    def is_answer(self, error: Exception) -> bool:
        return _reply(error) is not None or isinstance(error, (FileNotFoundError, FileExistsError))

    def failure(self, action: str, path: str, error: Exception) -> DistlogError:
        """As every classifier; 401 and 403 are StorageDeniedError."""
        failure = super().failure(action, path, error)
        answer = _reply(error)
        if answer and answer[1].status in (401, 403) and not isinstance(failure, StorageDeniedError):
            return StorageDeniedError(failure.message, **failure.details)
        return failure

    def describe(self, error: Exception) -> str:
        """The server's code, status and words, what to set to reach it, or the error's type; no option's value."""
        if answer := _reply(error):
            table, reply = answer
            cause = table.cause(reply)
            hint = f"; {cause}" if cause else ""
            return f"{reply.code} (HTTP {reply.status}): {self._options.masked(reply.words[:300])}{hint}"
        if isinstance(error, FileNotFoundError):
            return _NO_BUCKET
        if advice := _advice(error, self._where):
            return advice
        words = f": {self._options.masked(str(error))}" if isinstance(error, _WRONG_CALL) else ""
        return type(error).__name__ + words


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's reply: the HTTP status, its own code for it, and words, which may hold a secret."""

    status: int
    code: str
    words: str


@dataclass(frozen=True, slots=True)
class ClientTable:
    """The meanings of one client's errors; a code takes precedence over its status."""

    name: str
    reply: Callable[[BaseException], Reply | None]
    statuses: Mapping[int, ErrorKind]
    codes: Mapping[str, ErrorKind]
    causes: Mapping[str | int, str]

    def kind(self, reply: Reply) -> ErrorKind:
        kind = self.codes.get(reply.code) or self.statuses.get(reply.status)
        return kind or (ErrorKind.REFUSED if 300 <= reply.status < 500 else ErrorKind.UNCLEAR)

    def cause(self, reply: Reply) -> str | None:
        """The cause of a refusal and what to do, by the reply's code, or else its status."""
        # Google's store; gcsfs sends no credentials where it finds none
        if reply.words.startswith("Anonymous caller does not have"):
            return f"no credentials were sent: {_GOOGLE_LOGIN}"
        return self.causes.get(reply.code) or self.causes.get(reply.status)


def _reply_of_s3fs(error: BaseException) -> Reply | None:
    said = getattr(error, "response", None)
    if not isinstance(said, dict):
        return None
    status = int(said.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    about = said.get("Error", {})
    return Reply(status, str(about.get("Code") or status), str(about.get("Message", "")))


def _reply_of_gcsfs(error: BaseException) -> Reply | None:
    code = str(getattr(error, "code", None)) if type(error).__name__ == "HttpError" else ""
    if code.isdecimal():
        return Reply(int(code), _phrase(int(code)), str(getattr(error, "message", "")))
    # a 403 is only recognizable by its text
    if type(error) is OSError and error.errno is None and str(error).startswith("Forbidden: "):
        return Reply(403, _phrase(403), str(error).partition("\n")[2])
    return None


def _reply_of_adlfs(error: BaseException) -> Reply | None:
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or "HttpResponseError" not in _kinds(error):
        return None
    code = getattr(error, "error_code", None)
    words = str(getattr(error, "message", "")).partition("\n")[0]
    return Reply(status, str(getattr(code, "value", code) or _phrase(status)), words)


def _phrase(status: int) -> str:
    return next((member.phrase for member in HTTPStatus if member == status), "Error")


_NO_BUCKET = "the bucket or container does not exist: create it, or check the address"
_CLOCK = "this machine's clock differs too much from the store's: set it, for example by NTP"
_PERMISSIONS = "the credentials do not allow it: check their permissions"
_S3_EXPIRED = "the session token has expired: get new credentials, for example by aws sso login"
_GOOGLE_LOGIN = "gcloud auth application-default login, or another storage option token"
_AZURE_KEYS = "the account key, the token or the SAS"
#: 409 and 412 are unclear, since only a read shows which object is stored. Other 3xx and 4xx are refusals, and 5xx
#: may be temporary.
_STATUSES = {
    307: ErrorKind.UNCLEAR,
    401: ErrorKind.REFUSED,
    403: ErrorKind.REFUSED,
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
            "the session token is wrong or of other credentials: get new ones, or unset AWS_SESSION_TOKEN",
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
        # an expired signature in the address has the same code as a wrong key
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

_WRONG_CALL = (TypeError, ValueError, LookupError, ImportError, NotImplementedError, PermissionError, StorageError)
_LOST_CONNECTION = {"HTTPClientError", "ConnectionError", "IncompleteReadError"}
_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "DefaultCredentialsError",
    # of Azure, without a reply: no credentials were found
    "ClientAuthenticationError",
}
_CREDENTIALS = (
    "no credentials were found: set the storage options key and secret, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or anon=true for a public bucket (for gs:// the option token, for abfs:// account_name "
    "and account_key)"
)
#: botocore's, before a request is sent.
_RUN_OUT = {"SSOError", "TokenRetrievalError"}
#: The settings that locate the server of a client, for the error that it cannot be reached.
_WHERE = {
    "s3": "the storage option endpoint_url or AWS_ENDPOINT_URL, the region, and the network",
    "gs": "the storage option endpoint_url or STORAGE_EMULATOR_HOST, if one is set, and the network",
    **dict.fromkeys(
        ("abfs", "abfss", "az"),
        "the account's name, the storage options connection_string and account_host or "
        "AZURE_STORAGE_CONNECTION_STRING, and the network",
    ),
}
#: The cause of a client's error in plain words; the first match applies.
_REASONS = (
    (socket.gaierror, "its name does not resolve"),
    (ConnectionRefusedError, "it refuses connections"),
    (ssl.SSLError, "TLS fails"),
    (TimeoutError, "no answer"),
)

#: Frequent errors of clients, which have no reply; at most their cause has a reply.
_NO_REPLIES = (FileNotFoundError, FileExistsError, TimeoutError)


def _kinds(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _reply(error: BaseException) -> tuple[ClientTable, Reply] | None:
    """The reply of the server, from the error or its cause, and the table of its client."""
    for source in (error, error.__cause__):
        if source is None or type(source) in _NO_REPLIES:
            continue
        for table in TABLES:
            if reply := table.reply(source):
                return table, reply
    return None


def _advice(error: Exception, where: str) -> str | None:
    """Return the fault and the remedy, for a server that was not reached, and for missing credentials."""
    if _kinds(error) & _NO_CREDENTIALS:
        return _CREDENTIALS
    if "RefreshError" in _kinds(error):
        return (
            f"the credentials of Google cannot be renewed: {_GOOGLE_LOGIN}; or this machine's clock is wrong: set it"
        )
    if _kinds(error) & _RUN_OUT:
        return _S3_EXPIRED
    causes = list(_causes(error, 8))
    server = next((name for cause in causes if (name := _server(cause))), None)
    if server is None:
        return None
    reason = next((words for kind, words in _REASONS for cause in causes if isinstance(cause, kind)), "")
    return f"{server} cannot be reached{reason and f', {reason}'}: check {where}"


def _server(error: BaseException) -> str | None:
    """Return the name and port of the server that botocore or aiohttp did not reach."""
    arguments = getattr(error, "kwargs", None)
    address = arguments.get("endpoint_url") if isinstance(arguments, Mapping) else None
    if isinstance(address, str):
        return urlsplit(address).netloc.rpartition("@")[2]
    host, port = getattr(error, "host", None), getattr(error, "port", None)
    return f"{host}:{port}" if isinstance(host, str) and isinstance(port, int) else None


def _causes(error: BaseException | None, most: int) -> Iterator[BaseException]:
    """Yield an error of botocore or aiohttp and its causes, in `most` steps."""
    while error is not None and most > 0:
        yield error
        most -= 1
        arguments: Any = getattr(error, "kwargs", None)
        inner = arguments.get("error") if isinstance(arguments, Mapping) else getattr(error, "os_error", None)
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
