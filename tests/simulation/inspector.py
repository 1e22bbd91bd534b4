"""An actor that appends records in all forms of input, and checks reads with rare options and dry runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from itertools import chain
from random import Random
from typing import Any, Literal, get_args

import pyarrow as pa

import distlog
from distlog import InvalidRecordError, OffsetOutOfRangeError, SnapshotTooOldError
from distlog.core.errors import CommitStateUnknownError, StorageError, TopicNotFoundError
from distlog.core.maintain.merge import MergeReport
from simulation.actors import PASSING, Memory, Stage
from simulation.oracle import Batch, NewRecord, Oracle
from simulation.record_log import Row, rows_by_offset
from simulation.threads import living
from simulation.world import Process

_Rows = Mapping[tuple[int, int], Row]
_Isolation = Literal["read_uncommitted", "read_committed"]
_OutOfRange = Literal["fail", "earliest", "latest"]
_EPOCH = datetime.fromtimestamp(0, timezone.utc)


class _TakenBackError(Exception):
    """An application ends a transaction without a commit."""


def has_inspector(seed: int) -> bool:
    """Whether a history has this actor."""
    return seed % 28 in (25, 19)


def inspects(stage: Stage, process: Process, memory: Memory) -> None:
    topic = stage.open()
    while stage.goes_on():
        topic = _append(stage, topic, process.random, memory.name)
        stage.pause(process.random)
        start_s = stage.oracle.world.now
        with suppress(*stage.passing):
            read = stage.open()
            try:
                for text in wrong_reads(stage.oracle, read, process.random):
                    # Arrow makes an error of its own of the end of a process that reads
                    living()
                    stage.oracle.says(f"version {read.version}: {text}")
            except SnapshotTooOldError:
                if not stage.oracle.may_lack_files(read.version, start_s):
                    stage.oracle.says(f"version {read.version} is too old to be read, and its files are kept")
            except OSError as error:
                # Arrow makes an error of its own of a reader's error, with the traceback as its text
                if StorageError.__qualname__ not in str(error):
                    raise


# ---
# Appends.


def _append(stage: Stage, topic: distlog.Topic, random: Random, sender: str) -> distlog.Topic:
    """Append a batch, or take it back; returns the topic to append to next."""
    batch, _ = stage.records(random, sender)
    batch.tried.add(topic.snapshot.topic_id)
    may_choose = not stage.oracle.is_compacted and "policy" not in stage.jobs
    partition = random.randrange(topic.partitions) if may_choose and random.random() < 0.3 else None
    unit = random.choice(tuple(_UNITS))
    data = random.choice(_FORMS)(batch.records, unit, random)
    codec = random.choice((None, "gzip", "lz4", "snappy", "zstd"))
    batch.refused = is_taken_back = random.random() < 0.15
    try:
        with suppress(_TakenBackError), topic.transaction(compression=codec, timestamp_unit=unit) as transaction:
            count = transaction.append(data, partition)
            if is_taken_back:
                raise _TakenBackError
        if count != len(batch.records):
            stage.oracle.says(f"{len(batch.records)} records of a {type(data).__name__} are {count}")
        if not is_taken_back:
            _acknowledge(stage, batch, transaction.result, topic.snapshot.topic_id, partition)
    except CommitStateUnknownError:
        pass
    except PASSING as error:
        batch.refused = True
        return stage.open() if isinstance(error, TopicNotFoundError) else topic
    return topic


def _acknowledge(
    stage: Stage, batch: Batch, result: distlog.AppendResult, topic_id: str, partition: int | None
) -> None:
    batch.acknowledge(topic_id, result.offsets)
    if result.record_count != len(batch.records) or (partition is not None and [*result.offsets] != [partition]):
        stage.oracle.says(f"{len(batch.records)} records for partition {partition} are appended as {result.offsets}")
    rows = result.to_table().to_pylist()
    if {row["partition"]: (row["start_offset"], row["end_offset"]) for row in rows} != dict(result.offsets):
        stage.oracle.says(f"the offsets {result.offsets} are listed as {rows}")


#: The parts of a millisecond in each unit of times.
_UNITS = {"ms": 1, "us": 1000, "ns": 1_000_000}


def _dicts(records: Sequence[NewRecord], unit: str, random: Random) -> list[dict[str, Any]]:
    """Return the records as an application has them: bytes or texts, and times of all kinds."""
    rows = list[dict[str, Any]]()
    for record in records:
        row: dict[str, Any] = {"value": _bytes(record.value, random), "timestamp": None}
        if record.timestamp is not None:
            time = _EPOCH + timedelta(milliseconds=record.timestamp)
            row["timestamp"] = random.choice((record.timestamp * _UNITS[unit], time, time.isoformat()))
        if record.key is not None or random.random() < 0.5:
            row["key"] = _bytes(record.key, random)
        if record.headers:
            row["headers"] = record.headers
        rows.append(row)
    return rows


def _bytes(value: bytes | None, random: Random) -> Any:
    kind: Callable[[bytes], Any] = random.choice((bytes, bytearray, memoryview, bytes.decode))
    return value if value is None else kind(value)


def _rows(records: Sequence[NewRecord], unit: str, random: Random) -> Any:
    return (row for row in _dicts(records, unit, random))


def _columns(records: Sequence[NewRecord], unit: str, random: Random) -> pa.Table:
    """Return the records as a table with any of the types that a column may have."""
    times = [record.timestamp for record in records]
    texts = (pa.binary(), pa.string(), pa.large_string(), pa.large_binary(), pa.string_view())
    columns = {}
    for name in ("key", "value"):
        kind, column = random.choice(texts), pa.array([getattr(record, name) for record in records], pa.binary())
        columns[name] = column.cast(pa.string()).cast(kind)
        if random.random() < 0.2:
            columns[name] = column.dictionary_encode()
    if any(time_ms is not None for time_ms in times):
        units = [None if time_ms is None else time_ms * _UNITS[unit] for time_ms in times]
        kind = random.choice((pa.int64(), pa.timestamp(unit), pa.timestamp(unit, "UTC")))
        columns["timestamp"] = pa.array(units, pa.int64()).cast(kind)
    if any(record.headers for record in records):
        columns["headers"] = pa.array([record.headers for record in records], pa.map_(pa.string(), pa.binary()))
    return pa.table(columns)


def _reader(records: Sequence[NewRecord], unit: str, random: Random) -> pa.RecordBatchReader:
    return _columns(records, unit, random).to_reader(max_chunksize=2)


class _Stream:
    """The records of another library."""

    def __init__(self, records: Sequence[NewRecord], unit: str, random: Random) -> None:
        self._table = _columns(records, unit, random)

    def __arrow_c_stream__(self, schema: object = None) -> object:
        return self._table.__arrow_c_stream__(schema)


_FORMS: Sequence[Callable[..., Any]] = (_dicts, _rows, _columns, _reader, _Stream)


# ---
# Reads.


def wrong_reads(oracle: Oracle, topic: distlog.Topic, random: Random) -> Iterator[str]:
    """Yield wrong results of reads with rare options, and of dry runs."""
    isolation: _Isolation = random.choice(get_args(_Isolation))
    number = random.randrange(topic.partitions)
    checks: Sequence[Callable[[_Rows], Iterator[str]]] = (
        lambda rows: _wrong_start(topic, number, rows, isolation, random),
        lambda rows: _wrong_newest(topic, rows, isolation, random),
        lambda rows: _wrong_text(topic, rows, isolation),
        lambda _: _wrong_delivery(oracle, topic, number, isolation, random),
        lambda _: _wrong_plans(oracle, topic),
    )
    # a check reads as much as a short history appends
    for check in random.sample(checks, 2):
        # a consumer and a dry run refresh the topic
        yield from check(oracle.rows_at(topic.version, committed=isolation == "read_committed"))


def _wrong_start(
    topic: distlog.Topic, number: int, rows: _Rows, isolation: _Isolation, random: Random
) -> Iterator[str]:
    """Yield what is wrong with a scan that starts perhaps outside of the log, and with the records in it."""
    log = {offset: row for (partition, offset), row in sorted(rows.items()) if partition == number}
    start, end = topic.start_offsets()[number], topic.end_offsets()[number]
    first = random.choice((start - 1, end + 1, random.randint(start, end), distlog.EARLIEST, distlog.LATEST))
    action: _OutOfRange = random.choice(get_args(_OutOfRange))
    bound = {distlog.EARLIEST: start, distlog.LATEST: end}.get(first, first)
    is_outside = not start <= bound <= end
    if is_outside:
        bound = start if action == "earliest" else end
    expected = {offset: row for offset, row in log.items() if offset >= bound}
    text = f"from {first} on, out of range {action}, {isolation}, partition {number}"
    try:
        scan = topic.scan(number, start={number: first}, isolation=isolation, out_of_range=action, max_workers=1)
        table = pa.RecordBatchReader.from_stream(scan).read_all()
        batches = [batch["offset"].to_pylist() for batch in scan]
    except (OffsetOutOfRangeError, ValueError) as error:
        if not is_outside or action != "fail":
            yield f"{text}: {error}"
        return
    if is_outside and action == "fail":
        yield f"{text}: no error"
        return
    if (answer := {offset: row for (_, offset), row in rows_by_offset(table).items()}) != expected:
        yield f"{text}: {answer}, not {expected}"
    if [*chain(*batches)] != [*expected] or len(scan) != len(expected):
        yield f"{text}: {batches}, {len(scan)} records, not {[*expected]}"
    limit = random.randrange(4)
    records = topic.records(number, bound, limit, isolation)
    answer = {
        record.offset: Row(record.timestamp, record.key, record.value, tuple(record.headers)) for record in records
    }
    if answer != dict([*expected.items()][:limit]):
        yield f"{text}: the first {limit} records are {answer}"


def _wrong_newest(topic: distlog.Topic, rows: _Rows, isolation: _Isolation, random: Random) -> Iterator[str]:
    """Yield wrong last records of several keys, some of which are in one partition alone."""
    locations = dict[bytes, list[tuple[int, int]]]()
    for location, row in sorted(rows.items()):
        if row.key is not None:
            locations.setdefault(row.key, []).append(location)
    keys = random.sample(sorted(locations), min(len(locations), 3))
    records = topic.get([*keys, b"nobody"], isolation)
    for key in {b"nobody", *keys} | records.keys():
        record, partitions = records.get(key), {number for number, _ in locations.get(key, ())}
        newest = record and (record.partition, record.offset)
        if (newest is None) != (key not in locations) or (len(partitions) == 1 and newest != locations[key][-1]):
            yield f"the last record of {key!r}, {isolation}, is {record}, and its records are at {locations.get(key)}"


def _wrong_text(topic: distlog.Topic, rows: _Rows, isolation: _Isolation) -> Iterator[str]:
    """Yield what is wrong with the values as texts; other bytes have an error with their offset."""
    bad = [location for location, row in sorted(rows.items()) if not _is_text(row.value)]
    try:
        values = topic.dataset(isolation, text=["value"]).to_table(["value"])["value"].to_pylist()
    except InvalidRecordError as error:
        if (error.details["partition"], error.details["offset"]) not in bad[:1]:
            yield f"the first value without a text is reported with {error.details}, and they are at {bad}"
        return
    if bad or values != [row.value and row.value.decode() for _, row in sorted(rows.items())]:
        yield f"the values are read as the texts {values}"


def _is_text(value: bytes | None) -> bool:
    with suppress(UnicodeDecodeError):
        return value is None or value.decode() is not None
    return False


def _wrong_delivery(
    oracle: Oracle, topic: distlog.Topic, number: int, isolation: _Isolation, random: Random
) -> Iterator[str]:
    """Yield what is wrong with the records that a consumer of one partition gets from a place on."""
    topic_id, rows = topic.snapshot.topic_id, dict[int, Row]()
    start, end = topic.start_offsets()[number], topic.end_offsets()[number]
    first = random.randint(start - 1, end) if start else random.randint(start, end)
    options: Any = {"isolation": isolation, "out_of_range": "earliest", "poll_interval": 0.5, "max_workers": 1}
    with topic.consume([number], {number: first}, timeout=random.choice((0, 2)), **options) as consumer:
        for batch in consumer:
            rows |= {offset: row for (_, offset), row in rows_by_offset(batch).items()}
        reached = consumer.position[number]
    stable = oracle.logs[topic_id, number].stable_end(end) if isolation == "read_committed" else end
    if oracle.is_live(topic_id) and oracle.topic_id == topic_id:
        is_committed = isolation == "read_committed"
        for text in oracle.wrong_rows(number, rows, max(first, start), min(stable, reached), committed=is_committed):
            yield f"a consumer of partition {number} from {first} on, {isolation}: {text}"
        if reached < stable and not oracle.highest_starts.get((topic_id, number), 0) > start:
            yield f"a consumer of partition {number} stays at {reached}, {isolation}, and the log ends at {stable}"


# ---
# Dry runs.


def _wrong_plans(oracle: Oracle, topic: distlog.Topic) -> Iterator[str]:
    """Yield what dry runs would do against the rules, and what they have done."""
    head = oracle.head
    vacuum = topic.vacuum(dry_run=True)
    # unlike vacuum, a dry run does not keep a writer from committing old files
    for file in vacuum.files if oracle.head == head else ():
        for text in oracle.wrong_deletion(file.name):
            yield f"a dry run of vacuum: {text}"
    if vacuum.bytes != sum(file.size for file in vacuum.files) or not f"{vacuum}".startswith("would delete"):
        yield f"a dry run of vacuum reports {vacuum}"
    retention = topic.retention(dry_run=True)
    for plan in retention.partitions:
        stems = [segment.stem for segment in plan.segments]
        for text in oracle.wrong_retention(retention.version, plan.partition, stems):
            yield f"a dry run of retention: {text}"
    yield from _wrong_merge(oracle, topic.compact(dry_run=True))


def _wrong_merge(oracle: Oracle, report: Any) -> Iterator[str]:
    if not isinstance(report, MergeReport):
        return
    sizes = dict[int, int]()
    for group in report.groups:
        live = [segment["stem"] for segment in oracle.states[report.version].partitions[group.partition].segments]
        stems = [segment.stem for segment in group.segments]
        begin = live.index(stems[0]) if stems[0] in live else 0
        if live[begin : begin + len(stems)] != stems:
            yield f"a dry run of a merge has the segments {stems}, and the log has {live}"
        size = sum(segment.log_bytes for segment in group.segments)
        sizes[group.partition] = sizes.get(group.partition, 0) + size
    if sizes != (rows := {row["partition"]: row["bytes"] for row in report.to_table().to_pylist()}):
        yield f"a merge of the sizes {sizes} is reported as {rows}, {report}"
