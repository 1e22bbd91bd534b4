"""The options of a read: those of Spark's own Kafka source, with its values and errors, and a few more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from distlog.core.errors import InvalidConfigError
from distlog.core.reading.slices.time_range import ALWAYS, TimeRange
from distlog.core.reading.time_lookup import EARLIEST, LATEST
from distlog.core.storage.storage import Storage
from distlog.core.tiered.bucket import find_topic
from distlog.core.tiered.tiered_storage import TieredStorage
from distlog.core.times import to_ms
from distlog.core.transactions.isolation import IsolationLevel
from distlog.spark.options import Options, place_of, storage_of
from distlog.spark.source.offsets import ByPartition, parse_assign, parse_offsets

#: Options that only a stream has; a batch read ignores them, as Kafka's source does.
STREAM_NAMES = [
    "maxBytesPerTrigger",
    "maxOffsetsPerTrigger",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
]
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
    "tiered",
    "tieredTopicId",
    "timestampAsOf",
    "versionAsOf",
]


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read starts or ends.

    `value` is an offset, which may be LATEST or EARLIEST, or a time in ms: one for all partitions, or one for each.
    """

    kind: Literal["offset", "time"]
    value: int | ByPartition
    option: str

    def check(self, topic: str, partitions: Collection[int]) -> None:
        """Raise InvalidConfigError if numbers by partition are not about `topic` and exactly these partitions."""
        if not isinstance(self.value, int):
            self.value.check(topic, partitions, self.option)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The parsed options of a read. What depends on the topic is checked later, when the read is planned.

    `start` and `end` mean offsets, as in Kafka, even if they are given as times. `times` are the times of records.
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
    def parse(cls, given: Mapping[str, str], default_start: int = EARLIEST) -> ReadOptions:
        """Parse the options. Raises InvalidConfigError, which never shows the value of a storage option."""
        options = Options(given, [*READ_NAMES, *STREAM_NAMES])
        columns = options.text("columns")
        assign = options.text("assign")
        read = cls(
            storage=_storage(options, given),
            start=_bound(options, "starting", default_start),
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


def _storage(options: Options, given: Mapping[str, str]) -> Storage:
    """The topic's folder; with `tiered` what shows a topic in Kafka's tiered storage as one."""
    if not options.flag("tiered", default=False):
        return storage_of(given)
    topic = options.text("subscribe")
    if topic is None or options.text("versionAsOf") or options.text("timestampAsOf"):
        text = "option tiered needs subscribe, the topic's name, and has no versionAsOf and no timestampAsOf"
        raise InvalidConfigError(text)
    url, settings = place_of(given)
    return TieredStorage(find_topic(url, topic, options.text("tieredTopicId"), settings))


def _bound(options: Options, side: str, default: int) -> Bound:
    """The bound of one side. The options are tried in Kafka's order: one time, times by partition, offsets."""
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


def _optional_time(options: Options, name: str) -> int | None:
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
