"""Values of Avro as Arrow: pyruhvro decodes in bulk where it can, and fastavro all else, one record at a time.

Bulk is about forty times as fast. It is for values that were written with the schema of the columns, of types that
pyruhvro knows; fastavro resolves other schemas to that of the columns, by Avro's rules, and finds the bad values.
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

from distlog.core.arrays import flags_of, integers
from distlog.core.errors import InvalidConfigError, SchemaNotFoundError
from distlog.core.optional import extra, optional
from distlog.core.values.decoding import Decoded, Longs, OnError, attempt, decoded_table, in_halves, scattered
from distlog.core.values.framing import unframed
from distlog.core.values.registry import Schema, SchemaRegistry

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
#: The logical types that are a number with a meaning: the number is decoded, and Arrow gives it the meaning.
_NUMBERS: Mapping[tuple[str, str], pa.DataType] = {
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
#: Types that pyruhvro does not decode; of bytes and decimals it makes no columns.
_NOT_IN_BULK = ("null", "bytes")
#: How many types a schema may have, each counted where it is used.
MAX_TYPES = 10_000


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema of Avro, as it is decoded: `plain` has no other names to look up, and no logical types but decimals.

    `kind` is the type of a value; pyruhvro knows all of it if `in_bulk`. Fields are those of a record; another schema
    has one, `value`. `aliases` are the other names of fields, by their paths.
    """

    plain: Any
    kind: pa.DataType
    in_bulk: bool
    aliases: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, given: Any, *, is_reader: bool = True) -> AvroSchema:
        """From a text, a dict, or a registry's schema; Arrow must have its columns if `is_reader`."""
        fastavro = optional("fastavro", "avro()", extra("avro"))
        text, imports = (given.text, given.imports) if isinstance(given, Schema) else (given, ())
        try:
            named: dict[str, Any] = {}
            for one in (*(text for _, text in imports), text):
                parsed = fastavro.parse_schema(_loaded(one), named)
            walk = _Walk(named, is_reader)
            plain, kind, in_bulk = walk.walk(parsed, "", ())
        except (ValueError, TypeError, KeyError, RecursionError, fastavro.schema.SchemaParseException) as error:
            if isinstance(error, InvalidConfigError):
                raise
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            raise InvalidConfigError("this is no schema of Avro", reason=reason) from None
        return cls(plain, kind, in_bulk and pa.types.is_struct(kind), walk.aliases)

    @property
    def columns(self) -> pa.Schema:
        is_record = pa.types.is_struct(self.kind)
        return pa.schema(list(self.kind) if is_record else [pa.field("value", self.kind)])


def _loaded(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError:
        return given  # the name of a primitive type


class _Walk:
    def __init__(self, named: Mapping[str, Any], is_reader: bool) -> None:
        self._named, self._is_reader, self._left = named, is_reader, MAX_TYPES
        #: The names whose definition the plain schema has already: it may have it once.
        self._defined: set[str] = set()
        self.aliases: dict[str, Sequence[str]] = {}

    def walk(self, schema: Any, path: str, inside: tuple[str, ...]) -> tuple[Any, pa.DataType, bool]:
        self._left -= 1
        if self._left < 0:
            raise InvalidConfigError(f"a schema has more than {MAX_TYPES} types", field=path)
        if isinstance(schema, list):
            branches = [self.walk(one, path, inside) for one in schema]
            kinds = [kind for _, kind, _ in branches if not pa.types.is_null(kind)]
            if len(kinds) > 1:
                self._refuse(
                    "a union of several types has no column: give a schema with one, or without that field", path
                )
                kinds = [pa.null()]
            in_bulk = len(schema) == 2 and len(kinds) == 1 and all(known for _, k, known in branches if k in kinds)
            return [plain for plain, _, _ in branches], kinds[0] if kinds else pa.null(), in_bulk
        if isinstance(schema, str):
            if schema in _PRIMITIVE:
                return schema, _PRIMITIVE[schema], schema not in _NOT_IN_BULK
            return self.walk(self._named[schema], path, inside)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, path, inside)
        if kind == "enum":
            kept = {
                name: schema[name] for name in ("type", "name", "symbols", "default", "aliases") if name in schema
            }
            return self._once(schema["name"], kept), pa.string(), True
        if kind == "array":
            plain, item, in_bulk = self.walk(schema["items"], path + "[]", inside)
            if pa.types.is_null(item) or (pa.types.is_struct(item) and not item.num_fields):
                raise InvalidConfigError("an array of values without bytes has no column", field=path)
            return {"type": "array", "items": plain}, pa.list_(item), in_bulk
        if kind == "map":
            plain, value, in_bulk = self.walk(schema["values"], path + "{}", inside)
            return {"type": "map", "values": plain}, pa.map_(pa.string(), value), in_bulk
        return self._number(schema, path, inside)

    def _record(self, schema: Any, path: str, inside: tuple[str, ...]) -> tuple[Any, pa.DataType, bool]:
        name = schema["name"]
        if name in inside:
            self._refuse("a record that holds itself has no columns: give a schema without that field", path)
            return name, pa.null(), False
        fields, columns, in_bulk = [], [], True
        for field in schema["fields"]:
            place = f"{path}.{field['name']}".lstrip(".")
            plain, kind, known = self.walk(field["type"], place, (*inside, name))
            in_bulk &= known
            self.aliases[place] = field.get("aliases", ())
            columns.append(pa.field(field["name"], kind))
            kept = {key: field[key] for key in ("default", "aliases") if key in field}
            fields.append({"name": field["name"], "type": plain, **kept})
        whole = {"type": "record", "name": name, "fields": fields}
        if "aliases" in schema:
            whole["aliases"] = schema["aliases"]
        return self._once(name, whole), pa.struct(columns), in_bulk

    def _once(self, name: str, definition: Any) -> Any:
        if name in self._defined:
            return name
        self._defined.add(name)
        return definition

    def _refuse(self, text: str, path: str) -> None:
        if self._is_reader:
            raise InvalidConfigError(text, field=path or "value")

    def _number(self, schema: Any, path: str, inside: tuple[str, ...]) -> tuple[Any, pa.DataType, bool]:
        """A primitive type or a fixed, with or without a logical type; an unknown one is ignored."""
        kind, logical = schema["type"], schema.get("logicalType")
        fixed = {"type": "fixed", "name": schema["name"], "size": schema["size"]} if kind == "fixed" else None
        if logical == "decimal" and kind in ("bytes", "fixed") and 0 < schema["precision"] <= 76:
            precision, scale = schema["precision"], schema.get("scale", 0)
            decimal = (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)
            named = {"logicalType": "decimal", "precision": precision, "scale": scale}
            plain = {**fixed, **named} if fixed else {"type": kind, **named}
            return self._once(schema["name"], plain) if fixed else plain, decimal, False
        if fixed:
            return self._once(schema["name"], fixed), pa.binary(schema["size"]), False
        if not isinstance(kind, str) or kind in self._named:
            return self.walk(kind, path, inside)
        return kind, _NUMBERS.get((kind, str(logical)), _PRIMITIVE[kind]), kind not in _NOT_IN_BULK


class AvroDecoder:
    """Decodes values of `reader`, or with a `registry` of the schema in their header, to the columns of `reader`."""

    def __init__(self, reader: AvroSchema | None, registry: SchemaRegistry | None) -> None:
        self._reader, self._registry = reader, registry
        #: The schema by its id, or why there is none.
        self._writers: dict[int, AvroSchema | str] = {}

    @property
    def schema(self) -> pa.Schema:
        return self._reader.columns if self._reader else pa.schema([])

    def decode(self, values: pa.Array) -> Decoded:
        faults: dict[int, str] = {}
        parts: list[tuple[Longs, pa.RecordBatch]] = []
        for rows, payloads, writer in self._groups(values, faults):
            slowly = partial(self._one_by_one, writer, faults)
            if self._is_in_bulk(writer):
                parts += in_halves(rows, payloads, partial(self._bulk, writer), slowly)
            else:
                parts.append(slowly(rows, payloads))
        return Decoded(scattered(parts, len(values), self.schema), faults)

    def _groups(self, values: pa.Array, faults: dict[int, str]) -> Iterable[tuple[Longs, pa.Array, AvroSchema]]:
        """The rows and payloads of each schema that values were written with; adds those without to `faults`."""
        valid = np.flatnonzero(flags_of(values.is_valid()))
        if self._registry is None:
            if self._reader is not None:
                yield valid, values.drop_null(), self._reader
            return
        ids, payloads = unframed(values)
        faults.update(dict.fromkeys(valid[ids[valid] < 0].tolist(), "the value has no header with a schema's id"))
        for one in np.unique(ids[ids >= 0]).tolist():
            rows = np.flatnonzero(ids == one)
            writer = self.writer(one)
            if isinstance(writer, AvroSchema):
                yield rows, payloads if len(rows) == len(values) else payloads.take(integers(rows)), writer
            else:
                faults.update(dict.fromkeys(rows.tolist(), writer))

    def writer(self, schema_id: int) -> AvroSchema | str:
        if schema_id not in self._writers:
            assert self._registry is not None
            try:
                schema = self._registry.schema(schema_id)
                self._writers[schema_id] = (
                    AvroSchema.of(schema, is_reader=False)
                    if schema.kind == "AVRO"
                    else f"the value's schema {schema_id} is of {schema.kind}, not of AVRO"
                )
            except (SchemaNotFoundError, InvalidConfigError) as error:
                self._writers[schema_id] = f"the value's schema {schema_id} cannot be used: {error}"
        return self._writers[schema_id]

    def _is_in_bulk(self, writer: AvroSchema) -> bool:
        has_bulk = self._reader is not None and writer.in_bulk and writer.plain == self._reader.plain
        return has_bulk and importlib.util.find_spec("pyruhvro") is not None

    def _bulk(self, writer: AvroSchema, payloads: pa.Array) -> pa.RecordBatch | None:
        """All payloads as columns, or None if one of them cannot be decoded."""
        pyruhvro = optional("pyruhvro", "avro()", extra("avro"))
        # bulk ignores bytes that are left, as all values have where a schema without a registry is another one
        if self._registry is None and len(payloads) and attempt(self._reads(writer), payloads[0].as_py())[1]:
            return None
        try:
            columns = pyruhvro.deserialize_array(payloads.to_pylist(), json.dumps(writer.plain))
            columns.validate(full=True)  # texts that are no UTF-8 pass it
            return columns.cast(self._as_written(writer)).cast(self.schema)
        except (ValueError, pa.ArrowException):
            return None

    def _one_by_one(
        self, writer: AvroSchema, faults: dict[int, str], rows: Longs, payloads: pa.Array
    ) -> tuple[Longs, pa.RecordBatch]:
        read = self._reads(writer)
        good: list[int] = []
        made = []
        for number, payload in enumerate(payloads.to_pylist()):
            value, fault = attempt(read, payload)
            if fault:
                faults[int(rows[number])] = f"the value is no Avro of its schema: {fault}"
            else:
                made.append(value)
                good.append(number)
        return self._columns(writer, rows, good, made, faults)

    def _as_written(self, writer: AvroSchema) -> pa.Schema:
        """The columns with the units that the writer's times have: Avro resolves their numbers without the units."""
        assert self._reader is not None
        kind = _with_units(self._reader.kind, writer.kind, self._reader.aliases)
        return pa.schema(list(kind) if pa.types.is_struct(kind) else [pa.field("value", kind)])

    def _reads(self, writer: AvroSchema) -> Callable[[bytes], Any]:
        fastavro = optional("fastavro", "avro()", extra("avro"))
        own, resolved, named = fastavro.parse_schema(writer.plain), None, dict[str, Any]()
        if self._reader is not None and self._reader.plain != writer.plain:
            resolved = fastavro.parse_schema(self._reader.plain, named)
            _read_defaults(named)

        def read(payload: bytes) -> Any:
            file = io.BytesIO(payload)
            value = fastavro.schemaless_reader(file, own, resolved)
            # of another schema, or a registry's header was taken for the first fields; an id tells the schema for
            # sure, and bytes that are left behind it are passed over, as by bulk
            if self._registry is None and (left := len(payload) - file.tell()):
                raise ValueError(f"{left} bytes are left behind it")
            return value

        return read

    def _columns(
        self, writer: AvroSchema, rows: Longs, good: list[int], made: list[Any], faults: dict[int, str]
    ) -> tuple[Longs, pa.RecordBatch]:
        """The rows of the values, and their columns; one that its type cannot hold, as a long decimal, is a fault."""
        assert self._reader is not None
        if not pa.types.is_struct(self._reader.kind):
            made = [{"value": value} for value in made]
        written = self._as_written(writer)

        def columns_of(some: list[Any]) -> pa.RecordBatch:
            return pa.RecordBatch.from_pylist(some, written).cast(self.schema)

        try:
            return rows[np.array(good, np.intp)], columns_of(made)
        except (pa.ArrowException, OverflowError):
            pass
        kept: list[int] = []
        values = []
        for number, value in zip(good, made, strict=True):
            _, fault = attempt(columns_of, [value])
            if fault:
                faults[int(rows[number])] = f"the value does not fit its columns: {fault}"
            else:
                kept.append(number)
                values.append(value)
        return rows[np.array(kept, np.intp)], columns_of(values)


def _read_defaults(named: Mapping[str, Any]) -> None:
    """Convert the defaults in parsed records as a read does: fastavro uses them as they are in the JSON."""
    fields = [field for one in named.values() for field in one.get("fields", ()) if "default" in field]
    try:
        read = [_default(field["default"], field["type"], named) for field in fields]
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidConfigError("a default in a schema of Avro is no value of its type", reason=str(error)) from None
    for field, value in zip(fields, read, strict=True):
        field["default"] = value


def _default(given: Any, schema: Any, named: Mapping[str, Any]) -> Any:
    """The value of a default in JSON, where bytes are a text, and a record may leave out fields with a default."""
    if given is None:
        return None
    if isinstance(schema, list):
        # one type beside null, else it has no column
        return _default(given, next(one for one in schema if one != "null"), named)
    whole = named.get(schema, {"type": schema}) if isinstance(schema, str) else schema
    kind = whole["type"]
    if kind in ("bytes", "fixed"):
        data = given.encode("latin-1")
        if whole.get("logicalType") != "decimal":
            return data
        sign, digits, _ = Decimal(int.from_bytes(data, "big", signed=True)).as_tuple()
        return Decimal((sign, digits, -whole["scale"]))
    if kind in ("record", "error"):
        parts = [(one["name"], given.get(one["name"], one.get("default")), one["type"]) for one in whole["fields"]]
        return {name: _default(part, type_, named) for name, part, type_ in parts}
    if kind == "array":
        return [_default(one, whole["items"], named) for one in given]
    if kind == "map":
        return {key: _default(one, whole["values"], named) for key, one in given.items()}
    return given


def _with_units(
    reader: pa.DataType, writer: pa.DataType, aliases: Mapping[str, Sequence[str]], path: str = ""
) -> pa.DataType:
    if pa.types.is_temporal(reader) and pa.types.is_temporal(writer):
        return writer
    if pa.types.is_struct(reader) and pa.types.is_struct(writer):
        fields = []
        for field in reader:
            place = f"{path}.{field.name}".lstrip(".")
            found = (writer.get_field_index(name) for name in (field.name, *aliases[place]))
            at = next((at for at in found if at >= 0), None)
            kind = field.type if at is None else _with_units(field.type, writer.field(at).type, aliases, place)
            fields.append(field.with_type(kind))
        return pa.struct(fields)
    if pa.types.is_list(reader) and pa.types.is_list(writer):
        return pa.list_(_with_units(reader.value_type, writer.value_type, aliases, path + "[]"))
    if pa.types.is_map(reader) and pa.types.is_map(writer):
        return pa.map_(pa.string(), _with_units(reader.item_type, writer.item_type, aliases, path + "{}"))
    return reader


def avro_table(
    batches: Iterable[pa.RecordBatch],
    columns: pa.Schema,
    schema: Any,
    registry: SchemaRegistry | None,
    on_error: OnError,
    flatten: bool,
) -> pa.Table:
    """All batches as a table of `columns` and the fields of their values."""
    if schema is not None:
        reader: AvroSchema | None = AvroSchema.of(schema)
    elif registry is None:
        raise InvalidConfigError("avro needs a schema, a registry, or both: avro(registry='http://host:8081')")
    else:
        # held, since the columns are those of the newest schema
        batches = list(batches)
        ids = (np.unique(unframed(batch.column("value")).ids).tolist() for batch in batches)
        reader = newest_reader(registry, set(chain.from_iterable(ids)))
    return decoded_table(batches, columns, AvroDecoder(reader, registry), on_error, flatten)


def newest_reader(registry: SchemaRegistry, ids: Iterable[int]) -> AvroSchema | None:
    for one in sorted((one for one in ids if one >= 0), reverse=True):
        try:
            schema = registry.schema(one)
        except SchemaNotFoundError:
            continue
        if schema.kind == "AVRO":
            return AvroSchema.of(schema)
    return None
