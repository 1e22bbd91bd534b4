"""Values with schemas as columns of a DataFrame: JSON by Spark itself, Avro and Protobuf by the core's decoders.

No jar is needed: Python decodes whole Arrow batches in Spark's tasks, also for a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from distlog.core.errors import InvalidConfigError
from distlog.core.schemas.avro import AvroDecoder, AvroSchema
from distlog.core.schemas.decoding import (
    Decoder,
    OnError,
    ValueFormat,
    check_distinct,
    check_on_error,
    decoded_batch,
    schema_with,
)
from distlog.core.schemas.protobuf import Message, ProtobufDecoder
from distlog.core.schemas.registry import SchemaRegistry, SchemaTopic, registry_of
from distlog.spark.versions import arrow_schema

#: The name of the field, in the parsed struct, where Spark puts a text that is not JSON.
_BAD_JSON_FIELD = "__bad_json"
#: A separate column for the parsed JSON, since Spark would parse the text again for each field.
_PARSED_COLUMN = "__found_json"
#: In JSON, an escaped surrogate without its other half: Spark reads it as `?`. Group 1: escaped backslashes before.
_HIGH_SURROGATE, _LOW_SURROGATE = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_SURROGATE = (
    rf"(?<!\\)((?:\\\\)*)(?:{_HIGH_SURROGATE}(?!{_LOW_SURROGATE})|(?<!{_HIGH_SURROGATE}){_LOW_SURROGATE})"
)


def decode(
    df: DataFrame,
    format: ValueFormat,
    schema: Any,
    *,
    registry: SchemaRegistry | SchemaTopic | Mapping[int, Any] | str | None = None,
    message: str | None = None,
    framed: bool = False,
    flatten: bool = True,
    on_error: OnError = "fail",
) -> DataFrame:
    """Replace the column `value` of a frame or a stream by the value's fields.

    Times of the day become microseconds, and unsigned numbers get the next larger type. Avro and Protobuf need the
    libraries of `Scan.avro`, and pandas for `mapInArrow`.

    Args:
        df: The frame or stream.
        format: The format of the values: json, avro or protobuf.
        schema: The columns: for `json` Spark's, as `user string, at timestamp`; for `avro` and `protobuf` as in
            `Scan.avro` and `Scan.protobuf`, or a schema of `SchemaRegistry.latest`.
        registry: A registry, or its source, if values of Avro and Protobuf begin with their schema's id.
        message: The full name of the Protobuf message; default the first.
        framed: Values of JSON begin with a schema's id.
        flatten: Make each field a column; else the column `value` is a struct of the fields.
        on_error: With `null`, a bad value gets null fields; else a task fails with InvalidRecordError, with the
            partition and offset if the frame has these columns.

    Returns:
        The frame or stream.

    Raises:
        InvalidConfigError: An option is not valid, or two columns have one name; before any task runs.

    Examples:
        >>> rows = decode(read(spark, topic.url), "json", "page string")
        >>> sorted(row.page for row in rows.collect())
        ['/help', '/start', '/start']
    """
    check_on_error(on_error)
    if format not in get_args(ValueFormat):
        raise InvalidConfigError(f"a format must be one of {', '.join(get_args(ValueFormat))}", format=repr(format))
    if "value" not in df.columns or not isinstance(df.schema["value"].dataType, BinaryType):
        text = "the frame needs a binary column `value`, as `read` returns it: select it, or cast it to binary"
        raise InvalidConfigError(text)
    if format == "json":
        return _decode_json(df, schema, framed, flatten, on_error)
    source = registry_of(registry)
    decoder: Decoder
    if format == "avro":
        decoder = AvroDecoder(AvroSchema.of(schema), source)
    else:
        decoder = ProtobufDecoder(Message.of(schema, message), source)
    return _decode_in_arrow(df, decoder, flatten, on_error)


def quoted(name: str) -> str:
    """Quote a name for SQL and `col`, so that a dot in it does not select a field."""
    return "`" + name.replace("`", "``") + "`"


def _decode_in_arrow(df: DataFrame, decoder: Decoder, flatten: bool, on_error: OnError) -> DataFrame:
    decoded = schema_with(arrow_schema(df.schema), decoder, flatten)
    spark_schema = pa.schema([pa.field(field.name, _spark_type(field.type)) for field in decoded])

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        micros_schema = pa.schema([pa.field(field.name, _with_micros(field.type)) for field in decoded])
        for batch in batches:
            yield decoded_batch(batch, decoded, decoder, on_error, flatten).cast(micros_schema).cast(spark_schema)

    return df.mapInArrow(read, from_arrow_schema(spark_schema))


def _spark_type(kind: pa.DataType) -> pa.DataType:
    """Return Spark's type for values of `kind`. Raises InvalidConfigError if Spark has none."""
    if pa.types.is_decimal(kind) and kind.precision > 38:
        raise InvalidConfigError("Spark has no decimals of more than 38 digits", precision=kind.precision)
    if pa.types.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}[kind.bit_width]
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time(kind):
        return pa.int64()
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return pa.string() if pa.types.is_null(kind) else _nested(kind, _spark_type)


def _with_micros(kind: pa.DataType) -> pa.DataType:
    """Return the type with times of the day in microseconds, since Arrow casts times to numbers of their unit."""
    return pa.time64("us") if pa.types.is_time(kind) else _nested(kind, _with_micros)


def _nested(kind: pa.DataType, convert: Any) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, convert(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(convert(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(convert(kind.key_type), convert(kind.item_type))
    return kind


def _decode_json(df: DataFrame, schema: Any, framed: bool, flatten: bool, on_error: OnError) -> DataFrame:
    struct = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(struct, StructType):
        raise InvalidConfigError("a schema of JSON must be like 'user string, at timestamp', or a StructType")
    other_columns = [name for name in df.columns if name != "value"]
    check_distinct(other_columns, struct.names if flatten else [])
    # a framed value begins with five bytes, a zero and the schema's id; SQL counts from 1
    text = F.expr("CAST(substring(value, 6) AS STRING)") if framed else F.col("value").cast("string")
    options = {"columnNameOfCorruptRecord": _BAD_JSON_FIELD}
    is_escaped = text.contains(r"\ud") | text.contains(r"\uD")
    json_text = F.when(is_escaped, F.regexp_replace(text, _LONE_SURROGATE, r"$1\\ufffd")).otherwise(text)
    parsed = F.from_json(json_text, StructType([*struct, StructField(_BAD_JSON_FIELD, StringType())]), options)
    parsed_column = F.col(_PARSED_COLUMN)
    has_header = F.expr("hex(substring(value, 1, 1)) = '00' AND length(value) >= 5") if framed else F.lit(True)
    # Spark ignores text after an object or array, but not within an array, which a `]` after the object would end
    is_alone = F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1
    is_whole = F.coalesce(is_alone, F.lit(False)) & F.rtrim(text, F.lit(" \t\r\n")).endswith("}")
    is_good = F.col("value").isNull() | (
        has_header & is_whole & parsed_column.isNotNull() & parsed_column[_BAD_JSON_FIELD].isNull()
    )
    checked = F.when(is_good, parsed_column)
    if on_error == "fail":
        names = [name for name in ("partition", "offset") if name in other_columns]
        reason = F.lit("the value is not JSON; on_error='null' leaves the fields of bad records null:")
        positions = (F.concat(F.lit(f" {name}="), F.col(name)) for name in names)
        checked = checked.otherwise(F.raise_error(F.concat(reason, *positions)))
    # add a column with the parsed JSON first, since the check reads and replaces it
    with_parsed = df.select("*", parsed.alias(_PARSED_COLUMN))
    with_checked = with_parsed.withColumn(_PARSED_COLUMN, checked)
    fields = [parsed_column.getField(name).alias(name) for name in struct.names]
    values = fields if flatten else [F.when(parsed_column.isNotNull(), F.struct(*fields)).alias("value")]
    columns, value_index = [F.col(quoted(name)) for name in df.columns], df.columns.index("value")
    return with_checked.select(*columns[:value_index], *values, *columns[value_index + 1 :])
