"""Decodes Avro values to Arrow: pyruhvro decodes many values at once, fastavro decodes single values.

The reader's schema gives the columns, and the writer's schema is the schema of a value. pyruhvro is about forty times
as fast, but supports only some types, and only values whose two schemas are equal. fastavro resolves another writer's
schema to the reader's, and finds bad values.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core import extra, optional
from distlog.core.arrays import Longs, flags_of, integers
from distlog.core.errors import InvalidConfigError, SchemaNotFoundError
from distlog.core.schemas.decoding import (
    Decoded,
    DecodedRows,
    attempt,
    decode_in_halves,
    decode_singly,
    rows_at_numbers,
    split_headers,
)
from distlog.core.schemas.registry import Schema, SchemaRegistry

_PRIMITIVE: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
#: Arrow's types of numbers, by primitive and logical type.
_NUMBER_TYPES: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
#: Primitive types that pyruhvro does not decode. It does not decode decimals and fixed types either.
_NOT_IN_BULK = ("null", "bytes")
#: The most types of a schema; a named type counts at each use.
MAX_TYPES = 10_000


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema and its Arrow type. `plain` lacks the logical types of times, and defines named types at first use."""

    plain: Any
    kind: pa.DataType
    is_bulk_supported: bool  # whether pyruhvro supports the schema
    aliases: Mapping[str, Sequence[str]]  # of fields, by the path of the field

    @classmethod
    def of(cls, source: Any, *, is_reader: bool = True) -> AvroSchema:
        """Parse a text, a dict, or a registry's schema; Arrow must support its columns if `is_reader`."""
        fastavro = optional("fastavro", "avro()", extra("avro"))
        text, imports = (source.text, source.imports) if isinstance(source, Schema) else (source, ())
        try:
            named_types: dict[str, Any] = {}
            for definition in (*(import_text for _, import_text in imports), text):
                parsed = fastavro.parse_schema(_parsed_json(definition), named_types)
            walk = _SchemaWalk(named_types, is_reader)
            plain, kind, is_bulk_supported = walk.walk(parsed, "", ())
        except InvalidConfigError:
            raise
        except (ValueError, TypeError, KeyError, RecursionError, fastavro.schema.SchemaParseException) as error:
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            raise InvalidConfigError("this is not an Avro schema", reason=reason) from None
        return cls(plain, kind, is_bulk_supported and pa.types.is_struct(kind), walk.aliases)

    @property
    def columns(self) -> pa.Schema:
        is_record = pa.types.is_struct(self.kind)
        return pa.schema(list(self.kind) if is_record else [pa.field("value", self.kind)])


def _parsed_json(schema: Any) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError:
        return schema  # the name of a primitive type


class _SchemaWalk:
    """A walk through a parsed schema. Only a reader's schema needs Arrow types, since values become its columns."""

    def __init__(self, named_types: Mapping[str, Any], is_reader: bool) -> None:
        self._named, self._is_reader, self._remaining_types = named_types, is_reader, MAX_TYPES
        self._defined: set[str] = set()  # the names that the plain schema has defined already
        self.aliases: dict[str, Sequence[str]] = {}

    def walk(self, schema: Any, path: str, enclosing: tuple[str, ...]) -> tuple[Any, pa.DataType, bool]:
        """Return (plain schema, Arrow's type, whether pyruhvro supports it) of a field in the records `enclosing`."""
        self._remaining_types -= 1
        if self._remaining_types < 0:
            text = f"the Avro schema has more than {MAX_TYPES} types, counted at each use: use one with fewer fields"
            raise InvalidConfigError(text, field=path)
        if isinstance(schema, list):
            branches = [self.walk(branch, path, enclosing) for branch in schema]
            kinds = [kind for _, kind, _ in branches if not pa.types.is_null(kind)]
            if len(kinds) > 1:
                self._refuse_for_reader(
                    "a union of several types has no column: use a schema with one type, or without the field", path
                )
                kinds = [pa.null()]  # only for a writer: no reader has this union, so it is not decoded in bulk
            supported = [is_supported for _, kind, is_supported in branches if kind in kinds]
            is_bulk_supported = len(schema) == 2 and len(kinds) == 1 and all(supported)  # null and one type
            return [plain for plain, _, _ in branches], kinds[0] if kinds else pa.null(), is_bulk_supported
        if isinstance(schema, str):
            if schema in _PRIMITIVE:
                return schema, _PRIMITIVE[schema], schema not in _NOT_IN_BULK
            return self.walk(self._named[schema], path, enclosing)
        avro_type = schema["type"]
        if avro_type in ("record", "error"):
            return self._record(schema, path, enclosing)
        if avro_type == "enum":
            enum = {key: schema[key] for key in ("type", "name", "symbols", "default", "aliases") if key in schema}
            return self._definition_or_name(schema["name"], enum), pa.string(), True
        if avro_type == "array":
            plain, item, is_bulk_supported = self.walk(schema["items"], path + "[]", enclosing)
            if pa.types.is_null(item) or (pa.types.is_struct(item) and not item.num_fields):
                raise InvalidConfigError("an array of null or empty records has no column: omit it", field=path)
            return {"type": "array", "items": plain}, pa.list_(item), is_bulk_supported
        if avro_type == "map":
            plain, value, is_bulk_supported = self.walk(schema["values"], path + "{}", enclosing)
            return {"type": "map", "values": plain}, pa.map_(pa.string(), value), is_bulk_supported
        return self._leaf_type(schema, path, enclosing)

    def _record(self, schema: Any, path: str, enclosing: tuple[str, ...]) -> tuple[Any, pa.DataType, bool]:
        name = schema["name"]
        if name in enclosing:
            self._refuse_for_reader("a recursive record has no columns: use a schema without that field", path)
            return name, pa.null(), False
        fields, columns, is_bulk_supported = [], [], True
        for field in schema["fields"]:
            field_path = f"{path}.{field['name']}".lstrip(".")
            plain, kind, is_supported = self.walk(field["type"], field_path, (*enclosing, name))
            is_bulk_supported &= is_supported
            self.aliases[field_path] = field.get("aliases", ())
            columns.append(pa.field(field["name"], kind))
            options = {key: field[key] for key in ("default", "aliases") if key in field}
            fields.append({"name": field["name"], "type": plain, **options})
        definition = {"type": "record", "name": name, "fields": fields}
        if "aliases" in schema:
            definition["aliases"] = schema["aliases"]
        return self._definition_or_name(name, definition), pa.struct(columns), is_bulk_supported

    def _definition_or_name(self, name: str, definition: Any) -> Any:
        if name in self._defined:
            return name
        self._defined.add(name)
        return definition

    def _refuse_for_reader(self, text: str, path: str) -> None:
        if self._is_reader:
            raise InvalidConfigError(text, field=path or "value")

    def _leaf_type(self, schema: Any, path: str, enclosing: tuple[str, ...]) -> tuple[Any, pa.DataType, bool]:
        # unknown logical types are ignored, as the specification demands
        base, logical = schema["type"], schema.get("logicalType")
        fixed = {"type": "fixed", "name": schema["name"], "size": schema["size"]} if base == "fixed" else None
        if logical == "decimal" and base in ("bytes", "fixed") and 0 < schema["precision"] <= 76:  # Arrow's limit
            precision, scale = schema["precision"], schema.get("scale", 0)
            decimal = (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)
            logical_fields = {"logicalType": "decimal", "precision": precision, "scale": scale}
            plain = {**(fixed or {"type": base}), **logical_fields}
            plain = self._definition_or_name(schema["name"], plain) if fixed else plain  # only fixed types have names
            return plain, decimal, False
        if fixed:
            return self._definition_or_name(schema["name"], fixed), pa.binary(schema["size"]), False
        if not isinstance(base, str) or base in self._named:
            return self.walk(base, path, enclosing)
        return base, _NUMBER_TYPES.get((base, str(logical)), _PRIMITIVE[base]), base not in _NOT_IN_BULK


class AvroDecoder:
    """Decodes values that were written with `reader`, or with a schema of `registry`, to the columns of `reader`."""

    def __init__(self, reader: AvroSchema | None, registry: SchemaRegistry | None) -> None:
        self._reader, self._registry = reader, registry
        self._writers: dict[int, AvroSchema | str] = {}  # by schema id; a text says why a schema cannot be used

    @property
    def schema(self) -> pa.Schema:
        return self._reader.columns if self._reader else pa.schema([])

    def decode(self, values: pa.Array) -> Decoded:
        faults: dict[int, str] = {}
        parts: list[DecodedRows] = []
        for rows, payloads, writer in self._groups(values, faults):
            decode_one_by_one = partial(self._record_by_record, writer, faults)
            is_bulk = self._reader is not None and writer.is_bulk_supported and writer.plain == self._reader.plain
            if is_bulk and importlib.util.find_spec("pyruhvro") is not None:
                parts += decode_in_halves(rows, payloads, partial(self._decode_in_bulk, writer), decode_one_by_one)
            else:
                parts.append(decode_one_by_one(rows, payloads))
        return Decoded(rows_at_numbers(parts, len(values), self.schema), faults)

    def _groups(self, values: pa.Array, faults: dict[int, str]) -> Iterable[tuple[Longs, pa.Array, AvroSchema]]:
        """Yield rows and payloads by the schema of their writer; adds values without a schema to `faults`."""
        valid = np.flatnonzero(flags_of(values.is_valid()))
        if self._registry is None:
            if self._reader is not None:
                yield valid, values.drop_null(), self._reader
            return
        ids, payloads = split_headers(values)
        faults.update(dict.fromkeys(valid[ids[valid] < 0].tolist(), "the value has no header with a schema's id"))
        for schema_id in np.unique(ids[ids >= 0]).tolist():
            rows = np.flatnonzero(ids == schema_id)
            writer = self.writer(schema_id)
            if isinstance(writer, AvroSchema):
                yield rows, (payloads if len(rows) == len(values) else payloads.take(integers(rows))), writer
            else:
                faults.update(dict.fromkeys(rows.tolist(), writer))

    def writer(self, schema_id: int) -> AvroSchema | str:
        """Return the schema with this id, or the reason why it cannot be used."""
        if schema_id not in self._writers:
            assert self._registry is not None
            try:
                schema = self._registry.schema(schema_id)
                self._writers[schema_id] = (
                    AvroSchema.of(schema, is_reader=False)
                    if schema.kind == "AVRO"
                    else f"the value's schema {schema_id} is of type {schema.kind}, not AVRO"
                )
            except (SchemaNotFoundError, InvalidConfigError) as error:
                self._writers[schema_id] = f"the value's schema {schema_id} cannot be used: {error}"
        return self._writers[schema_id]

    def _decode_in_bulk(self, writer: AvroSchema, payloads: pa.Array) -> pa.RecordBatch | None:
        """Decode all payloads to columns; returns None if a payload cannot be decoded."""
        pyruhvro = optional("pyruhvro", "avro()", extra("avro"))
        # without a registry, fastavro tests the first payload: pyruhvro ignores trailing bytes, as of another schema
        if self._registry is None and len(payloads) and attempt(self._value_reader(writer), payloads[0].as_py())[1]:
            return None
        try:
            columns = pyruhvro.deserialize_array(payloads.to_pylist(), json.dumps(writer.plain))
            columns.validate(full=True)  # pyruhvro accepts text that is not UTF-8
            # pyruhvro returns times as plain numbers, since `plain` has no units: add the units, then convert them
            return columns.cast(self._schema_with_units(writer)).cast(self.schema)
        except (ValueError, pa.ArrowException):
            return None

    def _record_by_record(
        self, writer: AvroSchema, faults: dict[int, str], rows: Longs, payloads: pa.Array
    ) -> DecodedRows:
        expected = "Avro of its schema"  # after "the value is not"
        values = decode_singly(self._value_reader(writer), expected, faults, rows, payloads.to_pylist())
        return self._columns(writer, values, faults)

    def _schema_with_units(self, writer: AvroSchema) -> pa.Schema:
        """Return the columns with the writer's units of time, which the decoded values have."""
        assert self._reader is not None
        kind = _with_units(self._reader.kind, writer.kind, self._reader.aliases)
        return pa.schema(list(kind) if pa.types.is_struct(kind) else [pa.field("value", kind)])

    def _value_reader(self, writer: AvroSchema) -> Callable[[bytes], Any]:
        """Return a function that decodes a value of `writer`, resolved to the reader's schema."""
        fastavro = optional("fastavro", "avro()", extra("avro"))
        writer_schema, reader_schema, named_types = fastavro.parse_schema(writer.plain), None, dict[str, Any]()
        if self._reader is not None and self._reader.plain != writer.plain:
            reader_schema = fastavro.parse_schema(self._reader.plain, named_types)
            _convert_defaults(named_types)

        def read(payload: bytes) -> Any:
            file = io.BytesIO(payload)
            value = fastavro.schemaless_reader(file, writer_schema, reader_schema)
            # trailing bytes show that the value has another schema, or a registry's header; they are allowed in
            # values with a schema id, since pyruhvro ignores them
            if self._registry is None and (trailing := len(payload) - file.tell()):
                raise ValueError(f"{trailing} bytes follow the value")
            return value

        return read

    def _columns(self, writer: AvroSchema, values: dict[int, Any], faults: dict[int, str]) -> DecodedRows:
        """Return the columns of the values; a value that Arrow's type cannot hold is a fault."""
        assert self._reader is not None
        writer_columns, is_record = self._schema_with_units(writer), pa.types.is_struct(self._reader.kind)

        def columns_of(decoded: Iterable[Any]) -> pa.RecordBatch:
            rows = [value if is_record else {"value": value} for value in decoded]
            return pa.RecordBatch.from_pylist(rows, writer_columns).cast(self.schema)

        columns, fault = attempt(columns_of, values.values())
        if fault:
            for row, value in list(values.items()):
                _, fault = attempt(columns_of, [value])
                if fault:
                    faults[row] = f"the value does not fit its columns: {fault}"
                    del values[row]
            columns = columns_of(values.values())
        return np.array([*values], np.int64), columns


def _convert_defaults(named_types: Mapping[str, Any]) -> None:
    """Convert the defaults of parsed records to values, since fastavro would return the JSON of a default."""
    fields = [field for record in named_types.values() for field in record.get("fields", ()) if "default" in field]
    defaults = []  # converted before any change, since a record's default may use the defaults of its fields
    for field in fields:
        try:
            defaults.append(_default(field["default"], field["type"], named_types))
        except (ValueError, TypeError, AttributeError) as error:  # noqa: PERF203 - the error names the field
            text = "the default of a field in the Avro schema does not have the field's type: correct the schema"
            raise InvalidConfigError(text, field=field["name"], reason=str(error)) from None
    for field, default in zip(fields, defaults, strict=True):
        field["default"] = default


def _default(default: Any, schema: Any, named_types: Mapping[str, Any]) -> Any:
    """Convert a default from JSON, where bytes are text, and records may omit fields with a default."""
    if default is None:
        return None
    if isinstance(schema, list):
        # only a union of null and one other type has a column
        return _default(default, next(branch for branch in schema if branch != "null"), named_types)
    definition = named_types.get(schema, {"type": schema}) if isinstance(schema, str) else schema
    kind = definition["type"]
    if kind in ("bytes", "fixed"):
        data = default.encode("latin-1")
        if definition.get("logicalType") != "decimal":
            return data
        sign, digits, _ = Decimal(int.from_bytes(data, "big", signed=True)).as_tuple()
        return Decimal((sign, digits, -definition["scale"]))
    if kind in ("record", "error"):
        return {
            field["name"]: _default(default.get(field["name"], field.get("default")), field["type"], named_types)
            for field in definition["fields"]
        }
    if kind == "array":
        return [_default(item, definition["items"], named_types) for item in default]
    if kind == "map":
        return {key: _default(item, definition["values"], named_types) for key, item in default.items()}
    return default


def _with_units(
    reader: pa.DataType, writer: pa.DataType, aliases: Mapping[str, Sequence[str]], path: str = ""
) -> pa.DataType:
    """Return the type `reader` with the units of time of `writer`, in the fields that both have."""
    if pa.types.is_temporal(reader) and pa.types.is_temporal(writer):
        return writer
    if pa.types.is_struct(reader) and pa.types.is_struct(writer):
        fields = []
        for field in reader:
            field_path = f"{path}.{field.name}".lstrip(".")
            indexes = (writer.get_field_index(name) for name in (field.name, *aliases[field_path]))
            index = next((index for index in indexes if index >= 0), None)
            kind = field.type
            if index is not None:
                kind = _with_units(kind, writer.field(index).type, aliases, field_path)
            fields.append(field.with_type(kind))
        return pa.struct(fields)
    if pa.types.is_list(reader) and pa.types.is_list(writer):
        return pa.list_(_with_units(reader.value_type, writer.value_type, aliases, path + "[]"))
    if pa.types.is_map(reader) and pa.types.is_map(writer):
        return pa.map_(pa.string(), _with_units(reader.item_type, writer.item_type, aliases, path + "{}"))
    return reader


def avro_decoder(schema: Any, registry: SchemaRegistry | None, values: Iterable[pa.Array]) -> AvroDecoder:
    """Return the decoder for the columns of `schema`, or if that is None, of the values' newest schema."""
    if schema is not None:
        return AvroDecoder(AvroSchema.of(schema), registry)
    if registry is None:
        raise InvalidConfigError("Avro needs a schema, a registry, or both, as in registry='http://host:8081'")
    ids = {*chain.from_iterable(np.unique(split_headers(array).ids).tolist() for array in values)}
    return AvroDecoder(newest_reader(registry, ids), registry)


def newest_reader(registry: SchemaRegistry, ids: Iterable[int]) -> AvroSchema | None:
    for schema_id in sorted((schema_id for schema_id in ids if schema_id >= 0), reverse=True):
        try:
            schema = registry.schema(schema_id)
        except SchemaNotFoundError:
            continue
        if schema.kind == "AVRO":
            return AvroSchema.of(schema)
    return None
