"""The options of a read or a write: names, values and errors as Spark's own Kafka source has them, and a few more.

Spark hands options over as strings under names without case. What Spark or a Kafka job adds is ignored; a name that
is almost one of ours is refused, since a misspelt option that does nothing is worse than an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from distlog.core.errors import InvalidConfigError
from distlog.core.reading.time_lookup import EARLIEST, LATEST
from distlog.core.reading.time_range import ALWAYS, TimeRange
from distlog.core.storage.storage import Storage
from distlog.core.times import to_ms
from distlog.core.topics.append import BatchId
from distlog.core.transactions.isolation import IsolationLevel
from distlog.spark.source.offsets import ByPartition, parse_assign, parse_offsets

READ_NAMES = [
    "assign",
    "columns",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endTime",
    "endingTimestamp",
    "failOnDataLoss",
    "includeHeaders",
    "kafka.isolation.level",
    "maxRecordsPerPartition",
    "minPartitions",
    "path",
    "pushFilters",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startTime",
    "startingTimestamp",
    "subscribe",
    "timestampAsOf",
    "versionAsOf",
]
WRITE_NAMES = ["compression", "kafka.compression.type", "path", "txnAppId", "txnVersion", "writeId"]
STORAGE_PREFIX = "storage."

#: How alike an unknown name must be to one of ours to be taken for a slip of the pen.
_ALIKE = 0.75


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read starts or ends: offsets (LATEST, EARLIEST among them) or times in ms, one for all or one each."""

    kind: Literal["offset", "time"]
    value: int | ByPartition
    option: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read, parsed; what depends on the topic itself is checked when the read is planned.

    `start` and `end` mean offsets, as in Kafka, even if they are given as times; `times` are those of the records.
    """

    storage: Storage
    start: Bound
    end: Bound
    times: TimeRange = ALWAYS
    unmatched_start: Literal["error", "latest"] = "error"
    assigned: ByPartition | None = None
    subscribed: str | None = None
    min_partitions: int | None = None
    max_records: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    isolation: IsolationLevel = "read_uncommitted"
    version: int | None = None
    timestamp_ms: int | None = None
    columns: tuple[str, ...] | None = None
    push_filters: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Read the options; InvalidConfigError says what is wrong, and never shows the value of a storage option."""
        options = _Options(given, READ_NAMES)
        columns = options.text("columns")
        assign = options.text("assign")
        read = cls(
            storage=storage_of(given),
            start=_bound(options, "starting", EARLIEST),
            end=_bound(options, "ending", LATEST),
            times=TimeRange.between(_optional_time(options, "startTime"), _optional_time(options, "endTime")),
            unmatched_start=cast(
                Literal["error", "latest"],
                options.choice("startingOffsetsByTimestampStrategy", ("error", "latest")),
            ),
            assigned=None if assign is None else parse_assign(assign),
            subscribed=options.text("subscribe"),
            min_partitions=options.integer("minPartitions", 1),
            max_records=options.integer("maxRecordsPerPartition", 1),
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            include_headers=options.flag("includeHeaders", default=False),
            isolation=cast(
                IsolationLevel, options.choice("kafka.isolation.level", ("read_uncommitted", "read_committed"))
            ),
            version=options.integer("versionAsOf", 0),
            timestamp_ms=_optional_time(options, "timestampAsOf"),
            columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
            push_filters=options.flag("pushFilters", default=False),
        )
        if read.version is not None and read.timestamp_ms is not None:
            raise InvalidConfigError("give versionAsOf or timestampAsOf, not both")
        return read


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write: txnAppId and txnVersion make it idempotent, as Delta's do; writeId marks its commit.

    compression, which Spark's Kafka sink calls kafka.compression.type, is the codec, where the topic leaves it open.
    """

    storage: Storage
    app_id: str | None = None
    batch_id: BatchId | None = None
    write_id: str | None = None
    compression: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Read the options; InvalidConfigError says what is wrong."""
        options = _Options(given, WRITE_NAMES)
        app_id, version = options.text("txnAppId"), options.text("txnVersion")
        if (app_id is None) != (version is None):
            raise InvalidConfigError("txnAppId and txnVersion go together: one alone protects from nothing")
        batch_id = None if version is None else parse_batch_id(version)
        codec = options.text("compression") or options.text("kafka.compression.type")
        return cls(storage_of(given), app_id, batch_id, options.text("writeId"), codec)


def parse_batch_id(text: str) -> BatchId:
    """A number where it is one: Spark's options are strings, and its batches have numbers."""
    return int(text) if text.isascii() and text.isdecimal() else text


def storage_of(given: Mapping[str, str]) -> Storage:
    """The storage that `path` and the `storage.` options name."""
    path = given.get("path")
    if not path:
        raise InvalidConfigError(
            "no topic is named: give its path or URL to load() or save(), as in load('s3://bucket/logs/clicks'); "
            "for SQL make a temporary view with the option path, since tables of the catalog lose their options"
        )
    prefix = len(STORAGE_PREFIX)
    settings = {name[prefix:]: value for name, value in given.items() if name.lower().startswith(STORAGE_PREFIX)}
    return Storage(path, settings)


class _Options:
    """Strings by case-insensitive name, as what they mean."""

    def __init__(self, given: Mapping[str, str], known: list[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        spelled = {name.lower(): name for name in known}
        for name in self._given.keys() - spelled.keys():
            close = difflib.get_close_matches(name, spelled, n=1, cutoff=_ALIKE)
            if close:
                raise InvalidConfigError(f"unknown option {name}; did you mean {spelled[close[0]]}?")

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def integer(self, name: str, minimum: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < minimum:
            raise InvalidConfigError(f"option {name} must be a whole number not below {minimum}", value=text)
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, (str(default).lower(), str(not default).lower())) == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of `choices`, the first by default."""
        text = (self.text(name) or choices[0]).strip().lower()
        if text not in choices:
            raise InvalidConfigError(f"option {name} must be {' or '.join(choices)}", value=text)
        return text


def _bound(options: _Options, side: str, default: int) -> Bound:
    """In Kafka's order of precedence: one time, times by partition, offsets."""
    if (text := options.text(name := f"{side}Timestamp")) is not None:
        return Bound("time", _time(name, text), name)
    if (text := options.text(name := f"{side}OffsetsByTimestamp")) is not None:
        times = parse_offsets(text, name)
        if min(times.numbers.values(), default=0) < 0:
            raise InvalidConfigError(f"option {name} must give milliseconds since 1970", value=text)
        return Bound("time", times, name)
    text = options.text(name := f"{side}Offsets")
    if text is None or text.strip().lower() in ("earliest", "latest"):
        special = {"earliest": EARLIEST, "latest": LATEST}
        return Bound("offset", default if text is None else special[text.strip().lower()], name)
    return Bound("offset", parse_offsets(text, name), name)


def _optional_time(options: _Options, name: str) -> int | None:
    text = options.text(name)
    return None if text is None else _time(name, text)


def _time(name: str, text: str) -> int:
    try:
        time = to_ms(text)
    except ValueError:
        time = -1
    if time < 0:
        raise InvalidConfigError(f"option {name} must be milliseconds since 1970, or ISO 8601", value=text)
    return time
