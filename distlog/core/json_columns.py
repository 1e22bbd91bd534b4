"""JSON values as columns in DuckDB: infers the fields' types from a sample of the values, and checks each value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from distlog.core.errors import InvalidConfigError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from distlog.core.schemas.decoding import OnError

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
#: Tokens of a text: a pair of surrogates, another escape, or characters without escapes.
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
        # DuckDB's column names cannot be empty, and ignore case: the first of equal names applies. The names are
        # reversed, so that the first overwrites the later ones, and then reversed again
        names = {name.lower(): name for name in reversed(structure) if name}
        return {name: _generalized(structure[name]) for name in reversed(names.values())} or "JSON"
    if isinstance(structure, list):
        return ["VARCHAR" if structure == ["VARCHAR"] else "JSON"]
    return _TYPES.get(structure, "JSON")


def with_fields(records: DuckDBPyRelation, topic: str, structure: Any, on_error: OnError) -> DuckDBPyRelation:
    """Return the records with the fields of `value`, a blob of JSON, in place of its bytes."""
    paths, checks = zip(*_checks(structure, "", "fields"), strict=True)
    quoted_paths = ", ".join(map(_quoted, paths))
    conditions = " AND ".join(check.format(f"kinds[{number}]") for number, check in enumerate(checks, 1))
    problem = _quoted(
        f"the value of a record of {topic} is not JSON, or a field does not have the type of its column: set the"
        " types with schemas; on_error='null' makes these values null: partition="
    )
    types = _quoted(json.dumps(structure))
    otherwise = "NULL" if on_error == "null" else f"""error({problem} || partition || ' offset=' || "offset")"""
    return (
        _with_texts(records)
        .project(f"*, json_transform(text, {types}) AS fields, json_type(text, [{quoted_paths}]) AS kinds")
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
    """Yield (path, condition) for each field: a JSON pointer, and SQL on its column, in which `{0}` is its kind."""
    kind = "OBJECT" if isinstance(structure, dict) else ("ARRAY" if isinstance(structure, list) else structure)
    accepted = f"{{0}} IN {_KINDS[kind.upper()]}" if kind.upper() in _KINDS else "true"
    yield path or "$", f"({{0}} IS NULL OR {{0}} = 'NULL' OR ({accepted} AND {column} IS NOT NULL))"
    fields = structure if isinstance(structure, dict) else {}
    for name, inner in fields.items():
        escaped = name.replace("~", "~0").replace("/", "~1")
        identifier = '"' + name.replace('"', '""').replace("{", "{{").replace("}", "}}") + '"'
        yield from _checks(inner, f"{path}/{escaped}", f"{column}.{identifier}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
