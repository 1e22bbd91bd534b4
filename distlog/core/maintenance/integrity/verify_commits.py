"""Checks that a topic's commits are all there and follow each other, and that its checkpoints agree with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from distlog.core import paths
from distlog.core.commits.checkpoints import checkpoint
from distlog.core.commits.commit_files import CommitFiles
from distlog.core.commits.format.commit import Commit
from distlog.core.commits.state.fold import apply
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.errors import CorruptMetadataError
from distlog.core.maintenance.integrity.anomalies import Anomaly, Word
from distlog.core.storage.storage import Storage

#: How many commits are read at the same time.
_GROUP = 64


def verify_commits(storage: Storage, snapshot: Snapshot) -> Iterator[Anomaly]:
    """What is wrong with the commits and checkpoints up to `snapshot`, and with `snapshot` itself.

    Nothing is checked behind a missing or damaged commit, since the state there is not known.
    """
    checkpoints = _checkpoints(storage)
    state: Snapshot | None = None
    try:
        for commit in _commits(storage, snapshot.version):
            state = apply(state, commit)
            for name in checkpoints.pop(state.version, ()):
                yield from _compare(storage, name, state)
    except CorruptMetadataError as error:
        yield Anomaly.of(_word(storage, 0 if state is None else state.version + 1), error)
        return
    if state is None or not _same(state, snapshot):
        yield Anomaly("metadata_mismatch", "the commits give another state than the one that was opened")


def _commits(storage: Storage, last: int) -> Iterator[Commit]:
    for group in CommitFiles(storage).follow(0, end=last + 1, known=last, group=_GROUP):
        yield from group


def _checkpoints(storage: Storage) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for file in storage.list(paths.COMMITS_DIR):
        version = checkpoint.version_of(file.name)
        if version is not None:
            found.setdefault(version, []).append(file.name)
    return found


def _compare(storage: Storage, name: str, state: Snapshot) -> Iterator[Anomaly]:
    try:
        same = _same(checkpoint.read(storage, name), state)
    except FileNotFoundError:
        return  # vacuum deleted it meanwhile
    except CorruptMetadataError as error:
        yield dataclasses.replace(Anomaly.of("checkpoint_mismatch", error), file=name)
        return
    if not same:
        yield Anomaly("checkpoint_mismatch", "the checkpoint says another thing than the commits: delete it", name)


def _same(left: Snapshot, right: Snapshot) -> bool:
    # fields that a newer library added to a checkpoint are not in the commits
    return _known(left) == _known(right)


def _known(snapshot: Snapshot) -> Snapshot:
    partitions = tuple(dataclasses.replace(state, unknown="") for state in snapshot.partitions)
    return dataclasses.replace(snapshot, partitions=partitions, unknown="")


def _word(storage: Storage, version: int) -> Word:
    try:
        storage.size(paths.commit_file(version))
    except FileNotFoundError:
        return "missing_commit"
    return "corrupt_commit"


def verify_table(snapshot: Snapshot) -> Iterator[Anomaly]:
    """The offsets that two segments of a partition hold, and those that no segment holds.

    Below the first dirty offset gaps are right: compaction may leave out offsets there.
    """
    for partition, state in enumerate(snapshot.partitions):
        for end, start in _seams(state):
            if start < end:
                message = f"two segments hold the offsets from {start} to {end}"
                yield Anomaly("offset_overlap", message, partition=partition, offset=start)
            elif start > max(end, state.first_dirty_offset):
                message = f"no segment holds the offsets from {end} to {start}"
                yield Anomaly("offset_gap", message, partition=partition, offset=end)


def _seams(state: PartitionState) -> list[tuple[int, int]]:
    """Pairs of the offset where one segment ends and the offset where the next one begins.

    The start and the end of the log are seams too.
    """
    starts, ends = state.segments.base_offsets.tolist(), state.segments.next_offsets.tolist()
    first = min([state.log_start_offset, *starts[:1]])
    return list(zip([first, *ends], [*starts, state.log_end_offset], strict=True))
