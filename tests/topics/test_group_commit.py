"""Group commit on an object store: one writer commits all pending appends, each once."""

from __future__ import annotations

import dataclasses
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from commits import put_commit
from crc32c import crc32c
from topics import contents, topic_on, values

from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.commits.actions import Add, Commit, Drop, SetLogStartOffset, SetTransaction
from distlog.core.commits.commit_log import EXISTENCE_CHECK_S, CommitRace
from distlog.core.commits.deduplication import TAIL_LIMIT
from distlog.core.commits.group_commit import (
    _COMMON_TEXT,
    LEAVE_ONE_OF,
    LONGEST_WAIT_S,
    MAX_PENDING_BYTES,
    PATIENCE_S,
    AppendRace,
    AppendTicket,
    CommitHistory,
    pending_append,
    pending_file,
)
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.config import TopicConfig
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    StorageDeniedError,
    StorageError,
    StorageRefusedError,
    TransactionTooOldError,
)
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

ROOT = Path(__file__).parents[2]
BATCH = SetTransaction("app", 1, {})


@pytest.fixture(autouse=True)
def all_appends_are_committed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits leave no append in the queue, except in tests of `turns`."""
    if "turns" not in request.fixturenames:
        monkeypatch.setattr("distlog.core.commits.group_commit.LEAVE_ONE_OF", 1000)


@pytest.fixture
def turns() -> int:
    """The number of pending appends from which each commit names the next leader."""
    return LEAVE_ONE_OF


@pytest.fixture
def topic(memory_url: Address) -> Topic:
    return topic_on(Storage(*memory_url), 2)


def written(topic: Topic, *numbers: int, partition: int = 0) -> Sequence[SegmentInfo]:
    """Write the segments of an append without a commit."""
    appender = topic.appender()
    appender.append(values(numbers, partition=partition))
    return list(appender.close())


def append_of(
    topic: Topic, *numbers: int, batch: SetTransaction | None = None, is_keyed: bool = False, partition: int = 0
) -> Commit:
    append = pending_append(topic.snapshot, written(topic, *numbers, partition=partition), batch, is_keyed=is_keyed)
    assert append is not None
    return append


def stem_of(append: Commit) -> str:
    first = append.actions[0]
    assert isinstance(first, Add)
    return first.segment.stem


def leave(topic: Topic, append: Commit, name: str | None = None) -> None:
    """Queue the append as its writer does."""
    topic.storage.put(paths.pending_file(name or stem_of(append)), append.encode())


def ticket_of(topic: Topic, append: Commit, history: CommitHistory = CommitHistory()) -> AppendTicket:  # noqa: B008
    """Return the ticket of an append in a process that has read the `history`."""
    return AppendTicket(topic.handle.append_queue, append, topic.snapshot, history, None)


@contextmanager
def outcome(ticket: AppendTicket) -> Iterator[None]:
    """Raise the error of the block as the writer of the append does."""
    try:
        yield
    except Exception as error:
        ticket.raise_if_in_doubt(error)
        raise


def group_of(topic: Topic, append: Commit | None = None) -> AppendTicket:
    """Return the ticket of a queued append."""
    group = ticket_of(topic, append or append_of(topic, 1))
    group.join(0)
    return group


def waiting(topic: Topic) -> list[str]:
    return [file.name for file in topic.storage.list(paths.PENDING_DIR)]


def committed(topic: Topic, ticket: AppendTicket | None, append: Commit) -> Commit:
    """Commit the append together with the queued ones."""
    adds = [action.segment for action in append.actions if isinstance(action, Add)]
    race = CommitRace(topic.log, topic.snapshot, "append")
    with race if ticket is None else AppendRace(ticket, topic.snapshot, None) as race:
        for head in race:
            ends = head.partitions.log_end_offsets.tolist()
            race.put([Add(segment.moved_to(ends[segment.partition])) for segment in adds])
    assert race.commit is not None
    return race.commit


def test_queued_appends_are_in_one_commit(topic: Topic) -> None:
    for numbers, partition in (((2, 3), 0), ((4,), 1), ((5,), 0)):
        leave(topic, append_of(topic, *numbers, batch=None, partition=partition))
    own_append = append_of(topic, 1)
    commit = committed(topic, group_of(topic, own_append), own_append)
    stored = contents(topic.refresh())
    assert topic.version == commit.version == 1
    assert stored[1] == [b"v4"]
    assert stored[0][0] == b"v1"
    assert sorted(filter(None, stored[0])) == [b"v1", b"v2", b"v3", b"v5"]
    assert waiting(topic) == []


def test_an_append_of_a_dead_writer_is_committed_once(topic: Topic) -> None:
    orphan = append_of(topic, 9)
    leave(topic, orphan)
    for number in (1, 2):
        own_append = append_of(topic, number)
        committed(topic, group_of(topic, own_append), own_append)
        leave(topic, orphan)
        topic.refresh()
    assert Counter(contents(topic)[0]) == {b"v1": 1, b"v2": 1, b"v9": 1}


def with_first(append: Commit, **changes: Any) -> Commit:
    first, *more = append.actions
    assert isinstance(first, Add)
    return dataclasses.replace(append, actions=(Add(dataclasses.replace(first.segment, **changes)), *more))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda append: dataclasses.replace(append, topic_id=str(uuid.uuid4())), id="another topic"),
        pytest.param(lambda append: dataclasses.replace(append, operation="compact"), id="no append"),
        pytest.param(lambda append: with_first(append, partition=2), id="a partition that is not there"),
        pytest.param(
            lambda append: dataclasses.replace(append, actions=(*append.actions, SetLogStartOffset(0, 0))),
            id="another action",
        ),
        pytest.param(
            lambda append: dataclasses.replace(append, actions=(*append.actions, BATCH)), id="a batch that is there"
        ),
        pytest.param(
            lambda append: dataclasses.replace(append, actions=(*append.actions, SetTransaction("own", 2, {}))),
            id="a batch of the writer's own application",
        ),
        pytest.param(
            lambda append: dataclasses.replace(append, actions=append.actions * 2), id="a segment that is added twice"
        ),
        pytest.param(lambda append: with_first(append, append_time_ms=7), id="a time that only a commit gives"),
    ],
)
def test_invalid_queued_appends_are_not_committed(topic: Topic, change: Callable[[Commit], Commit]) -> None:
    topic.append(values([0], partition=0), app_id="app", batch_id=1)
    topic.refresh()
    leave(topic, change(append_of(topic, 5)))
    leave(topic, append_of(topic, 6))
    own_append = append_of(topic, 1)
    group = group_of(topic, own_append)
    actions = [*own_append.actions, SetTransaction("own", 1, {})]
    added = [action for action in group.group_actions(topic.snapshot, actions) if isinstance(action, Add)]
    assert len(added) == 1
    assert topic.append(values([2], partition=0)).offsets == {0: (1, 2)}


@pytest.mark.parametrize("damage", [b"", b"{}", b"x" * (MAX_PENDING_BYTES + 1)])
def test_a_damaged_file_is_ignored(topic: Topic, damage: bytes) -> None:
    append = append_of(topic, 5)
    leave(topic, append, name=stem_of(append_of(topic, 6)))
    topic.storage.put(paths.pending_file(stem_of(append)), damage)
    topic.storage.put(f"{paths.PENDING_DIR}/anything", damage)
    own_append = append_of(topic, 1)
    assert group_of(topic, own_append).group_actions(topic.snapshot, own_append.actions) == []


def test_a_compacted_topic_commits_only_appends_checked_for_keys(topic: Topic) -> None:
    leave(topic, append_of(topic, 5))
    leave(topic, append_of(topic, 6, is_keyed=True))
    own_append = append_of(topic, 1)
    group = group_of(topic, own_append)
    assert len(group.group_actions(topic.snapshot, own_append.actions)) == 2
    compacted = dataclasses.replace(topic.snapshot, config=TopicConfig.parse({"cleanup.policy": "compact"}))
    assert len(group.group_actions(compacted, own_append.actions)) == 1


def test_an_append_older_than_the_writers_history_is_left_to_others(topic: Topic) -> None:
    leave(topic, append_of(topic, 5))
    topic.append(values([0]))
    topic.refresh()
    own_append = append_of(topic, 1)
    assert group_of(topic, own_append).group_actions(topic.snapshot, own_append.actions) == []


def test_an_append_below_the_vacuum_horizon_is_not_committed(topic: Topic) -> None:
    leave(topic, append_of(topic, 5))
    own_append = append_of(topic, 1)
    group = group_of(topic, own_append)
    raised = dataclasses.replace(topic.snapshot, gc_floor=1)
    assert len(group.group_actions(topic.snapshot, own_append.actions)) == 1
    assert group.group_actions(raised, own_append.actions) == []


def test_one_application_has_one_batch_in_a_commit(topic: Topic) -> None:
    leave(topic, append_of(topic, 5, batch=BATCH))
    leave(topic, append_of(topic, 6, batch=BATCH))
    own_append = append_of(topic, 1)
    added = group_of(topic, own_append).group_actions(topic.snapshot, own_append.actions)
    assert [type(action) for action in added] == [Add, SetTransaction]


def test_a_batch_id_without_space_is_left_to_its_writer(topic: Topic) -> None:
    many = [SetTransaction("job", uuid.uuid4().hex, {}) for _ in range(TAIL_LIMIT + 1)]
    put_commit(topic.handle.log, topic.snapshot, "append", lambda _: many)
    full = dataclasses.replace(topic.refresh().snapshot, config=TopicConfig.parse({"batch.ids.bytes": 0}))
    leave(topic, append_of(topic, 5, batch=SetTransaction("other", "new", {})))
    leave(topic, append_of(topic, 6, batch=SetTransaction("stream", 6, {}, in_order=True)))
    own_append = append_of(topic, 1)
    added = group_of(topic, own_append).group_actions(full, own_append.actions)
    assert [action.app_id for action in added if isinstance(action, SetTransaction)] == ["stream"]
    assert len(group_of(topic, own_append).group_actions(topic.snapshot, own_append.actions)) == 4


def test_an_invalid_append_does_not_stop_the_others(topic: Topic) -> None:
    append = append_of(topic, 5)
    part = append.actions[0].segment  # type: ignore[union-attr]
    parts = [dataclasses.replace(part, partition=number, log_position=0) for number in (0, 1)]
    leave(topic, dataclasses.replace(append, actions=tuple(map(Add, parts))))
    leave(topic, append_of(topic, 6))
    own_append = append_of(topic, 1)
    committed(topic, group_of(topic, own_append), own_append)
    assert contents(topic.refresh()) == {0: [b"v1"], 1: []}


def queue_by_name(topic: Topic, append: Commit) -> str:
    """Queue the append under the name of its contents, and return the file name."""
    data = append.encode()
    file = pending_file(append, data, topic.storage)
    topic.storage.put(file, data)
    return file


def test_a_commit_reads_no_file_of_appends_in_names(topic: Topic) -> None:
    appends = [append_of(topic, 2, 3), append_of(topic, 4, partition=1, batch=BATCH)]
    assert all(queue_by_name(topic, append).endswith(".append") for append in appends)
    own_append = append_of(topic, 1)
    group, gets = group_of(topic, own_append), topic.storage.counters.gets
    added = group.group_actions(topic.snapshot, own_append.actions)
    assert topic.storage.counters.gets == gets
    segments = [action.segment for action in added if isinstance(action, Add)]
    assert {(segment.partition, segment.base_offset, segment.record_count) for segment in segments} == {
        (0, 1, 2),
        (1, 0, 1),
    }
    commit = committed(topic, group, own_append)
    assert any(isinstance(action, SetTransaction) for action in commit.actions)
    assert waiting(topic) == []


def test_a_foreign_name_is_ignored(topic: Topic) -> None:
    append = append_of(topic, 5)
    other = dataclasses.replace(append_of(topic, 6), topic_id=str(uuid.uuid4()))
    stem, name = stem_of(append), paths.actions_in_pending_name(pending_file(append, append.encode(), topic.storage))
    assert name is not None
    wrong = paths.actions_in_pending_name(pending_file(other, other.encode(), topic.storage))
    assert wrong is not None
    for name_stem, letters in (
        (stem, name[:-9]),
        (stem, "A"),
        (stem_of(append_of(topic, 7)), name),
        (stem_of(other), wrong),
    ):
        topic.storage.put(paths.pending_file(name_stem, letters), b"x")
    own_append = append_of(topic, 1)
    assert group_of(topic, own_append).group_actions(topic.snapshot, own_append.actions) == []


def test_the_dictionary_of_names_is_part_of_the_format() -> None:
    assert crc32c(_COMMON_TEXT.encode()) == 4008998440
    assert f"CRC-32C {crc32c(_COMMON_TEXT.encode())}" in (ROOT / "docs" / "formats.md").read_text()


def test_the_name_of_an_append_to_one_partition_is_short(topic: Topic) -> None:
    append = append_of(topic, *range(100), batch=BATCH)
    assert len(pending_file(append, append.encode(), topic.storage)) < 300


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that the store has refused: parts may have 255 bytes, as in MinIO and RustFS."""
    put, names = Storage.put, list[str]()

    def put_short(self: Storage, name: str, data: bytes) -> None:
        if max(len(part.encode()) for part in name.split("/")) > 255:
            names.append(name)
            raise StorageRefusedError("the name is too long", file=name)
        put(self, name, data)

    monkeypatch.setattr(Storage, "put", put_short)
    return names


def long_append(topic: Topic, number: int) -> Commit:
    """Return an append that is too long for a name."""
    append = append_of(topic, number, batch=SetTransaction("-".join(uuid.uuid4().hex for _ in range(8)), 1, {}))
    assert len(pending_file(append, append.encode(), topic.storage)) > 300
    return append


def test_an_append_gets_a_short_name_if_the_store_refuses_a_long_one(
    topic: Topic, memory_url: Address, refused: list[str]
) -> None:
    append = long_append(topic, 7)
    group = ticket_of(topic, append)
    assert group.join(0), "it waits for others"
    assert len(refused) == 1
    assert waiting(topic) == [paths.pending_file(stem_of(append))]
    other = topic_on(Storage(*memory_url))
    own_append = append_of(other, 1)
    commit = committed(other, group_of(other, own_append), own_append)
    group.observe([commit])
    assert group.group_commit == commit
    assert contents(topic.refresh())[0] == [b"v1", b"v7"]
    assert waiting(topic) == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [(StorageDeniedError("no"), CommitConflictError), (StorageError("no reply"), CommitStateUnknownError)],
)
def test_an_append_may_be_committed_by_others_unless_the_store_refused_it(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, answer: StorageError, error: type[Exception]
) -> None:
    append = append_of(topic, 1)

    def fails(*_: object) -> None:
        raise answer

    monkeypatch.setattr(Storage, "put", fails)
    group = group_of(topic, append)
    assert group.is_queued == (error is CommitStateUnknownError)
    with pytest.raises(error), outcome(group):
        raise CommitConflictError("other commits came first until the deadline")


def test_a_crowded_commit_leaves_the_oldest_append_as_the_next_leader(topic: Topic, turns: int) -> None:
    pending = sorted((append_of(topic, number) for number in range(10, 11 + turns)), key=stem_of)
    for append in pending:
        queue_by_name(topic, append)
    groups = [ticket_of(topic, append) for append in pending]
    for group in groups:
        assert group.join(100)
    own_append = append_of(topic, 1)
    commit = committed(topic_on(topic.storage), group_of(topic, own_append), own_append)
    assert commit.next_append == stem_of(pending[0])
    for group in groups:
        group.observe([commit])
    assert [group.group_commit is not None for group in groups] == [False, *[True] * turns]
    assert groups[0].is_wait_over(101), "it is its turn"


def test_unnamed_writers_wait_for_the_named_one_first(topic: Topic) -> None:
    group, earlier = queued(topic, 3)
    own_append = append_of(topic, 1)
    commit = committed(topic_on(topic.storage), None, own_append)
    group.observe([dataclasses.replace(commit, next_append=stem_of(earlier[0]))])
    assert not group.is_wait_over(101)
    assert not group.is_wait_over(100.9 + PATIENCE_S)
    assert not group.is_wait_over(101 + PATIENCE_S), "one more is before it, besides the one that seems to be dead"
    assert group.is_wait_over(101 + 2 * PATIENCE_S)


def test_a_writer_with_history_commits_earlier_appends(topic: Topic) -> None:
    queue_by_name(topic, append_of(topic, 5))
    base = topic.snapshot
    topic.append(values([0]))
    (commit,) = topic.handle.log.commits(1, 2)
    own_append = append_of(topic, 1)
    group = ticket_of(topic, own_append, CommitHistory(base.version, base.commit_id).with_next(commit))
    group.join(0)
    assert len(group.group_actions(topic.snapshot, own_append.actions)) == 1
    stranger = ticket_of(topic, own_append, CommitHistory(base.version, str(uuid.uuid4())))
    stranger.join(0)
    assert stranger.group_actions(topic.snapshot, own_append.actions) == []


def queued(topic: Topic, count: int) -> tuple[AppendTicket, list[Commit]]:
    """Queue `count` appends; return the ticket of the last one and the earlier appends."""
    *earlier, last = sorted((append_of(topic, number) for number in range(count)), key=stem_of)
    for append in earlier:
        leave(topic, append)
    group = ticket_of(topic, last)
    assert group.join(100)
    return group, earlier


def test_each_append_waits_for_earlier_ones_up_to_a_limit(topic: Topic) -> None:
    group, _ = queued(topic, 3)
    assert not group.is_wait_over(100)
    assert not group.is_wait_over(100 + 1.9 * PATIENCE_S)
    assert group.is_wait_over(100 + 2 * PATIENCE_S)


def test_a_commit_restarts_the_wait_of_queued_appends(topic: Topic) -> None:
    group, earlier = queued(topic, 3)
    assert not group.is_wait_over(100)
    group.observe([committed(topic, None, earlier[0])])
    assert not group.is_wait_over(101)
    assert group.is_wait_over(101 + PATIENCE_S)


def test_the_wait_in_a_long_queue_is_bounded(topic: Topic) -> None:
    group, _ = queued(topic, 30)
    assert not group.is_wait_over(100 + 0.9 * LONGEST_WAIT_S)
    for number in range(3):
        later = append_of(topic, 100 + number, partition=1)
        group.observe([committed(topic_on(topic.storage), None, later)])
        assert not group.is_wait_over(100 + 0.9 * LONGEST_WAIT_S)
    assert group.is_wait_over(100 + LONGEST_WAIT_S)
    assert not group.join(100 + LONGEST_WAIT_S), "then it races"


@pytest.mark.parametrize(
    ("call", "error"),
    [("list_after", StorageDeniedError("no")), ("put", FileNotFoundError("aborted"))],
)
def test_without_a_queue_the_append_commits_alone(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception
) -> None:
    append = append_of(topic, 1)

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(Storage, call, fails)
    group = group_of(topic, append)
    assert group.is_wait_over(0)
    assert not group.join(0)
    assert group.group_actions(topic.snapshot, []) == []


def test_an_error_after_queueing_is_an_unknown_outcome(topic: Topic) -> None:
    group = ticket_of(topic, append_of(topic, 1))
    with pytest.raises(StorageError), outcome(group):
        raise StorageError("before it was left")
    assert group.join(0)
    with pytest.raises(CommitStateUnknownError, match="check whether its records exist"), outcome(group):
        raise StorageError("after it was left")
    with pytest.raises(TransactionTooOldError), outcome(group):
        raise TransactionTooOldError("no later commit takes the files")
    group.observe([dataclasses.replace(append_of(topic, 2), version=1, actions=(Drop(),))])
    with pytest.raises(CommitConflictError, match="dropped"), outcome(group):
        raise CommitConflictError("dropped")


def test_a_gap_in_the_history_is_an_unknown_outcome(topic: Topic) -> None:
    group = ticket_of(topic, append_of(topic, 1))
    later = dataclasses.replace(topic.snapshot, version=7)
    group.lose_track(later)
    assert group.history.version == 7
    assert group.join(0)
    with pytest.raises(CommitStateUnknownError, match="append may be in a commit"):
        group.lose_track(dataclasses.replace(later, version=9))
    group.observe([dataclasses.replace(append_of(topic, 2), version=8, actions=(Drop(),))])
    group.lose_track(dataclasses.replace(later, version=9))
    with pytest.raises(CommitConflictError), outcome(group):
        raise CommitConflictError("the topic was dropped")


def test_a_race_finds_its_append_in_a_commit_after_the_start(topic: Topic) -> None:
    # the commit at the start of the race is deleted, so the race starts again at the head
    now_s = 0.0
    topic.log.monotonic = lambda: now_s
    append, other = append_of(topic, 1), append_of(topic, 2)
    ticket, base = ticket_of(topic, append), topic.snapshot
    assert ticket.join(now_s)
    with AppendRace(ticket, base, None) as race:
        for number, _ in enumerate(race):
            assert number == 0, "the append would be committed again"
            group_commit = committed(topic, group_of(topic, other), other)
            checkpoint.write(topic.storage, topic.refresh().snapshot)
            topic.storage.delete([paths.commit_file(base.version)])
            now_s += EXISTENCE_CHECK_S
    assert race.commit == group_commit
    assert len(group_commit.actions) == 2


def test_vacuum_deletes_expired_queued_appends(topic: Topic) -> None:
    topic.alter_config({"file.delete.delay.ms": 0})
    leave(topic, append_of(topic, 5))
    for number in range(3):
        topic.append(values([number]))
    young = append_of(topic.refresh(), 6)
    leave(topic, young)
    assert len(waiting(topic)) == 2
    topic.vacuum()
    assert waiting(topic) == [paths.pending_file(stem_of(young))]
