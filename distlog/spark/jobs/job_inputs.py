"""Reads files as rows to append: JSON lines, CSV, Parquet, and text with a regular expression.

A frame of rows has the columns key and value (binary), timestamp, and `bad`, which is null or says what is wrong with
the line. Everything is a Spark expression, so no row passes through Python before the write itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from distlog.core.errors import InvalidConfigError
from distlog.spark.jobs.time_format import spark_pattern

BAD = "bad"
_CORRUPT = "_corrupt_record"
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_NAMED_GROUP = re.compile(r"(?<!\\)\(\?P<\w+>")
_BACK_REFERENCE = re.compile(r"\(\?P=(\w+)\)")
#: How many characters of a bad line an error shows.
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The input files, and which columns are key, value and timestamp. None leaves the choice to the format."""

    paths: Sequence[str]
    format: str | None = None
    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    pattern: str | None = None
    time_format: str | None = None

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows of the files. Raises InvalidConfigError for an impossible column, pattern or time format."""
        kind = self.format or next((name for end, name in _FORMATS.items() if self.paths[0].endswith(end)), "text")
        if self.pattern is not None and kind != "text":
            raise InvalidConfigError("--pattern needs --format text", format=kind)
        if kind == "text" and (self.key or self.value or self.timestamp):
            raise InvalidConfigError(
                "text has no columns: give a --pattern with groups named key, value or timestamp"
            )
        return _READERS[kind](spark, self)


def _text(spark: SparkSession, source: Input) -> DataFrame:
    line = F.col("value")
    lines = spark.read.text(list(source.paths))
    if source.pattern is None:
        return _rows(lines, source, {"value": line}, F.lit(None))
    java, groups = java_pattern(source.pattern)
    found = {name: F.nullif(F.regexp_extract(line, java, group), F.lit("")) for name, group in groups.items()}
    unmatched = F.when(~F.rlike(line, F.lit(java)), F.concat(F.lit("the pattern does not match: "), _shown(line)))
    return _rows(lines, source, {"value": line, **found}, unmatched)


def java_pattern(pattern: str) -> tuple[str, Mapping[str, int]]:
    """A Python regular expression in Java's syntax, and the numbers of its groups key, value and timestamp.

    Java's group names allow no underscore, so groups are used by number. Raises InvalidConfigError.
    """
    try:
        names = re.compile(pattern).groupindex
    except re.error as error:
        raise InvalidConfigError(f"the pattern is not a regular expression: {error}") from None
    groups = {name: names[name] for name in ("key", "value", "timestamp") if name in names}
    if not groups:
        raise InvalidConfigError("the pattern needs a group named key, value or timestamp, as in (?P<key>[^ ]+)")
    numbered = _BACK_REFERENCE.sub(lambda match: rf"\{names[match[1]]}", pattern)
    return _NAMED_GROUP.sub("(", numbered), groups


def _jsonl(spark: SparkSession, source: Input) -> DataFrame:
    line = F.col("value")
    wanted = {"key": source.key, "value": source.value, "timestamp": source.timestamp}
    names = sorted({name for name in wanted.values() if name is not None} | {_CORRUPT})
    schema = StructType([StructField(name, StringType()) for name in names])
    parsed = F.from_json(line, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    lines = spark.read.text(list(source.paths)).where(F.trim(line) != "").withColumn("json", parsed)
    fields = {name: F.col("json").getField(field) for name, field in wanted.items() if field is not None}
    bad = F.when(F.col("json").getField(_CORRUPT).isNotNull(), F.concat(F.lit("not a JSON object: "), _shown(line)))
    return _rows(lines, source, {"value": line, **fields}, bad)


def _csv(spark: SparkSession, source: Input) -> DataFrame:
    names = spark.read.csv(list(source.paths), header=True).columns
    _check_columns(source, names)
    schema = StructType([StructField(name, StringType()) for name in (*names, _CORRUPT)])
    reader = spark.read.option("columnNameOfCorruptRecord", _CORRUPT).option("columnPruning", "false")
    table = reader.csv(list(source.paths), header=True, schema=schema)
    corrupt = F.col(_CORRUPT)
    bad = F.when(corrupt.isNotNull(), F.concat(F.lit("not a row of the header's columns: "), _shown(corrupt)))
    return _rows(table, source, _columns(source, names), bad)


def _parquet(spark: SparkSession, source: Input) -> DataFrame:
    table = spark.read.parquet(*source.paths)
    _check_columns(source, table.columns)
    return _rows(table, source, _columns(source, table.columns), F.lit(None))


_READERS: Mapping[str, Callable[[SparkSession, Input], DataFrame]] = {
    "text": _text,
    "jsonl": _jsonl,
    "csv": _csv,
    "parquet": _parquet,
}
FORMATS = tuple(_READERS)


def _check_columns(source: Input, names: Sequence[str]) -> None:
    for name in (source.key, source.value, source.timestamp):
        if name is not None and name not in names:
            raise InvalidConfigError(f"the input has no column {name}; it has {', '.join(names)}")


def _columns(source: Input, names: Sequence[str]) -> dict[str, Column]:
    """The requested columns. If no value column is requested, the value is the whole row as a JSON object."""
    wanted = {"key": source.key, "value": source.value, "timestamp": source.timestamp}
    chosen = {name: _named(column) for name, column in wanted.items() if column is not None}
    return {"value": F.to_json(F.struct(*map(_named, names))), **chosen}


def _named(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")


def _rows(table: DataFrame, source: Input, columns: Mapping[str, Column], bad: Column) -> DataFrame:
    typed = table.select(*(column.alias(name) for name, column in columns.items()), bad.cast("string").alias(BAD))
    chosen = [_bytes(name, typed.schema[name].dataType).alias(name) for name in ("key", "value") if name in columns]
    if "timestamp" not in columns:
        return typed.select(*chosen, BAD)
    time = _time(typed.schema["timestamp"].dataType, source.time_format)
    given = F.col("timestamp")
    unreadable = F.when(
        given.isNotNull() & time.isNull(), F.concat(F.lit("not a time: "), _shown(given.cast("string")))
    )
    return typed.select(*chosen, time.alias("timestamp"), F.coalesce(BAD, unreadable).alias(BAD))


def _bytes(name: str, kind: DataType) -> Column:
    column = F.col(name)
    if isinstance(kind, BinaryType):
        return column
    plain = column if not hasattr(kind, "elementType") and not isinstance(kind, StructType) else F.to_json(column)
    return plain.cast("string").cast("binary")


def _time(kind: DataType, time_format: str | None) -> Column:
    """The time column as timestamps; null for what is no time.

    The column holds typed times, ms since 1970, or text in ISO 8601 or `time_format`.
    """
    column = F.col("timestamp")
    if isinstance(kind, IntegralType):
        return F.timestamp_millis(column)
    if not isinstance(kind, StringType):
        return column.try_cast(TimestampType())
    if time_format is not None:
        try:
            return F.try_to_timestamp(column, F.lit(spark_pattern(time_format)))
        except ValueError as error:
            raise InvalidConfigError(str(error)) from None
    return F.when(F.rlike(column, F.lit("^-?[0-9]{1,15}$")), F.timestamp_millis(column.try_cast("long"))).otherwise(
        column.try_cast(TimestampType())
    )


def _shown(line: Column) -> Column:
    return F.substring(line, 1, _SHOWN)
