"""The state of a topic, folded from commits by the rules of docs/formats.md, without the library's code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distlog.core.commits.snapshot import MAX_FORMER_IDS
from simulation.commit_reader import Body, ReadCommit

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
#: How long batches of applications are kept, and how many for an application that commits them in order.
BATCHES_KEPT_MS, ORDERED_KEPT = 30 * DAY_MS, 10
#: How many batches of a producer are kept, and for how long.
PRODUCER_BATCHES_KEPT, PRODUCERS_KEPT_MS = 5, DAY_MS


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """A partition: its offsets, its segments as commits describe them, and where it is dirty."""

    start: int = 0
    end: int = 0
    segments: tuple[Body, ...] = ()
    first_dirty: int = 0


@dataclass(frozen=True, slots=True)
class ProducerBatches:
    """A producer's newest epoch, the last batches of that epoch, and its open transaction."""

    epoch: int = -1
    batches: tuple[tuple[int, int, int, int], ...] = ()
    open_from: int = -1
    active_ms: int = 0


@dataclass(frozen=True, slots=True)
class ApplicationBatch:
    """A batch of an application: its commit, and its offsets by partition."""

    version: int
    timestamp_ms: int
    offsets: Mapping[int, tuple[int, int]]
    in_order: bool


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic after a commit; states share unchanged parts."""

    version: int = -1
    id: str = ""
    topic_id: str = ""
    #: The ids that this topic had before; a dropped topic leaves none.
    former_ids: tuple[str, ...] = ()
    timestamp_ms: int = -1
    dropped: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[PartitionLog, ...] = ()
    batches: Mapping[tuple[str, int | str], ApplicationBatch] = field(default_factory=dict)
    producers: Mapping[tuple[int, int], ProducerBatches] = field(default_factory=dict)
    gc_floor: int = 0
    log_floor: int = 0
    #: The time that has passed in commits; a pause counts as one hour at most.
    passed_ms: int = 0

    def number(self, setting: str, default: int) -> int:
        return int(self.settings.get(setting, default))

    def has_policy(self, policy: str) -> bool:
        return policy in self.settings.get("cleanup.policy", "delete")

    @property
    def starts(self) -> dict[int, int]:
        return {number: log.start for number, log in enumerate(self.partitions)}

    @property
    def ends(self) -> dict[int, int]:
        return {number: log.end for number, log in enumerate(self.partitions)}

    def after(self, commit: ReadCommit) -> TopicState:
        """Return the state after the next commit; raises ValueError if it breaks a rule."""
        if (commit.version, commit.prev) != (self.version + 1, self.id or None):
            raise ValueError(f"version {commit.version} does not follow version {self.version}")
        if commit.timestamp_ms <= self.timestamp_ms:
            raise ValueError(f"the time of version {commit.version} does not go forward")
        if commit.topic_id != self.topic_id and not any(commit.bodies("create")):
            raise ValueError(f"version {commit.version} is of topic {commit.topic_id}, not {self.topic_id}")
        draft = _Draft(self, commit)
        for name, body in commit.actions:
            draft.apply(name, body)
        return draft.finish()


class _Draft:
    def __init__(self, previous: TopicState, commit: ReadCommit) -> None:
        self.commit = commit
        pause_ms = min(commit.timestamp_ms - previous.timestamp_ms, HOUR_MS)
        self.state = replace(
            previous,
            version=commit.version,
            id=commit.id,
            timestamp_ms=commit.timestamp_ms,
            passed_ms=previous.passed_ms + (pause_ms if previous.id else 0),
        )
        self.logs = list(previous.partitions)
        self.appended: dict[int, list[Body]] = {}
        self.filling: dict[int, list[Body]] = {}
        self.removed: dict[int, set[str]] = {}
        self.named: set[int] = set()

    def apply(self, name: str, body: Body) -> None:
        state = self.state
        if state.dropped and name not in ("create", "gc_floor", "log_floor"):
            raise ValueError(f"version {state.version} changes a topic that was dropped: {name}")
        number = body.get("partition")
        match name:
            case "create":
                if not state.dropped or self.commit.topic_id == state.topic_id:
                    raise ValueError(f"version {state.version} creates a topic that exists")
                created = {"topic_id": self.commit.topic_id, "former_ids": (), "dropped": False}
                self.state = replace(state, settings={}, **created)
            case "topic_id":
                former_ids = (*state.former_ids, state.topic_id)
                self.state = replace(state, topic_id=body["topic_id"], former_ids=former_ids)
            case "drop":
                self.logs = []
                self.state = replace(state, dropped=True, batches={}, producers={})
            case "partitions":
                if body["count"] < len(self.logs):
                    raise ValueError(f"version {state.version} takes partitions away")
                self.logs += [PartitionLog()] * (body["count"] - len(self.logs))
            case "config":
                self.state = replace(state, settings=body["settings"])
            case "add":
                self._add(body)
            case "remove":
                self.removed.setdefault(number, set()).add(body["stem"])
            case "log_start_offset":
                log, offset = self.logs[number], body["offset"]
                self.logs[number] = replace(log, start=max(log.start, offset), end=max(log.end, offset))
            case "restore":
                log = self.logs[number]
                self.logs[number] = replace(log, start=min(log.start, body["offset"]))
            case "cleaned":
                self.logs[number] = replace(self.logs[number], first_dirty=body["first_dirty_offset"])
            case "transaction":
                self._record(body)
            case "producers":
                self._name_producers(body["rows"])
            case "gc_floor":
                self.state = replace(state, gc_floor=max(state.gc_floor, body["version"]))
            case "log_floor":
                self.state = replace(state, log_floor=max(state.log_floor, body["version"]))
            case _:
                raise ValueError(f"version {state.version} has an action {name}, which no store of objects has")

    def _add(self, body: Body) -> None:
        number, log = body["partition"], self.logs[body["partition"]]
        if body["base_offset"] < log.end:
            self.filling.setdefault(number, []).append(body)
            return
        if body["base_offset"] > log.end:
            raise ValueError(f"segment {body['stem']} begins at {body['base_offset']}, and the log ends at {log.end}")
        self.appended.setdefault(number, []).append(body)
        self.logs[number] = replace(log, end=body["next_offset"])

    def _record(self, body: Body) -> None:
        state, key = self.state, (body["app_id"], body["batch_id"])
        offsets = {int(number): tuple(span) for number, span in body["offsets"].items()}
        earlier = state.batches.get(key)
        if earlier and not earlier.in_order and earlier.timestamp_ms > state.timestamp_ms - BATCHES_KEPT_MS:
            raise ValueError(f"batch {key} was committed by version {earlier.version}, and by {state.version}")
        batch = ApplicationBatch(state.version, state.timestamp_ms, offsets, body.get("in_order", False))
        self.state = replace(state, batches={**state.batches, key: batch})

    def _name_producers(self, rows: list[dict[str, int]]) -> None:
        producers, passed_ms = dict(self.state.producers), self.state.passed_ms
        for row in rows:
            key = row["partition"], row["producer_id"]
            self.named.add(row["partition"])
            producer = producers.get(key, ProducerBatches())
            if producer.open_from < 0 and passed_ms - producer.active_ms >= PRODUCERS_KEPT_MS:
                producer = ProducerBatches()
            batches = producer.batches if producer.epoch == row["producer_epoch"] else ()
            first = row["last_offset"] - row["offset_delta"]
            if row["kind"] >= 2:
                open_from = -1
            else:
                open_from = first if row["kind"] == 1 and producer.open_from < 0 else producer.open_from
                batch = row["last_sequence"], row["last_offset"], row["offset_delta"], row["timestamp"]
                batches = (*batches, batch)[-PRODUCER_BATCHES_KEPT:]
            producers[key] = ProducerBatches(row["producer_epoch"], batches, open_from, passed_ms)
        self.state = replace(self.state, producers=producers)

    def finish(self) -> TopicState:
        for number in {*self.appended, *self.filling, *self.removed}:
            log, removed = self.logs[number], self.removed.get(number, set())
            stems = {segment["stem"] for segment in log.segments}
            if not removed <= stems:
                raise ValueError(f"version {self.state.version} removes what is not live: {removed - stems}")
            live = [segment for segment in log.segments if segment["stem"] not in removed]
            segments = sorted(
                [*live, *self.filling.get(number, ()), *self.appended.get(number, ())],
                key=lambda segment: segment["base_offset"],
            )
            end = 0
            for segment in segments:
                if segment["base_offset"] < end:
                    raise ValueError(f"version {self.state.version}: segment {segment['stem']} overlaps another one")
                end = segment["next_offset"]
            self.logs[number] = replace(log, segments=tuple(segments))
            appended = self.appended.get(number, ())
            if number not in self.named and any(add["has_producers"] or add["has_transactions"] for add in appended):
                producers = {key: state for key, state in self.state.producers.items() if key[0] != number}
                self.state = replace(self.state, producers=producers)
        return replace(self.state, partitions=tuple(self.logs))


def differences(snapshot: Any, state: TopicState) -> Iterator[str]:
    """Yield the differences between a snapshot of the library and the state after its commits."""
    for name in ("version", "topic_id", "timestamp_ms", "dropped", "gc_floor", "log_floor"):
        if getattr(snapshot, name) != getattr(state, name):
            yield f"{name} is {getattr(snapshot, name)}, not {getattr(state, name)}"
    if snapshot.former_ids != state.former_ids[-MAX_FORMER_IDS:]:
        yield f"its former ids are {snapshot.former_ids}, not {state.former_ids}"
    if snapshot.commit_id != state.id:
        yield "it has the id of another commit"
    if dict(snapshot.config.overrides()) != dict(state.settings):
        yield f"its settings are {dict(snapshot.config.overrides())}, not {dict(state.settings)}"
    if snapshot.requires.reader or snapshot.requires.writer:
        yield f"it requires {snapshot.requires}"
    if len(snapshot.partitions) != len(state.partitions):
        yield f"it has {len(snapshot.partitions)} partitions, not {len(state.partitions)}"
        return
    for number, (partition, log) in enumerate(zip(snapshot.partitions, state.partitions, strict=True)):
        for text in _of_partition(partition, log):
            yield f"partition {number}: {text}"
        yield from _of_producers(number, partition, state)
    yield from _of_batches(snapshot, state)


def _of_partition(partition: Any, log: PartitionLog) -> Iterator[str]:
    offsets = partition.log_start_offset, partition.log_end_offset, partition.first_dirty_offset
    if offsets != (log.start, log.end, log.first_dirty):
        yield f"its start, end and first dirty offset are {offsets}, not {(log.start, log.end, log.first_dirty)}"
    rows = partition.segments.columns().to_pylist()
    if [row["stem"] for row in rows] != [segment["stem"] for segment in log.segments]:
        yield f"its segments are {[row['stem'] for row in rows]}"
        return
    for row, segment in zip(rows, log.segments, strict=True):
        wrong = {name: row[name] for name, value in segment.items() if row.get(name) != value}
        if wrong:
            yield f"segment {segment['stem']} has {wrong}"


def _of_producers(number: int, partition: Any, state: TopicState) -> Iterator[str]:
    producers = dict(partition.producers.items())
    for (other, producer_id), expected in state.producers.items():
        if other != number:
            continue
        producer, silent_ms = producers.pop(producer_id, None), state.passed_ms - expected.active_ms
        if producer is None:
            if expected.open_from >= 0 or silent_ms < PRODUCERS_KEPT_MS:
                yield f"partition {number}: producer {producer_id} is missing after {silent_ms} ms"
        elif (producer.epoch, tuple(map(tuple, producer.batches)), producer.transaction_first_offset) != (
            expected.epoch,
            expected.batches,
            expected.open_from,
        ):
            yield f"partition {number}: producer {producer_id} has {producer}, not {expected}"
    if producers:
        yield f"partition {number}: no commit names the producers {sorted(producers)}"


def _of_batches(snapshot: Any, state: TopicState) -> Iterator[str]:
    """A batch is kept as long as promised, and no other batch than the committed ones exists."""
    rows = snapshot.transactions.columns().to_pylist()
    batches = {
        (row["app_id"], row["batch_id"]): {
            span["partition"]: (span["start_offset"], span["end_offset"]) for span in row["offsets"]
        }
        for row in rows
    }
    expected = {(app, _as_json(id_)): batch for (app, id_), batch in state.batches.items()}
    for key, offsets in batches.items():
        if key not in expected or dict(expected[key].offsets) != offsets:
            yield f"batch {key} is kept with {offsets}, and was not committed so"
    newest: dict[str, int] = {}
    latest: dict[str, tuple[str, str]] = {}
    for (app, id_), batch in state.batches.items():
        latest[app] = app, _as_json(id_)
        if batch.in_order and isinstance(id_, int):
            newest[app] = max(id_, newest.get(app, id_))
    for (app, id_), batch in state.batches.items():
        key = app, _as_json(id_)
        if isinstance(id_, int) and app in newest and id_ <= newest[app] - ORDERED_KEPT:
            continue
        is_young = batch.in_order or batch.timestamp_ms > state.timestamp_ms - BATCHES_KEPT_MS
        if (is_young or latest[app] == key) and key not in batches:
            yield f"batch {key} of version {batch.version} is missing"


def _as_json(batch_id: int | str) -> str:
    return f'"{batch_id}"' if isinstance(batch_id, str) else str(batch_id)
