"""Schemas by id, from a registry with Confluent's REST API, or from the topic of a registry."""

from __future__ import annotations

import base64
import json
import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import IO, Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import pyarrow as pa

from distlog.core.arrays import whole_number
from distlog.core.errors import InvalidConfigError, SchemaNotFoundError, StorageDeniedError, StorageError

#: The most bytes of a registry's response, and the longest time that it may take.
MAX_ANSWER_BYTES = 8 << 20
ANSWER_SECONDS = 30.0
#: The most schemas that a schema may refer to, directly or not. This also bounds cycles.
MAX_REFERENCES = 250
#: The kinds of schemas. A registry omits the kind of Avro.
KINDS = ("AVRO", "PROTOBUF", "JSON")
#: The default context. Contexts are namespaces of ids and subjects in one registry.
DEFAULT_CONTEXT = "."
_QUALIFIED = re.compile(r":(\.[^:]*):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema; `kind` is AVRO, PROTOBUF or JSON. `imports` has referenced names and texts, dependencies first."""

    kind: str
    text: str
    imports: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Registered:
    """A schema whose references, (name, subject, version), are not resolved."""

    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...]

    @classmethod
    def parse(cls, value: Any) -> _Registered:
        if not isinstance(value, dict) or not isinstance(value.get("schema"), str):
            raise ValueError("no text called schema")
        kind = value.get("schemaType") or "AVRO"
        if kind not in KINDS:
            raise ValueError(f"schemaType {str(kind)[:40]!r} is not one of {', '.join(KINDS)}")
        return cls(kind, value["schema"], tuple(map(_reference, value.get("references") or ())))


def _reference(value: Any) -> tuple[str, str, int]:
    reference = value if isinstance(value, dict) else {}
    name, subject, version = reference.get("name"), reference.get("subject"), reference.get("version")
    if not (isinstance(name, str) and isinstance(subject, str) and type(version) is int):
        raise ValueError("a reference needs a name, a subject and a version")
    return name, subject, version


class SchemaTopic(Protocol):
    """The part of a topic that a registry needs: `distlog.Topic` is one."""

    @property
    def url(self) -> str: ...

    def refresh(self) -> Any: ...

    def scan(self, *, columns: list[str]) -> Iterable[pa.RecordBatch]: ...


class SchemaRegistry:
    """Look up schemas by the ids in the headers of values (Confluent's wire format). Each id is requested once.

    A registry can be pickled into Spark tasks. Its `repr` hides user and password.

    Args:
        source: The address of a registry with Confluent's REST API (`https://user:password@host:8081`); the topic
            where a registry stores its schemas (`distlog.open(f"{root}/_schemas")`, which needs no running registry);
            or a dict of schemas by id, as Avro texts or dicts.
        context: The context in which ids, and subjects without a context, are looked up. A subject may name its own
            context, as in `:.staging:clicks-value`.

    Raises:
        InvalidConfigError: The source or the context is not valid.

    Examples:
        >>> distlog.SchemaRegistry({1: '"long"'}).schema(1).text
        '"long"'
    """

    def __init__(self, source: str | SchemaTopic | Mapping[int, Any], context: str = DEFAULT_CONTEXT) -> None:
        self._source = _source_of(source, context)
        self._schemas: dict[int, Schema] = {}

    def schema(self, schema_id: int) -> Schema:
        """Look up a schema, and the schemas that it refers to.

        Args:
            schema_id: The id in the header of a value.

        Returns:
            The schema.

        Raises:
            SchemaNotFoundError: The registry does not have the schema.
            StorageError: The registry fails, or its answer is not valid.
        """
        if schema_id not in self._schemas:
            self._schemas[schema_id] = self._with_imports(self._source.by_id(schema_id))
        return self._schemas[schema_id]

    def latest(self, subject: str) -> Schema:
        """Look up the newest schema of a subject.

        Args:
            subject: The subject, as `clicks-value`.

        Returns:
            The schema.

        Raises:
            SchemaNotFoundError: The registry does not have the subject.
            StorageError: The registry fails, or its answer is not valid.
        """
        return self._with_imports(self._source.by_version(subject, None))

    def _with_imports(self, registered: _Registered) -> Schema:
        imports: dict[str, str] = {}
        self._add_imports(registered, imports, set())
        return Schema(registered.kind, registered.text, tuple(imports.items()))

    def _add_imports(self, registered: _Registered, imports: dict[str, str], names: set[str]) -> None:
        for name, subject, version in registered.references:
            if name in names:
                continue
            names.add(name)
            if len(names) > MAX_REFERENCES:
                text = f"a schema refers to more than {MAX_REFERENCES} schemas: register it with fewer references"
                raise StorageError(text, subject=subject)
            referenced = self._source.by_version(subject, version)
            self._add_imports(referenced, imports, names)
            imports[name] = referenced.text

    def __repr__(self) -> str:
        return f"SchemaRegistry({self._source})"


def registry_of(source: Any) -> SchemaRegistry | None:
    """Return the registry at `source`, which may be a registry itself, or None if `source` is None."""
    return source if source is None or isinstance(source, SchemaRegistry) else SchemaRegistry(source)


def split_subject(subject: str, context: str = DEFAULT_CONTEXT) -> tuple[str, str]:
    """Split a subject, as `:.staging:clicks-value`, into its context, by default `context`, and its name."""
    qualified = _QUALIFIED.fullmatch(subject)
    return (qualified[1], qualified[2]) if qualified else (context, subject)


def _source_of(source: Any, context: str) -> _Server | _SchemaDict | _Topic:
    if not isinstance(context, str) or not context.startswith(".") or ":" in context:
        raise InvalidConfigError("a context must begin with a dot, as in .staging", context=repr(context))
    if isinstance(source, str):
        return _Server(source, context)
    if isinstance(source, Mapping):
        if context != DEFAULT_CONTEXT:
            raise InvalidConfigError("a dict of schemas has no contexts: leave out context", context=context)
        return _SchemaDict(source)
    if hasattr(source, "scan") and hasattr(source, "refresh"):
        return _Topic(source, context)
    text = "a registry must be an http address, a topic (distlog.open(f'{root}/_schemas')) or a dict of schemas by id"
    raise InvalidConfigError(text, registry=type(source).__name__)


class _SchemaDict:
    def __init__(self, schemas: Mapping[int, Any]) -> None:
        self._schemas = {whole_number("a schema's id", number): _parse(schema) for number, schema in schemas.items()}

    def by_id(self, schema_id: int) -> _Registered:
        if schema_id not in self._schemas:
            raise SchemaNotFoundError(
                f"schema {schema_id} is not in the dict of {len(self._schemas)} schemas: add it"
            )
        return self._schemas[schema_id]

    def by_version(self, subject: str, version: int | None) -> _Registered:
        text = f"the schema of subject {subject} is needed, but a dict has schemas by id only: give a registry's URL"
        raise SchemaNotFoundError(text)

    def __str__(self) -> str:
        return f"{len(self._schemas)} schemas"


def _parse(schema: Any) -> _Registered:
    if isinstance(schema, Schema) and schema.imports:
        raise InvalidConfigError("a schema with imports needs its registry: use the registry's address")
    if isinstance(schema, Schema):
        return _Registered(schema.kind, schema.text, ())
    return _Registered("AVRO", schema if isinstance(schema, str) else json.dumps(schema), ())


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect, since it would send the password to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None: ...


class _Server:
    """Confluent's registry or Karapace at an address; user and password go into a header, and are never shown."""

    # https://docs.confluent.io/platform/current/schema-registry/develop/api.html
    def __init__(self, url: str, context: str) -> None:
        try:
            address = urlsplit(url)
            host, port = address.hostname, address.port
        except ValueError:
            host = port = None
        if not host or address.scheme not in ("http", "https") or address.query or address.fragment:
            raise InvalidConfigError(
                "a registry's address must be like https://user:password@host:8081; for a topic with schemas, pass "
                "distlog.open(url)"
            )
        host = f"[{host}]" if ":" in host else host
        self._url = f"{address.scheme}://{host}{'' if port is None else f':{port}'}{address.path.rstrip('/')}"
        if context != DEFAULT_CONTEXT:
            self._url += f"/contexts/{quote(context, safe='')}"
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if address.username is not None:
            credentials = f"{unquote(address.username)}:{unquote(address.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(credentials.encode()).decode()

    def by_id(self, schema_id: int) -> _Registered:
        return self._get(f"/schemas/ids/{schema_id}", f"schema {schema_id}")

    def by_version(self, subject: str, version: int | None) -> _Registered:
        number = "latest" if version is None else str(version)
        return self._get(f"/subjects/{quote(subject, safe='')}/versions/{number}", f"{subject}, version {number}")

    def _get(self, path: str, requested: str) -> _Registered:
        request = Request(self._url + path, headers=self._headers)
        try:
            # the timeout is for each wait, and `_read` limits their sum
            with build_opener(_NoRedirect).open(request, timeout=ANSWER_SECONDS / 3) as answer:
                return _Registered.parse(json.loads(self._read(answer)))
        except HTTPError as error:
            with error:
                raise self._error_of(error.code, requested) from None
        except (URLError, OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error or type(error).__name__
            text = "the schema registry does not answer: check that it runs"
            raise StorageError(text, registry=self._url, reason=reason) from None
        except (ValueError, RecursionError) as error:
            text = "the response is not a schema: check that a schema registry has this address"
            raise StorageError(text, registry=self._url, requested=requested, reason=str(error)[:200]) from None

    def _read(self, answer: IO[bytes]) -> bytes:
        end, chunks, size = time.monotonic() + ANSWER_SECONDS, [], 0
        while chunk := answer.read1(1 << 16):  # type: ignore[attr-defined]
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
            if time.monotonic() > end:
                raise TimeoutError(f"the answer takes longer than {ANSWER_SECONDS:g} s")
        return b"".join(chunks)

    def _error_of(self, code: int, requested: str) -> Exception:
        if code == HTTPStatus.NOT_FOUND:
            return SchemaNotFoundError(f"the registry at {self._url} has no {requested}")
        if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            text = "the registry refuses this user: put user and password into the address"
            return StorageDeniedError(text, registry=self._url, status=code)
        is_redirect = 300 <= code < 400
        redirect_text = "the registry redirects requests: use the address that it redirects to"
        text = redirect_text if is_redirect else "the registry failed: check its log, or try again"
        return StorageError(text, registry=self._url, requested=requested, status=code)

    def __str__(self) -> str:
        return self._url


# A record of the topic of schemas is a JSON object with a JSON object as its key, in Confluent's registry and in
# Karapace: {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}, with the schema and its id in the value.
# {"keytype":"DELETE_SUBJECT","subject":"s"} deletes the versions up to the version in its value, CLEAR_SUBJECT all.
_DELETIONS = ("DELETE_SUBJECT", "CLEAR_SUBJECT")
#: A version of a subject: the context, the subject there, and its number.
_Version = tuple[str, str, int]


class _Topic:
    """The schemas of a context in the records of a topic, which is read again for an unknown schema."""

    def __init__(self, topic: SchemaTopic, context: str) -> None:
        self._topic, self._context, self._is_read = topic, context, False
        #: By context and id: the first version with this id (as in Confluent's registry), and its schema. Deleted
        #: versions are included, since old values need their schemas.
        self._ids: dict[tuple[str, int], tuple[_Version, _Registered]] = {}
        self._versions: dict[_Version, _Registered] = {}
        self._deleted: set[_Version] = set()

    def by_id(self, schema_id: int) -> _Registered:
        key = self._context, schema_id
        if key not in self._ids:
            self._read()
        if key in self._ids:
            return self._ids[key][1]
        contexts = ", ".join(sorted(context for context, number in self._ids if number == schema_id))
        advice = f"; other contexts have it, pass one as context= (contexts={contexts})" if contexts else ""
        raise self._missing(f"schema {schema_id}", advice)

    def by_version(self, subject: str, version: int | None) -> _Registered:
        context, name = split_subject(subject, self._context)
        # the latest version (None) is never among them, so this reads the topic again, which may have a newer version
        if (context, name, version) not in self._versions:
            self._read()
        number = version
        if number is None:
            live_versions = self._versions.keys() - self._deleted
            number = max((live[2] for live in live_versions if live[:2] == (context, name)), default=0)
        registered = self._versions.get((context, name, number))
        if registered is None:
            raise self._missing(f"subject {subject}" if version is None else f"version {version} of {subject}")
        return registered

    def _missing(self, requested: str, advice: str = "") -> SchemaNotFoundError:
        suffix = "" if self._context == DEFAULT_CONTEXT else f" in the context {self._context}"
        return SchemaNotFoundError(f"the topic {self._topic.url} has no {requested}{suffix}{advice}")

    def _read(self) -> None:
        if self._is_read:
            self._topic.refresh()
        self._is_read = True
        for batch in self._topic.scan(columns=["key", "value"]):
            for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
                self._add(_object(key), _object(value))

    def _add(self, key: dict[str, Any], value: dict[str, Any]) -> None:
        """Add the schema or deletion of a record; other records, as of a subject's compatibility, are ignored."""
        kind, subject, number = key.get("keytype"), key.get("subject"), key.get("version")
        if not isinstance(subject, str):
            return
        context, name = split_subject(subject)
        if kind in _DELETIONS:
            last_deleted = value.get("version", 0) if kind == "DELETE_SUBJECT" else math.inf
            if isinstance(last_deleted, int | float):
                versions = (version for version in self._versions if version[:2] == (context, name))
                self._deleted.update(version for version in versions if version[2] <= last_deleted)
        elif kind == "SCHEMA" and type(number) is int:
            self._add_version((context, name, number), value)

    def _add_version(self, version: _Version, value: dict[str, Any]) -> None:
        if value.get("deleted") is True or not value:
            self._deleted.add(version)
        else:
            self._deleted.discard(version)
        try:
            registered = _Registered.parse(value)
        except ValueError:
            return
        self._versions[version] = registered
        if type(value.get("id")) is int:
            key = version[0], value["id"]
            first_version, _ = self._ids.get(key, (version, None))
            if first_version == version:
                self._ids[key] = version, registered

    def __str__(self) -> str:
        return str(self._topic.url)


def _object(data: bytes | None) -> dict[str, Any]:
    try:
        value = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
