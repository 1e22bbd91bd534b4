"""Values of Protobuf as Arrow: ptars decodes them in bulk, protobuf's own library knows the messages.

A registry has the text of .proto files, which the compiler of grpcio-tools reads.
"""

from __future__ import annotations

import base64
import binascii
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import flags_of, integers, join
from distlog.core.errors import InvalidConfigError, SchemaNotFoundError
from distlog.core.optional import extra, optional
from distlog.core.values.decoding import Decoded, Longs, OnError, attempt, decoded_table, in_halves, scattered
from distlog.core.values.framing import Place, places, unframed
from distlog.core.values.registry import Schema, SchemaRegistry

_EXTRA = extra("protobuf")
#: The name that a schema has as a file among the others that it imports.
_FILE = "value.proto"
#: Arrow's types: Python has no nanoseconds, and a list or a map that is absent is an empty one.
_CONFIG = {
    "timestamp_unit": "us",
    "duration_unit": "us",
    "enum_repr": "string",
    "list_nullable": True,
    "map_nullable": True,
    "list_value_nullable": True,
    "map_value_nullable": True,
}
#: The microseconds that a Timestamp (the years 1 to 9999) and a Duration (10,000 years) may have, from, to.
_TIMES = -62_135_596_800 * 10**6, 253_402_300_800 * 10**6
_DURATIONS = -315_576_000_001 * 10**6 + 1, 315_576_000_001 * 10**6


class Message:
    """A type of messages, and how its values become columns. Pickles."""

    def __init__(self, files: tuple[bytes, ...], name: str) -> None:
        self._files, self.name = files, name
        self._descriptor = _descriptor(files, name)
        self.schema, self._handler = _handler(self._descriptor)

    @classmethod
    def of(cls, given: Any, name: str | None = None) -> Message:
        """From a generated class, its descriptor, a registry's schema, or a .proto file's text and a message name."""
        descriptor = getattr(given, "DESCRIPTOR", given)
        if hasattr(descriptor, "full_name") and hasattr(descriptor, "file"):
            return cls(_files_of(descriptor.file), descriptor.full_name)
        if not isinstance(given, str | Schema):
            text = "a schema of Protobuf is a generated class, its descriptor, or the text of a .proto file"
            raise InvalidConfigError(text, got=type(given).__name__)
        files = compiled(given if isinstance(given, Schema) else Schema("PROTOBUF", given))
        return cls(files, name or _name_at(files, (0,)))

    def rows(self, payloads: list[bytes]) -> pa.RecordBatch:
        decoded = self._handler.list_to_record_batch(payloads)
        if _check_columns(decoded.to_struct_array(), self._descriptor):
            message_factory = optional("google.protobuf.message_factory", "protobuf()", _EXTRA)
            kind = message_factory.GetMessageClass(self._descriptor)
            written = [kind.FromString(one).SerializePartialToString() for one in payloads]
            decoded = self._handler.list_to_record_batch(written)
        return pa.RecordBatch.from_arrays(decoded.columns, schema=self.schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, (self._files, self.name)


def _descriptor(files: tuple[bytes, ...], name: str) -> Any:
    descriptor_pool = optional("google.protobuf.descriptor_pool", "protobuf()", _EXTRA)
    descriptors = optional("google.protobuf.descriptor_pb2", "protobuf()", _EXTRA)
    if any(descriptors.FileDescriptorProto.FromString(file).syntax == "editions" for file in files):
        # ptars panics, which is no Exception to Python
        raise InvalidConfigError("no columns come from an edition of Protobuf: give a schema with proto2 or proto3")
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files:
            pool.AddSerializedFile(file)
        descriptor = pool.FindMessageTypeByName(name)
    except (KeyError, TypeError) as error:
        raise InvalidConfigError(f"the schema has no message {name}", reason=str(error)[:200]) from None
    _check_no_circle(descriptor, ())
    return descriptor


def _handler(descriptor: Any) -> tuple[pa.Schema, Any]:
    ptars = optional("ptars", "protobuf()", _EXTRA)
    handler = ptars.HandlerPool([descriptor.file], config=ptars.PtarsConfig(**_CONFIG)).get_for_message(descriptor)
    return pa.schema([field.with_nullable(True) for field in handler.schema()]), handler


def _check_no_circle(descriptor: Any, inside: tuple[str, ...]) -> None:
    if descriptor.full_name in inside:
        text = "a message that holds itself has no columns: give a schema without that field"
        raise InvalidConfigError(text, name=descriptor.full_name)
    for field in descriptor.fields:
        if field.message_type is not None:
            _check_no_circle(field.message_type, (*inside, descriptor.full_name))


def _check_columns(values: pa.Array, descriptor: Any) -> bool:
    """True if a message has two fields of a oneof, of which the last counts: ptars sets both.

    Raises ValueError for a time or duration that Protobuf does not have: ptars returns the nearest one of Arrow.
    """
    if pa.types.is_list(values.type):
        return _check_columns(values.values, descriptor)
    if pa.types.is_map(values.type):
        return _check_columns(values.items, descriptor.fields_by_name["value"].message_type)
    if pa.types.is_timestamp(values.type) or pa.types.is_duration(values.type):
        first, end = _TIMES if pa.types.is_timestamp(values.type) else _DURATIONS
        bounds = pc.min_max(values.cast(pa.int64())).as_py()
        if bounds["min"] is not None and not first <= bounds["min"] <= bounds["max"] < end:
            raise ValueError(f"a {descriptor.name} is out of the range of Protobuf")
    if not pa.types.is_struct(values.type):
        return False
    kinds = {field.name: kind for field in descriptor.fields if (kind := field.message_type) is not None}
    inside = [_check_columns(values.field(name), kind) for name, kind in kinds.items()]
    # an optional field is alone in a oneof of its own
    several = (one.fields for one in descriptor.oneofs if len(one.fields) > 1)
    chosen = ([flags_of(values.field(each.name).is_valid()) for each in fields] for fields in several)
    return any(inside) or any((np.sum(flags, axis=0) > 1).any() for flags in chosen)


def _files_of(file: Any, files: dict[str, bytes] | None = None) -> tuple[bytes, ...]:
    files = {} if files is None else files
    for one in file.dependencies:
        if one.name not in files:
            _files_of(one, files)
    files[file.name] = file.serialized_pb
    return tuple(files.values())


def compiled(schema: Schema) -> tuple[bytes, ...]:
    descriptors = optional("google.protobuf.descriptor_pb2", "protobuf()", _EXTRA)
    with suppress(ValueError, binascii.Error, Exception):
        # some producers register the descriptor of the file, in base64, in place of its text
        made = descriptors.FileDescriptorProto.FromString(base64.b64decode(schema.text, validate=True))
        if made.message_type and not schema.imports:
            return (made.SerializeToString(),)
    protoc = optional("grpc_tools.protoc", "a registry with Protobuf", _EXTRA)
    own = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="distlog-proto-") as folder:
        for name, text in (*schema.imports, (_FILE, schema.text)):
            place = PurePosixPath(name)
            if place.is_absolute() or ".." in place.parts or "\0" in name:
                raise InvalidConfigError("an import's name must be a path below the schema's folder", name=repr(name))
            (Path(folder) / place).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / place).write_text(text, encoding="utf-8")
        output = os.path.join(folder, ".compiled")
        arguments = ["protoc", f"-I{folder}", f"-I{own}", "--include_imports", f"-o{output}", _FILE]
        if protoc.main(arguments) != 0:
            raise InvalidConfigError("this is no schema of Protobuf: standard error has what the compiler said")
        files = descriptors.FileDescriptorSet.FromString(Path(output).read_bytes()).file
    return tuple(file.SerializeToString() for file in files)


def _name_at(files: tuple[bytes, ...], place: Place) -> str:
    descriptors = optional("google.protobuf.descriptor_pb2", "protobuf()", _EXTRA)
    file = descriptors.FileDescriptorProto.FromString(files[-1])
    names, messages = [file.package] if file.package else [], file.message_type
    for number in place:
        if number >= len(messages):
            raise InvalidConfigError("the schema has no message at this place", place=list(place))
        names.append(messages[number].name)
        messages = messages[number].nested_type
    return ".".join(names)


class ProtobufDecoder:
    """Decodes values to the columns of `reader`.

    With a `registry` each value has a header with its schema's id and the place of its message there, which must be
    called as the reader is: Protobuf reads fields by their numbers, whatever version of the message wrote them.
    """

    def __init__(self, reader: Message | None, registry: SchemaRegistry | None) -> None:
        self._reader, self._registry = reader, registry
        #: Why values of a schema and place cannot be read; empty where they can.
        self._checked: dict[tuple[int, Place | None], str] = {}
        self._files: dict[int, tuple[bytes, ...]] = {}

    @property
    def schema(self) -> pa.Schema:
        return self._reader.schema if self._reader else pa.schema([])

    def decode(self, values: pa.Array) -> Decoded:
        faults: dict[int, str] = {}
        rows, payloads = self._payloads(values, faults)
        if self._reader is None:
            return Decoded(scattered([], len(values), self.schema), faults)
        slowly = partial(self._one_by_one, faults)
        parts = list(in_halves(rows, payloads, lambda some: attempt(self._rows, some)[0], slowly))
        return Decoded(scattered(parts, len(values), self.schema), faults)

    def _rows(self, payloads: list[bytes]) -> pa.RecordBatch:
        assert self._reader is not None
        return self._reader.rows(payloads)

    def _one_by_one(self, faults: dict[int, str], rows: Longs, payloads: list[bytes]) -> tuple[Longs, pa.RecordBatch]:
        good, parts = [], [self._rows([])]
        for number, (row, payload) in enumerate(zip(rows.tolist(), payloads, strict=True)):
            part, fault = attempt(self._rows, [payload])
            if fault:
                name = "" if self._reader is None else self._reader.name
                faults[row] = f"the value is no {name} of Protobuf: {fault}"
            else:
                good.append(number)
                parts.append(part)
        # not together, where Protobuf's own library reads all: it refuses more
        return rows[np.array(good, np.intp)], join(parts)

    def _payloads(self, values: pa.Array, faults: dict[int, str]) -> tuple[Longs, list[bytes]]:
        valid = np.flatnonzero(flags_of(values.is_valid()))
        if self._registry is None:
            return valid, values.drop_null().to_pylist()
        ids, payloads = unframed(values)
        faults.update(dict.fromkeys(valid[ids[valid] < 0].tolist(), "the value has no header with a schema's id"))
        kinds, numbers, rest = places(payloads)
        framed = np.flatnonzero(ids >= 0)
        headers, which = np.unique(ids[framed] * len(kinds) + numbers[framed], return_inverse=True)
        whys = [self._fault(header // len(kinds), kinds[header % len(kinds)]) for header in headers.tolist()]
        bad = np.array([bool(why) for why in whys], np.bool_)[which]
        faults.update({int(row): whys[kind] for row, kind in zip(framed[bad], which[bad], strict=True)})
        chosen = framed[~bad]
        return chosen, rest.take(integers(chosen)).to_pylist()

    def _fault(self, schema_id: int, place: Place | None) -> str:
        if (schema_id, place) not in self._checked:
            try:
                name = self.name_at(schema_id, place)
                wanted = self._reader.name if self._reader else name
                why = "" if name == wanted else f"the value is a {name}, not a {wanted}"
            except (SchemaNotFoundError, InvalidConfigError) as error:
                why = f"the value's schema {schema_id} cannot be used: {error}"
            self._checked[schema_id, place] = why
        return self._checked[schema_id, place]

    def files(self, schema_id: int) -> tuple[bytes, ...]:
        if schema_id not in self._files:
            assert self._registry is not None
            schema = self._registry.schema(schema_id)
            if schema.kind != "PROTOBUF":
                raise InvalidConfigError(f"the schema is of type {schema.kind}, not PROTOBUF")
            self._files[schema_id] = compiled(schema)
        return self._files[schema_id]

    def name_at(self, schema_id: int, place: Place | None) -> str:
        if place is None:
            raise InvalidConfigError("the header does not say which message it is")
        return _name_at(self.files(schema_id), place)


def protobuf_table(
    batches: Iterable[pa.RecordBatch],
    columns: pa.Schema,
    schema: Any,
    message: str | None,
    registry: SchemaRegistry | None,
    on_error: OnError,
    flatten: bool,
) -> pa.Table:
    """All batches as a table of `columns` and the fields of their values."""
    if schema is not None:
        reader: Message | None = Message.of(schema, message)
    elif registry is None:
        raise InvalidConfigError(
            "protobuf needs a schema, a registry, or both: protobuf(registry='http://host:8081')"
        )
    else:
        # held, since the columns are those of the newest message
        batches = list(batches)
        reader = newest_message(registry, [batch.column("value") for batch in batches], message)
    return decoded_table(batches, columns, ProtobufDecoder(reader, registry), on_error, flatten)


def newest_message(registry: SchemaRegistry, batches: Iterable[pa.Array], message: str | None) -> Message | None:
    """The last message with the highest id among binary values, or the message of this name in its schema."""
    newest: dict[int, Place] = {}
    for values in batches:
        ids, payloads = unframed(values)
        kinds, numbers, _ = places(payloads)
        for one in np.unique(ids[ids >= 0]).tolist():
            place = kinds[numbers[np.flatnonzero(ids == one)[-1]]]
            if place is not None:
                newest[one] = place
    decoder = ProtobufDecoder(None, registry)
    for one in sorted(newest, reverse=True):
        with suppress(SchemaNotFoundError, InvalidConfigError):
            return Message(decoder.files(one), message or decoder.name_at(one, newest[one]))
    return None
