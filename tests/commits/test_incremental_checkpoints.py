"""Incremental checkpoints: together with their full checkpoint they hold the state; without it they are ignored."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
import uuid
from contextlib import suppress
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from commits import put_commit
from histories import (
    CONFIG,
    Clock,
    append,
    checkpoint_files,
    checkpoints,
    commit_log,
    segment,
    topic_storage,
)
from hypothesis import given
from hypothesis import strategies as st
from searches import examples

from distlog.core import paths
from distlog.core.arrays import integers, texts
from distlog.core.commits import checkpoint, snapshot_loader
from distlog.core.commits.actions import (
    Action,
    Add,
    ProducerBatches,
    Remove,
    SetLogHorizon,
    SetPartitions,
    SetTransaction,
    SetVacuumHorizon,
)
from distlog.core.commits.checkpoint import RowChanges
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.deduplication import ProducerBatch
from distlog.core.commits.snapshot import Snapshot
from distlog.core.commits.snapshot_loader import read_hint
from distlog.core.config import DAY_MS
from distlog.core.errors import CorruptMetadataError
from distlog.core.maintain.vacuum import CommitsFolder, ensure_checkpoint, obsolete_checkpoints
from distlog.core.storage.storage import FileInfo, Storage

EVERY = 5


@pytest.fixture
def log(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> CommitLog:
    """A log with incremental checkpoints from 40 rows on."""
    monkeypatch.setattr(checkpoint, "LARGE_ROWS", 40)
    return commit_log(storage, checkpoint_commits=EVERY)


def large_topic(log: CommitLog) -> Snapshot:
    """Return a topic with enough rows that a full checkpoint is much larger than the changes of five commits."""

    def add_many(snapshot: Snapshot) -> list[Action]:
        return [SetPartitions(3), *(Add(segment(base % 2, base // 2, 1)) for base in range(400))]

    _, snapshot = put_commit(log, log.create(2, CONFIG), "append", add_many)
    return grown(log, snapshot, EVERY - 1)


def grown(log: CommitLog, snapshot: Snapshot, times: int = EVERY) -> Snapshot:
    """Append, and return the snapshot after its checkpoints were written."""
    for _ in range(times):
        snapshot = append(log, snapshot)
        log.checkpoints.wait()
    return snapshot


def incremental(storage: Storage) -> list[str]:
    return [name for name in checkpoint_files(storage) if paths.base_of_checkpoint(name)]


def test_a_large_topic_has_incremental_checkpoints_of_the_last_full_one(storage: Storage, log: CommitLog) -> None:
    snapshot = grown(log, large_topic(log), 2 * EVERY)
    full, *increments = checkpoint_files(storage)
    assert [paths.base_of_checkpoint(name) for name in (full, *increments)] == [None, full, full], "not a chain"
    assert checkpoints(storage) == [5, 10, 15]
    sizes = [storage.size(name) for name in (full, *increments)]
    assert 8 * max(sizes[1:]) < sizes[0]
    assert checkpoint.read(storage, increments[-1]) == snapshot
    assert read_hint(storage) == increments[-1]


@pytest.mark.long
def test_a_full_one_follows_when_the_incremental_ones_are_as_large(storage: Storage, log: CommitLog) -> None:
    grown(log, large_topic(log), 40 * EVERY)
    full = [name for name in checkpoint_files(storage) if not paths.base_of_checkpoint(name)]
    assert len(full) > 1
    for base in full[:-1]:
        of_it = [storage.size(name) for name in incremental(storage) if paths.base_of_checkpoint(name) == base]
        assert len(of_it) > 3
        assert 0.4 * storage.size(base) < sum(of_it) < 1.6 * storage.size(base)


def test_another_process_continues_from_the_same_full_one(storage: Storage, log: CommitLog) -> None:
    snapshot = grown(log, large_topic(log))
    other = commit_log(storage, checkpoint_commits=EVERY)
    grown(other, other.load())
    assert len(incremental(storage)) == 2
    assert commit_log(storage).load() == other.load() != snapshot


@pytest.mark.parametrize("damage", ["flipped", "deleted"])
def test_no_incremental_one_is_written_on_a_useless_full_one(storage: Storage, log: CommitLog, damage: str) -> None:
    snapshot = grown(log, large_topic(log))
    (full, _) = checkpoint_files(storage)
    storage.delete([full])
    if damage == "flipped":
        storage.put(full, b"no checkpoint")
    snapshot = grown(log, snapshot)
    assert paths.base_of_checkpoint(checkpoint_files(storage)[-1]) is None
    assert checkpoint.read(storage, checkpoint_files(storage)[-1]) == snapshot


def test_a_process_that_was_forked_writes_its_checkpoints_at_once(
    storage: Storage, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may end by `os._exit`, which waits for no thread; likewise a process of few commits."""
    snapshot = grown(log, large_topic(log), 1)
    monkeypatch.setattr(snapshot_loader, "begin", lambda _: pytest.fail("this is in the background"))
    monkeypatch.setattr(os, "getpid", lambda: 0)
    append(log, snapshot, EVERY - 1)
    assert checkpoints(storage)[-1] == 2 * EVERY
    other = commit_log(storage, checkpoint_commits=EVERY)
    for _ in range(EVERY):
        append(commit_log(storage, checkpoint_commits=EVERY), other.load())
    assert checkpoints(storage)[-1] == 3 * EVERY


def test_a_checkpoint_does_not_recreate_a_deleted_folder(
    storage: Storage, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr(snapshot_loader, "begin", started.append)
    append(log, large_topic_without_wait(log), EVERY)
    storage.delete([file.name for file in storage.list(paths.COMMITS_DIR)])
    started[-1]()
    assert not storage.list(paths.COMMITS_DIR)


def test_a_full_one_follows_the_removal_of_most_rows(storage: Storage, log: CommitLog) -> None:
    snapshot = large_topic(log)
    stems = [(number, info.stem) for number, state in enumerate(snapshot.partitions) for info in state.segments]
    _, snapshot = put_commit(log, snapshot, "retention", lambda _: [Remove(*stem) for stem in stems[:-60]])
    grown(log, snapshot)
    assert not incremental(storage)


@pytest.mark.parametrize("damage", ["flipped", "deleted", "base flipped", "base deleted", "base of another"])
def test_a_damaged_one_or_one_without_its_base_is_ignored(storage: Storage, log: CommitLog, damage: str) -> None:
    snapshot = grown(log, large_topic(log), 2 * EVERY + 2)
    full, first, second = checkpoint_files(storage)
    name = full if damage.startswith("base") else second
    data = bytearray(storage.read(name))
    data[len(data) // 2] ^= 1
    if damage == "base of another":
        storage.put(name, storage.read(first))
    elif damage.endswith("flipped"):
        storage.put(name, bytes(data))
    else:
        storage.delete([name])
    with pytest.raises((CorruptMetadataError, FileNotFoundError)):
        checkpoint.read(storage, second)
    assert commit_log(storage).load() == snapshot
    for version in range(snapshot.version):
        assert commit_log(storage).load(version).version == version


@pytest.mark.long
def test_a_flipped_byte_never_changes_the_state(storage: Storage, log: CommitLog) -> None:
    snapshot = grown(log, large_topic(log))
    full, name = checkpoint_files(storage)
    base, data = storage.read(full), storage.read(name)
    plain, random = pa.input_stream(io.BytesIO(data), compression="zstd").read(), Random(3)
    assert checkpoint.decode(base, "a file", data) == snapshot
    for _ in range(300):
        flipped = bytearray(plain)
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
        with suppress(CorruptMetadataError):
            checkpoint.decode(base, "a file", pa.Codec("zstd").compress(bytes(flipped), asbytes=True))


def test_a_full_one_of_another_topic_is_not_a_base(storage: Storage, log: CommitLog) -> None:
    snapshot = large_topic(log)
    base, *_ = checkpoint_files(storage)
    another = dataclasses.replace(snapshot, version=6, topic_id=str(uuid.uuid4()))
    assert checkpoint.write_incremental(storage, another, base, EVERY) is None


def test_a_full_one_before_the_horizon_is_not_a_base(storage: Storage, log: CommitLog) -> None:
    snapshot = large_topic(log)
    _, snapshot = put_commit(log, snapshot, "gc", lambda head: [SetVacuumHorizon(6), SetLogHorizon(6)])
    for number in range(EVERY):
        _, snapshot = put_commit(log, snapshot, "append", lambda _, number=number: [SetTransaction("a", number, {})])
    log.checkpoints.wait()
    assert (checkpoints(storage), incremental(storage)) == ([5, 10], [])


def test_vacuum_keeps_the_full_one_of_each_kept_incremental_one() -> None:
    def file(version: int, base: int | None = None) -> FileInfo:
        full = None if base is None else paths.checkpoint_file(base, f"{base:032x}")
        return FileInfo(paths.checkpoint_file(version, f"{version:032x}", full), 1, 1)

    def remaining(*, gc_floor: int, log_floor: int, highest: int = 0) -> list[int | None]:
        obsolete = obsolete_checkpoints(files, gc_floor, log_floor, highest)
        return [paths.parse_checkpoint_file(checkpoint.name) for checkpoint in files if checkpoint not in obsolete]

    files = [file(100), file(200), file(300, 200), file(400, 200), file(500), file(600, 500), file(700, 500)]
    assert remaining(gc_floor=650, log_floor=0) == [200, 500, 600, 700], "and two full ones"
    files = [file(100), *(file(version, 100) for version in range(200, 900, 100))]
    assert remaining(gc_floor=750, log_floor=0) == [100, 600, 700, 800]
    files = [file(100), file(1000, 100), file(2500), file(2600), file(2700)]
    assert remaining(gc_floor=2650, log_floor=0) == [100, 1000, 2500, 2600, 2700], "for time travel"
    files = [file(100), file(200, 100), file(300), file(400, 100), file(500, 300)]
    assert remaining(gc_floor=350, log_floor=300) == [300, 500], "what needs one below the floor goes with it"
    files = [file(100), file(150), file(160), file(170, 100), *map(file, range(200, 600, 100))]
    assert remaining(gc_floor=500, log_floor=100) == [100, 400, 500]
    text = "a concurrent run may raise the floor to 100, 150 or 160"
    assert remaining(gc_floor=500, log_floor=100, highest=160) == [100, 150, 160, 400, 500], text


def test_the_log_horizon_is_at_a_full_checkpoint(storage: Storage, log: CommitLog) -> None:
    snapshot = grown(log, large_topic(log))
    storage.delete([name for name in checkpoint_files(storage) if not paths.base_of_checkpoint(name)])
    folder = CommitsFolder.of(storage.list_after(paths.COMMITS_DIR))
    assert ensure_checkpoint(storage, snapshot, folder)
    full = [name for name in checkpoint_files(storage) if not paths.base_of_checkpoint(name)]
    assert [paths.parse_checkpoint_file(name) for name in full] == [snapshot.version], "one was written"


def test_two_full_checkpoints_follow_the_horizon(storage: Storage, log: CommitLog) -> None:
    """A flipped byte in a single one would lose the topic, since older commits are deleted."""
    snapshot = grown(log, large_topic(log), 2 * EVERY + 1)
    assert ensure_checkpoint(storage, snapshot, CommitsFolder.of(storage.list_after(paths.COMMITS_DIR)))
    full = [name for name in checkpoint_files(storage) if not paths.base_of_checkpoint(name)]
    assert [paths.parse_checkpoint_file(name) for name in full] == [EVERY, snapshot.version]
    storage.delete([full[0]])
    storage.put(full[0], b"no checkpoint")
    assert commit_log(storage).load() == snapshot


@pytest.mark.long
def test_a_closing_process_finishes_its_started_checkpoint(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("root")
    program = f"""
import distlog
from distlog.core.commits import checkpoint, snapshot_loader
checkpoint.LARGE_ROWS = 1
topic = distlog.create({str(folder / "clicks")!r}, 1)
for _ in range(100):
    topic.append([{{"value": "v"}}])
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert checkpoints(Storage(str(folder / "clicks"))) == [100]


def test_an_append_does_not_wait_for_a_large_checkpoint(
    storage: Storage, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr(snapshot_loader, "begin", started.append)
    snapshot = append(log, large_topic_without_wait(log), EVERY)
    assert (checkpoints(storage), len(started)) == ([], 2)
    started[-1]()
    assert checkpoints(storage) == [10], "of the newest state"
    assert commit_log(storage).load() == snapshot


def large_topic_without_wait(log: CommitLog) -> Snapshot:
    _, snapshot = put_commit(
        log, log.create(2, CONFIG), "append", lambda _: [Add(segment(0, base, 1)) for base in range(200)]
    )
    return append(log, snapshot, EVERY - 1, partition=1)


ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 2)), max_size=30)


@pytest.mark.long
@given(base=ROWS, rows=ROWS, keyed=st.booleans())
@examples(300)
def test_any_table_can_be_changed_into_any_other(
    base: list[tuple[int, int, int]], rows: list[tuple[int, int, int]], keyed: bool
) -> None:
    old_table, after = table(base, keyed), table(rows, keyed)
    changes = RowChanges.between(old_table, after, ("first", "second" if keyed else None))
    assert changes.applied(old_table).equals(after)
    same = RowChanges.between(after, after, ("first", "second" if keyed else None))
    assert (len(same.removed_rows), len(same.added_rows)) == (0, 0)


def table(rows: list[tuple[int, int, int]], keyed: bool) -> pa.RecordBatch:
    if keyed:
        rows = list({row[:2]: row for row in reversed(rows)}.values())
    rows = sorted(rows, key=lambda row: row[: 1 + keyed])
    ranges = pa.list_(pa.struct([("a", pa.int64())]))
    lists = pa.array([[{"a": value}] * value for *_, value in rows], ranges)
    columns = [integers([row[0] for row in rows], pa.int32()), integers([row[1] - 3 for row in rows])]
    return pa.RecordBatch.from_arrays(
        [*columns, texts([str(row[2]) for row in rows]), lists], names=["first", "second", "text", "list"]
    )


@pytest.mark.parametrize("removed", [[3], [-1], [1, 0], [1, 1]])
def test_changes_of_missing_rows_are_refused(removed: list[int]) -> None:
    base = pa.RecordBatch.from_arrays([integers(np.arange(3))], names=["first"])
    with pytest.raises(ValueError, match="do not exist"):
        RowChanges(np.array(removed), np.array([], np.int64), base.slice(0, 0)).applied(base)
    with pytest.raises(ValueError, match="do not exist"):
        RowChanges(np.array([], np.int64), np.array([4]), base.slice(0, 1)).applied(base)


@pytest.mark.long
@given(seed=st.integers(0, 2**32))
@examples(5)
def test_commits_and_both_kinds_of_checkpoints_hold_the_same_state(seed: int) -> None:
    draw, storage = Random(seed), topic_storage(f"memory://{uuid.uuid4().hex}")
    clock = Clock()
    log = commit_log(storage, clock)
    snapshot, base = log.create(4, CONFIG), ""
    for step in range(40):
        clock.now_ms += draw.choice([1, 1000, DAY_MS])
        _, snapshot = put_commit(log, snapshot, "append", lambda head: drawn(draw, head) or None)
        if step == draw.randrange(5, 20) or step == 5:
            base = checkpoint.write(storage, snapshot)
        elif base:
            name = checkpoint.write_incremental(storage, snapshot, base, 100)
            if name is not None:
                assert checkpoint.read(storage, name) == snapshot
                assert checkpoint.read(storage, name).transactions == snapshot.transactions
    storage.delete([file.name for file in storage.list(paths.COMMITS_DIR)])


def drawn(draw: Random, head: Snapshot) -> list[Action]:
    """Return random actions on segments, batches and producers."""
    number = draw.randrange(4)
    state = head.partitions[number]
    kind = draw.randrange(5)
    if kind == 0 and len(state.segments) > 1:
        old = state.segments[draw.randrange(len(state.segments))]
        new = segment(number, old.base_offset, old.next_offset - old.base_offset, read_version=head.version)
        return [Remove(number, old.stem), *([Add(new)] if draw.randrange(2) else [])]
    if kind == 1:
        batch = draw.choice("abc"), draw.choice([draw.randrange(40), "x"])
        return [] if head.transactions.has(*batch) else [SetTransaction(*batch, {0: (0, 1)})]
    if kind == 2:
        last = head.transactions.newest("ordered") or 0
        return [SetTransaction("ordered", last + draw.randrange(1, 4), {}, in_order=True)]
    added = segment(number, state.log_end_offset, 5, read_version=head.version, has_producers=kind == 3)
    end = added.next_offset - 1
    producer_batch = ProducerBatch(draw.randrange(6), 0, draw.randrange(9) + 4, end, 4, 1, 0, -1)
    return [Add(added), *([ProducerBatches({number: [producer_batch]})] if kind == 3 else [])]
