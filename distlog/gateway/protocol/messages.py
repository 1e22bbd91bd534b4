"""Reads and writes messages of Kafka's protocol, by steps that are compiled once for each schema."""

from __future__ import annotations

import json
import struct
import uuid
from collections import deque, namedtuple
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

from kio.schema.errors import ErrorCode as ErrorCode

from distlog.core.errors import CorruptionError
from distlog.core.segments.chunks import StoredBatches


class InvalidRequestError(CorruptionError):
    """The bytes of a request do not follow Kafka's protocol, so the connection must end."""


BAD_CLIENT = "the client has a bug, or sends another version than it says"

# The schemas are in one file, messages.txt. The library kio has them as classes, but to import these takes ms.

#: By kind of field (kio's names): the format in `struct`, if the size is fixed. Times are numbers of ms.
FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "error_code": "h",
    "int32": "i",
    "uint32": "I",
    "timedelta_i32": "i",
    "int64": "q",
    "float64": "d",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
#: The other kinds of fields, each with the default of fields that have none in Kafka's message files.
EMPTY_VALUES: dict[str, Any] = {"string": "", "bytes": b"", "records": b"", "uuid": None}
API_VERSIONS_KEY = 18


@dataclass(frozen=True, slots=True)
class SchemaField:
    """A field. `kind` is a key of FIXED or EMPTY_VALUES, or "" for a `message`. Fields with a `tag` are optional."""

    name: str
    kind: str
    message: MessageSchema | None
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """A version of a message, or of a part of one. Versions since KIP-482 are flexible."""

    name: str
    is_flexible: bool
    fields: tuple[SchemaField, ...]

    def names(self) -> set[str]:
        inner = (field.message.names() for field in self.fields if field.message is not None)
        return {field.name for field in self.fields}.union(*inner)


@dataclass(frozen=True, slots=True)
class BodySchema:
    """A request's or a response's body, and whether its header has tagged fields."""

    body: MessageSchema
    is_head_flexible: bool


def _blocks() -> dict[tuple[str, int], tuple[str, ...]]:
    """The lines of each block: a name with its versions (see `_schema`), then the fields, indented if nested."""
    text = files(__package__).joinpath("messages.txt").read_text(encoding="utf-8")
    blocks = dict[tuple[str, int], tuple[str, ...]]()
    for block in text.split("\n\n"):
        head, *lines = block.splitlines()
        direction, key, name_and_versions = head.split(" ", 2)
        blocks[direction, int(key)] = name_and_versions, *lines
    return blocks


#: Read at the import, since a gateway may later run out of file descriptors. `tools/kafka_messages.py` writes it.
_BLOCKS = _blocks()


@cache
def response_fields(api_key: int) -> frozenset[str]:
    """The names of all fields of an API's response in any of its versions, and `error_message`."""
    # handlers may return an error's text even if the response has no field for it
    return frozenset({"error_message", *(line.split()[0] for line in _BLOCKS["response", api_key][1:])})


def _schema(direction: str, api_key: int, version: int) -> BodySchema:
    # an unknown API has no versions, since its oldest version 0 is above its newest version -1
    name_and_versions, *lines = _BLOCKS.get((direction, api_key), ("- 0 -1 0",))
    name, *versions = name_and_versions.split()
    oldest, newest, first_flexible = map(int, versions)
    if not oldest <= version <= newest:
        raise InvalidRequestError("unsupported API version", api_key=api_key, version=version)
    body = _message(name, deque(lines), 0, version, version >= first_flexible)
    # the response to ApiVersions has a plain head, which clients can read before they have the versions (KIP-511)
    return BodySchema(body, body.is_flexible and (direction, api_key) != ("response", API_VERSIONS_KEY))


#: Return the schema for an API's key and version. They raise InvalidRequestError for an unsupported version.
request_schema, response_schema = partial(_schema, "request"), partial(_schema, "response")


def _message(name: str, lines: deque[str], depth: int, version: int, is_flexible: bool) -> MessageSchema:
    """Remove the next `lines` of this depth, and parse them into the fields of a message."""
    fields = list[SchemaField]()
    while lines and lines[0].startswith(" " * depth):
        field_name, kind, *words = lines.popleft().split()
        options = {option: json.loads(value) for option, _, value in (word.partition("=") for word in words)}
        is_array, kind, message = kind.endswith("[]"), kind.removesuffix("[]"), None
        if kind not in FIXED and kind not in EMPTY_VALUES:
            message, kind = _message(kind, lines, depth + 1, version, is_flexible), ""
        # the values of `since`, `until` and `null` are versions
        if options.get("since", 0) <= version <= options.get("until", version):
            is_nullable = "null" in options and version >= options["null"]
            default = options.get("default", empty_value(kind, is_array=is_array))
            fields.append(SchemaField(field_name, kind, message, is_array, is_nullable, options.get("tag"), default))
    return MessageSchema(name, is_flexible, tuple(fields))


def empty_value(kind: str, *, is_array: bool) -> Any:
    """The default of a field that has none in its message file. The default of a message has no fields."""
    return () if is_array else (0 if kind in FIXED else EMPTY_VALUES.get(kind, {}))


# A schema is compiled into steps. Consecutive fields of fixed size are one step, and an array of messages of fixed
# size is read in one call. A reader returns a named tuple for a message, a tuple for an array, and ms for a time.
# Writers get the fields by name, and write the defaults of missing fields.
#
# Counts and lengths in a request are untrusted. They are compared with the remaining bytes and with MAX_ITEMS before
# objects are made, since objects for millions of small fields would take minutes.

#: The fields of a message by kio's names. An array is a sequence, and a time is an int in ms.
Fields = Mapping[str, Any]
ResponseChunk = bytes | memoryview | StoredBatches

#: The most elements of arrays and tagged fields in a request. No client needs as many.
MAX_ITEMS = 50_000
#: Smaller chunks are copied into one, since a copy costs less than a system call.
COPIED_BYTES = 1 << 14
#: The bytes of an id, and the most bytes of a varint of 32 bits.
_UUID_BYTES, _UVARINT_BYTES = 16, 5
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
#: The format of a RequestHead.
_HEAD = struct.Struct(">hhi")
#: Decodes a memoryview, which has no `decode`.
_UTF_8 = partial(str, encoding="utf-8")
#: The byte before a message that may be null (KIP-893), and the byte instead of a null message.
_PRESENT, _ABSENT = b"\x01", b"\xff"


class ItemBudget:
    """How many more items a request may have."""

    def __init__(self, remaining: int = MAX_ITEMS) -> None:
        self._remaining = remaining

    def charge(self, count: int, min_bytes: int, remaining_bytes: int) -> None:
        """Count items of at least `min_bytes`. Raises InvalidRequestError for too many items or too few bytes."""
        if count * min_bytes > remaining_bytes:
            text = f"a request claims more items than it has bytes for: {BAD_CLIENT}"
            raise InvalidRequestError(text, items=count, bytes=remaining_bytes)
        self._remaining -= count
        if self._remaining < 0:
            text = "a request has too many items: request fewer topics, partitions or resources at once"
            raise InvalidRequestError(text, most=MAX_ITEMS)


#: Reads a message at a position. Returns the message and its end.
MessageReader = Callable[[memoryview, int, ItemBudget], tuple[Any, int]]
#: Reads one or several fields at a position, and appends their values to the list. Returns their end.
_StepReader = Callable[[list[Any], memoryview, int, ItemBudget], int]
#: Reads a length at a position. Returns the length, or -1 for null, and the position after the length.
_LengthReader = Callable[[memoryview, int], tuple[int, int]]


def message_reader(message: MessageSchema) -> MessageReader:
    """Compile a reader of the message. It skips unknown tagged fields, and raises InvalidRequestError."""
    steps, make = _read_steps(message), _maker(message)

    def read(data: memoryview, position: int, budget: ItemBudget) -> tuple[Any, int]:
        values: list[Any] = []
        try:
            for step in steps:
                position = step(values, data, position, budget)
        except (IndexError, struct.error):
            raise InvalidRequestError(f"a request ends within {message.name}: {BAD_CLIENT}", size=len(data)) from None
        except UnicodeDecodeError:
            text = f"a text of a request is not UTF-8: {BAD_CLIENT}"
            raise InvalidRequestError(text, part=message.name) from None
        return make(values), position

    return read


def client_id_and_end(frame: memoryview) -> tuple[str, int]:
    """Return the client id in a request's head, and its end. All versions have it in the same format."""
    values: list[Any] = []
    try:
        position = _read_client_id(values, frame, _HEAD.size, ItemBudget())
    except (struct.error, UnicodeDecodeError):
        text = f"the client id in a request's head cannot be read: {BAD_CLIENT}"
        raise InvalidRequestError(text, size=len(frame)) from None
    return values[0] or "", position


def skip_tags(data: memoryview, position: int, budget: ItemBudget) -> int:
    try:
        return _read_tags((), ())([], data, position, budget)
    except IndexError:
        raise InvalidRequestError(f"a request ends within its head: {BAD_CLIENT}", size=len(data)) from None


def _in_order(message: MessageSchema) -> list[SchemaField]:
    """The fields in the order in which they are read: the tagged fields are last."""
    return sorted(message.fields, key=lambda field: field.tag is not None)


def _maker(message: MessageSchema) -> Callable[[Sequence[Any]], Any]:
    """Return a function that makes a message from the values of its fields in the order of `_in_order`."""
    kind: Any = namedtuple(message.name, [field.name for field in _in_order(message)])  # type: ignore[misc]
    new = tuple.__new__
    return lambda values: new(kind, values)


def _read_steps(message: MessageSchema) -> list[_StepReader]:
    steps = list[_StepReader]()
    for is_fixed, fields in _runs(message):
        if is_fixed:
            steps.append(_read_fixed("".join(FIXED[field.kind] for field in fields)))
        else:
            steps += [_read_field(field, message.is_flexible) for field in fields]
    if message.is_flexible:
        tagged = [field for field in message.fields if field.tag is not None]
        readers = [(field.tag, _read_field(field, True)) for field in tagged]
        steps.append(_read_tags([_empty(field) for field in tagged], readers))
    return steps


def _runs(message: MessageSchema) -> Iterator[tuple[bool, Iterator[SchemaField]]]:
    """Yield the untagged fields in runs: True and fields of fixed size, or False and other fields."""
    fields = (field for field in message.fields if field.tag is None)
    return groupby(fields, lambda field: field.kind in FIXED and not field.is_array)


def _empty(field: SchemaField) -> Any:
    if field.message is None or field.is_array or field.default is None:
        return field.default
    return _maker(field.message)([_empty(inner) for inner in _in_order(field.message)])


def _read_fixed(formats: str) -> _StepReader:
    layout = struct.Struct(">" + formats)
    unpack, size = layout.unpack_from, layout.size

    def step(values: list[Any], data: memoryview, position: int, budget: ItemBudget) -> int:
        values += unpack(data, position)
        return position + size

    return step


def _read_field(field: SchemaField, is_flexible: bool) -> _StepReader:
    if field.is_array:
        return _read_array(field, is_flexible)
    if field.message is not None:
        return _read_message(field.message, is_nullable=field.is_nullable and field.tag is None)
    return _read_plain(field.kind, is_flexible, field.name, is_nullable=field.is_nullable)


def _read_plain(kind: str, is_flexible: bool, name: str, *, is_nullable: bool) -> _StepReader:
    if kind in FIXED:
        return _read_fixed(FIXED[kind])
    if kind == "uuid":
        return _read_uuid
    make, length = (_UTF_8, _INT16) if kind == "string" else (bytes, _INT32)
    return _read_sized(make, None if is_flexible else length, name, is_nullable=is_nullable)


def _read_sized(
    make: Callable[[memoryview], Any], length: struct.Struct | None, name: str, *, is_nullable: bool
) -> _StepReader:
    """Read a text or bytes. `length` is the format of their length, None for a compact one (a varint, KIP-482)."""
    unpack, length_size = (None, 0) if length is None else (length.unpack_from, length.size)

    def step(values: list[Any], data: memoryview, position: int, budget: ItemBudget) -> int:
        # inlined, since a call of a _LengthReader would take longer than all other work
        if unpack is not None:
            (size,) = unpack(data, position)
            position += length_size
        elif data[position] < 0x80:
            size = data[position] - 1
            position += 1
        else:
            size, position = _compact_length(data, position)
        end: int = position + size
        if size < 0:
            values.append(None if is_nullable else _refuse_null(name))
            return position
        if end > len(data):
            text = f"a field of a request claims more bytes than the request has: {BAD_CLIENT}"
            raise InvalidRequestError(text, field=name, size=size)
        values.append(make(data[position:end]))
        return end

    return step


_read_client_id = _read_sized(_UTF_8, _INT16, "client_id", is_nullable=True)


def _refuse_null(name: str) -> NoReturn:
    raise InvalidRequestError(f"a field of a request must not be null: {BAD_CLIENT}", field=name)


def _read_uuid(values: list[Any], data: memoryview, position: int, budget: ItemBudget) -> int:
    raw = bytes(data[position : position + _UUID_BYTES])
    if len(raw) < _UUID_BYTES:
        # message_reader raises an InvalidRequestError instead
        raise IndexError
    values.append(uuid.UUID(bytes=raw) if any(raw) else None)
    return position + _UUID_BYTES


def _read_message(message: MessageSchema, *, is_nullable: bool) -> _StepReader:
    read = message_reader(message)

    def step(values: list[Any], data: memoryview, position: int, budget: ItemBudget) -> int:
        if is_nullable:
            position += 1
            if data[position - 1] == _ABSENT[0]:
                values.append(None)
                return position
        value, position = read(data, position, budget)
        values.append(value)
        return position

    return step


def _read_array(field: SchemaField, is_flexible: bool) -> _StepReader:
    length = _compact_length if is_flexible else _plain_length(_INT32)
    min_bytes, read_fixed = _min_bytes(field, is_flexible), _fixed_array_reader(field)
    if field.message is not None:
        read_element = _read_message(field.message, is_nullable=False)
    else:
        read_element = _read_plain(field.kind, is_flexible, field.name, is_nullable=False)

    def step(values: list[Any], data: memoryview, position: int, budget: ItemBudget) -> int:
        count, position = length(data, position)
        if count < 0:
            values.append(None if field.is_nullable else _refuse_null(field.name))
            return position
        budget.charge(count, min_bytes, len(data) - position)
        end = position + count * min_bytes  # if the size of an element is fixed
        if read_fixed is not None and (fixed_elements := read_fixed(data[position:end])) is not None:
            values.append(fixed_elements)
            return end
        elements: list[Any] = []
        for _ in range(count):
            position = read_element(elements, data, position, budget)
        values.append(tuple(elements))
        return position

    return step


def _fixed_array_reader(field: SchemaField) -> Callable[[memoryview], tuple[Any, ...] | None] | None:
    """Return a reader of all elements at once, None if sizes differ. It returns None if an element has tags."""
    if (number := FIXED.get(field.kind)) is not None:
        size = struct.calcsize(">" + number)
        return lambda data: struct.unpack(f">{len(data) // size}{number}", data)
    message = field.message
    if message is None or any(
        inner.kind not in FIXED or inner.is_array or inner.tag is not None for inner in message.fields
    ):
        return None
    # in a flexible version, each element ends with its number of tagged fields
    layout = struct.Struct(">" + "".join(FIXED[inner.kind] for inner in message.fields) + "x" * message.is_flexible)
    make = _maker(message)

    def messages(data: memoryview) -> tuple[Any, ...] | None:
        has_tags = message.is_flexible and any(data[layout.size - 1 :: layout.size])
        return None if has_tags else tuple(map(make, layout.iter_unpack(data)))

    return messages if layout.size else None


def _min_bytes(field: SchemaField, is_flexible: bool) -> int:
    """The least bytes of a field, or of an element if the field is an array."""
    if field.message is not None:
        return _min_message_bytes(field.message)
    if field.kind in FIXED:
        return struct.calcsize(">" + FIXED[field.kind])
    if field.kind == "uuid":
        return _UUID_BYTES
    # an empty text, and empty bytes, have only their length
    length = _INT16 if field.kind == "string" else _INT32
    return 1 if is_flexible else length.size


def _min_message_bytes(message: MessageSchema) -> int:
    def min_bytes(field: SchemaField) -> int:
        if field.is_array:
            return 1 if message.is_flexible else _INT32.size
        return 1 if field.is_nullable and field.message else _min_bytes(field, message.is_flexible)

    # a flexible message ends with its number of tagged fields; at least 1, so that a request's bytes limit its items
    return max(sum(min_bytes(field) for field in message.fields if field.tag is None) + message.is_flexible, 1)


def _read_tags(defaults: Sequence[Any], readers: Collection[tuple[int | None, _StepReader]]) -> _StepReader:
    """Read the tagged fields that have readers, and skip others."""
    # the indexes are negative, since the tagged fields are the last values of the message
    tagged = {tag: (index - len(readers), step) for index, (tag, step) in enumerate(readers)}

    def step(values: list[Any], data: memoryview, position: int, budget: ItemBudget) -> int:
        values += defaults
        if not data[position]:
            return position + 1
        count, position = _uvarint(data, position)
        # each has at least a byte for the tag, and one for the size
        budget.charge(count, 2, len(data) - position)
        for _ in range(count):
            tag, position = _uvarint(data, position)
            size, position = _uvarint(data, position)
            end = position + size
            if end > len(data):
                text = f"a tagged field of a request claims more bytes than the request has: {BAD_CLIENT}"
                raise InvalidRequestError(text, tag=tag, size=size)
            if tag in tagged:
                index, read = tagged[tag]
                value: list[Any] = []
                if read(value, data[:end], position, budget) != end:
                    text = f"a tagged field of a request has another size than it claims: {BAD_CLIENT}"
                    raise InvalidRequestError(text, tag=tag, size=size)
                values[index] = value[0]
            position = end
        return position

    return step


def _plain_length(layout: struct.Struct) -> _LengthReader:
    unpack, size = layout.unpack_from, layout.size

    def length(data: memoryview, position: int) -> tuple[int, int]:
        return unpack(data, position)[0], position + size

    return length


def _compact_length(data: memoryview, position: int) -> tuple[int, int]:
    # the stored number is the length plus one, and 0 means null
    first = data[position]
    if first < 0x80:
        return first - 1, position + 1
    length, position = _uvarint(data, position)
    return length - 1, position


def _uvarint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _UVARINT_BYTES, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise InvalidRequestError(f"a number of a request has too many bytes: {BAD_CLIENT}", position=position)


class ChunkWriter:
    """The written bytes. Large chunks are not copied, and small chunks are joined."""

    def __init__(self) -> None:
        self.chunks = list[ResponseChunk]()
        #: The joined small chunks after the last of `chunks`.
        self.small = bytearray()

    def put(self, data: ResponseChunk) -> None:
        if len(data) < COPIED_BYTES:
            self.small += bytes(data)
            return
        self.end()
        self.chunks.append(data)

    def end(self) -> None:
        if self.small:
            self.chunks.append(bytes(self.small))
            self.small = bytearray()

    def joined(self) -> bytes:
        self.end()
        return b"".join(map(bytes, self.chunks))


MessageWriter = Callable[[ChunkWriter, Fields], None]
_ValueWriter = Callable[[ChunkWriter, Any], None]


def message_writer(message: MessageSchema, field_names: Set[str]) -> MessageWriter:
    """Compile a writer of the message. It raises ValueError for a field outside `field_names`."""
    steps = list[MessageWriter]()
    for is_fixed, fields in _runs(message):
        if is_fixed:
            steps.append(_write_fixed([*fields]))
        else:
            steps += [_write_field(field, _put(field, message.is_flexible, field_names)) for field in fields]
    if message.is_flexible:
        tagged = [
            (field.tag, field, _put(field, True, field_names)) for field in message.fields if field.tag is not None
        ]
        steps.append(_write_tags(sorted(tagged, key=itemgetter(0))))

    def write(writer: ChunkWriter, fields: Fields) -> None:
        if not fields.keys() <= field_names:
            raise ValueError(f"no version of {message.name} has {sorted(fields.keys() - field_names)}")
        for step in steps:
            step(writer, fields)

    return write


def _write_fixed(run: Sequence[SchemaField]) -> MessageWriter:
    pack = struct.Struct(">" + "".join(FIXED[field.kind] for field in run)).pack
    names, defaults = [field.name for field in run], [field.default for field in run]

    def step(writer: ChunkWriter, fields: Fields) -> None:
        writer.small += pack(*map(fields.get, names, defaults))

    return step


def _write_field(field: SchemaField, put: _ValueWriter) -> MessageWriter:
    name, default_writer = field.name, ChunkWriter()
    put(default_writer, field.default)
    default = default_writer.joined()

    def step(writer: ChunkWriter, fields: Fields) -> None:
        if name in fields:
            put(writer, fields[name])
        else:
            writer.small += default

    return step


def _write_tags(tagged: Sequence[tuple[Any, SchemaField, _ValueWriter]]) -> MessageWriter:
    """Write the tagged fields that differ from their defaults."""
    names = frozenset(field.name for _, field, _ in tagged)

    def step(writer: ChunkWriter, fields: Fields) -> None:
        if names.isdisjoint(fields):
            writer.small += b"\0"
            return
        present = [
            (tag, put, fields[field.name])
            for tag, field, put in tagged
            if fields.get(field.name, field.default) != field.default
        ]
        writer.small += uvarint(len(present))
        for tag, put, value in present:
            content = ChunkWriter()
            put(content, value)
            data = content.joined()
            writer.small += uvarint(tag) + uvarint(len(data))
            writer.put(data)

    return step


def _put(field: SchemaField, is_flexible: bool, field_names: Set[str]) -> _ValueWriter:
    is_nullable = field.is_nullable and field.tag is None
    put = _put_plain(field.kind, is_flexible) if field.message is None else message_writer(field.message, field_names)
    if field.is_array:
        length = _length(_INT32, is_flexible)
        return _nullable(_put_array(put, length), length(-1)) if is_nullable else _put_array(put, length)
    if field.message is not None:
        return _nullable(put, _ABSENT, _PRESENT) if is_nullable else put
    if field.kind in FIXED or field.kind == "uuid" or not is_nullable:
        return put
    return _nullable(put, _length(_INT16 if field.kind == "string" else _INT32, is_flexible)(-1))


def _put_plain(kind: str, is_flexible: bool) -> _ValueWriter:
    if kind in FIXED:
        pack = struct.Struct(">" + FIXED[kind]).pack
        return lambda writer, value: writer.put(pack(value))
    if kind == "uuid":
        return lambda writer, value: writer.put(bytes(_UUID_BYTES) if value is None else value.bytes)
    length = _length(_INT16 if kind == "string" else _INT32, is_flexible)

    def put(writer: ChunkWriter, value: Any) -> None:
        data = value.encode() if kind == "string" else value
        writer.small += length(len(data))
        writer.put(data)

    return put


def _put_array(put: _ValueWriter, length: Callable[[int], bytes]) -> _ValueWriter:
    def put_array(writer: ChunkWriter, elements: Sequence[Any]) -> None:
        writer.small += length(len(elements))
        for element in elements:
            put(writer, element)

    return put_array


def _nullable(put: _ValueWriter, null: bytes, present: bytes = b"") -> _ValueWriter:
    def put_nullable(writer: ChunkWriter, value: Any) -> None:
        writer.small += null if value is None else present
        if value is not None:
            put(writer, value)

    return put_nullable


def _length(plain: struct.Struct, is_flexible: bool) -> Callable[[int], bytes]:
    """Return a function that encodes a length, or -1 for null."""
    return (lambda size: uvarint(size + 1)) if is_flexible else plain.pack


def uvarint(value: int) -> bytes:
    """Encode an unsigned number with 7 bits in each byte, the lowest bits first."""
    if value < 0x80:
        return bytes((value,))
    data = bytearray()
    while value >= 0x80:
        data.append(0x80 | (value & 0x7F))
        value >>= 7
    data.append(value)
    return bytes(data)


PRODUCE_KEY = 0
#: The largest request other than Produce: small fields take seconds to parse, and thirty times their bytes of memory.
LARGEST_OTHER_BYTES = 4 << 20


class RequestHead(NamedTuple):
    """The start of every request's header. The response has the same correlation id."""

    api_key: int
    api_version: int
    correlation_id: int


class ParsedRequest(NamedTuple):
    """A request's client id and its body, a named tuple of the fields that this version has."""

    client_id: str
    body: Any


def read_head(frame: memoryview) -> RequestHead:
    if len(frame) < _HEAD.size:
        raise InvalidRequestError(f"a request is too short to have a header: {BAD_CLIENT}", size=len(frame))
    return RequestHead(*_HEAD.unpack_from(frame))


def read_request(frame: memoryview, head: RequestHead, most_items: int = MAX_ITEMS) -> ParsedRequest:
    """Parse a request. Raises InvalidRequestError. As in Kafka, bytes after its end are ignored."""
    if len(frame) > LARGEST_OTHER_BYTES and head.api_key != PRODUCE_KEY:
        text = "a request without records is too large: request fewer topics, partitions or resources at once"
        raise InvalidRequestError(text, api_key=head.api_key, size=len(frame), largest=LARGEST_OTHER_BYTES)
    is_head_flexible, read_body = _reader(head.api_key, head.api_version)
    budget = ItemBudget(most_items)
    try:
        client_id, position = client_id_and_end(frame)
        if is_head_flexible:
            position = skip_tags(frame, position, budget)
        body, _ = read_body(frame, position, budget)
    except InvalidRequestError as error:
        error.details.update(api_key=head.api_key, version=head.api_version)
        raise
    return ParsedRequest(client_id, body)


@cache
def _reader(api_key: int, version: int) -> tuple[bool, MessageReader]:
    schema = request_schema(api_key, version)
    return schema.is_head_flexible, message_reader(schema.body)


#: The length and the correlation id at the start of a response. The length counts the bytes after the length.
_RESPONSE_HEAD = struct.Struct(">ii")
_LENGTH_BYTES = 4


def write_response(api_key: int, version: int, correlation_id: int, fields: Fields) -> list[ResponseChunk]:
    """Return the chunks of a response with its length and head. Fields that this version lacks are left out."""
    header, write = _writer(api_key, version)
    writer = ChunkWriter()
    writer.small += bytes(_RESPONSE_HEAD.size) + header
    write(writer, fields)
    writer.end()
    size = sum(map(len, writer.chunks))
    # replace the zeros that were written for the length and the correlation id
    first = _RESPONSE_HEAD.pack(size - _LENGTH_BYTES, correlation_id) + bytes(writer.chunks[0])[_RESPONSE_HEAD.size :]
    return [first, *writer.chunks[1:]]


@cache
def _writer(api_key: int, version: int) -> tuple[bytes, MessageWriter]:
    """The response's header after the correlation id, and the writer of the body."""
    schema = response_schema(api_key, version)
    # a flexible header ends with 0, the number of its tagged fields
    header = b"\0" if schema.is_head_flexible else b""
    return header, message_writer(schema.body, response_fields(api_key))
