"""Decodes Protobuf values to Arrow with ptars. Protobuf's own library and grpcio-tools parse the schemas."""

from __future__ import annotations

import base64
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

from distlog.core import extra, optional
from distlog.core.arrays import Longs, flags_of, integers, join
from distlog.core.errors import InvalidConfigError, SchemaNotFoundError
from distlog.core.schemas.decoding import (
    Decoded,
    DecodedRows,
    Indexes,
    attempt,
    decode_in_halves,
    decode_singly,
    rows_at_numbers,
    split_headers,
    split_messages,
)
from distlog.core.schemas.registry import Schema, SchemaRegistry

_EXTRA = extra("protobuf")
#: The file name of a schema, next to the files that it imports.
_FILE_NAME = "value.proto"
#: ptars's options for Arrow's types: times in microseconds, since Python has no nanoseconds; enums as their names;
#: lists, maps and their values are nullable, as other fields, although an absent list or map is empty.
_PTARS_CONFIG = {
    "timestamp_unit": "us",
    "duration_unit": "us",
    "enum_repr": "string",
    "list_nullable": True,
    "map_nullable": True,
    "list_value_nullable": True,
    "map_value_nullable": True,
}
#: The half-open ranges of a Timestamp (the years 1 to 9999) and of a Duration (10,000 years), in microseconds.
_TIMESTAMP_RANGE = -62_135_596_800 * 10**6, 253_402_300_800 * 10**6
_DURATION_RANGE = -315_576_000_001 * 10**6 + 1, 315_576_000_001 * 10**6  # 315,576,000,000 s and a fraction


class Message:
    """A type of messages, and the columns of its values. It can be pickled."""

    def __init__(self, files: tuple[bytes, ...], name: str) -> None:
        self._files, self.name = files, name
        self._descriptor = _descriptor(files, name)
        ptars = optional("ptars", "protobuf()", _EXTRA)
        handlers = ptars.HandlerPool([self._descriptor.file], config=ptars.PtarsConfig(**_PTARS_CONFIG))
        self._handler = handlers.get_for_message(self._descriptor)
        self.schema = pa.schema([field.with_nullable(True) for field in self._handler.schema()])

    @classmethod
    def of(cls, source: Any, name: str | None = None) -> Message:
        """Parse a generated class, its descriptor, a registry's schema, or a .proto text and a message name."""
        descriptor = getattr(source, "DESCRIPTOR", source)
        if hasattr(descriptor, "full_name") and hasattr(descriptor, "file"):
            return cls(_serialized_files(descriptor.file), descriptor.full_name)
        if not isinstance(source, str | Schema):
            text = "a Protobuf schema must be a generated class, its descriptor, or the text of a .proto file"
            raise InvalidConfigError(text, got=type(source).__name__)
        files = compile_schema(source if isinstance(source, Schema) else Schema("PROTOBUF", source))
        return cls(files, name or _message_name(files, indexes=(0,)))  # by default the first message of the file

    def rows(self, payloads: list[bytes]) -> pa.RecordBatch:
        decoded = self._handler.list_to_record_batch(payloads)
        if _has_oneof_conflict(decoded.to_struct_array(), self._descriptor):  # raises for times out of range
            message_factory = optional("google.protobuf.message_factory", "protobuf()", _EXTRA)
            message_class = message_factory.GetMessageClass(self._descriptor)
            # Protobuf's own library keeps only the last field of each oneof
            normalized = [message_class.FromString(payload).SerializePartialToString() for payload in payloads]
            decoded = self._handler.list_to_record_batch(normalized)
        return pa.RecordBatch.from_arrays(decoded.columns, schema=self.schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, (self._files, self.name)


def _descriptor(files: tuple[bytes, ...], name: str) -> Any:
    descriptor_pool = optional("google.protobuf.descriptor_pool", "protobuf()", _EXTRA)
    descriptors = optional("google.protobuf.descriptor_pb2", "protobuf()", _EXTRA)
    if any(descriptors.FileDescriptorProto.FromString(file).syntax == "editions" for file in files):
        # ptars panics, which Python cannot catch
        raise InvalidConfigError("editions of Protobuf are not supported: use a schema with proto2 or proto3")
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files:
            pool.AddSerializedFile(file)
        descriptor = pool.FindMessageTypeByName(name)
    except (KeyError, TypeError) as error:
        raise InvalidConfigError(f"the schema has no message {name}", reason=str(error)[:200]) from None
    _check_not_recursive(descriptor, ())
    return descriptor


def _check_not_recursive(descriptor: Any, enclosing: tuple[str, ...]) -> None:
    if descriptor.full_name in enclosing:
        text = "a recursive message has no columns: use a schema without that field"
        raise InvalidConfigError(text, name=descriptor.full_name)
    for field in descriptor.fields:
        if field.message_type is not None:
            _check_not_recursive(field.message_type, (*enclosing, descriptor.full_name))


def _has_oneof_conflict(values: pa.Array, descriptor: Any) -> bool:
    """Return whether any message sets two fields of a oneof. Raises ValueError for a time out of Protobuf's range."""
    if pa.types.is_list(values.type):
        return _has_oneof_conflict(values.values, descriptor)
    if pa.types.is_map(values.type):
        return _has_oneof_conflict(values.items, descriptor.fields_by_name["value"].message_type)
    if pa.types.is_timestamp(values.type) or pa.types.is_duration(values.type):
        first, end = _TIMESTAMP_RANGE if pa.types.is_timestamp(values.type) else _DURATION_RANGE
        bounds = pc.min_max(values.cast(pa.int64())).as_py()
        if bounds["min"] is not None and not first <= bounds["min"] <= bounds["max"] < end:
            raise ValueError(f"a {descriptor.name} is out of the range of Protobuf")
    if not pa.types.is_struct(values.type):
        return False
    nested = {field.name: message for field in descriptor.fields if (message := field.message_type) is not None}
    # check all nested messages, since each check also raises for wrong times
    nested_results = [_has_oneof_conflict(values.field(name), message) for name, message in nested.items()]
    # an optional field is a oneof with one field
    oneofs = (oneof.fields for oneof in descriptor.oneofs if len(oneof.fields) > 1)
    set_flags = ([flags_of(values.field(field.name).is_valid()) for field in fields] for fields in oneofs)
    return any(nested_results) or any((np.sum(flags, axis=0) > 1).any() for flags in set_flags)


def _serialized_files(file: Any, files: dict[str, bytes] | None = None) -> tuple[bytes, ...]:
    files = {} if files is None else files
    for dependency in file.dependencies:
        if dependency.name not in files:
            _serialized_files(dependency, files)
    files[file.name] = file.serialized_pb
    return tuple(files.values())


def compile_schema(schema: Schema) -> tuple[bytes, ...]:
    """Return the serialized descriptors of the files of a schema, each after those that it imports."""
    descriptors = optional("google.protobuf.descriptor_pb2", "protobuf()", _EXTRA)
    with suppress(Exception):
        # some producers register the descriptor of the file in base64; any error means that this is the file's text
        file = descriptors.FileDescriptorProto.FromString(base64.b64decode(schema.text, validate=True))
        if file.message_type and not schema.imports:
            return (file.SerializeToString(),)
    protoc = optional("grpc_tools.protoc", "a .proto text or a registry with Protobuf", _EXTRA)
    library = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="distlog-proto-") as folder:
        for name, text in (*schema.imports, (_FILE_NAME, schema.text)):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name:
                raise InvalidConfigError("an import's name must be a path in the schema's folder", name=repr(name))
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(text, encoding="utf-8")
        output = os.path.join(folder, ".compile_schema")
        arguments = ["protoc", f"-I{folder}", f"-I{library}", "--include_imports", f"-o{output}", _FILE_NAME]
        if protoc.main(arguments) != 0:
            raise InvalidConfigError("this is not a Protobuf schema: the compiler's errors are on standard error")
        files = descriptors.FileDescriptorSet.FromString(Path(output).read_bytes()).file
    return tuple(file.SerializeToString() for file in files)


def _message_name(files: tuple[bytes, ...], indexes: Indexes) -> str:
    """Return the full name of the message at `indexes` of the last file."""
    descriptors = optional("google.protobuf.descriptor_pb2", "protobuf()", _EXTRA)
    file = descriptors.FileDescriptorProto.FromString(files[-1])
    names = [file.package] if file.package else []
    messages = file.message_type
    for number in indexes:
        if number >= len(messages):
            raise InvalidConfigError("the schema has no message with these indexes", indexes=list(indexes))
        names.append(messages[number].name)
        messages = messages[number].nested_type
    return ".".join(names)


class ProtobufDecoder:
    """Decodes values to the columns of `reader`; with a `registry`, their headers must name the reader's type.

    Values may have another version of the reader's schema, since Protobuf identifies fields by number.
    """

    def __init__(self, reader: Message | None, registry: SchemaRegistry | None) -> None:
        self._reader, self._registry = reader, registry
        #: By schema id and indexes: the reason why values cannot be read, or an empty text.
        self._faults: dict[tuple[int, Indexes | None], str] = {}
        self._files: dict[int, tuple[bytes, ...]] = {}

    @property
    def schema(self) -> pa.Schema:
        return self._reader.schema if self._reader else pa.schema([])  # no reader: no value has a usable schema

    def decode(self, values: pa.Array) -> Decoded:
        faults: dict[int, str] = {}
        rows, payloads = self._payloads(values, faults)
        parts: list[DecodedRows] = []
        if self._reader is not None:
            decode, decode_one_by_one = self._reader.rows, partial(_record_by_record, self._reader, faults)
            # without the text of an error, since `decode_one_by_one` gets the error of each bad value
            parts += decode_in_halves(rows, payloads, lambda group: attempt(decode, group)[0], decode_one_by_one)
        return Decoded(rows_at_numbers(parts, len(values), self.schema), faults)

    def _payloads(self, values: pa.Array, faults: dict[int, str]) -> tuple[Longs, list[bytes]]:
        """Return the rows of messages of the reader's type, and the messages; adds other values to `faults`."""
        valid = np.flatnonzero(flags_of(values.is_valid()))
        if self._registry is None:
            return valid, values.drop_null().to_pylist()
        ids, payloads = split_headers(values)
        faults.update(dict.fromkeys(valid[ids[valid] < 0].tolist(), "the value has no header with a schema's id"))
        distinct, codes, messages = split_messages(payloads)
        rows = np.flatnonzero(ids >= 0)
        # one number for a schema id and message indexes, to check each pair once
        pairs, pair_of_row = np.unique(ids[rows] * len(distinct) + codes[rows], return_inverse=True)
        reasons = [self._fault(pair // len(distinct), distinct[pair % len(distinct)]) for pair in pairs.tolist()]
        is_bad = np.array([bool(reason) for reason in reasons], np.bool_)[pair_of_row]
        faults.update({int(row): reasons[pair] for row, pair in zip(rows[is_bad], pair_of_row[is_bad], strict=True)})
        return rows[~is_bad], messages.take(integers(rows[~is_bad])).to_pylist()

    def _fault(self, schema_id: int, indexes: Indexes | None) -> str:
        if (schema_id, indexes) not in self._faults:
            try:
                name = self.message_name(schema_id, indexes)
                expected = self._reader.name if self._reader else name
                fault = "" if name == expected else f"the value is a {name}, not a {expected}"
            except (SchemaNotFoundError, InvalidConfigError) as error:
                fault = f"the value's schema {schema_id} cannot be used: {error}"
            self._faults[schema_id, indexes] = fault
        return self._faults[schema_id, indexes]

    def files(self, schema_id: int) -> tuple[bytes, ...]:
        if schema_id not in self._files:
            assert self._registry is not None
            schema = self._registry.schema(schema_id)
            if schema.kind != "PROTOBUF":
                raise InvalidConfigError(f"the schema is of type {schema.kind}, not PROTOBUF")
            self._files[schema_id] = compile_schema(schema)
        return self._files[schema_id]

    def message_name(self, schema_id: int, indexes: Indexes | None) -> str:
        if indexes is None:
            raise InvalidConfigError("the header has no indexes of a message")
        return _message_name(self.files(schema_id), indexes)


def _record_by_record(reader: Message, faults: dict[int, str], rows: Longs, payloads: list[bytes]) -> DecodedRows:
    singles = [[payload] for payload in payloads]
    batches = decode_singly(reader.rows, f"a {reader.name} of Protobuf", faults, rows, singles)
    # join these batches, and don't decode the good messages together: for a message with two fields of a oneof,
    # `Message.rows` parses all by Protobuf's own library, which refuses some messages that ptars accepts
    return np.array(list(batches), np.int64), join([reader.rows([]), *batches.values()])


def protobuf_decoder(
    schema: Any, message: str | None, registry: SchemaRegistry | None, values: Iterable[pa.Array]
) -> ProtobufDecoder:
    """Return the decoder for the columns of the message, or if `schema` is None, of the values' newest message."""
    if schema is not None:
        return ProtobufDecoder(Message.of(schema, message), registry)
    if registry is None:
        raise InvalidConfigError("Protobuf needs a schema, a registry, or both, as in registry='http://host:8081'")
    return ProtobufDecoder(newest_message(registry, values, message), registry)


def newest_message(registry: SchemaRegistry, batches: Iterable[pa.Array], message: str | None) -> Message | None:
    """Return the type of the last value with the highest usable schema id, or that schema's `message`, or None."""
    newest: dict[int, Indexes] = {}  # by schema id, the indexes of its last value's type
    for values in batches:
        ids, payloads = split_headers(values)
        distinct, codes, _ = split_messages(payloads)
        for schema_id in np.unique(ids[ids >= 0]).tolist():
            last_row = np.flatnonzero(ids == schema_id)[-1]
            indexes = distinct[codes[last_row]]
            if indexes is not None:
                newest[schema_id] = indexes
    decoder = ProtobufDecoder(None, registry)
    for schema_id in sorted(newest, reverse=True):
        with suppress(SchemaNotFoundError, InvalidConfigError):
            name = message or decoder.message_name(schema_id, newest[schema_id])
            return Message(decoder.files(schema_id), name)
    return None
