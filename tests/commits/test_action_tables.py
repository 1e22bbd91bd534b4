"""Many segments that a commit adds or removes are one compressed table, folded in columns: the same state."""

from __future__ import annotations

import base64
import dataclasses
import json
import pickle
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from histories import History, segment
from hypothesis import given
from hypothesis import strategies as st
from searches import examples

from distlog.core import paths
from distlog.core.arrays import MAX_LONG
from distlog.core.commits import actions, checkpoint, partition_table
from distlog.core.commits.actions import (
    ADD_TABLE,
    MAX_TABLE_ROWS,
    REMOVE_TABLE,
    Action,
    Add,
    AddTable,
    Cleaned,
    Commit,
    Remove,
    RemoveTable,
    SetLogStartOffset,
    SetPartitions,
    SetVacuumHorizon,
    each_action,
    read_actions,
    read_table,
    with_tables,
    write_actions,
    write_table,
)
from distlog.core.commits.fields import write
from distlog.core.commits.segment_table import SegmentInfo, to_rows
from distlog.core.commits.snapshot import Snapshot, apply
from distlog.core.errors import CorruptMetadataError

STEMS = [paths.new_stem(number, f"{number:032x}") for number in range(40)]
COUNT = 5


def part(partition: int, base_offset: int = 0, stem: str = STEMS[0], count: int = 10, **changes: Any) -> SegmentInfo:
    fields = {"log_position": 1000 * partition, "time_index_position": 10**6 + 12 * partition, **changes}
    return segment(partition, base_offset, count, stem=stem, **fields)


def table(*segments: SegmentInfo) -> AddTable:
    return AddTable(to_rows(segments))


def removal(*pairs: tuple[int, str]) -> RemoveTable:
    columns = {"partition": pa.array([n for n, _ in pairs], pa.int64()), "stem": pa.array([s for _, s in pairs])}
    return RemoveTable(pa.RecordBatch.from_pydict(columns))


def read_again(action: AddTable | RemoveTable) -> Action:
    ((kind, body),) = json.loads(json.dumps(write_table(action))).items()
    return read_table(kind, body)


longs = st.one_of(st.integers(0, 5), st.integers(0, MAX_LONG - 100))
legal_parts = st.builds(
    part,
    st.integers(0, 9),
    longs,
    st.sampled_from(STEMS),
    created_ms=longs,
    first_timestamp=st.integers(-1, MAX_LONG),
    max_timestamp=st.integers(-1, MAX_LONG),
    record_count=st.integers(0, 10),
    crc32c=st.integers(0, 2**32 - 1),
    time_index_crc32c=st.integers(-1, 2**32 - 1),
    first_batch_crc=st.integers(-1, 2**32 - 1),
    last_batch_crc=st.integers(-1, 2**32 - 1),
    compression=st.sampled_from(["none", "lz4"]),
    compacted=st.booleans(),
    log_bytes=longs,
    time_index_bytes=st.sampled_from([0, 12, 24]),
    log_position=longs,
)


@pytest.mark.long
@given(st.lists(legal_parts, min_size=1, max_size=12))
def test_segments_round_trip_in_order(segments: list[SegmentInfo]) -> None:
    assert read_again(table(*segments)) == table(*segments)
    assert list(each_action([table(*segments)])) == [Add(info) for info in segments]
    pairs = [(info.partition, info.stem) for info in segments]
    assert read_again(removal(*pairs)) == removal(*pairs)
    assert list(each_action([removal(*pairs)])) == [Remove(*pair) for pair in pairs]


def test_only_long_runs_become_tables() -> None:
    adds: list[Action] = [Add(part(n)) for n in range(actions.TABLE_ROWS)]
    removes: list[Action] = [Remove(n, STEMS[0]) for n in range(actions.TABLE_ROWS)]
    kinds = [type(action) for action in with_tables([*removes, SetLogStartOffset(0, 1), *adds, *removes[1:]])]
    assert kinds == [RemoveTable, SetLogStartOffset, AddTable, *([Remove] * (len(removes) - 1))]
    assert with_tables(adds[1:]) == adds[1:]


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "most_rows"), [*((count, MAX_TABLE_ROWS) for count in (300, 27_000, 29_000)), (10_001, 5000)]
)
def test_a_part_takes_few_bytes_at_any_number_of_parts(
    count: int, most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MAX_TABLE_ROWS", most_rows)
    segments = [
        part(n % 200, 1000 * (n // 200), STEMS[n // 200 % 40], crc32c=hash((n, 1)) % 2**32, first_batch_crc=n)
        for n in range(count)
    ]
    tables = with_tables([Add(info) for info in segments])
    items = json.loads(json.dumps(write_actions(tables), default=write))
    assert len(json.dumps(items)) < 3000 + 13 * count
    assert list(each_action(read_actions(items))) == [Add(info) for info in segments]


@pytest.mark.parametrize("position", range(0, 400, 7))
def test_a_damaged_table_raises_corrupt_metadata(position: int) -> None:
    history = History()
    history.create(COUNT)
    commit = history.commit(table(*(part(n) for n in range(COUNT))))
    (item,) = json.loads(commit.encode())["actions"]
    data = bytearray(base64.b64decode(item[ADD_TABLE]["data"]))
    data[position % len(data)] ^= 1 << position % 8
    item[ADD_TABLE]["data"] = base64.b64encode(data).decode()
    body = {**json.loads(commit.encode()), "actions": [item]}
    del body["crc32c"]
    try:
        decoded = Commit.decode(actions.fields.with_checksum(body), "file")
    except CorruptMetadataError:
        return
    assert len(list(each_action(decoded.actions))) == COUNT


def body_of(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = write_table(table(*(part(n) for n in range(COUNT))))[ADD_TABLE]
    return {**body, **changes}


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        body_of(rows=0),
        body_of(rows=COUNT + 1),
        body_of(rows=MAX_TABLE_ROWS + 1),
        body_of(rows="5"),
        body_of(size=10**12),
        body_of(size=body_of()["size"] - 1),
        body_of(size=body_of()["size"] + 1),
        body_of(data="?"),
        body_of(data=""),
        body_of(data=body_of()["data"][:40]),
    ],
)
def test_an_invalid_table_is_refused(body: object) -> None:
    for kind in (ADD_TABLE, REMOVE_TABLE):
        with pytest.raises(ValueError, match=r"\S"):
            read_table(kind, body)


def test_a_small_table_has_no_more_rows_than_characters() -> None:
    # rows that are all alike compress to next to nothing, so what is stored is padded
    rows = pa.RecordBatch.from_pydict({"partition": pa.array(range(9000), pa.int64()), "stem": [STEMS[0]] * 9000})
    body = write_table(RemoveTable(rows))[REMOVE_TABLE]
    assert len(body["data"]) < 1000
    assert len(body["data"]) + len(body["pad"]) == 9000
    assert read_table(REMOVE_TABLE, body) == RemoveTable(rows)
    for pad in (None, 5, "", body["pad"][1:]):
        with pytest.raises(ValueError, match="padding"):
            read_table(REMOVE_TABLE, {**body, "pad": pad})


def outcome(snapshot: Snapshot, commit: Commit) -> Snapshot | None:
    try:
        return apply(snapshot, commit)
    except CorruptMetadataError:
        return None


class Twins:
    """Two states of the same commits: one folds tables, the other one action after another."""

    def __init__(self) -> None:
        history = History()
        history.create(COUNT)
        self.columns = self.singly = history.snapshot()

    def commit(self, *actions: Action) -> bool:
        """Commit to both, and return whether both accept it."""
        head = self.columns
        commit = Commit(
            version=head.version + 1,
            id=f"{head.version:08x}-0000-0000-0000-000000000000",
            prev=head.commit_id,
            topic_id=head.topic_id,
            timestamp_ms=head.timestamp_ms + 1,
            operation="append",
            writer="a test",
            actions=actions,
        )
        after = outcome(self.columns, commit)
        expected = outcome(self.singly, dataclasses.replace(commit, actions=tuple(each_action(actions))))
        assert (after is None) == (expected is None)
        if after is None or expected is None:
            return False
        self.columns, self.singly = after, expected
        self.check()
        return True

    def check(self) -> None:
        """Check that both are equal."""
        now, expected = self.columns, self.singly
        assert now.partitions.segments() == expected.partitions.segments()
        assert now.partitions.log_end_offsets.tolist() == [state.log_end_offset for state in expected.partitions]
        assert [now.partitions[number] for number in range(COUNT)] == list(expected.partitions)
        assert list(now.partitions) == list(expected.partitions)

    def check_stored(self) -> None:
        """Check that their stored bytes are equal."""
        now, expected = self.columns, self.singly
        assert checkpoint.decode(checkpoint.encode(now), "file") == checkpoint.decode(
            checkpoint.encode(expected), "file"
        )
        assert pickle.loads(pickle.dumps(now)) == expected


def some_actions(random: Random, head: Snapshot, version: int) -> list[Action]:
    """Return actions of a commit that may be invalid."""
    stem, ends = STEMS[version], [state.log_end_offset for state in head.partitions]
    live = [segment for state in head.partitions for segment in state.segments]
    match random.randrange(9):
        case 5:
            # as retention does, sometimes invalid
            removed_stems = [(info.partition, info.stem) for info in live if info.base_offset < 20]
            raised = [
                SetLogStartOffset(number, min(20, ends[number]) + random.choice([0, 0, 5, 100]))
                for number in random.sample(range(COUNT), 3)
            ]
            removed = [removal(*removed_stems)] if removed_stems else []
            return [*raised, *removed] if random.random() < 0.2 else [*removed, *raised]
        case 0:
            # replaces adjacent segments of some partitions, sometimes invalid
            segments = [
                state.segments[:2] for state in head.partitions if len(state.segments) > 1 and random.random() < 0.7
            ]
            removed_stems = [(info.partition, info.stem) for pair in segments for info in pair]
            merged = [
                part(first.partition, first.base_offset, stem, next_offset=second.next_offset, record_count=1)
                for first, second in segments
            ]
            if random.random() < 0.2 and merged:
                merged[0] = merged[0].moved_to(merged[0].base_offset + 5)
            return [removal(*removed_stems), table(*merged)] if removed_stems else []
        case 1:
            return [Cleaned(random.randrange(COUNT), 0), table(part(0, ends[0], stem))]
        case 2:
            number = random.randrange(COUNT)
            return [Add(part(number, ends[number], stem))]
        case 3:
            removed_stems = random.sample([(info.partition, info.stem) for info in live], min(len(live), 2))
            return [removal(*removed_stems, *removed_stems[: random.randrange(2)])] if removed_stems else []
        case 4:
            return [
                SetPartitions(COUNT),
                table(part(0, ends[0] + random.randrange(2), random.choice(STEMS[: version + 1]))),
            ]
    added = list[SegmentInfo]()
    for number in sorted(random.sample(range(COUNT), random.randrange(1, COUNT + 1))):
        added.append(part(number, ends[number], stem))
        if random.random() < 0.2:
            added.append(part(number, added[-1].next_offset, STEMS[-1 - version % 9]))
    if random.random() < 0.2:
        random.shuffle(added)
    return [table(*added)]


@pytest.mark.long
@examples(12)
@given(st.integers(0, 2**32), st.sampled_from([0, 2, 100]), st.sampled_from([2, 8]))
def test_tables_fold_like_single_actions(seed: int, most_own: int, similar: int) -> None:
    random, twins = Random(seed), Twins()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_table, "_MAX_OWN_STATES", most_own)
        patch.setattr(partition_table, "_MERGED_LAYERS", similar)
        for version in range(1, 20):
            candidates = some_actions(random, twins.singly, version)
            if candidates:
                twins.commit(*candidates)
            if version % 6 == 1:
                twins.check_stored()


def test_invalid_commits_are_refused_in_columns() -> None:
    twins = Twins()
    assert twins.commit(table(*(part(n, stem=STEMS[5]) for n in range(COUNT))))
    assert twins.commit(table(*(part(n, 10, STEMS[6], append_time_ms=-1) for n in range(COUNT))))
    refused: list[list[Action]] = [
        [table(part(0, 21))],
        [table(part(0, 20), part(0, 20, STEMS[1]))],
        [table(part(0, 20), part(0, 30))],
        [table(part(0, 20, STEMS[5]))],
        [table(part(COUNT, 0))],
        [removal((0, STEMS[7]))],
        [removal((0, STEMS[5]), (0, STEMS[5]))],
        [table(part(0, 5, STEMS[7]))],
        [removal((0, STEMS[5])), table(part(0, 5, STEMS[7]))],
        [removal((0, STEMS[5])), table(part(0, 0, STEMS[6]))],
        [removal((0, STEMS[5])), table(part(1, 0, STEMS[7]))],
        [removal((0, STEMS[5])), table(part(0, 0, STEMS[7], 10), part(0, 9, STEMS[8], 1))],
    ]
    for refused_actions in refused:
        assert not twins.commit(*refused_actions), refused_actions
    twins.check_stored()
    timed = {"append_time_ms": 9, "first_timestamp": 9, "min_timestamp": 9, "max_timestamp": 9}
    assert twins.commit(table(*(part(n, 20, STEMS[7], **timed) for n in range(2))))
    earlier = dict.fromkeys(timed, 8)
    assert not twins.commit(table(part(1, 30, STEMS[8], **earlier), part(2, 20, STEMS[8])))
    assert twins.commit(SetVacuumHorizon(3))
    assert not twins.commit(table(part(3, 20, STEMS[2])))
    assert twins.commit(removal((2, STEMS[5]), (2, STEMS[6])), table(part(2, 0, STEMS[9], 20)))


def test_later_commits_leave_a_state_unchanged() -> None:
    twins = Twins()
    states = [(twins.columns, list[Any](twins.columns.partitions))]
    for version in range(30):
        twins.commit(table(*(part(n, 10 * version, STEMS[version]) for n in range(COUNT))))
        states.append((twins.columns, list[Any](twins.singly.partitions)))
    for state, expected in states:
        assert list(state.partitions) == expected
