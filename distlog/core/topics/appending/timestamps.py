"""The times of records that are appended: from any form that people and Arrow have, to milliseconds within limits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrow_arrays import integers
from distlog.core.config import MAX_LONG, TopicConfig
from distlog.core.errors import InvalidRecordError
from distlog.core.times import NO_TIMESTAMP

_NUMBERS = (pa.types.is_timestamp, pa.types.is_integer, pa.types.is_null)
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
#: From these on, milliseconds would be later than the year 5000: the number counts smaller units.
_OTHER_UNITS = ((10**17, "nanoseconds", 10**6), (10**14, "microseconds", 10**3))


def timestamps_of(batch: pa.RecordBatch, config: TopicConfig, now_ms: int, first_row: int) -> pa.Array:
    """The times of the batch's records, in ms since 1970, as int64 without nulls; missing ones are `now_ms`.

    Raises InvalidRecordError for a type that is no time, and for a time that the topic does not take.
    """
    if config.message_timestamp_type == "LogAppendTime" or "timestamp" not in batch.schema.names:
        return integers(np.full(batch.num_rows, now_ms))
    column = _in_ms(batch.column("timestamp"))
    column = pc.fill_null(column, integers([now_ms])[0]) if column.null_count else column
    low, high = (value.as_py() for value in pc.min_max(column).values())
    before, after = _limits(config, now_ms)
    if low is not None and (low < before or high > after):
        _refuse_first(column, before, after, first_row)
    return column


def check_timestamp(timestamp: int | None, config: TopicConfig, now_ms: int) -> None:
    """Raise InvalidRecordError for a time of one record that `timestamps_of` would refuse."""
    if timestamp in (None, NO_TIMESTAMP) or config.message_timestamp_type != "CreateTime":
        return
    before, after = _limits(config, now_ms)
    if not before <= timestamp <= after:
        raise InvalidRecordError(_refusal(timestamp), timestamp=timestamp, earliest=before, latest=after)


def _in_ms(column: pa.Array) -> pa.Array:
    if any(is_text(column.type) for is_text in _TEXTS):
        column = _parsed(column)
    if not any(is_kind(column.type) for is_kind in _NUMBERS):
        raise InvalidRecordError(
            "column timestamp must be a timestamp, int64 milliseconds, or ISO 8601 text", type=column.type
        )
    try:
        if pa.types.is_timestamp(column.type):
            kind = pa.timestamp("ms", column.type.tz)
            column = column.cast(options=pc.CastOptions(kind, allow_time_truncate=True))
        return column.cast(pa.int64())
    except pa.ArrowException as error:
        raise InvalidRecordError(f"column timestamp must fit int64 milliseconds: {error}") from None


def _parsed(texts: pa.Array) -> pa.Array:
    """ISO 8601 texts as timestamps; either all of them have a zone, or none has."""
    try:
        return texts.cast(pa.timestamp("ns", "UTC"))
    except pa.ArrowException:
        pass
    try:
        return texts.cast(pa.timestamp("ns"))
    except pa.ArrowException as error:
        raise InvalidRecordError(
            f"column timestamp must be ISO 8601 if it is text, with a zone in all rows or in none: {error}"
        ) from None


def _refuse_first(column: pa.Array, before: int, after: int, first_row: int) -> None:
    refused = pc.or_(pc.and_(pc.less(column, before), pc.not_equal(column, NO_TIMESTAMP)), pc.greater(column, after))
    row = pc.index(refused, True).as_py()
    if row >= 0:
        timestamp, limits = column[row].as_py(), {"earliest": before, "latest": after}
        raise InvalidRecordError(_refusal(timestamp), row=first_row + row, timestamp=timestamp, **limits)


def _refusal(timestamp: int) -> str:
    for least, unit, factor in _OTHER_UNITS:
        if timestamp >= least:
            return f"a timestamp is milliseconds since 1970, and this looks like {unit}: divide by {factor:,}"
    return (
        "a timestamp must be -1, or not negative and within message.timestamp.before.max.ms and after.max.ms of now: "
        "give milliseconds, or set these limits higher"
    )


def _limits(config: TopicConfig, now_ms: int) -> tuple[int, int]:
    """The smallest and the largest timestamp; NO_TIMESTAMP is also allowed, as by Kafka's limits."""
    before = max(now_ms - config.message_timestamp_before_max_ms, NO_TIMESTAMP)
    return before, min(now_ms + config.message_timestamp_after_max_ms, MAX_LONG)
