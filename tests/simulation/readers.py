"""Actors that read versions, records, times, transactions and groups. Each result must be what was committed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from kafka.partitioner.default import murmur2

import distlog
from distlog import CorruptionError, OffsetOutOfRangeError, SnapshotTooOldError
from simulation.actors import Memory, Stage
from simulation.oracle import Oracle, log_file
from simulation.record_log import Row, rows_by_offset, rows_of_client
from simulation.world import Process


def reads_old_versions(stage: Stage, process: Process, memory: Memory) -> None:
    """Open kept versions and times, read them, and list the history."""
    oracle, topic = stage.oracle, stage.open()
    while stage.goes_on():
        with suppress(*stage.passing, OffsetOutOfRangeError):
            listed_stems = [(row["partition"], row["stem"]) for row in topic.segments().to_table().to_pylist()]
            logs = enumerate(oracle.states[topic.version].partitions)
            if listed_stems != [(number, segment["stem"]) for number, log in logs for segment in log.segments]:
                oracle.says(f"version {topic.version} lists the segments {listed_stems}")
            head = stage.refreshed(topic).snapshot
            version = process.random.randrange(head.log_floor, head.version + 1)
            _read_version(stage, process, version)
            rows = topic.history().to_table().to_pylist()
            shown = topic.history()
            if f"version={topic.version}," not in repr(topic) or f"commits: {shown.num_rows}" not in repr(shown):
                oracle.says(f"version {topic.version} is shown as {topic!r} and {shown!r}")
            listed = [(row["version"], row["operation"]) for row in rows]
            expected = [(row["version"], oracle.operations[row["version"]]) for row in rows]
            versions = list(range(rows[0]["version"], rows[0]["version"] - len(rows), -1))
            is_whole = versions[0] >= head.version and versions[-1] <= oracle.old.floor
            if listed != expected or [row["version"] for row in rows] != versions or not is_whole:
                oracle.says(f"the history at version {head.version} is {listed}")
        with suppress(*stage.passing):
            topic = stage.open() if process.random.random() < 0.2 else topic
        stage.pause(process.random)


def _read_version(stage: Stage, process: Process, version: int) -> None:
    """Read a version, opened by its number or by a time when it was the newest."""
    oracle, random = stage.oracle, process.random
    state, after = oracle.states[version], oracle.states.get(version + 1)
    start_s = oracle.world.now
    try:
        if state.dropped or random.random() < 0.5:
            topic = distlog.open(stage.url, version=version)
        else:
            end_ms = after.timestamp_ms if after else state.timestamp_ms + 10_000
            topic = distlog.open(stage.url, timestamp=random.randrange(state.timestamp_ms, end_ms))
            if after and topic.version != version:
                oracle.says(f"version {topic.version} was opened by a time at which version {version} was the newest")
    except distlog.TopicNotFoundError:
        if not state.dropped:
            raise
        return
    try:
        oracle.check_rows(topic)
    except SnapshotTooOldError:
        if not oracle.may_lack_files(topic.version, start_s):
            oracle.says(f"version {topic.version} is too old to be read, and all of its files are kept")
    except CorruptionError as error:
        oracle.says(f"a reader of version {topic.version} found damage: {error}")


def reads_records(stage: Stage, process: Process, memory: Memory) -> None:
    """Read a few records by offsets and times, whole batches, and the open transactions."""
    while stage.goes_on():
        start_s = stage.oracle.world.now
        topic = stage.open()
        with suppress(*stage.passing, OffsetOutOfRangeError):
            try:
                rows = stage.oracle.rows_at(topic.version)
                answers = wrong_answers(topic, rows, process.random)
                fetched, consumed = (work(stage, topic, process.random) for work in (_wrong_fetch, _wrong_consumer))
                for text in chain(answers, fetched, consumed):
                    stage.oracle.says(f"version {topic.version}: {text}")
            except SnapshotTooOldError:
                if not stage.oracle.may_lack_files(topic.version, start_s):
                    stage.oracle.says(f"version {topic.version} is too old to be read, and its files are kept")
        stage.pause(process.random)


def wrong_answers(topic: distlog.Topic, rows: Mapping[tuple[int, int], Row], random: Random) -> Iterator[str]:
    """Yield wrong results of a topic about some offsets and times of a partition."""
    number = random.randrange(topic.partitions)
    start, end = topic.start_offsets()[number], topic.end_offsets()[number]
    log = {offset: row for (partition, offset), row in sorted(rows.items()) if partition == number}
    times = [row.timestamp for row in log.values()]
    time_ms = random.choice([*times, 0]) + random.choice((-1, 0, 1))
    time_ms = max(time_ms, 0)
    expected = next(((offset, row.timestamp) for offset, row in log.items() if row.timestamp >= time_ms), None)
    if (answer := topic.offsets_for_times({number: time_ms})[number]) != expected:
        yield f"the first record of partition {number} at {time_ms} is {answer}, not {expected}"
    # old messages have no time
    newest_ms = max(max(times, default=0), 0)
    newest = next(((offset, row.timestamp) for offset, row in log.items() if row.timestamp == newest_ms), None)
    if (answer := topic.offsets_for_times({number: distlog.MAX_TIMESTAMP})[number]) != newest:
        yield f"the newest record of partition {number} is {answer}, not {newest}"
    offset, limit = random.randint(start, end), random.choice((1, 2, 5, 100))
    answer = {
        record.offset: Row(record.timestamp, record.key, record.value, tuple(record.headers))
        for record in topic.records(number, offset, limit)
    }
    if list(answer.items()) != [item for item in log.items() if item[0] >= offset][:limit]:
        yield f"{limit} records of partition {number} from {offset} on are {answer}"
    until_ms = time_ms + random.choice((1, 1000, 10_000_000))
    scan = topic.scan(number, start_time=time_ms, end_time=until_ms)
    answer = {offset: row for (_, offset), row in rows_by_offset(scan.to_table()).items()}
    if answer != {offset: row for offset, row in log.items() if time_ms <= row.timestamp < until_ms}:
        yield f"the records of partition {number} from {time_ms} to {until_ms} are {answer}"
    yield from _wrong_scan(topic, number, log, random)
    yield from _wrong_keys(topic, rows, Random(f"keys/{number}/{offset}/{time_ms}"))
    yield from _wrong_dataset(topic, rows, Random(f"filter/{number}/{offset}/{time_ms}"))


def _wrong_scan(topic: distlog.Topic, number: int, log: Mapping[int, Row], random: Random) -> Iterator[str]:
    """Yield wrong results of a scan of some columns and offsets, whole and in parts."""
    first = random.randint(topic.start_offsets()[number], topic.end_offsets()[number])
    end = random.randint(first, topic.end_offsets()[number])
    names = [name for name in Row._fields if random.random() < 0.5] or ["value"]
    rows = {offset: row for offset, row in log.items() if first <= offset < end}
    scan, limit = (
        topic.scan(number, start=first, end=end, columns=["partition", "offset", *names]),
        random.randrange(9),
    )
    last = dict(list(rows.items())[-limit:]) if limit else {}
    parts = {"all": (scan.to_table(), rows), "tail": (scan.tail(limit), last)}
    parts["head"] = scan.head(limit), dict(list(rows.items())[:limit])
    sampled = scan.sample(limit, seed=1)
    parts["sample"] = sampled, {offset: rows.get(offset) for offset in sampled["offset"].to_pylist()}
    for part, (table, expected) in parts.items():
        answer = {offset: tuple(row) for (_, offset), row in rows_by_offset(table).items()}
        if answer != {
            offset: row and tuple(getattr(row, name) for name in names) for offset, row in expected.items()
        }:
            yield f"{part} ({limit}) of partition {number} from {first} to {end} is {answer}"
    if scan.count() != len(rows) or sampled.num_rows != min(limit, len(rows)):
        yield f"partition {number} has {scan.count()} records from {first} to {end}, not {len(rows)}"
    times = [time for batch in scan.times() for time in batch["timestamp"].cast("int64").to_pylist()]
    if times != [row.timestamp for row in rows.values()]:
        yield f"the times in partition {number} from {first} to {end} are {times}"


def _wrong_keys(topic: distlog.Topic, rows: Mapping[tuple[int, int], Row], random: Random) -> Iterator[str]:
    """Yield wrong results of reads of some keys, one of which may have no record."""
    names = sorted({row.key for row in rows.values() if row.key is not None} | {b"nobody"})
    keys = random.sample(names, min(len(names), random.randrange(1, 4)))
    answer = rows_by_offset(topic.scan(keys=keys, columns=("partition", "offset", *Row._fields)).to_table())
    if answer != {location: row for location, row in sorted(rows.items()) if row.key in keys}:
        yield f"the records of {keys} are {answer}"
    for key in keys:
        newest = {number: offset for (number, offset), row in sorted(rows.items()) if row.key == key}
        default = (murmur2(key) & 0x7FFFFFFF) % topic.partitions
        if default not in newest:
            # of equal times the first one
            newest = dict(sorted(newest.items(), key=lambda item: (-rows[item].timestamp, item))[:1])
        expected = next(((number, newest[number]) for number in (default, *newest) if number in newest), None)
        record = topic.get(key, "read_uncommitted")
        if (record and (record.partition, record.offset)) != expected:
            yield f"the last record of {key!r} is {record}, not {expected}"


def _wrong_dataset(topic: distlog.Topic, rows: Mapping[tuple[int, int], Row], random: Random) -> Iterator[str]:
    """Yield wrong results of a dataset with a filter of Arrow."""
    condition, passes = _filter(random, rows)
    expected = [[*location, *row] for location, row in sorted(rows.items()) if passes(location, row)]
    names = ["partition", "offset", *Row._fields]
    dataset, limit = topic.dataset(), random.randrange(4)
    dataset = dataset.filter(condition) if random.random() < 0.5 else dataset
    table, count = dataset.to_table(names, condition), dataset.count_rows(condition)
    first = rows_by_offset(dataset.head(limit, names, condition))
    if (answer := [[*location, *row] for location, row in rows_by_offset(table).items()]) != expected:
        yield f"the records with {condition} are {answer}, not {expected}"
    if count != len(expected):
        yield f"{count} records are counted with {condition}, not {len(expected)}"
    if [[*location, *row] for location, row in first.items()] != expected[:limit]:
        yield f"the first {limit} records with {condition} are {first}"


_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_Passes = Callable[[tuple[int, int], Row], bool]


def _filter(random: Random, rows: Mapping[tuple[int, int], Row], depth: int = 2) -> tuple[pc.Expression, _Passes]:
    """Return an expression, and a function that returns whether a record passes it."""
    if depth and random.random() < 0.5:
        (first, passes), (second, passes_too) = (_filter(random, rows, depth - 1) for _ in range(2))
        if random.random() < 0.5:
            return first & second, lambda location, row: passes(location, row) and passes_too(location, row)
        return first | second, lambda location, row: passes(location, row) or passes_too(location, row)
    (number, offset), row = random.choice([*rows.items(), ((0, 0), Row(0, None, None, ()))])
    compare = random.choice(_COMPARISONS)
    match random.choice(("partition", "offset", "offset", "timestamp", "key", "in")):
        case "partition":
            return compare(pc.field("partition"), number), lambda location, _: compare(location[0], number)
        case "offset":
            return compare(pc.field("offset"), offset), lambda location, _: compare(location[1], offset)
        case "timestamp":
            time = pa.scalar(row.timestamp, pa.timestamp("ms", "UTC"))
            return compare(pc.field("timestamp"), time), lambda _, row_: compare(row_.timestamp, row.timestamp)
        case "in":
            offsets = [offset, offset + 2]
            return pc.field("offset").isin(offsets), lambda location, _: location[1] in offsets
    return pc.field("key").is_null(), lambda _, row_: row_.key is None


def _wrong_consumer(stage: Stage, topic: distlog.Topic, random: Random) -> Iterator[str]:
    """Yield the records that a consumer without a group leaves out; the oracle compares the others."""
    number, topic_id = random.randrange(topic.partitions), topic.snapshot.topic_id
    first, end = (
        random.randint(topic.start_offsets()[number], topic.end_offsets()[number]),
        topic.end_offsets()[number],
    )
    offsets = set[int]()
    with topic.consume(number, {number: first}, timeout=0, isolation="read_uncommitted") as consumer:
        for batch in consumer:
            stage.oracle.read(topic_id, batch)
            offsets |= {*batch["offset"].to_pylist()}
        reached = consumer.lag()[number] + consumer.position[number]
        stage.pause(random)
        # a consumer that continues gets what was appended since then; a new topic may have fewer partitions
        newest = stage.open().end_offsets().get(number, 0)
        for batch in consumer:
            stage.oracle.read(topic_id, batch)
        if consumer.position[number] < newest and stage.oracle.is_live(topic_id) and not stage.offsets_may_go():
            yield f"a consumer stays at {consumer.position} of partition {number}, which ends at {newest}"
    missing = [offset for offset in stage.oracle.live_between(topic_id, number, first, end) if offset not in offsets]
    if missing or min(offsets, default=first) < first or reached < end:
        yield f"a consumer of partition {number} from {first} on, whose lag reaches {reached}, got {sorted(offsets)}"


def manages_groups(stage: Stage, process: Process, memory: Memory) -> None:
    """Set, list, use and delete the offsets of a group that has no other members."""
    while stage.goes_on():
        with suppress(*stage.passing, OffsetOutOfRangeError, SnapshotTooOldError, distlog.GroupNotFoundError):
            topic = stage.open()
            for text in _wrong_group(stage, topic, memory.name, process.random):
                # a new topic has no groups of a dropped one
                if stage.oracle.is_live(topic.snapshot.topic_id):
                    stage.oracle.says(f"group {memory.name}, version {topic.version}: {text}")
        stage.pause(process.random)


def _wrong_group(stage: Stage, topic: distlog.Topic, group: str, random: Random) -> Iterator[str]:
    number = random.randrange(topic.partitions)
    offset = random.randint(topic.start_offsets()[number], topic.end_offsets()[number])
    to = random.choice((distlog.EARLIEST, distlog.LATEST, {number: offset}))
    positions = topic.reset_group(group, to)
    expected = {number: offset}
    if not isinstance(to, dict):
        expected = topic.start_offsets() if to == distlog.EARLIEST else topic.end_offsets()
    if any(positions.get(partition) != position for partition, position in expected.items()):
        yield f"it is at {positions}, and was set to {expected}"
    # an old listing may lack the group
    if not stage.lag_s:
        rows = [row for row in topic.groups().to_table().to_pylist() if row["group"] == group]
        if {row["partition"]: row["position"] for row in rows if row["position"] is not None} != positions:
            yield f"it was set to {positions}, and is listed with {rows}"
    with topic.consume(group=group, timeout=0, lease=60.0) as consumer:
        if any(consumer.position.get(partition) != position for partition, position in positions.items()):
            yield f"it is at {positions}, and its member begins at {consumer.position}"
        for batch in consumer:
            stage.oracle.read(topic.snapshot.topic_id, batch)
            for partition, first in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True):
                if first < positions.get(partition, 0):
                    yield f"it is at {positions}, and got offset {first} of partition {partition}"
        consumer.commit()
        stage.oracle.check_committed(topic.snapshot.topic_id, group, consumer.position)
    if random.random() < 0.3:
        topic.delete_group(group)
        if not stage.lag_s and any(row["group"] == group for row in topic.groups().to_table().to_pylist()):
            yield "it was deleted, and is listed"


def _wrong_fetch(stage: Stage, topic: distlog.Topic, random: Random) -> Iterator[str]:
    """Yield what is wrong with a fetch of a partition, as a Kafka client reads it."""
    number = random.randrange(topic.partitions)
    start, end = topic.start_offsets()[number], topic.end_offsets()[number]
    is_committed = random.random() < 0.5
    offset = random.randint(start, end)
    isolation = "read_committed" if is_committed else "read_uncommitted"
    fetched = topic.read(number, offset, random.choice((1, 1000, 1 << 20)), isolation=isolation, check_crcs=True)
    expected = {
        row_offset: row
        for (partition, row_offset), row in stage.oracle.rows_at(topic.version, committed=is_committed).items()
        if partition == number and offset <= row_offset < fetched.next_offset
    }
    if (rows := rows_of_client(bytes(fetched), fetched.aborted, offset)) != expected:
        yield f"partition {number} from {offset} on has {rows} for a client, not {expected}"
    open_offsets = {
        (entry.transaction.partition, entry.transaction.start_offset)
        for entry in topic.open_transactions().transactions
    }
    # which has read the newest version
    state = stage.oracle.states[topic.version]
    log = stage.oracle.logs[state.topic_id, number]
    stable = log.stable_end(state.ends[number])
    if state.starts[number] <= stable < state.ends[number] and (number, stable) not in open_offsets:
        yield f"the transaction that is open from {stable} on in partition {number} is not among {open_offsets}"
    if any(partition == number and row_offset < stable for partition, row_offset in open_offsets):
        yield f"a transaction is open before {stable} in partition {number}: {open_offsets}"


def anomalies_of(oracle: Oracle, topic: distlog.Topic) -> list[Any]:
    """Return what verify finds, without indexes of unfinished rebuilds, which no commit names yet, and damage."""
    expected = [*["index"] * (oracle.unfinished_rebuilds > 0), *["checkpoint"] * bool(oracle.damaged)]
    return [anomaly for anomaly in topic.verify().anomalies if not any(word in anomaly.word for word in expected)]


def check_damage(oracle: Oracle, topic: distlog.Topic, random: Random) -> None:
    """Flip a bit of an index, and then of the log, of a live segment: `verify` finds it, and no reader gets it."""
    segments = [segment for log in oracle.states[oracle.head].partitions for segment in log.segments]
    segments = [segment for segment in segments if segment["log_bytes"]]
    if not segments:
        return
    segment = random.choice(segments)
    indexes = [name for name in ("offset_index", "time_index", "txn_index") if segment[f"{name}_bytes"]]
    if indexes:
        index = random.choice(indexes)
        name, position = log_file(topic.name, segment), segment.get(f"{index}_position", -1)
        if position < 0:
            # a rebuilt index of a part of a bundle is a file, too
            folder = f"{topic.name}-{segment['partition']}"
            name, position = f"{folder}/{segment['stem']}{_SUFFIXES[index]}", 0
        with _damage(oracle, topic, name, position, segment[f"{index}_bytes"], random), suppress(CorruptionError):
            # they may refuse to answer
            for text in wrong_answers(distlog.open(topic.url), oracle.rows_at(oracle.head), random):
                oracle.says(f"with a damaged {index} of a segment, {text}")
    name, position = log_file(topic.name, segment), max(segment["log_position"], 0)
    with _damage(oracle, topic, name, position, segment["log_bytes"], random):
        try:
            oracle.check_rows(distlog.open(topic.url))
        except CorruptionError as error:
            if error.details.get("partition", segment["partition"]) != segment["partition"]:
                oracle.says(f"a damaged segment of partition {segment['partition']} has the error {error}")


_SUFFIXES = {"offset_index": ".index", "time_index": ".timeindex", "txn_index": ".txnindex"}


@contextmanager
def _damage(oracle: Oracle, topic: distlog.Topic, name: str, begin: int, size: int, random: Random) -> Iterator[None]:
    """Flip a bit of a part of a file, which `verify` finds."""
    stored = oracle.store.objects[f"{topic.url.partition('://')[2]}/{name}"]
    original, damaged, position = stored.data, bytearray(stored.data), begin + random.randrange(size)
    damaged[position] ^= 1 << random.randrange(8)
    stored.data = bytes(damaged)
    oracle.world.note(f"a bit of {name} flips at {position}")
    try:
        yield
        if distlog.open(topic.url).verify().ok:
            oracle.says(f"verify finds no damage at {position} of {name}")
    finally:
        stored.data = original
