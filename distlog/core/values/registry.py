"""Schemas by their ids: from a registry with Confluent's REST API, or from the topic where registries keep them."""

from __future__ import annotations

import base64
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import IO, Any, Protocol, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import pyarrow as pa

from distlog.core.errors import InvalidConfigError, SchemaNotFoundError, StorageDeniedError, StorageError
from distlog.core.integers import whole_number

#: The most that an answer may have, in bytes, and take, in seconds.
MAX_ANSWER_BYTES = 8 << 20
ANSWER_SECONDS = 30.0
#: How many schemas one schema may need, over all levels: a circle of them would have no end.
MAX_REFERENCES = 250
#: The kinds of schemas. A registry names none for Avro, which it knew first.
KINDS = ("AVRO", "PROTOBUF", "JSON")
#: The context of all subjects that name none.
DEFAULT_CONTEXT = "."
_QUALIFIED = re.compile(r":(\.[^:]*):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as a registry has it: `kind` is AVRO, PROTOBUF or JSON.

    `imports` are the names and texts of the schemas that it refers to, each after those that it needs itself.
    """

    kind: str
    text: str
    imports: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Registered:
    """A schema before the others that it refers to were looked up: (name, subject, version) of each."""

    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...]

    @classmethod
    def parse(cls, given: Any) -> _Registered:
        if not isinstance(given, dict) or not isinstance(given.get("schema"), str):
            raise ValueError("no text called schema")
        kind = given.get("schemaType") or "AVRO"
        if kind not in KINDS:
            raise ValueError(f"schemaType {str(kind)[:40]!r} is none of {', '.join(KINDS)}")
        return cls(kind, given["schema"], tuple(map(_reference, given.get("references") or ())))


def _reference(given: Any) -> tuple[str, str, int]:
    reference = given if isinstance(given, dict) else {}
    name, subject, version = reference.get("name"), reference.get("subject"), reference.get("version")
    if not (isinstance(name, str) and isinstance(subject, str) and type(version) is int):
        raise ValueError("a reference needs a name, a subject and a version")
    return name, subject, version


class _Source(Protocol):
    """A place where schemas are looked up; both methods raise SchemaNotFoundError."""

    def by_id(self, schema_id: int) -> _Registered: ...

    def by_version(self, subject: str, version: int | None) -> _Registered: ...


class SchemaTopic(Protocol):
    """The part of a topic that a registry needs: `distlog.Topic` is one."""

    @property
    def url(self) -> str: ...

    def refresh(self) -> Any: ...

    def scan(self, *, columns: list[str]) -> Iterable[pa.RecordBatch]: ...


class SchemaRegistry:
    """Schemas by the ids that values begin with, each looked up once.

    `source` is the address of a registry with Confluent's REST API (`https://user:password@host:8081`), the topic in
    which such a registry keeps its schemas (`distlog.open(f"{root}/_schemas")`: then no registry has to run), or the
    schemas themselves by id, as texts of Avro or as dicts.

    An id means one schema in each `context` of a registry: the schemas of the subjects `:.staging:...` are those of
    the context `.staging`, all others those of the default context `.`. Subjects without a context are looked up in
    `context`.

    Pickles, into Spark tasks too. It never shows a user or password. Raises InvalidConfigError for another source.
    """

    def __init__(self, source: str | SchemaTopic | Mapping[int, Any], context: str = DEFAULT_CONTEXT) -> None:
        self._source = _source_of(source, context)
        self._schemas: dict[int, Schema] = {}

    def schema(self, schema_id: int) -> Schema:
        """The schema with this id, and those that it refers to.

        Raises SchemaNotFoundError, and StorageError if the registry cannot be asked or answers nonsense.
        """
        if schema_id not in self._schemas:
            self._schemas[schema_id] = self._whole(self._source.by_id(schema_id))
        return self._schemas[schema_id]

    def latest(self, subject: str) -> Schema:
        """The newest schema of a subject, as of `clicks-value`, looked up each time. Raises as `schema` does."""
        return self._whole(self._source.by_version(subject, None))

    def _whole(self, registered: _Registered) -> Schema:
        imports: dict[str, str] = {}
        self._add_imports(registered, imports, set())
        return Schema(registered.kind, registered.text, tuple(imports.items()))

    def _add_imports(self, registered: _Registered, imports: dict[str, str], begun: set[str]) -> None:
        for name, subject, version in registered.references:
            if name in begun:
                continue
            begun.add(name)
            if len(begun) > MAX_REFERENCES:
                raise StorageError(f"a schema refers to more than {MAX_REFERENCES} others", subject=subject)
            needed = self._source.by_version(subject, version)
            self._add_imports(needed, imports, begun)
            imports[name] = needed.text

    def __repr__(self) -> str:
        return f"SchemaRegistry({self._source})"


def registry_of(given: Any) -> SchemaRegistry:
    return given if isinstance(given, SchemaRegistry) else SchemaRegistry(given)


def split_subject(subject: str, context: str = DEFAULT_CONTEXT) -> tuple[str, str]:
    """The context of a subject, by default `context`, and its name there: `:.staging:clicks-value` names both."""
    qualified = _QUALIFIED.fullmatch(subject)
    return (qualified[1], qualified[2]) if qualified else (context, subject)


def _source_of(given: Any, context: str) -> _Source:
    if not isinstance(context, str) or not context.startswith(".") or ":" in context:
        raise InvalidConfigError("a context begins with a dot, as in .staging", context=repr(context))
    if isinstance(given, str):
        return _Server(given, context)
    if isinstance(given, Mapping):
        if context != DEFAULT_CONTEXT:
            raise InvalidConfigError("schemas that are given by id have no contexts", context=context)
        return _GivenSchemas(given)
    if hasattr(given, "scan") and hasattr(given, "refresh"):
        return _Topic(given, context)
    raise InvalidConfigError(
        "a registry is an http address, a topic (distlog.open(f'{root}/_schemas')), or a dict of schemas by id",
        registry=type(given).__name__,
    )


class _GivenSchemas:
    def __init__(self, given: Mapping[int, Any]) -> None:
        self._schemas = {whole_number("a schema's id", one): _known(text) for one, text in given.items()}

    def by_id(self, schema_id: int) -> _Registered:
        if schema_id not in self._schemas:
            raise SchemaNotFoundError(f"schema {schema_id} is not among the {len(self._schemas)} given")
        return self._schemas[schema_id]

    def by_version(self, subject: str, version: int | None) -> _Registered:
        raise SchemaNotFoundError(f"schemas that are given by id have no subjects, such as {subject}")

    def __str__(self) -> str:
        return f"{len(self._schemas)} schemas"


def _known(given: Any) -> _Registered:
    if isinstance(given, Schema):
        if given.imports:
            raise InvalidConfigError("a schema with imports comes from a registry: give its address")
        return _Registered(given.kind, given.text, ())
    return _Registered("AVRO", given if isinstance(given, str) else json.dumps(given), ())


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: it would carry the password to another server."""

    def redirect_request(self, *given: Any, **named: Any) -> None:
        """Nothing to ask next, so the redirect is the answer."""


class _Server:
    """A registry at an address, Confluent's or Karapace. User and password go into a header, and are shown nowhere.

    https://docs.confluent.io/platform/current/schema-registry/develop/api.html
    """

    def __init__(self, url: str, context: str = DEFAULT_CONTEXT, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
            raise InvalidConfigError(
                "the address of a registry is as https://user:password@host:8081; a topic of schemas is given opened"
            )
        name = f"[{host}]" if ":" in host else host
        self._url = f"{parts.scheme}://{name}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"
        if context != DEFAULT_CONTEXT:
            self._url += f"/contexts/{quote(context, safe='')}"
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()

    def by_id(self, schema_id: int) -> _Registered:
        return self._get(f"/schemas/ids/{schema_id}", f"schema {schema_id}")

    def by_version(self, subject: str, version: int | None) -> _Registered:
        number = "latest" if version is None else str(version)
        return self._get(f"/subjects/{quote(subject, safe='')}/versions/{number}", f"{subject}, version {number}")

    def _get(self, path: str, what: str) -> _Registered:
        request = Request(self._url + path, headers=self._headers)
        try:
            with build_opener(_NoRedirect).open(request, timeout=ANSWER_SECONDS / 3) as answer:
                return _Registered.parse(json.loads(self._read(answer)))
        except HTTPError as error:
            with error:
                raise self._refused(error.code, what) from None
        except (URLError, OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error or type(error).__name__
            raise StorageError(
                "the schema registry does not answer: check that it runs", registry=self._url, reason=reason
            ) from None
        except (ValueError, RecursionError) as error:
            raise StorageError(
                "the answer is no schema: check that the address is a schema registry's",
                registry=self._url,
                wanted=what,
                reason=str(error)[:200],
            ) from None

    def _read(self, answer: IO[bytes]) -> bytes:
        end, parts, size = self._clock() + ANSWER_SECONDS, [], 0
        while part := answer.read1(1 << 16):  # type: ignore[attr-defined]
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
            if self._clock() > end:
                raise TimeoutError(f"the answer takes longer than {ANSWER_SECONDS:g} s")
        return b"".join(parts)

    def _refused(self, code: int, what: str) -> Exception:
        if code == HTTPStatus.NOT_FOUND:
            return SchemaNotFoundError(f"the registry at {self._url} has no {what}")
        if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            text = "the registry refuses this user: write user and password into its address"
            return StorageDeniedError(text, registry=self._url, status=code)
        text = "the registry sends elsewhere: give that address" if 300 <= code < 400 else "the registry failed"
        return StorageError(text, registry=self._url, wanted=what, status=code)

    def __str__(self) -> str:
        return self._url


# Each record of the topic of schemas is a JSON object with a JSON object as its key. Confluent's and Karapace's
# registries write the same: {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}, and in the value the schema
# with its id. {"keytype":"DELETE_SUBJECT","subject":"s"} deletes the versions up to the one in its value,
# CLEAR_SUBJECT all.

_DELETIONS = ("DELETE_SUBJECT", "CLEAR_SUBJECT")
T = TypeVar("T")

#: A version of a subject: the context, the subject there, and its number.
_Version = tuple[str, str, int]


class _Topic:
    """The schemas in the records of a topic, as one context has them; it is read again when one is not there.

    Of two schemas of one id the first one counts, as in Confluent's registry. A deleted schema is still found by its
    id, as long as its record is there: old values need it.
    """

    def __init__(self, topic: SchemaTopic, context: str) -> None:
        self._topic, self._context, self._is_read = topic, context, False
        #: By context and id: the version that was registered first, and its schema.
        self._ids: dict[tuple[str, int], tuple[_Version, _Registered]] = {}
        self._versions: dict[_Version, _Registered] = {}
        self._deleted: set[_Version] = set()

    def by_id(self, schema_id: int) -> _Registered:
        found = self._found(lambda: self._ids.get((self._context, schema_id)))
        if found is not None:
            return found[1]
        others = ", ".join(sorted(context for context, number in self._ids if number == schema_id))
        there = f", but one in the contexts {others}: SchemaRegistry(topic, context)" if others else ""
        raise self._missing(f"schema {schema_id}{there}")

    def by_version(self, subject: str, version: int | None) -> _Registered:
        context, name = split_subject(subject, self._context)
        if version is None:
            self._read()
            known = [each[2] for each in self._versions.keys() - self._deleted if each[:2] == (context, name)]
            registered = self._versions.get((context, name, max(known, default=0)))
        else:
            registered = self._found(lambda: self._versions.get((context, name, version)))
        if registered is None:
            raise self._missing(f"subject {subject}" if version is None else f"version {version} of {subject}")
        return registered

    def _found(self, look: Callable[[], T | None]) -> T | None:
        found = look()
        if found is None:
            self._read()
            found = look()
        return found

    def _missing(self, what: str) -> SchemaNotFoundError:
        of = "" if self._context == DEFAULT_CONTEXT else f" in the context {self._context}"
        return SchemaNotFoundError(f"the topic {self._topic.url} has no {what}{of}")

    def _read(self) -> None:
        if self._is_read:
            self._topic.refresh()
        self._is_read = True
        for batch in self._topic.scan(columns=["key", "value"]):
            for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
                self._add(_object(key), _object(value))

    def _add(self, key: dict[str, Any], value: dict[str, Any]) -> None:
        """Add a record's schema, or its deletion; other records, as of a subject's compatibility, have none."""
        kind, subject, number = key.get("keytype"), key.get("subject"), key.get("version")
        if not isinstance(subject, str):
            return
        context, name = split_subject(subject)
        if kind in _DELETIONS:
            # later versions of the subject are live
            last = value.get("version", 0) if kind == "DELETE_SUBJECT" else math.inf
            gone = (each for each in self._versions if each[:2] == (context, name) and each[2] <= last)
            self._deleted.update(gone if isinstance(last, int | float) else ())
        elif kind == "SCHEMA" and type(number) is int:
            self._add_version((context, name, number), value)

    def _add_version(self, version: _Version, value: dict[str, Any]) -> None:
        deleted = value.get("deleted") is True or not value
        (self._deleted.add if deleted else self._deleted.discard)(version)
        try:
            registered = _Registered.parse(value)
        except ValueError:
            return
        self._versions[version] = registered
        if type(value.get("id")) is int:
            place = version[0], value["id"]
            first, _ = self._ids.get(place, (version, None))
            if first == version:
                self._ids[place] = version, registered

    def __str__(self) -> str:
        return str(self._topic.url)


def _object(given: bytes | None) -> dict[str, Any]:
    try:
        made = json.loads(given or b"{}")
    except (ValueError, RecursionError):
        return {}
    return made if isinstance(made, dict) else {}
