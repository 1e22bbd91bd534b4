"""A topic of another version of the library is read, or refused by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from commits import put_commit
from crc32c import crc32c
from histories import CONFIG, append, commit_log, forged, segment
from topics import TINY, contents, topic_on, values

from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.commits.actions import Add, Drop, Requires
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import DistlogError, InvalidConfigError, UnsupportedVersionError
from distlog.core.storage.storage import Storage


def rewrite(storage: Storage, version: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a commit as another library would write it."""
    body = json.loads(storage.read(paths.commit_file(version)))
    del body["crc32c"]
    change(body)
    text = json.dumps(body, separators=(",", ":"))[:-1].encode()
    storage.put(paths.commit_file(version), text + b',"crc32c":%d}\n' % crc32c(text))


def through_a_checkpoint(storage: Storage, log: CommitLog) -> Snapshot:
    """Load the state from a checkpoint of the head."""
    name = checkpoint.write(storage, log.load())
    return checkpoint.read(storage, name)


OTHER_FORMATS = pytest.mark.parametrize(
    ("stored_format", "message"), [(1, "pre-release"), (3, "newer distlog.*upgrade")]
)


def test_unknown_fields_are_ignored(storage: Storage) -> None:
    topic = topic_on(storage, 1, TINY)
    topic.append(values(range(5)))
    old_snapshot = topic.log.load()
    rewrite(storage, 1, lambda body: body.update(colour="blue"))
    rewrite(storage, 1, lambda body: body["actions"][0]["add"].update(bloom={"bits": [1, 2]}))
    after = topic_on(storage).log.load()
    assert (after.partitions, after.commit_id) == (old_snapshot.partitions, old_snapshot.commit_id)
    assert contents(topic_on(storage)) == {0: [b"v%d" % n for n in range(5)]}


@OTHER_FORMATS
def test_a_commit_of_another_format_is_refused(storage: Storage, stored_format: int, message: str) -> None:
    log = commit_log(storage)
    append(log, log.create(1, CONFIG))
    rewrite(storage, 1, lambda body: body.update(format=stored_format))
    for call in (log.load, log.history, lambda: topic_on(storage)):
        with pytest.raises(UnsupportedVersionError, match=message) as caught:
            call()
        assert caught.value.details["file"] == paths.commit_file(1)


@OTHER_FORMATS
def test_a_checkpoint_of_another_format_is_refused(storage: Storage, stored_format: int, message: str) -> None:
    log = commit_log(storage)
    state = append(log, log.create(1, CONFIG))
    body, batches = checkpoint.unpack(checkpoint.encode(state))
    with pytest.raises(UnsupportedVersionError, match=message):
        checkpoint.decode(checkpoint.pack({**body, "format": stored_format}, batches), "a file")


def test_an_unknown_setting_is_kept_and_ignored(storage: Storage) -> None:
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


@pytest.mark.parametrize("body", [{}, {"reader_safe": True}])
def test_an_unknown_action_stops_readers_and_writers_by_name(storage: Storage, body: dict[str, object]) -> None:
    log = commit_log(storage)
    snapshot = log.create(1, CONFIG)
    forged(storage, snapshot, actions=[{"bloom_filter": body}])
    for call in (log.load, lambda: log.refresh(snapshot), lambda: append(log, snapshot)):
        with pytest.raises(UnsupportedVersionError, match="bloom_filter"):
            call()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_an_unknown_writer_feature_stops_only_writers(storage: Storage, checkpointed: bool) -> None:
    topic = topic_on(storage, 1, TINY)
    topic.append(values(range(5)))
    forged(storage, topic.snapshot, requires={"writer": ["row-tracking"]})
    if checkpointed:
        checkpoint.write(storage, topic.log.load())
    newest = topic_on(storage)
    assert contents(newest) == {0: [b"v%d" % n for n in range(5)]}
    old_puts = storage.counters.puts
    for change in (
        lambda: put_commit(newest.log, newest.snapshot, "append", lambda _: [Add(segment(0, 5))]),
        lambda: newest.alter_config({"segment.ms": 9}),
        newest.drop,
    ):
        with pytest.raises(UnsupportedVersionError, match=r"upgrade .*row-tracking"):
            change()
    assert storage.counters.puts == old_puts


def test_a_dropped_topic_of_a_newer_library_is_not_created_again(storage: Storage) -> None:
    log = commit_log(storage)
    _, dropped = put_commit(log, log.create(1, CONFIG), "drop", lambda _: [Drop()])
    forged(storage, dropped, requires={"writer": ["row-tracking"]}, actions=[{"gc_floor": {"version": 0}}])
    old_puts = storage.counters.puts
    with pytest.raises(UnsupportedVersionError, match=r"write to the topic, .*upgrade .*row-tracking"):
        log.create(1, CONFIG)
    assert storage.counters.puts == old_puts


def test_a_writer_feature_stays_in_the_state(storage: Storage) -> None:
    log = commit_log(storage)
    forged(storage, log.create(1, CONFIG), requires={"writer": ["row-tracking"]})
    forged(storage, log.load(), requires={"writer": ["bloom-filters"]})
    assert log.load().requires == Requires(writer=("bloom-filters", "row-tracking"))
    assert through_a_checkpoint(storage, log).requires == log.load().requires


def test_an_unknown_reader_feature_stops_readers_and_writers(storage: Storage) -> None:
    log = commit_log(storage)
    snapshot = log.create(1, CONFIG)
    forged(storage, snapshot, requires={"reader": ["tables"]}, actions=[{"add": {"nothing": "we know"}}])
    for call in (log.load, lambda: log.refresh(snapshot), lambda: append(log, snapshot), log.history):
        with pytest.raises(UnsupportedVersionError, match=r"read the topic, .*upgrade .*tables"):
            call()


def test_an_unknown_reader_feature_in_a_checkpoint_stops_readers(storage: Storage) -> None:
    log = commit_log(storage)
    state = dataclasses.replace(log.create(1, CONFIG), requires=Requires(reader=("tables",)))
    with pytest.raises(UnsupportedVersionError, match="tables"):
        checkpoint.decode(checkpoint.encode(state), "a file")
    with pytest.raises(UnsupportedVersionError, match="tables"):
        checkpoint.write(storage, state)


@pytest.mark.parametrize(
    "requires", [[], {"reader": "tables"}, {"reader": [1]}, {"writer": ["a b"]}, {"reader": [""]}]
)
def test_an_invalid_list_of_features_is_refused(storage: Storage, requires: object) -> None:
    log = commit_log(storage)
    forged(storage, log.create(1, CONFIG), requires=requires)
    with pytest.raises(DistlogError, match=r"0001\.json"):
        log.load()
