"""The options of reads: texts by case-insensitive names. Most have the names of Spark's Kafka source."""

from __future__ import annotations

import difflib
import gc
import json
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, cast

from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import InvalidConfigError, OffsetOutOfRangeError
from distlog.core.read.lookup import EARLIEST, LATEST, OffsetAndTime, offsets_for_times
from distlog.core.segments.chunks import ALWAYS, IsolationLevel, TimeRange
from distlog.core.segments.segment_reader import SegmentReader
from distlog.core.storage.storage import Storage
from distlog.core.tiered.tiered_storage import TieredStorage, find_topic
from distlog.core.times import to_ms

# Spark starts the Python processes of its executors and its planner as `python -m pyspark...`.
_main = sys.modules["__main__"]
_main_name = str(getattr(getattr(_main, "__spec__", None), "name", ""))
_is_started_by_spark = _main_name.startswith("pyspark.")
_work_units = count(1)  # numbers the calls of `exclude_from_gc`
STORAGE_PREFIX = "storage."
#: An unknown name with at least this similarity (0 to 1) to a valid name is refused as a typo.
_LEAST_SIMILARITY = 0.75
#: The same for options of Kafka clients. It is higher, since many valid ones are similar.
_KAFKA_PREFIX, _KAFKA_SIMILARITY = "kafka.", 0.9
#: Spark itself hides the values of options that match (`spark.redaction.regex`), by name or by value.
_HIDDEN_BY_SPARK = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
#: Names of secret settings of storage clients, also within a setting that is a JSON object.
_SECRET = re.compile(
    r"secret|passw|passphrase|token|credential|private|pkey|sas|signature|authorization"
    r"|connection[_-]?string|(access|account|api|customer|encryption|shared)[_-]?key",
    re.IGNORECASE,
)
_PASSWORD_OF_URL = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_EXAMPLE = '{"topic": {"0": 23, "1": -2}}'
#: Options that only a stream has; a batch read ignores them, as Kafka's source does.
STREAM_NAMES = ["maxBytesPerTrigger", "maxOffsetsPerTrigger", "maxTriggerDelay", "minOffsetsPerTrigger"]
_TOPIC_NAMES = ["assign", "path", "subscribe", "tiered", "tieredTopicId", "timestampAsOf", "versionAsOf"]
_START_NAMES = ["startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp", "startTime"]
_END_NAMES = ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp", "endTime"]
_ROW_NAMES = ["columns", "failOnDataLoss", "includeHeaders", "kafka.isolation.level", "keys", "pushFilters"]
READ_NAMES = [*_TOPIC_NAMES, *_START_NAMES, *_END_NAMES, *_ROW_NAMES, "startingOffsetsByTimestampStrategy"]
READ_NAMES += ["maxRecordsPerPartition", "minPartitions"]


class Options:
    """Parses `options`. Refuses a likely typo of a valid name, but ignores other options of Spark and Kafka."""

    def __init__(self, options: Mapping[str, str], valid_names: list[str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        spelling = {name.lower(): name for name in valid_names}
        for name in self._values.keys() - spelling.keys():
            cutoff = _KAFKA_SIMILARITY if name.startswith(_KAFKA_PREFIX) else _LEAST_SIMILARITY
            if similar_names := difflib.get_close_matches(name, spelling, n=1, cutoff=cutoff):
                raise InvalidConfigError(f"unknown option {name}; did you mean {spelling[similar_names[0]]}?")

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def integer(self, name: str, minimum: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < minimum:
            raise InvalidConfigError(f"option {name} must be a whole number, at least {minimum}", value=text)
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, (str(default).lower(), str(not default).lower())) == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of `choices`; the first is the default."""
        text = (self.text(name) or choices[0]).strip().lower()
        if text not in choices:
            raise InvalidConfigError(f"option {name} must be {' or '.join(choices)}", value=text)
        return text


def exclude_from_gc() -> None:
    """Exclude all current objects from garbage collection, at calls 1, 2, 4, 8 and so on of a Spark process.

    Spark's daemons collect garbage after each unit of work. A collection takes 1 ms, but 50 ms with numba's objects,
    and 10 ms more with an S3 client's. Most calls do nothing, since an excluded object in a cycle is never freed.
    """
    if _is_started_by_spark and (number := next(_work_units)).bit_count() == 1:  # a power of two
        if number == 1:
            gc.collect()  # free the garbage so far, which would be kept forever
        gc.freeze()


def is_spark_worker_for(module: str) -> bool:
    """Return whether Spark runs `module` here, as the main module or in a daemon with the module as an argument."""
    return _is_started_by_spark and module in (_main_name, *sys.argv)


def check_hidden(options: Mapping[str, str]) -> None:
    """Raise InvalidConfigError if a `storage.` option has a secret that Spark would show in plans and logs."""
    for name, value in options.items():
        is_shown = not _HIDDEN_BY_SPARK.search(name) and not _HIDDEN_BY_SPARK.search(value)
        nested_names = re.findall(r'"([^"]+)"\s*:', value) if value.lstrip().startswith(("{", "[")) else []
        is_secret = any(map(_SECRET.search, [name, *nested_names])) or _PASSWORD_OF_URL.search(value)
        if is_shown and is_secret and name.lower().startswith(STORAGE_PREFIX):
            raise InvalidConfigError(
                f"option {name} holds a secret, and Spark shows it in plans and in its event log: give it to "
                "distlog.spark.register(spark, storage_options={...}), or set it in the environment of the machines"
            )


def storage_of(options: Mapping[str, str]) -> Storage:
    return Storage(*url_and_settings(options))


def url_and_settings(options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the option `path`, and the `storage.` options without their prefix."""
    path = options.get("path")
    if not path:
        raise InvalidConfigError(
            "no topic is named: give its path or URL to load() or save(), as in load('s3://bucket/logs/clicks'); "
            "for SQL make a temporary view with the option path, since tables of the catalog lose their options"
        )
    prefix = len(STORAGE_PREFIX)
    return path, {name[prefix:]: value for name, value in options.items() if name.lower().startswith(STORAGE_PREFIX)}


def storage_texts(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the settings of a storage client as `storage.` options."""
    return {
        f"{STORAGE_PREFIX}{name}": (value if isinstance(value, str) else json.dumps(value))
        for name, value in (settings or {}).items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read. `start` and `end` may be times, which become offsets; `times` filters by timestamp.

    `unmatched_start` applies if no record is at or after the start's time. `timestamp_ms` selects a version.
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
    keys: frozenset[bytes] | None = None

    @classmethod
    def parse(cls, texts: Mapping[str, str], default_start: int = EARLIEST) -> ReadOptions:
        """Parse the options. Raises InvalidConfigError, which never shows the value of a storage option."""
        # other sources read several files or topics with these options
        for name, advice in (("paths", "give load() one path"), ("subscribePattern", "leave out subscribePattern")):
            if name.lower() in map(str.lower, texts):
                raise InvalidConfigError(f"a DataFrame is of one topic: {advice}, and make a union of several")
        options = Options(texts, [*READ_NAMES, *STREAM_NAMES])
        columns = options.text("columns")
        assign = options.text("assign")
        read_options = cls(
            storage=_storage(options, texts),
            start=_bound(options, "starting", default_start),
            end=_bound(options, "ending", LATEST),
            times=TimeRange.between(_optional_time(options, "startTime"), _optional_time(options, "endTime")),
            unmatched_start=cast(
                Literal["error", "latest"], options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
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
            timestamp_ms=_optional_time(options, "timestampAsOf", round_up=False),  # the newest at or before it
            columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
            push_filters=options.flag("pushFilters", default=False),
            keys=_keys(options.text("keys")),
        )
        if read_options.version is not None and read_options.timestamp_ms is not None:
            raise InvalidConfigError("give versionAsOf or timestampAsOf, not both")
        return read_options


@dataclass(frozen=True, slots=True)
class ByPartition:
    """A number for each partition of one topic: offsets, or times in ms."""

    topic: str
    numbers: Mapping[int, int]

    def check(self, topic: str, partitions: Collection[int], option: str) -> None:
        """Raise InvalidConfigError unless this is about `topic` and has a number for exactly `partitions`."""
        if self.topic != topic:
            raise InvalidConfigError(f"option {option} is about another topic", topic=self.topic, expected=topic)
        if set(self.numbers) != set(partitions):
            text = f"option {option} must give a number for every partition; as offsets, -1 is latest, -2 is earliest"
            raise InvalidConfigError(text, given=sorted(self.numbers), partitions=sorted(partitions))


def parse_offsets(text: str, option: str) -> ByPartition:
    """Parse JSON like {"topic": {"0": 23, "1": -2}}. Raises InvalidConfigError for other text."""
    special = "" if option.endswith("ByTimestamp") else "earliest, latest, or "
    topic, numbers = _one_topic(text, option, f"{special}JSON like {_EXAMPLE}")
    if not isinstance(numbers, dict) or not all(is_entry(*entry) for entry in numbers.items()):
        raise InvalidConfigError(f"option {option} must be JSON like {_EXAMPLE}", value=text)
    return ByPartition(topic, {int(partition): number for partition, number in numbers.items()})


def parse_assign(text: str) -> ByPartition:
    """Parse partitions, JSON like {"topic": [0, 1]}. Callers use only these: the number of each is 0."""
    topic, partitions = _one_topic(text, "assign", 'JSON like {"topic": [0, 1]}')
    is_list = isinstance(partitions, list) and len(partitions) > 0
    if not is_list or not all(type(number) is int and number >= 0 for number in partitions):
        raise InvalidConfigError('option assign must be JSON like {"topic": [0, 1]}', value=text)
    return ByPartition(topic, dict.fromkeys(partitions, 0))


def offsets_json(topic: str, offsets: Mapping[int, int]) -> dict[str, dict[str, int]]:
    """Return offsets by partition as an object to write as JSON."""
    return {topic: {str(partition): offsets[partition] for partition in sorted(offsets)}}


def format_assign(topic: str, partitions: Collection[int]) -> str:
    return json.dumps({topic: sorted(partitions)})


def _one_topic(text: str, option: str, expected: str) -> tuple[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or len(parsed) != 1:
        raise InvalidConfigError(f"option {option} must be {expected}, about one topic", value=text)
    return next(iter(parsed.items()))


def is_entry(partition: str, number: object) -> bool:
    """Return whether the name in a JSON object is a partition, and its value an integer."""
    return partition.isascii() and partition.isdecimal() and type(number) is int


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a read: an offset (or EARLIEST, LATEST) or a time in ms, for all partitions or by partition."""

    kind: Literal["offset", "time"]
    value: int | ByPartition
    option: str

    def check(self, topic: str, partitions: Collection[int]) -> None:
        if not isinstance(self.value, int):
            self.value.check(topic, partitions, self.option)

    def of(self, partition: int) -> int:
        return self.value if isinstance(self.value, int) else self.value.numbers[partition]


def _storage(options: Options, texts: Mapping[str, str]) -> Storage:
    if not options.flag("tiered", default=False):
        return storage_of(texts)
    topic = options.text("subscribe")
    if topic is None or options.text("versionAsOf") or options.text("timestampAsOf"):
        text = "option tiered needs subscribe with the topic's name, and excludes versionAsOf and timestampAsOf"
        raise InvalidConfigError(text)
    url, settings = url_and_settings(texts)
    return TieredStorage(find_topic(url, topic, options.text("tieredTopicId"), settings))


def _keys(text: str | None) -> frozenset[bytes] | None:
    if text is None:
        return None
    try:
        keys = json.loads(text)
    except ValueError:
        keys = None
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise InvalidConfigError('option keys must be a list of texts in JSON, such as ["anna", "bert"]', value=text)
    return frozenset(key.encode() for key in keys)


def _bound(options: Options, side: str, default: int) -> Bound:
    """Return a bound. As in Spark's Kafka source, one time overrides times by partition, which override offsets."""
    name = f"{side}Timestamp"
    if (text := options.text(name)) is not None:
        return Bound("time", _time(name, text), name)
    name = f"{side}OffsetsByTimestamp"
    if (text := options.text(name)) is not None:
        times = parse_offsets(text, name)
        if min(times.numbers.values(), default=0) < 0:
            raise InvalidConfigError(f"option {name} must give milliseconds since 1970", value=text)
        return Bound("time", times, name)
    name = f"{side}Offsets"
    text = options.text(name)
    if text is None or text.strip().lower() in ("earliest", "latest"):
        special = {"earliest": EARLIEST, "latest": LATEST}
        return Bound("offset", default if text is None else special[text.strip().lower()], name)
    return Bound("offset", parse_offsets(text, name), name)


def _optional_time(options: Options, name: str, *, round_up: bool = True) -> int | None:
    text = options.text(name)
    return None if text is None else _time(name, text, round_up=round_up)


def _time(name: str, text: str, *, round_up: bool = True) -> int:
    try:
        time = to_ms(text, round_up=round_up)
    except ValueError:
        time = -1
    if time < 0:
        raise InvalidConfigError(f"option {name} must be milliseconds since 1970, or ISO 8601", value=text)
    return time


def read_bounds(reader: SegmentReader, snapshot: Snapshot, options: ReadOptions) -> dict[int, tuple[int, int]]:
    """Resolve the options at `snapshot` to offsets (start, end) by partition."""
    partitions = selected_partitions(snapshot, options)
    for bound in (options.start, options.end):
        bound.check(options.storage.name, partitions)
    starts = first_by_time(reader, snapshot, partitions, options.start)
    ends = first_by_time(reader, snapshot, partitions, options.end)
    return {
        number: _range(snapshot.partitions[number], number, options, starts.get(number), ends.get(number))
        for number in partitions
    }


def selected_partitions(snapshot: Snapshot, options: ReadOptions) -> list[int]:
    """Return the selected partitions, ascending. Raises InvalidConfigError if the topic lacks one."""
    name = options.storage.name
    if options.subscribed not in (None, name):
        text = "option subscribe must name the topic of the path"
        raise InvalidConfigError(text, subscribe=options.subscribed, topic=name)
    numbers = range(len(snapshot.partitions))
    if options.assigned is None:
        return list(numbers)
    assigned = set(options.assigned.numbers)
    if options.assigned.topic != name or not assigned <= set(numbers):
        text = "option assign must name the topic of the path, and only partitions that it has"
        raise InvalidConfigError(text, topic=name, partitions=len(numbers))
    return sorted(assigned)


def first_by_time(
    reader: SegmentReader, snapshot: Snapshot, partitions: Collection[int], bound: Bound
) -> Mapping[int, OffsetAndTime | None]:
    """Return the first record at or after the bound's time, by partition; {} for a bound of offsets."""
    if bound.kind == "offset":
        return {}
    return offsets_for_times(reader, snapshot.partitions, {number: bound.of(number) for number in partitions})


def resolved_start(state: PartitionState, partition: int, options: ReadOptions, record: OffsetAndTime | None) -> int:
    """Return the start of a read of the partition; `record` is the first at or after the option's time."""
    bound = options.start
    value = bound.of(partition)
    if bound.kind == "offset":
        return {EARLIEST: state.log_start_offset, LATEST: state.log_end_offset}.get(value, value)
    if record:
        return record[0]
    if options.unmatched_start == "latest":
        return state.log_end_offset
    text = f"no record is at or after {bound.option}; startingOffsetsByTimestampStrategy=latest reads from the end"
    raise InvalidConfigError(text, partition=partition, timestamp=value)


def offset_in_log(state: PartitionState, partition: int, offset: int, options: ReadOptions) -> int:
    """Return `offset`, or the nearest bound of the log; with failOnDataLoss raises OffsetOutOfRangeError instead."""
    low, high = state.log_start_offset, state.log_end_offset
    if options.fail_on_data_loss and not low <= offset <= high:
        text = (
            "the partition does not hold this offset: ask for one between its bounds, or set "
            "failOnDataLoss=false to read the records that exist"
        )
        raise out_of_range_error(text, state, partition, offset)
    return min(max(offset, low), high)


def out_of_range_error(text: str, state: PartitionState, partition: int, offset: int) -> OffsetOutOfRangeError:
    bounds = {"log_start_offset": state.log_start_offset, "log_end_offset": state.log_end_offset}
    return OffsetOutOfRangeError(text, partition=partition, offset=offset, **bounds)


def _range(
    state: PartitionState,
    partition: int,
    options: ReadOptions,
    start_record: OffsetAndTime | None,
    end_record: OffsetAndTime | None,
) -> tuple[int, int]:
    """Return the start and the end offset; the records are the first at or after the times of the options."""
    if options.start.kind == "offset" and options.start.of(partition) == LATEST:
        text = f"option {options.start.option} cannot be latest in a batch read"
        raise InvalidConfigError(text, partition=partition)
    start = resolved_start(state, partition, options, start_record)
    bound = options.end
    end = end_record[0] if end_record else state.log_end_offset
    if bound.kind == "offset":
        end = bound.of(partition)
        if end == EARLIEST:
            raise InvalidConfigError(f"option {bound.option} cannot be earliest in a batch read", partition=partition)
        end = state.log_end_offset if end == LATEST else end
    return offset_in_log(state, partition, start, options), offset_in_log(state, partition, end, options)
