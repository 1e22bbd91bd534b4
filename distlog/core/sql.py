"""SQL over the topics of a folder: DuckDB reads each topic that a query names as a view."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa

from distlog.core import extra, optional, paths
from distlog.core.errors import InvalidConfigError, SchemaNotFoundError, TopicNotFoundError
from distlog.core.opening import StorageOptions, find_topics
from distlog.core.opening import open as open_topic
from distlog.core.read.dataset import TEXT_COLUMNS, TopicDataset, is_text
from distlog.core.schemas.avro import avro_decoder
from distlog.core.schemas.decoding import Decoder, OnError, ValueFormat, check_on_error
from distlog.core.schemas.protobuf import protobuf_decoder
from distlog.core.schemas.registry import SchemaRegistry, SchemaTopic, registry_of
from distlog.core.storage.calls import in_parallel
from distlog.core.storage.storage import Storage
from distlog.core.times import Time

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

#: How many first and last records a sample has. It shows whether keys and values are text, and the values' columns.
_SAMPLE_RECORDS = 100
_SCHEMAS_TOPIC = "_schemas"  # where a schema registry on the same cluster or gateway stores its schemas


def sql(
    query: str,
    root: str,
    *,
    values: Mapping[str, ValueFormat] | None = None,
    schemas: Mapping[str, Any] | None = None,
    registry: SchemaRegistry | SchemaTopic | Mapping[int, Any] | str | None = None,
    on_error: OnError = "fail",
    blobs: bool = False,
    version: int | Mapping[str, int] | None = None,
    timestamp: Time | None = None,
    storage_options: StorageOptions | None = None,
) -> DuckDBPyRelation:
    """Run a query of SQL over topics; DuckDB must be installed.

    Each topic is a view with the columns of a scan: partition, offset, timestamp, timestamp_type, key, value and
    headers. Keys and values are text if the first and last records of the topic have UTF-8, else blobs. `offset` is
    a word of SQL: write `"offset"`. Conditions on partition, offset, timestamp and key bound what is read.

    Args:
        query: A statement of DuckDB's SQL; `SHOW TABLES` lists the topics.
        root: Any fsspec URL or local path of a folder of topics, or of one topic.
        values: By topic, the format of its values, json, avro or protobuf: `value` becomes a struct, and `value.user`
            a field. JSON has the fields in the first and last records, Avro and Protobuf have the newest schema's.
        schemas: By topic, the schema of the columns: as in `Scan.avro` and `Scan.protobuf`; for JSON the types of
            DuckDB by the names of the fields, as `{"user": "VARCHAR"}`.
        registry: A schema registry, or its source. By default, topics that are not in `schemas` use the topic
            `_schemas` in the folder, if it exists.
        on_error: With `null`, a value that cannot be decoded is null; else the query fails.
        blobs: Make all keys and values blobs.
        version: The version to read of the only topic, or versions by topic; default the newest.
        timestamp: The time whose newest versions to read.
        storage_options: Options of the storage.

    Returns:
        The relation, which reads the topics each time that its result is asked for, at the versions of the call.

    Raises:
        TopicNotFoundError: There is no topic in the folder, or an option names a topic that does not exist.
        InvalidConfigError: An option is not valid.
        SchemaNotFoundError: The registry has no schema of a topic's first and last values.
        ModuleNotFoundError: DuckDB is not installed.

    Examples:
        >>> distlog.sql("SELECT key FROM clicks WHERE partition = 0 ORDER BY key", ".").fetchall()
        [('anna',), ('bert',)]
        >>> query = "SELECT value.page, count(*) FROM clicks GROUP BY ALL ORDER BY ALL"
        >>> distlog.sql(query, ".", values={"clicks": "json"}).fetchall()
        [('/help', 1), ('/start', 2)]
    """
    connection = _connect("sql()")
    views = _Views(root, values, schemas, registry, on_error, blobs, version, timestamp, storage_options)
    views.add_to(connection, query)
    relation: DuckDBPyRelation = connection.sql(query)
    return relation


def sql_connection(root: str, **options: Any) -> DuckDBPyConnection:
    """Open a DuckDB connection whose views are the topics of a folder, as for `%%sql` in a notebook.

    The views stay at the versions of the call.

    Args:
        root: As in `sql`.
        **options: The other options of `sql`.

    Returns:
        The connection, to a database in memory.

    Raises:
        DistlogError: As `sql` raises.

    Examples:
        >>> connection = distlog.sql_connection(".")
        >>> connection.sql("SHOW TABLES").fetchall()
        [('clicks',)]
    """
    connection = _connect("sql_connection()")
    _Views(root, **options).add_to(connection)
    return connection


def _connect(feature: str) -> DuckDBPyConnection:
    connection: DuckDBPyConnection = optional("duckdb", feature, extra("duckdb")).connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


class _Views:
    """The topics of a folder as views of DuckDB; the options are as in `sql`."""

    def __init__(
        self,
        root: str,
        values: Mapping[str, ValueFormat] | None = None,
        schemas: Mapping[str, Any] | None = None,
        registry: SchemaRegistry | SchemaTopic | Mapping[int, Any] | str | None = None,
        on_error: OnError = "fail",
        blobs: bool = False,
        version: int | Mapping[str, int] | None = None,
        timestamp: Time | None = None,
        storage_options: StorageOptions | None = None,
    ) -> None:
        check_on_error(on_error)
        folder = Storage(root, storage_options)
        is_topic = paths.COMMITS_DIR in folder.list_folders()
        self._storages = {storage.name: storage for storage in ([folder] if is_topic else find_topics(folder))}
        if not self._storages:
            raise TopicNotFoundError("the folder has no topics: check the address", url=folder.url)
        self._values, self._schemas, self._registry = values or {}, schemas or {}, registry_of(registry)
        self._on_error, self._blobs, self._storage_options = on_error, blobs, storage_options
        self._version, self._timestamp = version, timestamp
        self._check_options()
        needs_registry = any(kind != "json" and name not in self._schemas for name, kind in self._values.items())
        self._folder_registry: SchemaRegistry | None = None
        if needs_registry and registry is None and _SCHEMAS_TOPIC in self._storages:
            schemas_topic = open_topic(self._storages[_SCHEMAS_TOPIC].url, storage_options=storage_options)
            self._folder_registry = SchemaRegistry(schemas_topic)

    def _check_options(self) -> None:
        versions = self._version if isinstance(self._version, Mapping) else {}
        options = {"values": self._values, "schemas": self._schemas, "version": versions}
        for option, by_topic in options.items():
            if unknown := by_topic.keys() - self._storages.keys():
                text = f"{option} names a topic that is not in the folder: it has {', '.join(sorted(self._storages))}"
                raise TopicNotFoundError(text, topic=min(unknown))
        for name, value_format in self._values.items():
            if value_format not in get_args(ValueFormat):
                text = f"a format of values must be one of {', '.join(get_args(ValueFormat))}"
                raise InvalidConfigError(text, topic=name, format=repr(value_format))
        if without_format := self._schemas.keys() - self._values.keys():
            text = "a schema needs the format of the values, as in values={'clicks': 'avro'}"
            raise InvalidConfigError(text, topic=min(without_format))

    def add_to(self, connection: DuckDBPyConnection, query: str = "") -> None:
        """Add views of the topics that the query names; of all topics if it names none."""
        names = self._named(query) or list(self._storages)
        if isinstance(self._version, int) and len(names) > 1:
            text = f"a version is of one topic: give versions by topic, as in version={{{min(names)!r}: 3}}"
            raise InvalidConfigError(text, version=self._version)
        datasets = in_parallel(self._dataset_and_sample, names)
        for name, (dataset, sample) in zip(names, datasets, strict=True):
            if self._values.get(name) != "json":
                connection.register(name, dataset)
                continue
            structure = structure_of(connection, self._schemas.get(name), sample)
            records = with_fields(connection.from_arrow(dataset), name, structure, self._on_error)
            records.create_view(name)

    def _named(self, query: str) -> list[str]:
        """Return the topics that the query names, in any case. If names differ only in case, exact matches win."""
        patterns = {name: rf"(?<!\w){re.escape(name)}(?!\w)" for name in self._storages}
        exact_to_lower = {name: name.lower() for name, pattern in patterns.items() if re.search(pattern, query)}
        other_names = [name for name in patterns if name.lower() not in exact_to_lower.values()]
        return [*exact_to_lower, *(name for name in other_names if re.search(patterns[name], query, re.IGNORECASE))]

    def _dataset_and_sample(self, name: str) -> tuple[TopicDataset, pa.Table]:
        version = self._version.get(name) if isinstance(self._version, Mapping) else self._version
        topic = open_topic(self._storages[name].url, version, self._timestamp, self._storage_options)
        scan = topic.scan(columns=TEXT_COLUMNS)
        sample = pa.concat_tables([scan.head(_SAMPLE_RECORDS), scan.tail(_SAMPLE_RECORDS)])
        decoder = self._decoder(name, sample["value"].chunks)
        columns = TEXT_COLUMNS[:1] if name in self._values else TEXT_COLUMNS  # with a format, only keys may be text
        text = [] if self._blobs else [column for column in columns if is_text(sample[column])]
        snapshot = topic.live_snapshot  # with active segments, unless a version or time is read
        dataset = TopicDataset(topic.reader, snapshot, text=text, decoder=decoder, on_error=self._on_error)
        return dataset, sample

    def _decoder(self, name: str, values: list[pa.Array]) -> Decoder | None:
        """Return the decoder of Avro or Protobuf. None for other formats, and for nulls alone without a schema."""
        value_format, schema = self._values.get(name), self._schemas.get(name)
        if value_format in (None, "json") or (
            schema is None and all(array.null_count == len(array) for array in values)
        ):
            return None
        registry = self._folder_registry if schema is None and self._registry is None else self._registry
        decoder: Decoder
        try:
            if value_format == "avro":
                decoder = avro_decoder(schema, registry, values)
            else:
                decoder = protobuf_decoder(schema, None, registry, values)  # None: no message is named
        except InvalidConfigError as error:
            raise InvalidConfigError(error.message, topic=name, column="value", **error.details) from None
        if not decoder.schema.names:  # it found no schema
            text = f"the registry has no schema of the values of {name}: pass their schema in schemas"
            raise SchemaNotFoundError(text, topic=name)
        return decoder


_INTEGERS = "('BIGINT', 'UBIGINT')"
#: By type of a column, the kinds of JSON values that DuckDB converts to it exactly. Other types accept every kind.
_KINDS = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "INT", "BIGINT", "UBIGINT", "HUGEINT"), _INTEGERS),
    **dict.fromkeys(("FLOAT", "DOUBLE"), "('BIGINT', 'UBIGINT', 'DOUBLE')"),
    "BOOLEAN": "('BOOLEAN')",
    "OBJECT": "('OBJECT')",
    "ARRAY": "('ARRAY')",
}
#: The column's type by the type of a sample; JSON for other types.
_TYPES = {
    "UBIGINT": "BIGINT",
    "HUGEINT": "BIGINT",
    **{name: name for name in ("BIGINT", "DOUBLE", "BOOLEAN", "VARCHAR")},
}
#: The value without the header of a schema registry: a zero byte and the schema's id in four bytes.
_PAYLOAD = r"CASE WHEN value[:1] = '\x00'::BLOB THEN value[6:] ELSE value END"
#: Tokens of a text: an escaped pair of surrogates, another escape, or characters without escapes. A pair matches
#: first, so a token with one surrogate is a lone surrogate.
_TOKENS = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]+|\\"
#: The text with U+FFFD for each lone surrogate, which DuckDB refuses. Programs that cut UTF-16 text write these.
_REPAIRED = (
    f"array_to_string(list_transform(regexp_extract_all(text, '{_TOKENS}'), lambda token: "
    r"CASE WHEN regexp_full_match(token, '\\u[dD][89a-fA-F][0-9a-fA-F]{2}') THEN '\ufffd' ELSE token END), '')"
)


def structure_of(connection: DuckDBPyConnection, schema: Any, sample: pa.Table) -> Any:
    """Return DuckDB's types of the fields by name, for `json_transform`; without a schema, the sample's types."""
    if schema is None:
        texts = _with_texts(connection.from_arrow(sample))
        ((structure,),) = texts.aggregate("json_group_structure(text::JSON)").fetchall()
        return _generalized(json.loads(structure)) if structure else "JSON"
    try:
        return json.loads(schema) if isinstance(schema, str) else schema
    except ValueError as error:
        text = """the schema of JSON values must be an object of types by name, as in {"user": "VARCHAR"}"""
        raise InvalidConfigError(text, reason=error) from None


def _generalized(structure: Any) -> Any:
    """Return the structure: integers as BIGINT (`_checks` refuses larger ones), items of lists as VARCHAR or JSON."""
    if isinstance(structure, dict):
        # DuckDB's column names cannot be empty, and ignore case. If names are equal then, the first one is kept: a
        # dict keeps the last value of a key, so it is filled from the end, and its order is reversed afterwards
        names = {name.lower(): name for name in reversed(structure) if name}
        return {name: _generalized(structure[name]) for name in reversed(names.values())} or "JSON"
    if isinstance(structure, list):
        return ["VARCHAR" if structure == ["VARCHAR"] else "JSON"]  # not checked by `_checks`: any item converts
    return _TYPES.get(structure, "JSON")


def with_fields(records: DuckDBPyRelation, topic: str, structure: Any, on_error: OnError) -> DuckDBPyRelation:
    """Return the records with the fields of `value`, a blob of JSON, in place of its bytes."""
    pointers, checks = zip(*_checks(structure, "", "fields"), strict=True)
    quoted_pointers = ", ".join(map(_quoted, pointers))
    # `kinds` has the kind of the value at each of `pointers`, from kinds[1] on
    conditions = " AND ".join(check.format(f"kinds[{number}]") for number, check in enumerate(checks, 1))
    problem = _quoted(
        f"the value of a record of {topic} is not JSON, or a field does not have the type of its column: set the"
        " types with schemas; on_error='null' makes these values null: partition="
    )
    types = _quoted(json.dumps(structure))
    otherwise = "NULL" if on_error == "null" else f"""error({problem} || partition || ' offset=' || "offset")"""
    return (
        _with_texts(records)
        .project(f"*, json_transform(text, {types}) AS fields, json_type(text, [{quoted_pointers}]) AS kinds")
        .project(
            "* EXCLUDE (text, fields, kinds) REPLACE (CASE WHEN value IS NULL THEN NULL"
            f" WHEN text IS NOT NULL AND {conditions} THEN fields ELSE {otherwise} END AS value)"
        )
    )


def _with_texts(records: DuckDBPyRelation) -> DuckDBPyRelation:
    """Return the records with the column `text`: the value as JSON that DuckDB can parse, or null."""
    return records.project(f"*, TRY(decode({_PAYLOAD})) AS text").project(
        f"* REPLACE (CASE WHEN json_valid(text) THEN text WHEN json_valid({_REPAIRED}) THEN {_REPAIRED} END AS text)"
    )


def _checks(structure: Any, path: str, column: str) -> Iterator[tuple[str, str]]:
    """Yield the JSON pointer of each field, and SQL that accepts its value; `{0}` stands for the value's kind."""
    kind = "OBJECT" if isinstance(structure, dict) else ("ARRAY" if isinstance(structure, list) else structure)
    accepted = f"{{0}} IN {_KINDS[kind.upper()]}" if kind.upper() in _KINDS else "true"
    # a value that does not convert makes the column null
    yield path or "$", f"({{0}} IS NULL OR {{0}} = 'NULL' OR ({accepted} AND {column} IS NOT NULL))"
    fields = structure if isinstance(structure, dict) else {}
    for name, inner in fields.items():
        escaped = name.replace("~", "~0").replace("/", "~1")
        identifier = '"' + name.replace('"', '""').replace("{", "{{").replace("}", "}}") + '"'
        yield from _checks(inner, f"{path}/{escaped}", f"{column}.{identifier}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
