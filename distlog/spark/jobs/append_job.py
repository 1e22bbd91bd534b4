"""The job that appends files to a topic; `distlog.jobs.append` is its command line."""

from __future__ import annotations

import argparse
import csv
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from distlog.console.output import Summary
from distlog.core.display import counted
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.times import TIME_UNITS, scale
from distlog.core.topics.append_commit import AppendResult, check_batch, expiry_text
from distlog.core.topics.appendable import early_text
from distlog.core.topics.open_topic import open as open_topic
from distlog.core.topics.open_topic import open_or_create
from distlog.spark.frame_append import append_frame
from distlog.spark.jobs.job import spark_pattern
from distlog.spark.sink import WriteOptions, parse_batch_id

# ---
# Reads files as rows to append: JSON lines, CSV, Parquet, and text with a regular expression.
#
# A frame of rows has the columns key and value (binary), timestamp, and `bad`, which is null or says what is wrong
# with the line. Everything is a Spark expression, so no row passes through Python before the write itself.


BAD = "bad"
_CORRUPT = "_corrupt_record"
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_NAMED_GROUP = re.compile(r"(?<!\\)\(\?P<\w+>")
_BACK_REFERENCE = re.compile(r"\(\?P=(\w+)\)")
#: How many characters of a bad line an error shows.
_SHOWN = 200
NO_TIME = "not a time, which is a whole number of --timestamp-unit, ISO 8601 or as --time-format says"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """The input files, and which columns are key, value and timestamp. None leaves the choice to the format."""

    paths: Sequence[str]
    format: str | None = None
    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    pattern: str | None = None
    time_format: str | None = None
    timestamp_unit: str = "ms"

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows of the files. Raises InvalidConfigError for an impossible pattern or time format.

        Raises InvalidRecordError for a column that the input lacks.
        """
        kind = self.format or next((name for end, name in _FORMATS.items() if self.paths[0].endswith(end)), "text")
        if self.pattern is not None and kind != "text":
            raise InvalidConfigError("--pattern needs --format text", format=kind)
        if kind == "text" and (self.key or self.value or self.timestamp):
            raise InvalidConfigError(
                "text input has no columns: give a --pattern with groups named key, value or timestamp"
            )
        return _READERS[kind](spark, self)


def _text(spark: SparkSession, source: JobInput) -> DataFrame:
    line = F.col("value")
    lines = spark.read.text(list(source.paths))
    if source.pattern is None:
        return _rows(lines, source, {"value": line}, F.lit(None))
    java, groups = java_pattern(source.pattern)
    columns = {name: F.nullif(F.regexp_extract(line, java, group), F.lit("")) for name, group in groups.items()}
    is_match = F.rlike(line, F.lit(java))
    if "value" in groups:
        # an empty one is no null, which would delete a key
        columns["value"] = F.when(is_match, F.regexp_extract(line, java, groups["value"]))
    why = F.when(~is_match, F.lit("the pattern does not match: "))
    # Spark puts another character into what it takes out of such a line, but not into the line
    changed = ~F.is_valid_utf8(line) & F.contains(F.concat_ws("", *columns.values()), F.lit("\ufffd"))
    unmatched = F.concat(why.when(changed, F.lit("not UTF-8: ")), _shown(line))
    return _rows(lines, source, {"value": line, **columns}, unmatched)


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


def _jsonl(spark: SparkSession, source: JobInput) -> DataFrame:
    line = F.col("value")
    named = {"key": source.key, "value": source.value, "timestamp": source.timestamp}
    wanted = {name: field for name, field in named.items() if field is not None}
    schema = ArrayType(StructType([StructField(name, StringType()) for name in sorted({*wanted.values()})]))
    # the one element of an array: Spark would pass over what is behind an object
    objects = F.from_json(F.concat(F.lit("["), line, F.lit("]")), schema, {"allowSingleQuotes": "false"})
    lines = spark.read.text(list(source.paths)).where(F.trim(line, F.lit(" \t")) != "")
    _check_fields(lines, [*wanted.values()])
    # a column of its own each, or Spark reads a line as often as an expression has what it found
    found = F.col("json")
    lines = lines.withColumn("json", objects)
    lines = lines.withColumn("json", F.when(F.is_valid_utf8(line) & (F.size(found) == 1), found[0]))
    fields = {name: F.col("json").getField(field) for name, field in wanted.items()}
    lost = F.lit(False)
    for name in fields.keys() & {"key", "value"}:
        field, fields[name] = fields[name], _as_written(fields[name], wanted[name])
        lost = lost | (field.isNotNull() & fields[name].isNull())
    why = F.when(
        F.col("json").isNull() | ~F.rtrim(line, F.lit(" \t\r\n")).endswith("}"), F.lit("not a JSON object: ")
    )
    why = why.when(lost, F.lit("a number would become another one, so write it as text: "))
    return _rows(lines, source, {"value": line, **fields}, F.concat(why, _shown(line)))


_FRACTION = r'^-?[0-9]+[.][0-9]+(E-?[0-9]+)?$|^"(-?Infinity|NaN)"$'
_NUMBER = r"(-?[0-9]+(?:[.][0-9]+)?(?:[eE][+-]?[0-9]+)?)"
_TEXT = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'


def _check_fields(lines: DataFrame, wanted: Sequence[str]) -> None:
    """Raise InvalidRecordError for a field that no line has: all would be null. Mostly a look at one line."""
    # NaN is no JSON, but many programs write it
    names = F.json_object_keys(F.regexp_replace("value", r":\s*(NaN|-?Infinity)\s*(?=[,}])", ":0"))
    first = lines.select(names.alias("names")).where("names is not null").head(1) if wanted else []
    for row in first:
        for field in wanted:
            if field not in row["names"] and not lines.where(F.array_contains(names, field)).head(1):
                raise InvalidRecordError(f"no line has a field {field}; the first has {', '.join(row['names'])}")


def _as_written(field: Column, name: str) -> Column:
    """A field with the number as the line has it, since Spark makes `1.10` to `1.1`; null if that cannot be found."""
    line, place = F.col("value"), rf'"\Q{json.dumps(name, ensure_ascii=False)[1:-1]}\E"\s*:\s*'
    is_text = F.rlike(line, F.concat(F.lit(rf'{place}"\Q'), field, F.lit(r'\E"')))
    numbers = F.regexp_extract_all(line, F.lit(rf"{place}{_NUMBER}\s*[,}}]"), 1)
    number = F.replace(field, F.lit('"'), F.lit("")).try_cast("double")
    same = F.get(F.filter(numbers, lambda text: text.try_cast("double") == number), 0)
    as_read = F.when(F.rlike(field, F.lit(r"^[{\[]")) & _is_rounded(line, field), F.lit(None))
    return as_read.when(~F.rlike(field, F.lit(_FRACTION)) | is_text, field).otherwise(same)


def _is_rounded(line: Column, field: Column) -> Column:
    """True if Spark, which writes an object or array anew, has made a number of the line to another one in it."""
    bare = F.regexp_replace(line, F.lit(_TEXT), F.lit('""'))
    numbers = F.regexp_extract_all(bare, F.lit(r"(-?[0-9]+(?:[.][0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+))"), 1)

    def is_another(number: Column) -> Column:
        double = number.try_cast("double").cast("string")
        return (_digits(double) != _digits(number)) & F.contains(field, double)

    return F.exists(numbers, is_another)


def _digits(number: Column) -> Column:
    return F.trim(F.regexp_replace(number, r"[eE].*|[-.]", ""), F.lit("0"))


#: Characters that no text has: all of a line of CSV is one column then.
_WHOLE_LINES: Mapping[str, Any] = {"header": True, "sep": "\ufffe", "quote": "\uffff"}
_FIELD = r'(?:"[^"]*+(?:""[^"]*+)*+"|[^",][^,]*+|)'
_ROW = f"^{_FIELD}(?:,{_FIELD})*+$"
_TORN = rf'^(?:{_FIELD},)*+"[^"]*+(?:""[^"]*+)*+$'


def _csv(spark: SparkSession, source: JobInput) -> DataFrame:
    # whole lines at first: Spark takes a quoted field without an end for one that ends with its line
    heads = spark.read.csv(list(source.paths), **_WHOLE_LINES)
    if not heads.columns:
        return spark.createDataFrame([], f"value binary, {BAD} string")
    names = _names(heads.columns[0])
    _check_columns(source, names)
    # Spark compares the first line of each file with that of the schema. A character is a byte, so none is replaced
    head = StructType([StructField(heads.columns[0].encode().decode("latin-1"), StringType())])
    reader = spark.read.option("encoding", "ISO-8859-1")
    table = reader.csv(list(source.paths), schema=head, enforceSchema=False, **_WHOLE_LINES)
    lines, line = table.toDF("line"), F.col("line")
    lines = lines.select(F.encode(line, "ISO-8859-1").cast("string").alias("line"))
    columns = {name: f"c{number}" for number, name in enumerate(names)}
    # a quote in a quoted field is doubled, as RFC 4180 has it, and a backslash is one: Spark's default is another
    options = {"escape": '"', "columnNameOfCorruptRecord": _CORRUPT}
    row = F.from_csv(line, ", ".join(f"{name} string" for name in (*columns.values(), _CORRUPT)), options)
    why = F.when(F.col("row").getField(_CORRUPT).isNotNull(), F.lit("not a row of the header's columns: "))
    why = why.when(~F.rlike(line, F.lit(_ROW)), F.lit("there is text behind the end of a quoted field: "))
    why = why.when(~F.is_valid_utf8(line), F.lit("not UTF-8: "))
    torn = "a quoted field must end on its line, but for `distlog append`, which takes line ends in them: "
    # the lines behind it may look like rows, so it cannot be left out
    bad = F.when(F.rlike(line, F.lit(_TORN)), F.raise_error(F.concat(F.lit(torn), _shown(line))))
    bad = bad.otherwise(F.concat(why, _shown(line)))
    table = lines.withColumn("row", row).select("row.*", bad.alias(BAD))
    return _rows(table, source, _columns(source, columns, _cell), F.col(BAD))


def _names(head: str) -> list[str]:
    names = next(csv.reader([head]), [])
    if len(set(names)) < len(names):
        raise InvalidRecordError(f"the first line of CSV must have the names of the columns, each once: {head}")
    return names


def _cell(name: str) -> Column:
    """A field of CSV: an empty one is no null, which would delete a key."""
    return F.coalesce(_named(name), F.lit(""))


def _parquet(spark: SparkSession, source: JobInput) -> DataFrame:
    table = spark.read.parquet(*source.paths)
    _check_columns(source, table.columns)
    return _rows(table, source, _columns(source, {name: name for name in table.columns}, _named), F.lit(None))


_READERS: Mapping[str, Callable[[SparkSession, JobInput], DataFrame]] = {
    "text": _text,
    "jsonl": _jsonl,
    "csv": _csv,
    "parquet": _parquet,
}
FORMATS = tuple(_READERS)
UNITS = TIME_UNITS


def _check_columns(source: JobInput, names: Sequence[str]) -> None:
    for name in (source.key, source.value, source.timestamp):
        if name is not None and name not in names:
            raise InvalidRecordError(f"the input has no column {name}; it has {', '.join(names)}")


#: How a row becomes JSON: all of its fields, and times with their microseconds.
_TIME_OF_DAY = "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]"
_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": f"{_TIME_OF_DAY}[XXX]",
    "timestampNTZFormat": _TIME_OF_DAY,
}


def _columns(source: JobInput, names: Mapping[str, str], cell: Callable[[str], Column]) -> dict[str, Column]:
    """The requested columns, by the names of the input and of the table.

    If no value column is requested, the value is the whole row as a JSON object.
    """
    wanted = {"key": source.key, "value": source.value}
    chosen = {name: cell(names[column]) for name, column in wanted.items() if column is not None}
    if source.timestamp is not None:
        chosen["timestamp"] = _named(names[source.timestamp])
    row = F.struct(*(cell(column).alias(name) for name, column in names.items()))
    return {"value": F.to_json(row, _JSON), **chosen}


def _named(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")


def _rows(table: DataFrame, source: JobInput, columns: Mapping[str, Column], bad: Column) -> DataFrame:
    typed = table.select(*(column.alias(name) for name, column in columns.items()), bad.cast("string").alias(BAD))
    chosen = [_bytes(name, typed.schema[name].dataType).alias(name) for name in ("key", "value") if name in columns]
    if "timestamp" not in columns:
        return typed.select(*chosen, BAD)
    time = _time(typed.schema["timestamp"].dataType, source)
    given = F.col("timestamp")
    unreadable = F.when(
        given.isNotNull() & time.isNull(), F.concat(F.lit(f"{NO_TIME}: "), _shown(given.cast("string")))
    )
    return typed.select(*chosen, time.alias("timestamp"), F.coalesce(BAD, unreadable).alias(BAD))


def _bytes(name: str, kind: DataType) -> Column:
    column = F.col(name)
    if isinstance(kind, BinaryType):
        return column
    plain = column if not hasattr(kind, "elementType") and not isinstance(kind, StructType) else F.to_json(column)
    return plain.cast("string").cast("binary")


def _time(kind: DataType, source: JobInput) -> Column:
    """The time column as timestamps; null for what is no time.

    The column holds typed times, whole numbers of `timestamp_unit`, or text in ISO 8601 or `time_format`.
    """
    column, time_format = F.col("timestamp"), source.time_format
    if isinstance(kind, IntegralType):
        return F.timestamp_millis(_in_ms(column, source.timestamp_unit))
    if not isinstance(kind, StringType):
        return column.try_cast(TimestampType())
    if time_format is not None:
        try:
            return F.try_to_timestamp(column, F.lit(spark_pattern(time_format)))
        except ValueError as error:
            raise InvalidConfigError(str(error)) from None
    # Spark's times end with 2^63 microseconds
    digits = 18 if source.timestamp_unit in ("us", "ns") else 15
    number = _in_ms(column.try_cast("long"), source.timestamp_unit)
    is_number = F.rlike(column, F.lit(f"^-?[0-9]{{1,{digits}}}$"))
    return F.when(is_number, F.timestamp_millis(number)).otherwise(column.try_cast(TimestampType()))


def _in_ms(column: Column, unit: str) -> Column:
    """Numbers of a unit as milliseconds. A number below 0 stays, and is no time; null for one beyond a long."""
    divisor, factor = scale(unit)
    number = column.cast("long")
    whole = F.call_function("div", number, F.lit(divisor))
    times = F.try_multiply(whole, F.lit(factor).cast("long"))
    return F.when(number < 0, number).otherwise(times)


def _shown(line: Column) -> Column:
    # of a line that is no UTF-8 Spark takes bytes behind its end too
    return F.substring(F.make_valid_utf8(line), 1, _SHOWN)


def append_files(spark: SparkSession, chosen: argparse.Namespace) -> Summary:
    """Append the files that the arguments name, all in one commit. With --create, create the topic first."""
    started = time.monotonic()
    if (chosen.app_id is None) != (chosen.batch_id is None):
        raise InvalidConfigError("give --app-id and --batch-id together: one alone prevents no duplicates")
    if not chosen.create and (chosen.config or chosen.partitions is not None):
        raise InvalidConfigError("--partitions and --config need --create; `distlog alter` changes a topic")
    storage = dict(chosen.storage)
    source = JobInput(
        paths=chosen.input,
        format=chosen.format,
        key=chosen.key,
        value=chosen.value,
        timestamp=chosen.timestamp,
        pattern=chosen.pattern,
        time_format=chosen.time_format,
        timestamp_unit=chosen.timestamp_unit,
    )
    checked = check_lines(source.rows(spark), skip=chosen.bad_lines == "skip")
    # an input that is not there leaves no topic behind
    if chosen.create:
        topic = open_or_create(chosen.topic, chosen.partitions, dict(chosen.config), storage)
    else:
        topic = open_topic(chosen.topic, storage_options=storage)
    batch_id = check_batch(chosen.app_id, chosen.batch_id)
    batch_id = None if batch_id is None else parse_batch_id(str(batch_id))
    options = WriteOptions(topic.storage, chosen.app_id, batch_id, chosen.compression)
    result = append_frame(topic, checked.rows, options, shuffle=chosen.shuffle)
    return _summary(chosen.topic, topic.config.retention_ms, result, checked.skipped(), time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class Checked:
    """Rows without bad lines. `seen` counts the bad lines, and is known once the rows have been read."""

    rows: DataFrame
    seen: Observation | None

    def skipped(self) -> int:
        """The number of bad lines that were left out."""
        return 0 if self.seen is None else int(self.seen.get["skipped"] or 0)


def check_lines(rows: DataFrame, *, skip: bool) -> Checked:
    """Leave bad lines out and count them, or fail the job at the first one with the line in the message."""
    bad = F.col(BAD)
    if skip:
        seen = Observation("lines")
        watched = rows.observe(seen, F.count_if(bad.isNotNull()).alias("skipped"))
        return Checked(watched.where(bad.isNull()).drop(BAD), seen)
    value = F.when(bad.isNotNull(), F.raise_error(F.concat(bad, F.lit(" (--bad-lines skip leaves such lines out)"))))
    return Checked(rows.withColumn("value", value.otherwise(F.col("value"))).drop(BAD), None)


def _summary(url: str, retention_ms: int, result: AppendResult, skipped: int, seconds: float) -> Summary:
    records = result.record_count
    facts: dict[str, Any] = {
        "topic": url,
        "version": result.version,
        "records": records,
        "offsets": {str(partition): list(span) for partition, span in sorted(result.offsets.items())},
        "replayed": result.replayed,
        "skipped": skipped,
        "expired": result.expired,
        "early_ms": result.early_ms,
        "seconds": round(seconds, 3),
    }
    verb = "had appended" if result.replayed else "appended"
    version = "" if result.version is None else f" as version {result.version}"
    lines = [f"{verb} {counted(records, 'record')} to {url}{version} in {seconds:.1f} s"]
    lines += [
        f"partition {number}: offsets {first} to {end}" for number, (first, end) in sorted(result.offsets.items())
    ]
    if skipped:
        lines.append(f"left out {counted(skipped, 'bad line')}")
    if result.expired:
        lines.append(expiry_text(result.expired, retention_ms))
    if result.early_ms is not None:
        lines.append(early_text(result.early_ms))
    return Summary("\n".join(lines), facts)
