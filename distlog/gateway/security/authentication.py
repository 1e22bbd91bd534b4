"""SASL for Kafka clients: PLAIN (RFC 4616) and SCRAM (RFC 5802)."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import threading
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from distlog.core.errors import DistlogError
from distlog.core.log_manager.log_manager import Metric, Value
from distlog.gateway.event_log import EventLog
from distlog.gateway.security.users_file import HASHES, MAX_NAME_BYTES, ScramSecret, Users, UsersFile, secret_of

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *HASHES)
#: The random bytes of a nonce, and of the key with which cached passwords are hashed.
_NONCE_BYTES = 24
#: How long a correct password stays cached, and the most cached passwords.
_CACHE_TIME_S, _MAX_CACHED = 600.0, 10_000
#: The longest SASL message: a name and a password need much less.
_MAX_TOKEN_BYTES = 8 << 10
#: The client's first and last SCRAM messages, and its escaped name. As in RFC 5802, `bare` is a
#: message without its `gs2` header, and `as` is another user whose rights the client asks for.
_FIRST = re.compile(
    r"(?P<gs2>[ny],(?:a=(?P<as>[^,]*))?,)(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,.*)?)"
)
_LAST = re.compile(r"(?P<without_proof>c=(?P<gs2>[^,]*),r=(?P<nonce>[^,]*)(?:,[^,]*)*),p=(?P<proof>[A-Za-z0-9+/=]+)")
_NAME = re.compile(r"(?:[^=]|=2C|=3D)+")


def new_nonce() -> str:
    return b64encode(os.urandom(_NONCE_BYTES)).decode()


class AuthenticationFailedError(DistlogError):
    """A client failed to authenticate. The response to the client does not contain the reason."""


class AuthenticatedUser(NamedTuple):
    name: str
    secret: ScramSecret


@dataclass(frozen=True, slots=True)
class PlainLogin:
    name: str
    password: str = field(repr=False)


def read_plain(token: bytes) -> PlainLogin:
    fields = _text(token).split("\0")
    if len(fields) != 3:
        raise AuthenticationFailedError("a malformed PLAIN message")
    acts_as, name, password = fields
    return PlainLogin(_valid_name(name, acts_as), password)


def check_plain(login: PlainLogin, users: Users) -> AuthenticatedUser:
    """Check a password, in equal time for known and unknown users. Raises AuthenticationFailedError."""
    mechanism = users.plain_mechanism(login.name)
    secret, exists = users.secret(login.name, mechanism)
    login_secret = secret_of(mechanism, login.password, secret.salt, secret.iterations)
    if not hmac.compare_digest(login_secret.stored_key, secret.stored_key) or not exists or not login.password:
        raise AuthenticationFailedError("unknown user, or wrong password")
    return AuthenticatedUser(login.name, secret)


class KnownPasswords:
    """Keyed hashes of recent correct passwords, to make reconnections cheap."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s, self._key, self._lock = clock_s, os.urandom(_NONCE_BYTES), threading.Lock()
        self._cached: dict[bytes, tuple[float, ScramSecret]] = {}

    def user(self, login: PlainLogin, users: Users) -> AuthenticatedUser | None:
        """Return the user of a login whose password is cached, or None if the password must be checked."""
        cached_s, secret = self._cached.get(self._hash(login), (float("-inf"), None))
        if secret is None or self._clock_s() - cached_s > _CACHE_TIME_S:
            return None
        is_current = users.secret(login.name, users.plain_mechanism(login.name)) == (secret, True)
        return AuthenticatedUser(login.name, secret) if is_current else None

    def add(self, login: PlainLogin, secret: ScramSecret) -> None:
        with self._lock:
            if len(self._cached) >= _MAX_CACHED:
                self._cached.clear()
            self._cached[self._hash(login)] = self._clock_s(), secret

    def _hash(self, login: PlainLogin) -> bytes:
        return hmac.digest(self._key, f"{login.name}\0{login.password}".encode(errors="surrogateescape"), "sha256")


class ScramExchange:
    """The server's side of a SCRAM exchange. `first` is called before `last`. Channel binding is not supported."""

    def __init__(self, mechanism: str, users: Users, nonce: Callable[[], str]) -> None:
        self._mechanism, self._users, self._new_nonce = mechanism, users, nonce
        #: The user that the client claims to be. `first` sets this field and the fields that `last` reads.
        self.name = ""

    def first(self, token: bytes) -> bytes:
        match = _FIRST.fullmatch(_text(token))
        if match is None or not _NAME.fullmatch(match["name"]):
            raise AuthenticationFailedError("a malformed SCRAM message")
        self.name = _valid_name(_unescaped(match["name"]), _unescaped(match["as"] or ""))
        self._secret, self._exists = self._users.secret(self.name, self._mechanism)
        self._gs2, self._nonce = match["gs2"], match["nonce"] + self._new_nonce()
        # librdkafka before 2.6.1 sends its own nonce twice
        self._nonce_of_old_librdkafka = match["nonce"] + self._nonce
        answer = f"r={self._nonce},s={b64encode(self._secret.salt).decode()},i={self._secret.iterations}"
        self._first_messages = f"{match['bare']},{answer}"
        return answer.encode()

    def last(self, token: bytes) -> tuple[bytes, AuthenticatedUser]:
        match = _LAST.fullmatch(_text(token))
        if match is not None and match["nonce"] == self._nonce_of_old_librdkafka:
            raise AuthenticationFailedError("the client sent its nonce twice, as librdkafka before 2.6.1: upgrade it")
        if match is None or match["nonce"] != self._nonce or _decoded(match["gs2"]) != self._gs2.encode():
            raise AuthenticationFailedError("a malformed SCRAM message")
        algorithm, auth_message = HASHES[self._mechanism], f"{self._first_messages},{match['without_proof']}".encode()
        client_signature = hmac.digest(self._secret.stored_key, auth_message, algorithm)
        client_proof = _decoded(match["proof"])
        if len(client_proof) != len(client_signature):
            raise AuthenticationFailedError("a malformed SCRAM message")
        client_key = bytes(a ^ b for a, b in zip(client_proof, client_signature, strict=True))
        stored_key = hashlib.new(algorithm, client_key).digest()
        if not hmac.compare_digest(stored_key, self._secret.stored_key) or not self._exists:
            raise AuthenticationFailedError("unknown user, or wrong password")
        verifier = b64encode(hmac.digest(self._secret.server_key, auth_message, algorithm))
        return b"v=" + verifier, AuthenticatedUser(self.name, self._secret)


def _text(token: bytes) -> str:
    if len(token) > _MAX_TOKEN_BYTES:
        raise AuthenticationFailedError("a SASL message is too long")
    try:
        return bytes(token).decode()
    except UnicodeDecodeError:
        raise AuthenticationFailedError("a SASL message is not UTF-8") from None


def _valid_name(name: str, acts_as: str) -> str:
    """Return the name. Raises AuthenticationFailedError if it is invalid, or if the client acts as another user."""
    if not name or len(name.encode()) > MAX_NAME_BYTES or acts_as not in ("", name):
        raise AuthenticationFailedError("unknown user, or wrong password")
    return name


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise AuthenticationFailedError("a malformed SCRAM message") from None


#: An address's count of failures halves in this time.
_HALF_LIFE_S = 30.0
#: Up to _FEW_FAILURES, the delay is the shortest. Then it grows in proportion to the count, up to the longest.
_FEW_FAILURES, _LONGEST_DELAY_S = 10, 20.0
#: The most addresses whose failures are counted.
_MAX_ADDRESSES = 10_000


class FailedLogins:
    """The failed authentications by address, for many threads. `clock_s` is monotonic."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s, self._lock = clock_s, threading.Lock()
        #: The count of each address at its last failure, and the time of this failure.
        self._failures: dict[str, tuple[float, float]] = {}
        self.log = EventLog("failed authentications", clock_s)

    def note_failure(self, address: str, shortest_s: float) -> float:
        """Count a failure of the address. Returns the delay of the response in seconds."""
        with self._lock:
            now_s = self._clock_s()
            last_count, last_s = self._failures.pop(address, (0.0, now_s))
            count: float = last_count * 0.5 ** ((now_s - last_s) / _HALF_LIFE_S) + 1
            if len(self._failures) >= _MAX_ADDRESSES:
                # forget the address whose last failure is the oldest
                del self._failures[next(iter(self._failures))]
            self._failures[address] = count, now_s
        return min(shortest_s * max(count / _FEW_FAILURES, 1), max(_LONGEST_DELAY_S, shortest_s))


_Secrets = Mapping[str, Mapping[str, ScramSecret]]
_NO_SECRETS: _Secrets = {}


class Authentication:
    """The SASL settings and counters, for many threads. `mechanisms` are Kafka's `sasl.enabled.mechanisms`."""

    def __init__(self, users: UsersFile, mechanisms: Sequence[str] = MECHANISMS) -> None:
        self.users, self.mechanisms = users, tuple(mechanisms)
        self.passwords, self.failures = KnownPasswords(time.monotonic), FailedLogins(time.monotonic)
        #: Returns the secrets of the root's users, by name and mechanism. Returns the same object until they change.
        self.root_secrets: Callable[[], _Secrets] = lambda: _NO_SECRETS
        # what `current` last read from the file and from the root, and what it returned
        self._cached = users.current(), _NO_SECRETS, users.current()
        self._lock = threading.Lock()
        self._counts = Counter[tuple[str, str]]({(mechanism, "ok"): 0 for mechanism in mechanisms})

    def current(self) -> Users:
        """Return the users of the file, and the root's users with other names."""
        file_users, root_secrets = self.users.current(), self.root_secrets()
        cached_file_users, cached_root_secrets, users = self._cached
        if cached_file_users is not file_users or cached_root_secrets is not root_secrets:
            users = file_users.with_root_users(root_secrets)
            # use one assignment, so that no other thread reads a mixture
            self._cached = file_users, root_secrets, users
        return users

    def count(self, mechanism: str, result: str) -> None:
        with self._lock:
            self._counts[mechanism, result] += 1

    def metrics(self) -> list[Metric]:
        with self._lock:
            counts = sorted(self._counts.items())
        values: list[Value] = [({"mechanism": name, "result": result}, float(n)) for (name, result), n in counts]
        return [Metric("distlog_gateway_authentications", "counter", "SASL exchanges that were ok or failed", values)]


class SaslExchange:
    def __init__(self, authentication: Authentication) -> None:
        self._authentication = authentication
        self.mechanism = ""
        self._scram: ScramExchange | None = None
        self._user: AuthenticatedUser | None = None
        #: True if the next frame is a token without a request header, since the client sent SaslHandshake 0.
        self.expects_bare_token = False
        self.mechanisms, self.failures = authentication.mechanisms, authentication.failures

    @property
    def expects_handshake(self) -> bool:
        return not self.mechanism

    def claimed_user(self, token: bytes) -> str:
        """Return the user that the client claims to be, or an empty name if it has not sent one."""
        login = self._login(token)
        if login is not None:
            return login.name
        return self._scram.name if self._scram is not None else ""

    def is_slow(self, token: bytes) -> bool:
        """Whether the token has a password that is not cached, and takes milliseconds of CPU time to check."""
        login = self._login(token)
        authentication = self._authentication
        return login is not None and authentication.passwords.user(login, authentication.current()) is None

    def _login(self, token: bytes) -> PlainLogin | None:
        try:
            return read_plain(token) if self.mechanism == PLAIN else None
        except AuthenticationFailedError:
            return None

    def choose(self, mechanism: str, *, bare_tokens: bool) -> bool:
        """Choose the mechanism of the exchange. Returns False if it is not enabled."""
        if mechanism not in self.mechanisms:
            self._authentication.count("other", "failed")
            return False
        self.mechanism, self.expects_bare_token = mechanism, bare_tokens
        return True

    def step(self, token: bytes) -> tuple[bytes, str | None]:
        """Return the answer, and the user's name once authenticated. Raises AuthenticationFailedError."""
        try:
            answer, self._user = self._step(token)
        except AuthenticationFailedError:
            self._authentication.count(self.mechanism, "failed")
            raise
        if self._user is None:
            return answer, None
        self.expects_bare_token = False
        self._authentication.count(self.mechanism, "ok")
        return answer, self._user.name

    def is_file_user(self, name: str) -> bool:
        """Whether the file of users has this name. The file takes precedence over the root."""
        return name in self._authentication.users.current().secrets

    def is_revoked(self, users: Users) -> bool:
        """Whether the user was deleted, or has got another password, since the login."""
        user = self._user
        return user is not None and user.secret not in users.secrets.get(user.name, {}).values()

    def _step(self, token: bytes) -> tuple[bytes, AuthenticatedUser | None]:
        if self.mechanism == PLAIN:
            login, users = read_plain(token), self._authentication.current()
            user = self._authentication.passwords.user(login, users)
            if user is None:
                user = check_plain(login, users)
                self._authentication.passwords.add(login, user.secret)
            return b"", user
        if self._scram is None:
            self._scram = ScramExchange(self.mechanism, self._authentication.current(), new_nonce)
            return self._scram.first(token), None
        return self._scram.last(token)
