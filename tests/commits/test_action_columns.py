"""Parts of bundles, and what a merge removes, are stored in columns: the same actions in a tenth of the bytes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from bundled import rows, segments
from crc32c import crc32c
from histories import History, segment
from hypothesis import given
from hypothesis import strategies as st
from topics import contents, topic_on

from distlog.core import paths
from distlog.core.commits import actions as known_features
from distlog.core.commits import checkpoint, commit_json, fields
from distlog.core.commits.actions import COLUMNS, Action, Add, Manifest, Remove, SetLogStartOffset
from distlog.core.commits.commit_json import Commit, read_actions, write_items
from distlog.core.commits.fields import write
from distlog.core.commits.prepared_commit import features
from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptMetadataError, UnsupportedVersionError
from distlog.core.storage.storage import Storage

STEMS = [paths.new_stem(number, f"{number:032x}") for number in range(3)]


def part(partition: int, base_offset: int = 0, stem: str = STEMS[0], **changes: Any) -> Add:
    """A part of a bundle."""
    facts = {"log_position": 1000 * partition, "time_index_position": 10**6 + 12 * partition, **changes}
    return Add(segment(partition, base_offset, stem=stem, **facts))


def written(actions: list[Action]) -> list[Any]:
    """The actions as JSON."""
    items: list[Any] = json.loads(json.dumps(list(write_items(actions)), default=write))
    return items


longs = st.one_of(st.integers(0, 5), st.integers(0, MAX_LONG - 1))
parts = st.builds(
    part,
    st.integers(0, 9),
    st.sampled_from([0, 7, 10**12]),
    st.sampled_from(STEMS),
    created_ms=longs,
    first_timestamp=st.integers(-1, MAX_LONG),
    max_timestamp=st.integers(-1, MAX_LONG),
    min_timestamp=st.integers(-1, MAX_LONG),
    record_count=st.integers(0, 10),
    crc32c=st.integers(0, 2**32 - 1),
    first_batch_crc=st.integers(-1, 2**32 - 1),
    last_batch_crc=st.integers(-1, 2**32 - 1),
    compression=st.sampled_from(["none", "lz4"]),
    compacted=st.booleans(),
    append_time_ms=st.sampled_from([-1, 5]),
    log_position=longs,
    offset_index_position=st.integers(-1, MAX_LONG),
)
others = st.one_of(
    st.builds(Remove, st.integers(0, 9), st.sampled_from(STEMS)),
    st.builds(SetLogStartOffset, st.integers(0, 9), longs),
    st.builds(lambda one: Add(dataclasses.replace(one.segment, unknown='{"new": 1}')), parts),
    st.builds(Add, st.builds(segment, st.integers(0, 3))),
)


@given(st.lists(st.one_of(parts, parts, others), max_size=12))
def test_any_actions_come_back_as_they_were_and_in_their_order(actions: list[Action]) -> None:
    assert list(read_actions(written(actions))) == actions


def test_parts_of_one_partition_and_columns_of_defaults_come_back() -> None:
    actions: list[Action] = [part(3, number, first_batch_crc=-1, last_batch_crc=5) for number in range(3)]
    (item,) = written(actions)
    assert "first_batch_crc" not in item["adds"]
    assert list(read_actions([item])) == actions
    for partitions in ([0, 0], [2, 4], [0, 0, 0, 0]):
        same: list[Action] = [Remove(number, STEMS[0]) for number in partitions]
        same = [*same, SetLogStartOffset(0, 1), *(part(number) for number in partitions)]
        assert list(read_actions(written(same))) == same


def test_a_commit_in_columns_names_the_feature_and_one_without_bundles_does_not() -> None:
    assert COLUMNS in features([part(0), part(1)]).reader
    assert COLUMNS in features([Remove(number, STEMS[0]) for number in range(4)]).reader
    assert COLUMNS in features([part(0), part(1), SetLogStartOffset(0, 1)]).reader
    assert COLUMNS not in features([part(0)]).reader
    assert COLUMNS not in features([Add(segment(0)), Add(segment(1))]).reader
    assert COLUMNS not in features([Remove(0, STEMS[0]), Remove(0, STEMS[1])]).reader


def test_commits_of_one_action_each_are_read_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a library without columns wrote."""
    actions: list[Action] = [part(number) for number in range(5)]
    monkeypatch.setattr(commit_json, "MOST_ACTIONS", 0)
    alone = written(actions)
    assert [list(item) for item in alone] == [["add"]] * 5
    monkeypatch.undo()
    assert [list(item) for item in written(actions)] == [["adds"]]
    assert list(read_actions(alone)) == actions


def test_a_commit_takes_few_bytes_for_a_part_and_for_what_a_merge_removes(tmp_path: Path) -> None:
    topic = topic_on(Storage(str(tmp_path / "t")), 100)
    for first in range(6):
        topic.append(rows(100, 2, 2 * first))
    assert len(topic.storage.read(paths.commit_file(6))) / 100 < 85
    topic.compact()
    data = topic.storage.read(paths.commit_file(7))
    assert len(segments(topic)) == 100
    # 600 parts are removed, and 100 added
    assert len(data) / 700 < 20
    assert {len(found) for found in contents(topic_on(topic.storage)).values()} == {12}


@pytest.mark.long
def test_the_largest_commit_in_columns_is_read_back() -> None:
    """Every column has values of its own; one part more, and they are written one by one."""
    adds = [part(0, number, created_ms=number % 7) for number in range(commit_json.MOST_ACTIONS)]
    items = written(list(adds))
    assert [list(item) for item in items] == [["adds"]]
    item = json.dumps(items)
    values = len(commit_json._CHECKS) * len(adds)
    assert values < fields.FREE_VALUES
    fields.check(item.encode())
    assert len(written([*adds, part(0)])) == len(adds) + 1


BODY = written([part(0), part(1)])[0]["adds"]


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": 0},
        {"partition": [0]},
        {"partition": [0, 1, 1]},
        {"partition": [0, "1"]},
        {"partition": [0, True]},
        {"partition": [0, -1]},
        {"partition": None},
        {"base_offset": [0, 1.5]},
        {"base_offset": [0, MAX_LONG + 1]},
        {"next_offset": ["x", "y"]},
        {"next_offset": {}},
        {"stem": 7},
        {"stem": -1},
        {"stem": [0, True]},
        {"stems": []},
        {"stems": "v"},
        {"stems": None},
        {"stems": ["../../x"]},
        {"crc32c": [1]},
        {"first_batch_crc": ["x", "y"], "last_batch_crc": [1, 2]},
        {"first_batch_crc": True, "last_batch_crc": [1, 2]},
        {"first_batch_crc": None, "last_batch_crc": [1, 2]},
        {"record_count": [True, 1]},
        {"base_offset": [-1, 0]},
        {"created_ms": [MAX_LONG, 1]},
        {"log_position": [0, -(10**30)]},
        {"partition": []},
        {"partition": [2**31, 0]},
        {"log_bytes": None},
        {"compression": [1, 2]},
    ],
)
def test_columns_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    history = History()
    commits = [history.create(), history.commit(part(0), part(1))]
    body = json.loads(commits[1].encode())
    body["actions"] = [{"adds": {**BODY, **changes}}]
    del body["crc32c"]
    with pytest.raises(CorruptMetadataError):
        Commit.decode(fields.write_text(body, write), "a file")


@pytest.mark.parametrize("stems", [STEMS[:1], STEMS])
@pytest.mark.parametrize("kind", ["adds", "removes"])
def test_columns_that_do_not_say_whose_stems_they_are_of_are_refused(kind: str, stems: list[str]) -> None:
    """No writer leaves the column away, so it is damage: the first stem must not stand for all."""
    body = {**BODY, "stems": stems} if kind == "adds" else {"stems": stems, "partition": [0, 1]}
    with pytest.raises(ValueError, match="stem: there must be a column"):
        read_actions([{kind: {name: column for name, column in body.items() if name != "stem"}}])


def test_fields_of_a_newer_library_are_kept_for_each_part() -> None:
    found = read_actions([{"adds": {**BODY, "shiny": [1, 2], "dull": {"a": 1}}}])
    kept = [json.loads(action.segment.unknown) for action in found if isinstance(action, Add)]
    assert kept == [{"shiny": 1, "dull": {"a": 1}}, {"shiny": 2, "dull": {"a": 1}}]


@pytest.mark.parametrize("unknown", [0, 200])
def test_columns_of_more_actions_or_values_than_a_commit_has_are_refused_before_they_are_made(unknown: int) -> None:
    """A value for all makes a text of a few bytes as many values as it says."""
    count = commit_json.MOST_ACTIONS + 1 if not unknown else commit_json.MOST_ACTIONS
    body = {**BODY, "partition": [0] * count, **{f"new{number}": 0 for number in range(unknown)}}
    with pytest.raises(ValueError, match="more than a commit has"):
        read_actions([{"adds": body}])


def test_a_commit_has_no_more_actions_in_columns_than_are_written() -> None:
    half = {"removes": {"stems": STEMS[:1], "stem": 0, "partition": [0] * (commit_json.MOST_ACTIONS // 2)}}
    assert len(read_actions([half, half])) == commit_json.MOST_ACTIONS
    for items in ([half, half, half], [half, half, {"remove": {"partition": 0, "stem": STEMS[0]}}]):
        with pytest.raises(ValueError, match="more than a commit has"):
            read_actions(items)
    lines = b"".join(json.dumps(half).encode() + b"\n" for _ in range(3))
    named = Manifest(paths.manifest_file(0, "0" * 32), len(lines), crc32c(lines))
    commit = dataclasses.replace(History().create(), actions=(named,))
    with pytest.raises(CorruptMetadataError, match="more than a commit has"):
        commit_json.expanded(commit, lambda _: lines)


def test_a_library_without_columns_refuses_by_name_from_the_first_such_commit_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that has the first ones says so, and each checkpoint; with a manifest it is the commit, too."""
    topic = topic_on(Storage(str(tmp_path / "t")), 50)
    for first in range(2):
        topic.append(rows(50, 1, first))
    first, second = (Commit.decode(topic.storage.read(paths.commit_file(number)), "") for number in (1, 2))
    assert (COLUMNS in first.requires.reader, COLUMNS in second.requires.reader) == (True, False)
    state = checkpoint.encode(topic.snapshot)
    writer = commit_json.CommitWriter(topic.storage, limit=2000)
    large = writer.encode(first, 0, 0)
    assert b'"manifest"' in large
    assert writer.decode(large, "").actions == first.actions
    monkeypatch.setattr(known_features, "KNOWN", known_features.KNOWN - {COLUMNS})
    for read in (
        lambda: Commit.decode(topic.storage.read(paths.commit_file(1)), ""),
        lambda: Commit.decode(large, ""),
        lambda: checkpoint.decode(state, ""),
        lambda: topic.log.load(),
    ):
        with pytest.raises(UnsupportedVersionError, match="with columns: upgrade"):
            read()
