"""A topic that a newer library wrote is read, or refused by name; whatever else it holds is kept for it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from histories import CONFIG, append, commit_log, forged, segment, topic_storage
from topics import NOW, TINY, contents, topic_on, values

from distlog.core import paths
from distlog.core.commits import checkpoint, fields
from distlog.core.commits.actions import Add, Drop, Pin, Requires
from distlog.core.commits.commit_json import Commit
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import DistlogError, InvalidConfigError, UnsupportedVersionError
from distlog.core.storage.storage import Storage


def body_of(storage: Storage, version: int) -> dict[str, Any]:
    """The commit of `version` as JSON."""
    body: dict[str, Any] = json.loads(storage.read(paths.commit_file(version)))
    return body


def rewrite(storage: Storage, version: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a commit as if a newer library had written it so."""
    body = body_of(storage, version)
    del body["crc32c"]
    change(body)
    text = json.dumps(body, separators=(",", ":"))[:-1].encode()
    storage.put(paths.commit_file(version), text + b',"crc32c":%d}\n' % crc32c(text))


def through_a_checkpoint(storage: Storage, log: CommitLog) -> Snapshot:
    """The state as it is loaded from a checkpoint of the head alone."""
    name = checkpoint.write(storage, log.load())
    return checkpoint.read(storage, name)


# What it stored besides


def test_unknown_fields_of_a_segment_survive_checkpoints_and_rebuilt_indexes(storage: Storage) -> None:
    topic = topic_on(storage, 1, {**TINY, "internal.segment.bytes": "100000"})
    topic.append(values(range(20)))
    rewrite(storage, 1, lambda body: body["actions"][0]["add"].update(colour="blue", bloom={"bits": [1, 2]}))
    topic = topic_on(storage)
    assert json.loads(topic.snapshot.partitions[0].segments[0].unknown) == {
        "colour": "blue",
        "bloom": {"bits": [1, 2]},
    }
    checkpoint.write(storage, topic.snapshot)
    topic = topic_on(storage)
    topic.alter_config({"index.interval.bytes": 1000})
    topic.rebuild_indexes(force=True)
    rebuilt = body_of(storage, topic.version)["actions"]
    (added,) = [action["add"] for action in rebuilt if "add" in action]
    assert (added["colour"], added["bloom"]) == ("blue", {"bits": [1, 2]})
    assert contents(topic_on(storage)) == {0: [b"v%d" % n for n in range(20)]}


def test_an_older_library_reads_a_commit_that_says_which_write_it_comes_from(storage: Storage) -> None:
    log = commit_log(storage)
    plan = [Add(segment(0, 0))]
    made, _ = log.commit(log.create(1, CONFIG), "append", lambda head: plan, write_id="a write")
    assert made is not None
    known = [spec for spec in dataclasses.fields(Commit) if spec.name != "write_id"]
    definitions: Any = [
        (spec.name, spec.type, dataclasses.field(default=spec.default, metadata=spec.metadata)) for spec in known
    ]
    older = fields.read(dataclasses.make_dataclass("Commit", definitions, frozen=True), body_of(storage, 1))
    assert (older.version, older.id, older.actions) == (1, made.id, made.actions)  # type: ignore[attr-defined]
    assert not hasattr(older, "write_id")


def test_a_commit_of_an_older_or_newer_library_is_of_no_write_that_is_known(storage: Storage) -> None:
    log = commit_log(storage)
    append(log, log.create(1, CONFIG))
    rewrite(storage, 1, lambda body: body.update(colour="blue", write_id=None))
    (commit,) = log.commits(1, 2)
    assert commit.write_id is None
    assert log.load().version == 1


def test_a_segments_facts_that_an_older_library_kept_as_unknown_are_known_again(storage: Storage) -> None:
    log = commit_log(storage)
    append(log, log.create(1, CONFIG))
    info = log.load().partitions[0].segments[0]
    body = fields.write(info)
    del body["min_timestamp"]
    as_kept = fields.read(SegmentInfo, {**body, "unknown-then": 1})
    state = with_segment(log.load(), fields.read(SegmentInfo, {**fields.write(as_kept), "min_timestamp": 5}))
    decoded = checkpoint.decode(checkpoint.encode(state), "a file")
    assert decoded.partitions[0].segments[0].min_timestamp == 5
    assert json.loads(decoded.partitions[0].segments[0].unknown) == {"unknown-then": 1}


def with_segment(snapshot: Snapshot, info: SegmentInfo) -> Snapshot:
    state = dataclasses.replace(snapshot.partitions[0], segments=SegmentTable.of([info]))
    return dataclasses.replace(snapshot, partitions=(state,))


def test_unknown_members_of_the_state_of_its_partitions_and_of_pins_survive_the_next_checkpoint(
    storage: Storage,
) -> None:
    log = commit_log(storage)
    log.commit(log.create(2, CONFIG), "pin", lambda _: [Pin("report", 0, NOW)])
    rewrite(storage, 1, lambda body: body["actions"][0]["pin"].update(owner="a newer library"))
    head = log.load()
    partitions = tuple(dataclasses.replace(state, unknown='{"epoch": 3}') for state in head.partitions)
    newer = dataclasses.replace(head, unknown='{"mood": "good"}', partitions=partitions)
    checkpoint.write(storage, newer)
    for _ in range(2):
        loaded = through_a_checkpoint(storage, commit_log(storage))
        assert json.loads(loaded.unknown) == {"mood": "good"}
        assert [json.loads(state.unknown) for state in loaded.partitions] == [{"epoch": 3}] * 2
        assert json.loads(loaded.pins["report"].unknown) == {"owner": "a newer library"}
    assert append(log, log.load()).unknown == '{"mood": "good"}'


def test_unknown_fields_of_a_batch_survive_the_next_checkpoint(storage: Storage) -> None:
    log = commit_log(storage)
    append(log, log.create(1, CONFIG), batch=("app", 7))
    rewrite(storage, 1, lambda body: body["actions"][1]["transaction"].update(epoch=3))
    loaded = through_a_checkpoint(storage, log)
    assert loaded == log.load()
    info = append(commit_log(storage), loaded, 300, batch=None).transaction("app", 7)
    assert info is not None
    assert json.loads(info.unknown) == {"epoch": 3}
    state, segments, transactions, _ = checkpoint.unpack(checkpoint.encode(loaded))
    wider = transactions.append_column("mood", pa.array(["good"] * len(transactions)))
    info = checkpoint.decode(checkpoint.pack(state, segments, wider), "a file").transaction("app", 7)
    assert info is not None
    assert json.loads(info.unknown) == {"epoch": 3, "mood": "good"}


def test_a_checkpoint_of_a_library_without_the_newer_facts_is_read_with_their_defaults(storage: Storage) -> None:
    log = commit_log(storage)
    state = append(log, log.create(1, CONFIG), 3)
    body, segments, transactions, _ = checkpoint.unpack(checkpoint.encode(state))
    newer = ["min_timestamp", "append_time_ms", "offset_index_crc32c", "first_unstable_offset", "unknown"]
    older = checkpoint.pack(body, segments.drop_columns(newer), transactions.drop_columns(["unknown"]))
    assert checkpoint.decode(older, "a file") == state


# Settings


def test_an_unknown_setting_is_kept_and_not_used(storage: Storage) -> None:
    log = commit_log(storage)
    snapshot = log.create(1, CONFIG)
    forged(storage, snapshot, actions=[{"config": {"settings": {"retention.ms": "7", "tiering.mode": "cold"}}}])
    topic = topic_on(storage)
    assert topic.config.retention_ms == 7
    topic.alter_config({"segment.ms": 9})
    expected = {"retention.ms": "7", "segment.ms": "9", "tiering.mode": "cold"}
    assert topic_on(storage).config.overrides() == expected
    assert through_a_checkpoint(storage, topic.log).config.overrides() == expected
    topic.alter_config({"tiering.mode": None})
    assert topic.config.overrides() == {"retention.ms": "7", "segment.ms": "9"}


def test_an_unknown_setting_cannot_be_set_here(storage: Storage) -> None:
    log = commit_log(storage)
    forged(storage, log.create(1, CONFIG), actions=[{"config": {"settings": {"tiering.mode": "cold"}}}])
    with pytest.raises(InvalidConfigError, match=r"tiering\.mode"):
        topic_on(storage).alter_config({"tiering.mode": "hot"})


def test_a_value_of_a_newer_library_is_refused_by_name(storage: Storage) -> None:
    log = commit_log(storage)
    snapshot = log.create(1, CONFIG)
    forged(storage, snapshot, actions=[{"config": {"settings": {"cleanup.policy": "archive"}}}])
    for call in (log.load, lambda: log.refresh(snapshot), lambda: append(log, snapshot)):
        with pytest.raises(UnsupportedVersionError, match=r"upgrade.*cleanup\.policy.*archive"):
            call()


# Actions and features


def test_an_unknown_action_stops_writers_that_open_from_a_checkpoint_too(storage: Storage) -> None:
    log = commit_log(storage)
    forged(storage, log.create(1, CONFIG), actions=[{"bloom_filter": {"reader_safe": True}}])
    opened = through_a_checkpoint(storage, log)
    assert opened == log.load()
    with pytest.raises(UnsupportedVersionError, match="bloom_filter"):
        append(commit_log(storage), opened)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_feature_that_writers_must_know_stops_them_by_name_and_readers_read_on(
    storage: Storage, checkpointed: bool
) -> None:
    topic = topic_on(storage, 1, TINY)
    topic.append(values(range(5)))
    forged(storage, topic.snapshot, requires={"writer": ["row-tracking"]})
    if checkpointed:
        checkpoint.write(storage, topic.log.load())
    newest = topic_on(storage)
    assert contents(newest) == {0: [b"v%d" % n for n in range(5)]}
    before = storage.counters.puts
    for change in (
        lambda: newest.log.commit(newest.snapshot, "append", lambda _: [Add(segment(0, 5))]),
        lambda: newest.alter_config({"segment.ms": 9}),
        newest.drop,
    ):
        with pytest.raises(UnsupportedVersionError, match=r"row-tracking.*upgrade"):
            change()
    assert storage.counters.puts == before


def test_a_dropped_topic_of_a_newer_library_is_not_created_again(storage: Storage) -> None:
    log = commit_log(storage)
    _, dropped = log.commit(log.create(1, CONFIG), "drop", lambda _: [Drop()])
    forged(storage, dropped, requires={"writer": ["row-tracking"]}, actions=[{"gc_floor": {"version": 0}}])
    before = storage.counters.puts
    with pytest.raises(UnsupportedVersionError, match=r"row-tracking.*upgrade to write"):
        log.create(1, CONFIG)
    assert storage.counters.puts == before


@pytest.mark.parametrize("name", ["reader", "writer"])
def test_what_was_required_once_is_required_at_every_later_version(storage: Storage, name: str) -> None:
    log = commit_log(storage)
    forged(storage, log.create(1, CONFIG), requires={name: ["append-time"]})
    later = append(log, log.load(), 2)
    assert getattr(later.requires, name) == ("append-time",)
    assert through_a_checkpoint(storage, log).requires == later.requires
    assert "requires" not in body_of(storage, 3)


def test_a_feature_that_readers_must_know_stops_everybody_by_name(storage: Storage) -> None:
    log = commit_log(storage)
    snapshot = log.create(1, CONFIG)
    forged(storage, snapshot, requires={"reader": ["tables"]}, actions=[{"add": {"nothing": "we know"}}])
    for call in (log.load, lambda: log.refresh(snapshot), lambda: append(log, snapshot), log.history):
        with pytest.raises(UnsupportedVersionError, match=r"tables.*upgrade to read"):
            call()


def test_a_feature_of_readers_in_a_checkpoint_stops_them_by_name(storage: Storage) -> None:
    log = commit_log(storage)
    state = dataclasses.replace(log.create(1, CONFIG), requires=Requires(reader=("tables",)))
    with pytest.raises(UnsupportedVersionError, match="tables"):
        checkpoint.decode(checkpoint.encode(state), "a file")
    with pytest.raises(UnsupportedVersionError, match="tables"):
        checkpoint.write(storage, state)


@pytest.mark.parametrize(
    "requires", [[], {"reader": "tables"}, {"reader": [1]}, {"writer": ["a b"]}, {"reader": [""]}]
)
def test_what_is_no_list_of_features_is_refused(storage: Storage, requires: object) -> None:
    log = commit_log(storage)
    forged(storage, log.create(1, CONFIG), requires=requires)
    with pytest.raises(DistlogError, match=r"0001\.json"):
        log.load()


def test_the_commit_that_first_needs_a_feature_names_it() -> None:
    storage = topic_storage("memory://evolution")
    log = commit_log(storage)
    snapshot = append(log, log.create(1, CONFIG))
    assert "requires" not in body_of(storage, 1)

    def at_the_end(current: Snapshot) -> list[Any]:
        return [Add(segment(0).appended_at(NOW).at(current.partitions[0].log_end_offset))]

    for version in (2, 3):
        _, snapshot = log.commit(snapshot, "append", at_the_end)
        assert ("requires" in body_of(storage, version)) == (version == 2)
    assert body_of(storage, 2)["requires"]["reader"] == ["append-time"]
